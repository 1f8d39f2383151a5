"""The metrics of a task: which there are, what makes one number of several, and how they reach the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from timerheap.errors import FunctionError
from timerheap.metrics import Metrics
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.timer import MIN_WATERMARK

Combine = Literal["sum", "min", "max"]


class Metric(NamedTuple):
    """One number of a task.

    combine: what makes one number of those of several key groups or tasks
    of_all: whether the number says something only if all key groups are in it
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
    Metric("null_time_rows", "max"),
    Metric("ahead_rows", "max"),
    Metric("out_of_order_rows", "sum"),
    Metric("keys", "sum", of_all=True),
    Metric("buffered_rows", "sum", of_all=True),
    Metric("state_bytes", "sum", of_all=True),
    Metric("largest_group_bytes", "max", of_all=True),
    Metric("groups_handed_over", "sum"),
    Metric("groups_loaded", "sum"),
    Metric("settled_keys", "sum"),
    Metric("settled_bytes", "sum"),
    Metric("returned_keys", "sum"),
    Metric("groups", "sum"),
    Metric("max_parallelism", "max"),
)
OF_CHANNEL = "channel "
"""What begins the name of a metric that is the watermark of a channel."""
_COMBINE: dict[Combine, Callable[[int, int], int]] = {"sum": int.__add__, "min": min, "max": max}
_COMBINE_BY_NAME = {metric.name: _COMBINE[metric.combine] for metric in TASK_METRICS}


def declared_metrics(metrics: Metrics | None, declared: bool) -> Metrics | None:
    """Return the metrics of a function; raise FunctionError if the driver knows of none."""
    if metrics is not None and not declared:
        raise FunctionError(
            "get_metrics_group() must be called in open(), also on the driver, which then knows that the "
            "function has metrics; move the call there, before any check of TaskContext.get()"
        )
    return metrics


class TaskMetrics:
    """Collects the metrics of one task."""

    def __init__(self) -> None:
        self.channels: dict[str, int] = {}  # their watermarks
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

        watermark, newest: the watermark, and the largest event time so far
        now: what the clock shows
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
        nbytes = manifest.nbytes
        self.add(**manifest.standing._asdict(), state_bytes=nbytes, largest_group_bytes=nbytes, groups=1)

    def take(self, metrics: Metrics | None = None) -> pa.Array:
        """Return the values so far, with those of the metrics of a function, and begin anew."""
        # The driver merges the JSON object (shape (1,)) by the names in it: "sum", "min", "max" and so on.
        values, self._values = self._values, {}
        objects: dict[str, dict[str, Any]] = {combine: {} for combine in _COMBINE}
        for metric in TASK_METRICS:
            objects[metric.combine][metric.name] = values.get(metric.name)
        channels, self.channels = self.channels, {}
        objects["max"] |= {OF_CHANNEL + name: mark for name, mark in channels.items()}
        if metrics is not None:
            distributions = {name: asdict(each) for name, each in metrics.take_distributions().items()}
            objects |= {"counters": metrics.take_counters(), "distributions": distributions}
        return pa.array([json.dumps(objects)])
