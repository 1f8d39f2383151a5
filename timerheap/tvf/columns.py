"""Columns of rows and accumulators: checked integers and values, groups and multisets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap._native._core import SliceGroups
from timerheap.errors import ArgumentRangeError, ArgumentTypeError, ArgumentValueError

Int64s = NDArray[np.int64] | Sequence[int]
_KINDS = {"i": "integers", "f": "numbers"}
_FEW = 1000  # rows that are sorted at once
_OBJECT_BYTES = 64  # estimated size of a Python object, without the pointer to it


def column(name: str, values: Int64s | int, length: int | None = None) -> NDArray[np.int64]:
    """Convert integers of any width to a column of int64; a single int is repeated `length` times."""
    array = np.asarray(values)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ArgumentValueError(
            f"{name} must not be null, got {int(values.mask.sum())} nulls; filter them out"
        )
    if length is not None and array.ndim == 0:
        array = np.broadcast_to(array, length)
    if not array.size:
        array = array.astype(np.int64)
    if array.dtype == object or array.dtype == np.uint64:
        try:
            array = np.array([int.__index__(value) for value in array.tolist()], np.int64)
        except (TypeError, OverflowError) as error:
            wrong = ArgumentRangeError if isinstance(error, OverflowError) else ArgumentTypeError
            raise wrong(f"{name} must be integers that fit into 64 bits, got {array.tolist()!r}") from None
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"{name} must be integers (int64), got {array.dtype}")
    if array.ndim != 1:
        raise ArgumentValueError(f"{name} must be one-dimensional, got shape {array.shape}")
    if length is not None and len(array) != length:
        raise ArgumentValueError(f"{name} must have {length} rows, like the other columns, got {len(array)}")
    return array.astype(np.int64, copy=False)


def add(values: NDArray[np.int64], by: NDArray[np.int64] | int, what: str) -> NDArray[np.int64]:
    """Add two columns, or a number to a column; an ArgumentRangeError names `what` and the values."""
    addends = np.asarray(by, np.int64)  # with a Python int, NumPy would raise its own error
    total: NDArray[np.int64] = values + addends
    if not addends.ndim and _fits(values, lambda value: value + int(addends)):
        return total
    wrong = ((values ^ total) & (addends ^ total)) < 0
    if wrong.any():
        at = int(np.argmax(wrong))
        addend = int(np.broadcast_to(addends, values.shape)[at])
        raise ArgumentRangeError(f"{what} must fit into int64, got {int(values[at])} + {addend}")
    return total


def floor_to(values: NDArray[np.int64], step: int, offset: int, what: str) -> NDArray[np.int64]:
    """Round down to the multiples of `step`, shifted by `offset` (Flink: ``getWindowStartWithOffset``)."""
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


class Nullable(NamedTuple):
    """A column that may hold nulls; `values` is undefined where `valid` is False."""

    values: NDArray[Any]
    valid: NDArray[np.bool_]


def nullable_column(name: str, values: object, dtype: DTypeLike, length: int) -> Nullable:
    """Convert an input column to int64, float64 or object; a masked value is null, and None among objects."""
    wanted = np.dtype(dtype)
    array: NDArray[Any] = (
        values if isinstance(values, np.ndarray) else np.asarray(values, _object_dtype(values))
    )
    data, valid = np.ma.getdata(array, subok=False), ~np.ma.getmaskarray(array)
    if data.shape != (length,):
        raise ArgumentValueError(f"{name} must be a column of {length} rows, got shape {data.shape}")
    if not length:
        data = data.astype(wanted)
    if data.dtype.kind == "O":
        valid = valid & np.array([value is not None for value in data.tolist()], np.bool_)
        if wanted.kind != "O":
            data = _unboxed(name, data, valid, wanted)
    if wanted.kind == "O":
        return Nullable(data.astype(object), valid)
    if data.dtype.kind not in ("biu" if wanted.kind == "i" else "biuf"):
        raise ArgumentTypeError(f"{name} must be {_KINDS[wanted.kind]} ({wanted}), got {data.dtype}")
    if data.dtype == np.uint64 and wanted.kind == "i" and (data[valid] > np.iinfo(np.int64).max).any():
        raise ArgumentRangeError(f"{name} must fit into int64, got {data[valid].max()}")
    return Nullable(data.astype(wanted, copy=False), valid)


def _object_dtype(values: object) -> type | None:
    """Return object for a list that holds None or strings, so that NumPy keeps its values."""
    if not isinstance(values, Sequence):
        return None
    return object if any(not isinstance(value, int | float) for value in values) else None


def _unboxed(name: str, data: NDArray[Any], valid: NDArray[np.bool_], wanted: np.dtype[Any]) -> NDArray[Any]:
    filled = np.zeros(len(data), wanted)
    kinds = (int, np.integer, np.bool_) if wanted.kind == "i" else (int, float, np.number, np.bool_)
    wrong = [value for value in data[valid].tolist() if not isinstance(value, kinds)]
    if wrong:
        raise ArgumentTypeError(f"{name} must be {_KINDS[wanted.kind]} ({wanted}), got {wrong[0]!r}")
    try:
        filled[valid] = data[valid]
    except OverflowError:
        raise ArgumentRangeError(f"{name} must fit into {wanted}, got {max(data[valid], key=abs)}") from None
    return filled


class Groups(NamedTuple):
    """Rows grouped by the values of some columns."""

    order: NDArray[np.intp]  # (n,), the row numbers, grouped; groups are sorted by their values
    starts: NDArray[np.intp]  # (g,), the position in `order` at which each group starts
    sizes: NDArray[np.intp]  # (g,), its number of rows

    @property
    def firsts(self) -> NDArray[np.intp]:
        """The first row of each group."""
        return self.order[self.starts]

    @property
    def of_sorted(self) -> NDArray[np.intp]:
        """The group of each row, in the order of `order`."""
        return np.repeat(np.arange(len(self.starts)), self.sizes)

    @property
    def of_rows(self) -> NDArray[np.intp]:
        """The group of each row, in the original order."""
        groups = np.empty(len(self.order), np.intp)
        groups[self.order] = self.of_sorted
        return groups


def group_by(*columns: NDArray[Any]) -> Groups:
    """Group rows by columns, the most significant first: a sort, O(n log n)."""
    length = len(columns[0])
    changes = np.zeros(length, np.bool_)
    order = _sort(columns)
    for column in columns:
        in_order = column[order]
        changes[1:] |= in_order[1:] != in_order[:-1]
    if length:
        changes[0] = True
    starts = np.flatnonzero(changes)
    return Groups(order, starts, np.append(starts[1:], length) - starts if length else starts)


def group_rows(slices: NDArray[np.int64], keys: NDArray[np.int64]) -> Groups:
    """Group rows by slice, then key, like `group_by`, but sort only the groups if they are few."""
    if len(keys) < _FEW:
        return group_by(slices, keys)
    keys, slices = np.ascontiguousarray(keys), np.ascontiguousarray(slices)
    size = max(len(keys) // 16, _FEW)
    sample = SliceGroups(0)
    sample.add(keys[:size], slices[:size], [])
    if 2 * len(sample) > size:
        return group_by(slices, keys)
    found = SliceGroups(0)
    firsts = found.add(keys, slices, [])
    numbers, own_slices, own_sizes = found.groups()
    sequence = np.lexsort((keys[firsts][numbers], own_slices))
    sizes = own_sizes[sequence]
    starts = np.cumsum(sizes) - sizes
    moved = (np.cumsum(own_sizes) - own_sizes)[sequence] - starts
    return Groups(found.order()[np.arange(len(keys)) + np.repeat(moved, sizes)], starts, sizes)


def _sort(columns: tuple[NDArray[Any], ...]) -> NDArray[np.intp]:
    """Return the row numbers in sorted order; columns that are already sorted are not sorted again."""
    first = columns[0]
    if bool((first[1:] >= first[:-1]).all()):
        ascending = np.ones(max(len(first) - 1, 0), np.bool_)
        for column in reversed(columns):
            ascending = (column[1:] > column[:-1]) | ((column[1:] == column[:-1]) & ascending)
        if bool(ascending.all()):
            return np.arange(len(first))
    return np.argsort(first, kind="stable") if len(columns) == 1 else np.lexsort(columns[::-1])


class Multisets:
    """A column of multisets: each row holds values and their counts.

    Row i holds the entries from ``offsets[i]`` to ``offsets[i + 1]``, exclusive, as in Arrow's lists. A value
    occurs once within a row.
    """

    __slots__ = ("counts", "offsets", "values")

    def __init__(self, offsets: NDArray[np.int64], values: NDArray[Any], counts: NDArray[np.int64]) -> None:
        self.offsets, self.values, self.counts = offsets, values, counts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of entries in each row."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def rows(self) -> NDArray[np.intp]:
        """The row number of each entry."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @property
    def nbytes(self) -> int:
        """The size of the column in bytes."""
        return self.offsets.nbytes + _nbytes(self.values) + self.counts.nbytes

    def __getitem__(self, rows: NDArray[Any] | slice) -> Multisets:
        chosen = np.arange(len(self))[rows]
        sizes = self.sizes[chosen]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], sizes)
        return Multisets(offsets, self.values[entries], self.counts[entries])


Accumulator = NDArray[Any] | Multisets


def concatenate(columns: Sequence[Accumulator]) -> Accumulator:
    """Concatenate one or more columns of the same kind."""
    lists = [column for column in columns if isinstance(column, Multisets)]
    if not lists:
        return np.concatenate([column for column in columns if isinstance(column, np.ndarray)])
    sizes = np.concatenate([column.sizes for column in lists])
    return Multisets(
        np.concatenate([[0], np.cumsum(sizes)]),
        np.concatenate([column.values for column in lists]),
        np.concatenate([column.counts for column in lists]),
    )


def _nbytes(column: Accumulator) -> int:
    if isinstance(column, Multisets):
        return column.nbytes
    return column.nbytes + (_OBJECT_BYTES * column.size if column.dtype.kind == "O" else 0)


def nbytes(columns: Sequence[Accumulator]) -> int:
    """Return the size of the columns in bytes; the size of Python objects is estimated."""
    return sum(map(_nbytes, columns))
