"""What a user's method hands back: records one by one, never the parts of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["records"]


def records(method: str, returned: object) -> Iterable[Any]:
    """Return the records that a method has returned or yields; None stands for no records.

    One record by itself is refused, for to iterate over it would make records of its parts: a character of
    a string, a key of a dict, a field of a tuple or Row, a column of a table.

    Parameters
    ----------
    method : str
        Named in the error.
    returned : object

    Raises
    ------
    TypeError

    Examples
    --------
    >>> records("on_timer", ["late"])
    ['late']
    >>> records("on_timer", "late")
    Traceback (most recent call last):
    TypeError: on_timer must yield records or return an iterable of them, got 'late' (str); yield it, or
        return [it]
    """
    if returned is None or (isinstance(returned, tuple) and not returned):
        return ()
    one = isinstance(returned, str | bytes | bytearray | Mapping | tuple) or hasattr(returned, _TABLE)
    if one or not isinstance(returned, Iterable):
        shown = " ".join(repr(returned).split())
        raise TypeError(
            f"{method} must yield records or return an iterable of them, got "
            f"{shown if len(shown) <= 80 else shown[:77] + '...'} ({type(returned).__name__}); yield it, "
            "or return [it]"
        )
    return returned


_TABLE = "__arrow_c_stream__"  # what tables and columns of pyarrow, pandas and others have
