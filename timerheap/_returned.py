"""Checks of the records that a method of a user-defined function returns."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from copy import deepcopy
from decimal import Decimal
from types import GeneratorType
from typing import Any, cast

from timerheap.row import Row

__all__ = ["detached", "records"]


def records(method: str, returned: object) -> Iterable[Any]:
    """Return an iterable of the records that a method returned or yields; None stands for no records.

    A single record raises TypeError, because iterating over it would produce its parts instead: the
    characters of a string, the keys of a dict, the fields of a tuple or Row, or the columns of a table.

    Parameters
    ----------
    method : str
        The name of the method, for the error.
    returned : object
        The return value of the method.

    Raises
    ------
    TypeError
        If `returned` is a single record, or not iterable.

    Examples
    --------
    >>> records("on_timer", ["late"])
    ['late']
    >>> records("on_timer", "late")
    Traceback (most recent call last):
    TypeError: on_timer must yield records or return an iterable of them, got 'late' (str); yield it, or
        return [it]
    """
    if type(returned) in _PLAIN:  # most are; the checks below take a microsecond
        return cast(Iterable[Any], returned)
    if returned is None or (isinstance(returned, tuple) and not returned):
        return ()
    one = isinstance(returned, str | bytes | bytearray | Mapping | tuple | Row) or hasattr(returned, _TABLE)
    if one or not isinstance(returned, Iterable):
        shown = " ".join(repr(returned).split())
        raise TypeError(
            f"{method} must yield records or return an iterable of them, got "
            f"{shown if len(shown) <= 80 else shown[:77] + '...'} ({type(returned).__name__}); yield it, "
            "or return [it]"
        )
    return returned


_PLAIN = (GeneratorType, list)
_TABLE = "__arrow_c_stream__"  # an attribute of the tables and columns of pyarrow, pandas and others
_CONSTANT = {
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    Decimal,
    datetime.date,
    datetime.datetime,
    datetime.timedelta,
}


def detached(value: Any) -> Any:
    """Return a value that later changes of `value` do not reach: itself if nothing in it can change.

    Examples
    --------
    >>> row, seen = (1, "a"), [1]
    >>> detached(row) is row, detached(seen) is seen
    (True, False)
    """
    if type(value) in _CONSTANT or (
        isinstance(value, tuple) and all(type(each) in _CONSTANT for each in value)
    ):
        return value
    return deepcopy(value)
