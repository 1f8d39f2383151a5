"""The metrics of a task, which the operator sends among its results."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import asdict
from typing import Literal, NamedTuple

from timerheap.metrics import Metrics
from timerheap.spark._group.manifest import Manifest
from timerheap.timer import MIN_WATERMARK

__all__ = ["TASK_METRICS", "Combine", "Metric", "TaskMetrics"]

Combine = Literal["sum", "min", "max"]


class Metric(NamedTuple):
    """One number of a task.

    Parameters
    ----------
    name : str
    combine : {"sum", "min", "max"}
        What makes one number of those of several key groups or tasks.
    of_all : bool
        Whether the number says something only if all key groups are in it.
    """

    name: str
    combine: Combine
    of_all: bool = False


TASK_METRICS = (
    Metric("watermark", "max"),
    Metric("newest_event_time", "max"),
    Metric("event_time_lag", "max"),
    Metric("clock_lag", "max"),
    Metric("pending_event_time_timers", "sum", of_all=True),
    Metric("pending_processing_time_timers", "sum", of_all=True),
    Metric("next_event_time_timer", "min", of_all=True),
    Metric("next_processing_time_timer", "min", of_all=True),
    Metric("fired_timers", "sum"),
    Metric("late_rows", "sum"),
    Metric("dropped_rows", "sum"),
    Metric("out_of_order_rows", "sum"),
    Metric("keys", "sum", of_all=True),
    Metric("waiting_rows", "sum", of_all=True),
    Metric("state_bytes", "sum", of_all=True),
    Metric("largest_group_bytes", "max", of_all=True),
    Metric("groups_handed_over", "sum"),
    Metric("groups_loaded", "sum"),
    Metric("groups", "sum"),
    Metric("max_parallelism", "max"),
)
"""The metrics of a task, in the order in which `TaskMetrics.take` writes them."""

_COMBINE: dict[Combine, Callable[[int, int], int]] = {"sum": int.__add__, "min": min, "max": max}
_COMBINE_BY_NAME = {metric.name: _COMBINE[metric.combine] for metric in TASK_METRICS}


class TaskMetrics:
    """Collects the metrics of one task."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._totals: dict[str, int] = {}

    def add(self, **values: int | None) -> None:
        """Combine values with those so far; None adds nothing."""
        found = self._values
        for name, value in values.items():
            if value is not None:
                before = found.get(name)
                found[name] = value if before is None else _COMBINE_BY_NAME[name](before, value)

    def add_times(self, watermark: int, newest: int, now: int) -> None:
        """Add the times of a key group, epoch ms; MIN_WATERMARK is none.

        Parameters
        ----------
        watermark, newest : int
            The watermark, and the largest event time so far.
        now : int
            What the clock shows.
        """
        known = watermark != MIN_WATERMARK
        if known:
            self.add(watermark=watermark, clock_lag=now - watermark)
        if newest != MIN_WATERMARK:
            self.add(newest_event_time=newest, event_time_lag=newest - watermark if known else None)

    def add_totals(self, **totals: int) -> None:
        """Add what has been counted since the last call, given all that the task has counted so far."""
        self.add(**{name: total - self._totals.get(name, 0) for name, total in totals.items()})
        self._totals = totals

    def add_group(self, manifest: Manifest) -> None:
        """Add what a key group holds, as of its last save."""
        standing, nbytes = manifest.standing, manifest.nbytes
        self.add(
            pending_event_time_timers=standing.event_time_timers,
            pending_processing_time_timers=standing.processing_time_timers,
            next_event_time_timer=standing.next_event_time_timer,
            next_processing_time_timer=standing.next_processing_time_timer,
            keys=standing.keys,
            waiting_rows=standing.waiting_rows,
            state_bytes=nbytes,
            largest_group_bytes=nbytes,
            groups=1,
        )

    def take(self, metrics: Metrics | None = None) -> str:
        """Return the values so far, separated by commas, and begin anew.

        The metrics of a function are a last value: a JSON object in Base64, which has no commas.
        """
        values, self._values = self._values, {}
        texts = [str(values.get(metric.name, "")) for metric in TASK_METRICS]
        if metrics is not None:
            distributions = {name: asdict(d) for name, d in metrics.take_distributions().items()}
            own = {"counters": metrics.take_counters(), "distributions": distributions}
            texts.append(b64encode(json.dumps(own).encode()).decode())
        return ",".join(texts)
