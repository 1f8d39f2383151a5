"""What an aggregate is to the operators: accumulators as columns, made, merged and read by the column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.tvf.columns import Accumulator, Groups, Nullable, nullable
from timerheap.tvf.grid import Cells, Grid, over_windows

__all__ = ["Accumulators", "Aggregate", "Field", "FieldAggregate", "Signs", "object_ufunc"]

Accumulators = tuple[Accumulator, ...]
Signs = NDArray[np.int64] | None  # +1 for a row that comes, -1 for one that is retracted; None: all come


class Aggregate(ABC):
    """One aggregate of a query, such as ``SUM(v)``.

    Parameters
    ----------
    columns : sequence of str
        The input columns that it takes.
    dtype : dtype
        What it takes them as: int64, float64 or object.
    name : str
        What its result and its errors are called.

    Attributes
    ----------
    columns, dtype, name
        As given.
    fields : tuple of str
        The columns of its accumulators.
    retractable : bool
        Whether it can take a row back.

    Notes
    -----
    Rows become accumulators (`accumulate`), accumulators of the same key and slice one (`merge`), and the
    slices of a window its result (`result`, and `window_results` for many windows at once). Each is a pass
    over columns; a Python step per row is taken for Python's own functions and objects only.
    """

    fields: tuple[str, ...]
    retractable: bool = True

    def __init__(self, columns: Sequence[str], dtype: DTypeLike, name: str) -> None:
        self.columns, self.dtype, self.name = tuple(columns), np.dtype(dtype), name
        if self.dtype not in (np.dtype(np.int64), np.dtype(np.float64), np.dtype(object)):
            raise TypeError(f"dtype of {name} must be int64, float64 or object, got {self.dtype}")

    @abstractmethod
    def accumulate(self, groups: Groups, inputs: Sequence[Nullable], signs: Signs) -> Accumulators:
        """Make one accumulator of each group of rows.

        Parameters
        ----------
        groups : Groups
            Of the rows.
        inputs : sequence of Nullable, shape (n,) each
            The columns of `columns`.
        signs : ndarray of int64, shape (n,), or None
            -1 where a row is taken back.

        Returns
        -------
        tuple of columns, shape (g,) each
            By group.
        """

    @abstractmethod
    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Make one accumulator of each group of accumulators; what is given stays as it is."""

    @abstractmethod
    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Give the results of windows over a grid, whose cells that hold something are `accumulators`."""

    @abstractmethod
    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Give the results; masked where SQL says NULL."""

    @abstractmethod
    def empty(self) -> Accumulators:
        """No accumulators: columns without rows."""

    def __repr__(self) -> str:
        return self.name


class Field(NamedTuple):
    """A column of accumulators that are merged by a ufunc, and what it holds before any row."""

    name: str
    dtype: np.dtype[Any]
    ufunc: np.ufunc
    identity: Any


class FieldAggregate(Aggregate):
    """An aggregate whose accumulator is some fields, each merged by its own ufunc."""

    def __init__(self, columns: Sequence[str], dtype: DTypeLike, name: str, fields: Sequence[Field]) -> None:
        super().__init__(columns, dtype, name)
        self._fields = tuple(fields)
        self.fields = tuple(field.name for field in fields)

    @property
    def parts(self) -> tuple[str, ...]:
        """What `from_parts` takes."""
        return self.fields

    def from_parts(self, *parts: object) -> Accumulators:
        """Make accumulators of what another engine has computed of each key and slice.

        Parameters
        ----------
        *parts : array_like, shape (n,) each
            A column for each of `parts`: "sum", "min" and "max" are null where there was nothing but nulls,
            "count" is of the values that are not null, and "m2" is the population's variance times that.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If there are more or fewer columns, or one is not of the aggregate's type.

        Examples
        --------
        >>> from timerheap.tvf import Sum
        >>> delay = Sum("delay", np.int64)
        >>> delay.parts, delay.result(delay.from_parts([30, None], [2, 0])).tolist()
        (('sum', 'count'), [30, None])
        """
        dtypes = {field.name: field.dtype for field in self._fields}
        columns = self._columns(parts, [dtypes[name] for name in self.parts])
        return tuple(
            np.where(column.valid, column.values, field.identity)
            for field, column in zip(self._fields, columns, strict=True)
        )

    def _columns(self, parts: Sequence[object], dtypes: Sequence[np.dtype[Any]]) -> list[Nullable]:
        if len(parts) != len(self.parts):
            raise TypeError(f"{self.name}: parts must be {', '.join(self.parts)}, got {len(parts)} columns")
        length = len(parts[0])  # type: ignore[arg-type]
        return [
            nullable(f"{self.name}: {name}", part, dtype, length)
            for name, part, dtype in zip(self.parts, parts, dtypes, strict=True)
        ]

    def merge(self, groups: Groups, accumulators: Accumulators) -> Accumulators:
        """Reduce each field by its ufunc."""
        return tuple(
            field.ufunc.reduceat(np.asarray(column[groups.order]), groups.starts)
            for field, column in zip(self._fields, accumulators, strict=True)
        )

    def combine(self, left: Cells, right: Cells) -> Cells:
        """Merge accumulators one by one."""
        return tuple(field.ufunc(a, b) for field, a, b in zip(self._fields, left, right, strict=True))

    def scan(self, cells: Cells) -> Cells:
        """Merge each accumulator with all before it in its line."""
        return tuple(field.ufunc.accumulate(c, axis=1) for field, c in zip(self._fields, cells, strict=True))

    def window_results(self, accumulators: Accumulators, grid: Grid) -> np.ma.MaskedArray[Any, Any]:
        """Lay the accumulators out, and combine them."""
        cells = []
        for field, column in zip(self._fields, accumulators, strict=True):
            laid_out = np.full(grid.lines * grid.width, field.identity, field.dtype)
            laid_out[grid.cells] = column
            cells.append(laid_out.reshape(grid.lines, grid.width))
        combined = over_windows(tuple(cells), grid.span, self.scan, self.combine)
        return self.result(tuple(column.reshape(-1)[grid.windows] for column in combined))

    def empty(self) -> Accumulators:
        """No accumulators."""
        return tuple(np.empty(0, field.dtype) for field in self._fields)


def object_ufunc(function: Callable[[Any, Any], Any]) -> np.ufunc:
    """Make a ufunc over objects of a function of two; None is nothing yet."""

    def merge(left: Any, right: Any) -> Any:
        return right if left is None else left if right is None else function(left, right)

    return np.frompyfunc(merge, 2, 1)  # type: ignore[no-any-return]
