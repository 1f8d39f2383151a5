"""Two inputs as one: a row has the columns of both, and a function that tells them apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timerheap._returned import records
from timerheap.functions import KeyedCoProcessFunction, KeyedProcessFunction, RuntimeContext
from timerheap.spark._exchange.pack import INPUT

__all__ = ["KEY", "SIDES", "Tagged"]

KEY = "__timerheap_key"
"""The names of the key columns begin with this; their numbers follow."""

SIDES = "__timerheap_left", "__timerheap_right"
"""Names of the columns with the rows of each input, structs, one of which is null."""


class Tagged(KeyedProcessFunction):
    """Runs a two-input function on rows that name their input."""

    def __init__(self, function: KeyedCoProcessFunction) -> None:
        self.function = function
        self._any_order = function._any_order

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        if value[INPUT]:
            return records("process_element2", self.function.process_element2(value[SIDES[1]], ctx))
        return records("process_element1", self.function.process_element1(value[SIDES[0]], ctx))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        return self.function.on_timer(timestamp, ctx)
