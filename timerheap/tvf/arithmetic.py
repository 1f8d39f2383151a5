"""Columns of int64, converted without silent casts and added without silent overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Int64s", "add", "column", "floor_to"]

Int64s = NDArray[np.int64] | Sequence[int]


def column(name: str, values: Int64s | int, length: int | None = None) -> NDArray[np.int64]:
    """Convert `values` to a one-dimensional column of int64.

    Parameters
    ----------
    name : str
        The name of the argument in errors.
    values : array_like of int, shape (n,)
        Integers of any width. If `length` is given, a single int is repeated.
    length : int, optional
        The required number of values.

    Raises
    ------
    TypeError
        If the values are not integers: floats and timestamps of other units are not cast.
    OverflowError
        If a value does not fit into int64.
    ValueError
        If the shape is wrong, or there are nulls.

    Examples
    --------
    >>> column("timestamps", [1, 2])
    array([1, 2])
    >>> column("timestamps", [1.5])
    Traceback (most recent call last):
    TypeError: timestamps must be integers (int64), got float64
    """
    array = np.asarray(values)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name} must not be null, got {int(values.mask.sum())} nulls; filter them out")
    if length is not None and array.ndim == 0:
        array = np.broadcast_to(array, length)
    if not array.size:
        array = array.astype(np.int64)
    if array.dtype == object or array.dtype == np.uint64:
        try:
            array = np.array([int.__index__(value) for value in array.tolist()], np.int64)
        except (TypeError, OverflowError) as error:
            raise type(error)(
                f"{name} must be integers that fit into 64 bits, got {array.tolist()!r}"
            ) from None
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers (int64), got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} must have {length} rows, like the other columns, got {len(array)}")
    return array.astype(np.int64, copy=False)


def add(values: NDArray[np.int64], by: NDArray[np.int64] | int, what: str) -> NDArray[np.int64]:
    """Add two columns, or a number to a column; an OverflowError names `what` and the values.

    Examples
    --------
    >>> add(np.array([1, 2**63 - 1]), 1, "a window's end")
    Traceback (most recent call last):
    OverflowError: a window's end must fit into int64, got 9223372036854775807 + 1
    """
    addends = np.asarray(by, np.int64)  # with a Python int, NumPy would raise its own error
    total: NDArray[np.int64] = values + addends
    if not addends.ndim and _fits(values, lambda value: value + int(addends)):
        return total
    wrong = ((values ^ total) & (addends ^ total)) < 0
    if wrong.any():
        at = int(np.argmax(wrong))
        addend = int(np.broadcast_to(addends, values.shape)[at])
        raise OverflowError(f"{what} must fit into int64, got {int(values[at])} + {addend}")
    return total


def floor_to(values: NDArray[np.int64], step: int, offset: int, what: str) -> NDArray[np.int64]:
    """Round down to the multiples of `step`, shifted by `offset` (Flink: ``getWindowStartWithOffset``).

    Examples
    --------
    >>> floor_to(np.array([-1, 0, 7, 12]), 10, 2, "a window's start")
    array([-8, -8,  2, 12])
    """
    shift = offset % step
    if _fits(values, lambda value: (value - shift) // step * step):
        return (values - shift) // step * step + shift
    remainder = np.mod(np.mod(values, step) - shift, step)
    return add(values, -remainder, what)


def _fits(values: NDArray[np.int64], function: Callable[[int], int]) -> bool:
    """Return whether the results of a function that never falls fit into int64."""
    limits = np.iinfo(np.int64)
    ends = (int(values.min()), int(values.max())) if len(values) else ()
    return all(limits.min <= function(value) <= limits.max for value in ends)
