"""The base of aggregates: accumulators as columns, evaluated over windows that share slices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.errors import ArgumentTypeError
from timerheap.tvf.columns import Accumulator, Groups, Nullable

Cells = tuple[NDArray[Any], ...]
Combine = Callable[[Cells, Cells], Cells]


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of slices, numbered line by line, and the windows to compute over it.

    With a span, a line is ``2 * span - 1`` cells wide, so that all its windows contain the middle cell.
    """

    lines: int
    width: int
    span: int | None  # the number of cells in a window; None if a window is all cells up to its last
    cells: NDArray[np.intp]  # (n,), the numbers of the nonempty cells, ascending
    windows: NDArray[np.intp]  # (w,), their numbers; the first window of a line ends in `first_cell`

    @property
    def first_cell(self) -> int:
        """The cell of a line in which its first window ends."""
        return 0 if self.span is None else self.span - 1

    @property
    def last_cells(self) -> NDArray[np.intp]:
        """The last cell of each window."""
        lines, steps = np.divmod(self.windows, self.width - self.first_cell)
        return lines * self.width + steps + self.first_cell


def over_windows(cells: Cells, span: int | None, scan: Callable[[Cells], Cells], combine: Combine) -> Cells:
    """Combine the cells of each window; `scan` combines each cell with all cells before it in its line."""
    # A window consists of the cells up to the middle of the line and those after it. Two scans and one
    # combination compute all windows, whatever the span, for every accumulator that can be merged, since
    # nothing is subtracted (van Herk 1992, Gil and Werman 1993).
    if span is None:
        return scan(cells)
    to_middle = tuple(c[:, ::-1] for c in scan(tuple(c[:, :span][:, ::-1] for c in cells)))
    from_middle = scan(tuple(c[:, span:] for c in cells))
    joined = combine(tuple(c[:, 1:] for c in to_middle), from_middle)
    return tuple(np.concatenate([c[:, :1], d], axis=1) for c, d in zip(to_middle, joined, strict=True))


def scan_by_doubling(cells: Cells, combine: Combine) -> Cells:
    """Combine each cell with all cells before it in its line, in O(log width) steps over whole columns."""
    length = 1
    while length < cells[0].shape[1]:
        joined = combine(tuple(c[:, length:] for c in cells), tuple(c[:, :-length] for c in cells))
        cells = tuple(np.concatenate([c[:, :length], d], axis=1) for c, d in zip(cells, joined, strict=True))
        length *= 2
    return cells


Accumulators = tuple[Accumulator, ...]


class Aggregate(ABC):
    """One aggregate of a query, such as ``SUM(v)``.

    Each method works on whole columns; only Python functions and Python objects cost a Python step per row.
    """

    fields: tuple[str, ...]  # the names of the columns of its accumulators

    def __init__(self, columns: Sequence[str], dtype: DTypeLike, name: str) -> None:
        self.columns, self.dtype, self.name = tuple(columns), np.dtype(dtype), name
        if self.dtype not in (np.dtype(np.int64), np.dtype(np.float64), np.dtype(object)):
            raise ArgumentTypeError(f"dtype of {name} must be int64, float64 or object, got {self.dtype}")

    def named(self, name: str) -> Self:
        """Return the same aggregate with another name."""
        other = copy(self)
        other.name = name
        return other

    @abstractmethod
    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Return one accumulator for each group of rows, from the values of `columns`."""

    @abstractmethod
    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Return one accumulator for each group of accumulators; the arguments are not modified."""

    @abstractmethod
    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Return the results of the windows of a grid whose nonempty cells are `accumulators`."""

    @abstractmethod
    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the results; a result is masked where SQL returns NULL."""

    @abstractmethod
    def empty(self) -> Accumulators:
        """Return columns of accumulators without rows."""

    def __repr__(self) -> str:
        return self.name


class Field(NamedTuple):
    """A column of accumulators that a ufunc merges; `identity` is its value before the first row."""

    name: str
    dtype: np.dtype[Any]
    ufunc: np.ufunc
    identity: Any


class FieldAggregate(Aggregate):
    """An aggregate whose accumulator consists of fields, each merged by its own ufunc."""

    def __init__(self, columns: Sequence[str], dtype: DTypeLike, name: str, fields: Sequence[Field]) -> None:
        super().__init__(columns, dtype, name)
        self._fields = tuple(fields)
        self.fields = tuple(field.name for field in fields)

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        return tuple(
            field.ufunc.reduceat(np.asarray(column[groups.order]), groups.starts)
            for field, column in zip(self._fields, accumulators, strict=True)
        )

    def combine(self, left: Cells, right: Cells) -> Cells:
        """Merge two columns of accumulators, element by element."""
        return tuple(field.ufunc(a, b) for field, a, b in zip(self._fields, left, right, strict=True))

    def scan(self, cells: Cells) -> Cells:
        """Merge each accumulator with all accumulators before it in its line."""
        return tuple(field.ufunc.accumulate(c, axis=1) for field, c in zip(self._fields, cells, strict=True))

    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Place the accumulators in the grid and combine those of each window."""
        cells = self.identities(grid.lines * grid.width)
        for cell, column in zip(cells, accumulators, strict=True):
            cell[grid.cells] = column
        cells = tuple(cell.reshape(grid.lines, grid.width) for cell in cells)
        combined = over_windows(cells, grid.span, self.scan, self.combine)
        return self.result(tuple(column.reshape(-1)[grid.windows] for column in combined))

    def identities(self, n: int) -> Cells:
        """Return columns of n accumulators as they are before the first row."""
        return tuple(np.full(n, field.identity, field.dtype) for field in self._fields)

    def empty(self) -> Accumulators:
        return self.identities(0)


def object_ufunc(function: Callable[[Any, Any], Any]) -> np.ufunc:
    """Make a ufunc over objects from a function of two arguments; None is the identity."""

    def merge(left: Any, right: Any) -> Any:
        return right if left is None else left if right is None else function(left, right)

    ufunc: np.ufunc = np.frompyfunc(merge, 2, 1)
    return ufunc
