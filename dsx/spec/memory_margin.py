"""The margin of memory that a search leaves, as the commands and the calls for it state it."""

from dsx.errors import InputError

FIELD = "assumptions.memory_margin"


def margin_setting(margin: object, stated: str) -> dict[str, float]:
    """Return the field that a margin sets, a share from 0 to 1; none if it is None.

    `stated` is how the margin was written. Raises InputError for what is no share.
    """
    if margin is None:
        return {}
    try:
        share = -1.0 if isinstance(margin, bool) else float(margin)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share <= 1:
        raise InputError(f"{stated}: a share from 0 to 1 is wanted, as 0.1 for 10 %")
    return {FIELD: share}
