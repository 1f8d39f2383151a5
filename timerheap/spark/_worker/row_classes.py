"""The classes of rows whose fields are found without Python code."""

from __future__ import annotations

from functools import cache
from typing import Any

from pyspark.sql import Row

from timerheap._native._heap import RowField, row_getter

__all__ = ["row_class"]


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """Return the class of rows with these fields, a ``Row`` like any other but for the time of an access.

    ``Row`` is Python code that searches the names at each access, which takes longer than everything else
    that is done for a row. A row that is copied or pickled becomes a plain ``Row``.

    Examples
    --------
    >>> class_ = row_class(("key", "at"))
    >>> row = tuple.__new__(class_, ["a", 5])
    >>> row.at, row["key"], row[-1], isinstance(row, Row)
    (5, 'a', 5, True)
    """
    places = {name: names.index(name) for name in names}
    attributes = {name for name in names if not hasattr(Row, name) and not name.startswith("__")}
    members: dict[str, Any] = {name: RowField(places[name]) for name in attributes}
    members |= {"__getitem__": row_getter(places, Row.__getitem__)}
    members |= {name: getattr(Row, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type("Row", (Row,), members)
