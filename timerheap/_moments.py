"""Points in time: Python's datetimes in local time, with ``fold``, and epoch milliseconds of timers."""

from __future__ import annotations

import datetime
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from timerheap.errors import ArgumentValueError

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICRO = datetime.timedelta(microseconds=1)
_DAYS = datetime.timedelta(days=2)
OUT_OF_RANGE = OverflowError, ValueError, OSError
"""What Python's datetime raises outside of the years 1 to 9999."""


def local_time(moment: int | datetime.datetime) -> datetime.datetime:
    """Return a moment, epoch microseconds or a datetime with a zone, in local time, without a zone."""
    # As in PySpark. In the hour that is repeated when clocks go back, fold tells which one it is.
    # OverflowError: if the year there is not one from 1 to 9999
    micros = moment if isinstance(moment, int) else (moment - EPOCH) // _MICRO
    seconds, rest = divmod(micros, 1_000_000)
    try:
        return datetime.datetime.fromtimestamp(seconds).replace(microsecond=rest)
    except OUT_OF_RANGE:  # Python also computes the day before, and UTC
        inwards = _DAYS if micros < 0 else -_DAYS
        near = EPOCH + (micros * _MICRO + inwards)
        return near.astimezone().replace(tzinfo=None) - inwards


def moment_of(value: datetime.datetime) -> datetime.datetime:
    """Return a datetime with a zone: UTC, or the local one if Python has the year only there."""
    # A datetime without a zone is local time. OverflowError: if Python has the year in neither
    with suppress(*OUT_OF_RANGE):
        return value.astimezone(datetime.UTC)
    if value.tzinfo is not None:
        value = local_time((value - EPOCH) // _MICRO)
    near = value + (_DAYS if value.year == 1 else -_DAYS)  # Python also computes the days around
    aware = value.replace(tzinfo=near.astimezone().tzinfo)
    with suppress(OverflowError):
        return aware.astimezone(datetime.UTC)
    return aware


def micros_of(value: datetime.datetime) -> int:
    """Return a datetime in epoch microseconds; one without a zone is local time."""
    return (moment_of(value) - EPOCH) // _MICRO


def epoch_millis(name: str, time: Any) -> Any:
    """Return a datetime or datetime64 in epoch ms, rounded down, and everything else as it is.

    A datetime without a zone is local time, as in rows; a datetime64 is in UTC, as of a column of Arrow.

    name: named in errors
    """
    if isinstance(time, np.datetime64):
        return millis(name, time)[()]
    if not isinstance(time, datetime.datetime):
        return time
    if time != time:  # pandas' NaT
        raise ArgumentValueError(f"{name} must be a time, got {time!r}")
    if type(time) is not datetime.datetime:  # such as pandas' Timestamp
        time = datetime.datetime.combine(time.date(), time.timetz())
    return micros_of(time) // 1000


def millis(name: str, times: npt.ArrayLike) -> Any:
    """Return times, in epoch ms; see `epoch_millis`. Other columns are returned as they are."""
    if isinstance(times, np.ndarray) and times.dtype.kind not in "MO":
        return times
    with suppress(ValueError):  # of rows of different lengths, for which another error follows
        array = np.asarray(times)
        if array.dtype.kind == "O":
            return np.array([epoch_millis(name, time) for time in array.ravel()]).reshape(array.shape)
        if array.dtype.kind == "M" and not np.isnat(array).any():
            return array.astype("datetime64[ms]").astype(np.int64)
    return times
