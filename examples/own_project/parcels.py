"""A function in a module of its own, which main.py runs and test_parcels.py tests."""

from collections.abc import Iterator
from typing import Any

from timerheap import KeyedProcessFunction

HOUR = 3_600_000  # milliseconds


class Unscanned(KeyedProcessFunction):
    """Report a parcel that is not scanned again within an hour."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + HOUR, name="unscanned")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield ctx.get_current_key(), timestamp
