"""Names that layers and blocks had before definitions had options, for the error that says what is written now."""

from dsx.spec.locate import packaged_data
from dsx.spec.yaml_text import load_document

_FILE = "former-names.yaml"


def written_now(name: str) -> str:
    """Return a message that says what is written now for a former name of a layer or block; "" for any other name."""
    data = load_document(packaged_data() / "layers" / _FILE).data
    found = data.get(name)
    return f"{name!r} is now written {found}" if isinstance(found, str) else ""
