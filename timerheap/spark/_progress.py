"""What the driver sees of a running query: the metrics of micro-batches, and what tasks tell it of a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.metrics import DistributionResult
from timerheap.spark._columns import LETTERS
from timerheap.spark._compat import execution_of, on_connect
from timerheap.spark._plan.observed_metrics import METRIC_MAP
from timerheap.spark._query import DEFAULT_NAME
from timerheap.spark._worker.task_metrics import OF_CHANNEL, TASK_METRICS

_HELD = [metric.name for metric in TASK_METRICS if metric.of_all]
_TIMES = ["watermark", "newest_event_time", "event_time_lag", "clock_lag"]
_REPORTED = ["groups", "max_parallelism"]
_COUNTED = [m.name for m in TASK_METRICS if m.name not in (*_HELD, *_TIMES, *_REPORTED)]
_CHANNELS = "channel_watermarks"


@dataclass(frozen=True)
class Progress:
    """The metrics of one operator as of a micro-batch, or an epoch; `progress` returns them.

    Times are in epoch milliseconds.

    Parameters
    ----------
    batch_id : int
        The micro-batch.
    watermark : int or None
        None before the first row with an event time.
    newest_event_time : int or None
        The largest event time so far. It is None, too, for a `StatefulProcessor`.
    event_time_lag : int or None
        By how many ms the watermark is behind `newest_event_time`.
    clock_lag : int or None
        By how many ms it was behind the time of the micro-batch.
    pending_event_time_timers, pending_processing_time_timers : int
        The timers that have yet to fire. For windows they are the ends of windows, by key and slice.
    next_event_time_timer, next_processing_time_timer : int or None
        When the next of them is due; None if there is none.
    fired_timers : int
        The timers that have fired in the micro-batch, or the windows that have ended.
    late_rows : int
        The rows of the micro-batch behind the watermark.
    dropped_rows : int
        Those of them that were neither processed nor part of the result.
    null_time_rows : int
        With ``EventTime(null="drop")``, the rows that were dropped since their event time is null.
    ahead_rows : int
        With ``with_max_ahead``, the rows that were too far ahead of the clock to advance the watermark.
    out_of_order_rows : int
        With ``order="arrival"``, the rows that were processed ahead of a timer that was due before them.
    keys : int
        The keys with timers, state or waiting rows, and some that had them until lately.
    buffered_rows : int
        The rows that wait for the watermark.
    state_bytes : int
        The size of the state in the checkpoint.
    largest_group_bytes : int
        The size of the largest key group.
    groups_handed_over : int
        The key groups that came from another Python worker of the executor, which costs little.
    groups_loaded : int
        The key groups that were loaded from the state store, which costs as much as their state.
    settled_keys : int
        The keys that are on the local disk, and not in memory, of the key groups of the micro-batch.
    settled_bytes : int
        What these take on the disk.
    returned_keys : int
        The keys that have come back from the disk in the micro-batch.
    channel_watermarks : dict of str to int
        The watermark of each channel that is not idle, by its name, with "right." before those of a second
        input. An input of more than 100 channels has none here; `read_checkpoint` tells of all.
    counters : dict of str to int
        The counters of the function, by how much they have changed in the micro-batch, and the events of its
        meters, by name. See `timerheap.MetricGroup`.
    distributions : dict of str to DistributionResult
        The distributions of the function that have had values in the micro-batch.
    """

    batch_id: int
    watermark: int | None
    newest_event_time: int | None
    event_time_lag: int | None
    clock_lag: int | None
    pending_event_time_timers: int
    pending_processing_time_timers: int
    next_event_time_timer: int | None
    next_processing_time_timer: int | None
    fired_timers: int
    late_rows: int
    dropped_rows: int
    null_time_rows: int
    ahead_rows: int
    out_of_order_rows: int
    keys: int
    buffered_rows: int
    state_bytes: int
    largest_group_bytes: int
    groups_handed_over: int
    groups_loaded: int
    settled_keys: int
    settled_bytes: int
    returned_keys: int
    channel_watermarks: dict[str, int]
    counters: dict[str, int]
    distributions: dict[str, DistributionResult]

    @property
    def dead_letters(self) -> int:
        """The rows and timers of the micro-batch for which a function raised, with ``errors="emit"``.

        The sum of the counters "dead_letters", of which each rule of `process_all` has one.
        """
        return sum(count for name, count in self.counters.items() if name.rpartition(".")[2] == LETTERS)


def progress(query: StreamingQuery, operator: str | None = None) -> Progress | None:
    """Return the metrics of an operator of a streaming query as of its last micro-batch.

    They are also in ``query.lastProgress.observedMetrics[operator].metrics``, a dict, and so in what Spark
    reports to listeners. It is empty if the micro-batch had no rows for the operator; then this function
    returns what the operator still holds.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
    operator : str, optional
        The `name` of the operator; by default the only one of the query, or of several "timerheap". That is
        the name of the first operator without one; one whose input is its result is "timerheap_2", and so on.

    Returns
    -------
    Progress or None
        None before the end of the first micro-batch.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If `query` is not a streaming query, or has no such operator, or several of the name side by side, as
        in a union of two results, of which Spark reports one: give each a `name`.

    Notes
    -----
    On Spark Connect, nothing tells of several operators of one name: these are the metrics of one of them.

    A ``foreachBatch`` that reads its DataFrame twice without ``persist()`` runs the operator twice,
    which doubles the numbers.
    """
    if not isinstance(query, StreamingQuery) and not on_connect(query):
        raise ArgumentTypeError(f"query must be a pyspark.sql.streaming.StreamingQuery, got {query!r}")
    if operator is not None and not isinstance(operator, str):
        raise ArgumentTypeError(f'operator must be a str such as "timerheap", got {operator!r}')
    batches = [batch for batch in query.recentProgress if has_run(batch)]
    if operator is None:
        known = {name for batch in batches for name in operators_of(batch)}
        operator = known.pop() if len(known) == 1 else DEFAULT_NAME
    reported = [batch for batch in batches if operator in operators_of(batch)]
    if reported:
        plan = "" if on_connect(query) else execution_of(query).logicalPlan().toString()
        # The metrics of an operator have an id of their own, also where a result stands twice in the query.
        first = rf"CollectMetrics {re.escape(operator)}, \[.*? AS {METRIC_MAP}#(\d+)"
        if len(set(re.findall(first, plan))) > 1:
            raise ArgumentValueError(
                f"operator must be the name of one operator, got {operator!r}, which several operators of "
                "the query have; give them names, as in timerheap.spark.process(..., name='alerts')"
            )
        last = reported[-1]
        found = [operators_of(batch)[operator] for batch in reported]
        return as_progress(last.batchId, reduce(after_batch, found, {}), found[-1])
    if batches:
        names = sorted(batches[-1].observedMetrics)
        raise ArgumentValueError(
            f"operator must be the name of an operator of the query, got {operator!r}; the query observes "
            f"{', '.join(map(repr, names)) or 'nothing'}"
        )
    return None


def has_run(batch: StreamingQueryProgress) -> bool:
    """Return whether a micro-batch, or an epoch, has run; Spark also reports that there was nothing to do."""
    return "addBatch" in batch.durationMs


def operators_of(batch: StreamingQueryProgress) -> dict[str, dict[str, Any]]:
    """Return what each operator has reported of a micro-batch, by its name."""
    found = {name: _fields(row.asDict()) for name, row in batch.observedMetrics.items()}
    return {name: row for name, row in found.items() if METRIC_MAP in row}  # not an observe() of the user's


def _fields(row: Any) -> Any:
    """Return a row by its names; the client of Spark Connect takes its values and schema for two fields."""
    if row.keys() != {"values", "schema"}:
        return row
    return dict(zip((field["name"] for field in row["schema"]["fields"]), row["values"], strict=True))


def after_batch(before: dict[str, Any], observed: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of an operator after a micro-batch; what it leaves out has not changed in it."""
    metrics = observed[METRIC_MAP]
    groups, all_groups = (metrics.get(name) for name in _REPORTED)
    held = _HELD if groups is not None and groups >= all_groups else []
    times = [name for name in _TIMES if metrics.get(name) is not None]
    counted: dict[str, Any] = {name: metrics.get(name) or 0 for name in _COUNTED}
    if groups is not None:  # the first partition has run, which tells of all channels
        marks = {name: mark for name, mark in metrics.items() if name.startswith(OF_CHANNEL)}
        counted[_CHANNELS] = {name.removeprefix(OF_CHANNEL): mark for name, mark in marks.items()}
    return before | {name: metrics[name] for name in (*held, *times)} | counted


def as_progress(batch_id: int, values: dict[str, Any], observed: dict[str, Any]) -> Progress | None:
    """Return the metrics after a micro-batch, given its own; None before one of all key groups."""
    if not values.keys() >= set(_HELD):
        return None
    distributions = {  # dicts in recentProgress, rows in what a listener receives
        name: DistributionResult(d["count"], d["sum"], d["min"], d["max"])
        for name, d in observed.get("distributions", {}).items()
    }
    numbers: dict[str, Any] = dict.fromkeys(_TIMES) | {_CHANNELS: {}} | values
    return Progress(batch_id, **numbers, counters=observed.get("counters", {}), distributions=distributions)
