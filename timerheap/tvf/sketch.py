"""APPROX_COUNT_DISTINCT with a sketch of Apache DataSketches (the package ``datasketches``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from timerheap.tvf.aggregate import Accumulators, Field, FieldAggregate, Signs, object_ufunc
from timerheap.tvf.columns import Groups, Nullable
from timerheap.tvf.multiset import CountDistinct

__all__ = ["ApproxCountDistinct"]


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

    retractable = False

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

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable], signs: Signs) -> Accumulators:
        """Build a sketch of the distinct values of each group."""
        (column,) = self._distinct.accumulate(groups, inputs, signs)
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
