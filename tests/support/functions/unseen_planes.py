"""A function that reports planes which have not been seen for a second, and a tester of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap.testing import ProcessTester

GAP = 1000

INPUT = "plane string, gate int, at bigint"


class Overdue(KeyedProcessFunction):
    """Yields a plane that has not been seen for a second; keeps where it was seen."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.gates = runtime_context.get_list_state(ListStateDescriptor("gates", Types.INT()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.INT(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.due.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.due.value())
        self.due.update(ctx.timestamp() + GAP)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP)
        self.gates.add(value.gate)
        self.times.put(value.gate, value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        self.due.clear()
        yield ctx.get_current_key(), timestamp


def made(function: Any = None, **options: Any) -> ProcessTester:
    arguments: dict[str, Any] = {
        "key": "plane",
        "input_schema": INPUT,
        "output_schema": "plane string, at bigint",
        "event_time": "at",
    }
    return ProcessTester(function or Overdue(), **{**arguments, **options})


class Echo(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value
