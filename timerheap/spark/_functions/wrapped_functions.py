"""Functions with two inputs or broadcast state, run as functions on rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from timerheap._values import records
from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.functions import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from timerheap.spark._columns import INPUT, SIDES


class WrappedFunction(KeyedProcessFunction):
    """Runs a function of another kind on rows."""

    function: KeyedBroadcastProcessFunction | KeyedCoProcessFunction

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        return self.function.on_timer(timestamp, ctx)


class Tagged(WrappedFunction):
    """Runs a two-input function on rows that name their input."""

    def __init__(self, function: KeyedCoProcessFunction) -> None:
        self.function: KeyedCoProcessFunction = function
        self._any_order, self._results_behind = function._any_order, function._results_behind

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        if value[INPUT]:
            return records("process_element2", self.function.process_element2(value[SIDES[1]], ctx))
        return records("process_element1", self.function.process_element1(value[SIDES[0]], ctx))

    def method_of(self, row: pa.RecordBatch) -> str:
        """Return the name of the method that takes a row."""
        return f"process_element{row.column(INPUT)[0].as_py() + 1}"
