"""Aggregates written in Python, and approximate distinct counts."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from timerheap.functions import AggregateFunction
from timerheap.tvf.aggregate import Accumulators, Field, FieldAggregate, object_ufunc
from timerheap.tvf.columns import Groups, Nullable
from timerheap.tvf.multiset import CountDistinct


class PythonAggregate(FieldAggregate):
    """A Python aggregate function, called for every row.

    Parameters
    ----------
    function : AggregateFunction
        The aggregate function.
    *columns : str
        The input columns: one column is passed as its values, several as tuples.
    name : str, optional
        The name of the aggregate; by default the function's class and the columns.

    Raises
    ------
    TypeError
        If the function lacks a method, or no column is given.

    Notes
    -----
    Accumulators are copied with `copy.deepcopy` before they are merged, so a function that modifies them or
    fails leaves the operator's state unchanged.

    Examples
    --------
    >>> class Longest:
    ...     def create_accumulator(self): return ""
    ...     def add(self, value, accumulator): return max(value or "", accumulator, key=len)
    ...     def get_result(self, accumulator): return accumulator
    ...     def merge(self, acc_a, acc_b): return max(acc_a, acc_b, key=len)
    >>> PythonAggregate(Longest(), "destination")
    Longest(destination)
    """

    def __init__(self, function: AggregateFunction, *columns: str, name: str | None = None) -> None:
        for method in ("create_accumulator", "add", "get_result", "merge"):
            if not callable(getattr(function, method, None)):
                raise TypeError(f"function must have a method {method}, got {function!r}")
        if not columns:
            raise TypeError("columns must name at least one input column for the function, got none")
        self.function = function
        merge = object_ufunc(lambda a, b: function.merge(deepcopy(a), deepcopy(b)))
        super().__init__(
            columns,
            object,
            name or f"{type(function).__name__}({', '.join(columns)})",
            [Field("accumulator", np.dtype(object), merge, None)],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), name=self.name), (self.function, *self.columns)

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Call the function for each row, in arrival order."""
        columns = [_with_nones(values)[groups.order].tolist() for values in inputs]
        rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        function: Any = self.function
        made = np.empty(len(groups.starts), object)
        ranges = zip(groups.starts.tolist(), (groups.starts + groups.sizes).tolist(), strict=True)
        for group, (start, end) in enumerate(ranges):
            accumulator = function.create_accumulator()
            for row in range(start, end):
                accumulator = function.add(rows[row], accumulator)
            made[group] = accumulator
        return (made,)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Call the function's `get_result` for each accumulator; None is null."""
        results = np.empty(len(accumulators[0]), object)
        for at, accumulator in enumerate(np.asarray(accumulators[0]).tolist()):
            results[at] = self.function.get_result(deepcopy(accumulator))
        return np.ma.masked_array(results, [value is None for value in results.tolist()])


def _with_nones(values: Nullable) -> NDArray[Any]:
    filled = values.values.astype(object)
    filled[~values.valid] = None
    return filled


class ApproxCountDistinct(FieldAggregate):
    """The estimated number of distinct values, with state of bounded size; nulls are ignored.

    Parameters
    ----------
    column : str
        The column whose distinct values are counted.
    dtype : dtype
        int64, float64, or object for strings, bytes, decimals and the like.
    lg_k : int, default 12
        The sketch has ``2 ** lg_k`` one-byte buckets and a relative error of about ``1 / sqrt(2 ** lg_k)``.

    Raises
    ------
    ImportError
        If the package ``datasketches`` is missing.
    ValueError
        If `lg_k` is not from 7 to 21.

    Notes
    -----
    A HyperLogLog sketch, stored in the byte format that every implementation of DataSketches reads. Each
    distinct value of a slice costs one Python call. Small numbers of values are counted exactly.
    """

    def __init__(self, column: str, dtype: DTypeLike, lg_k: int = 12) -> None:
        try:
            import datasketches  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise ImportError(
                "approx_count_distinct requires the package datasketches: pip install datasketches"
            ) from None
        if not 7 <= lg_k <= 21:
            raise ValueError(f"lg_k must be from 7 to 21, got {lg_k}")
        self.lg_k = lg_k
        self._library: Any = datasketches
        self._distinct = CountDistinct(column, dtype)
        field = Field("sketch", np.dtype(object), object_ufunc(self._unite), None)
        super().__init__([column], dtype, f"approx_count_distinct({column})", [field])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.columns, self.dtype, self.lg_k), {"name": self.name}

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable]) -> Accumulators:
        """Build a sketch of the distinct values of each group."""
        (column,) = self._distinct.accumulate(groups, inputs)
        ends = column.offsets.tolist()  # type: ignore[union-attr]
        values = column.values.tolist()  # type: ignore[union-attr]
        if self.dtype.kind == "O":
            values = list(map(_text, values))
        sketches = np.empty(len(column), object)
        for group, (start, end) in enumerate(pairwise(ends)):
            sketch = self._library.hll_sketch(self.lg_k, self._library.tgt_hll_type.HLL_8)
            for value in values[start:end]:
                sketch.update(value)
            sketches[group] = sketch.serialize_compact()
        return (sketches,)

    def result(self, accumulators: Accumulators) -> np.ma.MaskedArray[Any, Any]:
        """Return the estimates, rounded."""
        estimates = (self._read(sketch).get_estimate() for sketch in np.asarray(accumulators[0]).tolist())
        return np.ma.masked_array(np.rint(np.fromiter(estimates, np.float64)).astype(np.int64))

    def _read(self, sketch: bytes) -> Any:
        return self._library.hll_sketch.deserialize(sketch)

    def _unite(self, left: bytes, right: bytes) -> bytes:
        union = self._library.hll_union(self.lg_k)
        union.update(self._read(left))
        union.update(self._read(right))
        united: bytes = union.get_result(self._library.tgt_hll_type.HLL_8).serialize_compact()
        return united


def _text(value: object) -> str:
    """Return a text that differs for different values; a sketch truncates decimals and ignores ""."""
    if isinstance(value, bytes):
        return f"b{value.hex()}"
    return f"s{value}" if isinstance(value, str) else f"o{value}"
