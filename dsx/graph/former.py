"""What layers, blocks and fields were called before definitions had options, for the message where one is asked for."""

from dsx.spec.locate import packaged_data
from dsx.spec.yaml_text import load_document

_FILE = "former-names.yaml"


def formerly(name: str) -> str:
    """Return what is written now in the place of a former name of a layer or block, as a message; else nothing."""
    data = load_document(packaged_data() / "layers" / _FILE).data
    found = data.get(name)
    return f"{name!r} is now written {found}" if isinstance(found, str) else ""
