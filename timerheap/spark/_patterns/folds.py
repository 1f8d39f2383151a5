"""The user's aggregates over the rows of a match, which are computed anew whenever they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._values import Misfit, local_reader
from timerheap.errors import ArgumentValueError
from timerheap.functions import AggregateFunction
from timerheap.spark._aggregates.accumulator_columns import objects_of
from timerheap.spark._worker.column_casts import column_of

NOT_THERE = object()
"""The arguments of a row that cannot be of the variable, for which they are not computed."""


@dataclass(frozen=True)
class Fold:
    """An aggregate of the user, by its name in the query, and the type of its results."""

    name: str
    function: AggregateFunction = field(compare=False)
    returns: pa.DataType

    def of(self, arguments: Iterable[Any]) -> Any:
        """Return the result for the arguments of rows, in their order; None if one of them has none."""
        accumulator = self.function.create_accumulator()
        for one in arguments:
            if one is NOT_THERE:
                return None
            accumulator = self.function.add(one, accumulator)
        return self.function.get_result(accumulator)

    def up_to(self, spans: Iterable[tuple[int, int]], arguments: np.ndarray) -> list[Any]:
        """Return the results for spans of rows; of those that begin with one row, the longer come later."""
        found, begun, at, accumulator = [], -1, 0, self.function.create_accumulator()
        for low, high in spans:
            if low != begun or high < at:
                begun, at, accumulator = low, low, self.function.create_accumulator()
            for one in arguments[at : max(low, high)]:
                accumulator = self.function.add(one, accumulator)
            at = max(low, high)
            found.append(self.function.get_result(accumulator))
        return found

    def column(self, values: Sequence[Any], type_: pa.DataType, where: str) -> pa.Array:
        """Return results as a column; raise if one does not have the type."""
        try:
            return column_of(values, type_).cast(type_)
        except Misfit as error:
            raise ArgumentValueError(f"query: the result of {self.name} in {where}: {error}") from None


def arguments_of(column: pa.Array) -> np.ndarray:
    """Return what a function is called with for each row, given structs of its arguments."""
    found = objects_of(column, local_reader)
    for at, row in enumerate(found):
        values = NOT_THERE if row is None else tuple(row.values())
        found[at] = values[0] if isinstance(values, tuple) and len(values) == 1 else values
    return found
