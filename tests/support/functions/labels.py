"""A function of two inputs with a side output, which names what sensors read."""

from __future__ import annotations

from typing import Any

from timerheap import KeyedCoProcessFunction, OutputTag, Types, ValueStateDescriptor

__all__ = ["UNNAMED", "Label"]

UNNAMED = OutputTag("unnamed", Types.ROW_NAMED(["k", "at"], [Types.STRING(), Types.LONG()]))


class Label(KeyedCoProcessFunction):
    """Gives readings the last name of their sensor; those without a name go to a side output."""

    def open(self, runtime_context: Any) -> None:
        self.name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        name = self.name.value()
        yield (UNNAMED, (value.k, value.at)) if name is None else (name, value.at)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        self.name.update(value.name)
