"""Finds planes that leave New York and do not depart from it again within 72 hours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import timerheap.spark
from timerheap import KeyedProcessFunction, RuntimeContext, ValueStateDescriptor, WatermarkStrategy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, Row

HOUR = 60 * 60 * 1000
PATIENCE = 72 * HOUR
DELAY = 24 * HOUR  # flights are in scheduled order, and depart up to 22 hours after later ones


class Overdue(KeyedProcessFunction):
    """Yields the last departure of each plane that has not departed again for 72 hours."""

    output_schema = "plane string, origin string, dest string, since long"

    def open(self, runtime_context: RuntimeContext) -> None:
        """Create the state for the plane's last departure."""
        last = ValueStateDescriptor("last", "struct<origin string, dest string, since long>")
        self.last = runtime_context.get_state(last)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> None:
        """Move the plane's timer to 72 hours after this departure."""
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + PATIENCE, name="overdue")
        self.last.update((value.origin, value.dest, ctx.timestamp()))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[Any, ...]]:
        """Report the plane, which has not departed for 72 hours."""
        last = self.last.value()
        self.last.clear()
        yield ctx.get_current_key(), last.origin, last.dest, last.since


def overdue(departures: DataFrame, function: Overdue | None = None) -> DataFrame:
    """Return the alerts for a DataFrame with the columns plane, origin, dest and departed.

    A departure after exactly 72 hours is in time: rows precede timers of the same timestamp.
    """
    function = function or Overdue()
    return timerheap.spark.process(
        departures,
        key="plane",
        function=function,
        output_schema=function.output_schema,
        event_time="departed",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=16,  # key groups, the maximum parallelism; enough for 4,000 planes
    )
