"""The function of the page on erasure, with states of all kinds."""

from __future__ import annotations

from typing import Any

from timerheap import (
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
)

DAY = 86_400_000


class Visits(KeyedCoProcessFunction):
    """Remembers the pages of a user in states and timers, until a request to forget the user."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.STRING()))
        self.pages = runtime_context.get_list_state(ListStateDescriptor("pages", Types.STRING()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.STRING(), Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self.last.update(value.page)
        self.pages.add(value.page)
        self.times.put(value.page, ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + DAY)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + DAY, name=f"again {value.page}")
        yield ctx.get_current_key(), len(list(self.pages.get()))

    def process_element2(self, value: Any, ctx: Any) -> None:
        for state in (self.last, self.pages, self.times):
            state.clear()
        ctx.timer_service().delete_all_timers()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), -1
