"""Aggregates written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap.functions import AggregateFunction
from timerheap.tvf.aggregate import Accumulators, Field, FieldAggregate, Signs, object_ufunc
from timerheap.tvf.columns import Groups, Nullable

__all__ = ["PythonAggregate"]


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
        self.retractable = callable(getattr(function, "retract", None))
        merge = object_ufunc(lambda a, b: function.merge(deepcopy(a), deepcopy(b)))
        super().__init__(
            columns,
            object,
            name or f"{type(function).__name__}({', '.join(columns)})",
            [Field("accumulator", np.dtype(object), merge, None)],
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), name=self.name), (self.function, *self.columns)

    def accumulate(self, groups: Groups, inputs: Sequence[Nullable], signs: Signs) -> Accumulators:
        """Call the function for each row, in arrival order."""
        columns = [_with_nones(values)[groups.order].tolist() for values in inputs]
        rows = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        taken_back = (signs < 0)[groups.order].tolist() if signs is not None else [False] * len(rows)
        function: Any = self.function
        made = np.empty(len(groups.starts), object)
        ranges = zip(groups.starts.tolist(), (groups.starts + groups.sizes).tolist(), strict=True)
        for group, (start, end) in enumerate(ranges):
            accumulator = function.create_accumulator()
            for row in range(start, end):
                accumulator = (function.retract if taken_back[row] else function.add)(rows[row], accumulator)
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
