"""Names of columns that are computed from an expression of the user's; functions do not see these columns."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["computed_name", "shown_name", "visible"]

_COMPUTED = "__timerheap_column"


def computed_name(number: int, name: str) -> str:
    """Return the name of a computed column, which has a number that is unique among the columns.

    Examples
    --------
    >>> computed_name(3, "lower(k)")
    '__timerheap_column3:lower(k)'
    """
    return f"{_COMPUTED}{number}:{name}"


def shown_name(name: str) -> str:
    """Return the name that users know a column by: that of the expression if the column is computed.

    Examples
    --------
    >>> shown_name(computed_name(3, "lower(k)")), shown_name("k")
    ('lower(k)', 'k')
    """
    return name.split(":", 1)[1] if name.startswith(_COMPUTED) else name


def visible(names: Iterable[str]) -> list[str]:
    """Return the names of the columns that are not computed."""
    return [name for name in names if not name.startswith(_COMPUTED)]
