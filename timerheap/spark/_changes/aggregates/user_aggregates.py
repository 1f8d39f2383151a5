"""Aggregates written in Python over rows that come and go: the accumulators of keys, and what is called."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._values import local_leaf, local_reader
from timerheap.spark._aggregates.accumulator_columns import column_of_objects, objects_of, result_column
from timerheap.spark._arrow import widen_column
from timerheap.spark._changes.aggregates.bags import Bag
from timerheap.spark._changes.aggregates.row_groups import RowGroups
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.value_state import StateTable


@dataclass(frozen=True)
class UserCall:
    """One aggregate of `udaf`.

    rows: its arguments, structs, as they are sent
    name: of the state of its accumulators
    """

    rows: Bag
    function: Any
    result: pa.Field
    accumulator: pa.DataType
    name: str

    def of(self, group: KeyGroup) -> StateTable:
        """Return the accumulators of a key group."""
        table = group.state(self.name, "value", self.accumulator)
        assert isinstance(table, StateTable)
        return table

    def run(
        self, table: StateTable, ids: np.ndarray, owners: np.ndarray, lists: pa.Array, there: np.ndarray
    ) -> tuple[pa.Array, pa.Array]:
        """Add rows to the accumulators of keys, and take rows back; return results before and after it.

        ids: distinct ones
        owners, lists: the ids of keys, which may be repeated, and the arguments of each with weights
        there: which keys have rows afterwards; the others have no accumulator any more
        """
        entries = widen_column(lists).flatten()
        every = np.repeat(owners, np.asarray(lists.value_lengths()))
        groups, touched = RowGroups.by_id(every)
        rows, weights = self._arguments(entries.field("value")), entries.field("weight").to_numpy()
        held = objects_of(table.get_many(ids), local_leaf).tolist()
        before = [self._result(each) for each in held]
        places = dict(zip(ids.tolist(), range(len(ids)), strict=True))
        bounds = zip(touched.tolist(), groups.starts.tolist(), groups.sizes.tolist(), strict=True)
        for id_, start, size in bounds:
            some = groups.order[start : start + size]
            held[places[id_]] = self._applied(held[places[id_]], some, rows, weights)
        kept = [each if is_there else None for each, is_there in zip(held, there.tolist(), strict=True)]
        objects = np.fromiter(kept, object, len(kept))
        table.put_many(ids, column_of_objects(objects, self.accumulator))
        return self._column(before), self._column([self._result(each) for each in kept])

    def _applied(self, accumulator: Any, places: np.ndarray, rows: list[Any], weights: np.ndarray) -> Any:
        """Return an accumulator with rows added, and then others taken back."""
        function = self.function
        accumulator = function.create_accumulator() if accumulator is None else accumulator
        for at in places[np.argsort(-weights[places], kind="stable")].tolist():
            for _ in range(abs(int(weights[at]))):
                call = function.add if weights[at] > 0 else function.retract
                accumulator = call(rows[at], accumulator)
        return accumulator

    @staticmethod
    def _arguments(values: pa.Array) -> list[Any]:
        columns = [objects_of(column, local_reader).tolist() for column in values.flatten()]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def _result(self, accumulator: Any) -> Any:
        return None if accumulator is None else self.function.get_result(deepcopy(accumulator))

    def _column(self, results: list[Any]) -> pa.Array:
        objects = np.fromiter(results, object, len(results))
        return result_column(np.ma.masked_array(objects, [each is None for each in results]), self.result)
