"""What "now" is in a micro-batch: the time that Spark has fixed for it, or that of this machine's clock."""

from __future__ import annotations

import time
from typing import Any

from timerheap.spark._query import Query


def wall_clock() -> int:
    """Return what the clock of this machine shows, in epoch ms."""
    return time.time_ns() // 1_000_000


def processing_time(query: Query, timer_values: Any = None) -> int | None:
    """Return the processing time of a micro-batch in epoch ms, None in a query without.

    timer_values: the times that Spark has fixed for the micro-batch, so that each attempt of a task has the
        same; None where tasks go on for longer than that, as in real-time mode
    """
    if query.time_mode != "ProcessingTime":
        return None
    return wall_clock() if timer_values is None else int(timer_values.getCurrentProcessingTimeInMs())
