"""What a stage does with the watermarks that operators before it have reached in its tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from timerheap.spark._exchange.observed_times import reached, without_times
from timerheap.spark._exchange.reached import Reached

UNBOUNDED = (
    "the results of an operator wait for further rows of their key, and reach the next operator behind the "
    "watermark, where they are late; limit how long they wait (lead_within, or WITHIN of a pattern)"
)


@dataclass(frozen=True)
class FollowedWatermarks:
    """What a stage does with the watermarks that operators before it have reached in its tasks.

    mixed: whether some rows are no results of operators, and advance the watermark themselves
    warn: tells the driver
    """

    mixed: bool
    warn: Callable[[list[str], str], None]

    def seen(self, seen: list[pa.Table], found: list[Reached]) -> list[pa.Table]:
        """Return what a task has observed, with what the operators before it have reached."""
        if not found:
            if self.mixed:  # the rows of this task are no results
                return seen
            raise RuntimeError(
                "df must have the results of other operators, whose watermark it follows, without an "
                "exchange of Spark between, got rows of a task without such an operator; have the other side "
                "of a join broadcast (F.broadcast), or write the results to a table and read that"
            )
        if any(each.unbounded for each in found):
            self.warn([UNBOUNDED], "unbounded results")
        seen = [without_times(each) for each in seen]
        return [*seen, *(reached({each.operator.hex(): each.watermark}) for each in found)]
