"""`progress`: the metrics of a running query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from timerheap.metrics import DistributionResult
from timerheap.spark._plan.observation import OBSERVED, has_namesakes
from timerheap.spark._worker.task_metrics import TASK_METRICS

__all__ = ["Progress", "progress"]

_HELD = [metric.name for metric in TASK_METRICS if metric.of_all]
_TIMES = ["watermark", "newest_event_time", "event_time_lag", "clock_lag"]
_REPORTED = ["groups", "max_parallelism"]
_COUNTED = [m.name for m in TASK_METRICS if m.name not in (*_HELD, *_TIMES, *_REPORTED)]


@dataclass(frozen=True)
class Progress:
    """The metrics of one operator as of a micro-batch; `progress` returns them.

    Times are in epoch milliseconds.

    Parameters
    ----------
    batch_id : int
        The micro-batch.
    watermark : int or None
        None before the first row with an event time.
    newest_event_time : int or None
        The largest event time so far. It is None, too, where windows follow Spark's own watermark.
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
    out_of_order_rows : int
        With ``order="arrival"``, the rows that were processed ahead of a timer that was due before them.
    keys : int
        The keys with timers, state or waiting rows, and some that had them until lately.
    waiting_rows : int
        The rows that wait for the watermark.
    state_bytes : int
        The size of the state in the checkpoint.
    largest_group_bytes : int
        The size of the largest key group.
    groups_handed_over : int
        The key groups that came from another Python worker of the executor, which costs little.
    groups_loaded : int
        The key groups that were loaded from the state store, which costs as much as their state.
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
    out_of_order_rows: int
    keys: int
    waiting_rows: int
    state_bytes: int
    largest_group_bytes: int
    groups_handed_over: int
    groups_loaded: int
    counters: dict[str, int]
    distributions: dict[str, DistributionResult]


def progress(query: StreamingQuery, operator: str = OBSERVED) -> Progress | None:
    """Return the metrics of an operator of a streaming query as of its last micro-batch.

    They are also in ``query.lastProgress.observedMetrics[operator]``, and so in what Spark reports to
    listeners. There they are null if the micro-batch had no rows for the operator; then this function returns
    what the operator still holds.

    Parameters
    ----------
    query : pyspark.sql.streaming.StreamingQuery
    operator : str, default "timerheap"
        Name of the operator. The first one of a query is "timerheap", unless `named` has given it another
        name; one whose input is the result of "timerheap" is "timerheap_2", and so on.

    Returns
    -------
    Progress or None
        None before the end of the first micro-batch.

    Raises
    ------
    TypeError, ValueError
        If `query` is not a streaming query, or has no such operator, or several of the name side by side, as
        in a union of two results, of which Spark reports one: `named` tells them apart.

    Notes
    -----
    A ``foreachBatch`` that reads its DataFrame twice without ``persist()`` runs the operator twice,
    which doubles the numbers.
    """
    if type(query).__module__.startswith("pyspark.sql.connect."):
        raise NotImplementedError("progress() is not supported on Spark Connect, where nothing is observed")
    if not isinstance(query, StreamingQuery):
        raise TypeError(f"query must be a pyspark.sql.streaming.StreamingQuery, got {query!r}")
    if not isinstance(operator, str):
        raise TypeError(f'operator must be a str such as "timerheap", got {operator!r}')
    batches = [batch for batch in query.recentProgress if batch.stateOperators]  # others had nothing to do
    reported = [batch for batch in batches if operator in batch.observedMetrics]
    if reported:
        if has_namesakes(query, operator):
            raise ValueError(
                f"operator must be the name of one operator, got {operator!r}, which several operators of "
                "the query have; give them names with timerheap.spark.named(result, name)"
            )
        metrics = [batch.observedMetrics[operator].asDict() for batch in reported]
        return _combined(reported[-1].batchId, metrics)
    if batches:
        names = sorted(batches[-1].observedMetrics)
        raise ValueError(
            f"operator must be the name of an operator of the query, got {operator!r}; the query observes "
            f"{', '.join(map(repr, names)) or 'nothing'}"
        )
    return None


def _combined(batch_id: int, metrics: list[dict[str, Any]]) -> Progress | None:
    """Return the metrics of the last of these micro-batches; what it leaves out has not changed before it."""
    held = next((values for values in reversed(metrics) if _of_all_groups(values)), None)
    if held is None:
        return None
    times = next((values for values in reversed(metrics) if values["watermark"] is not None), held)
    values = {name: metrics[-1][name] or 0 for name in _COUNTED}  # in the micro-batch
    values |= {name: times[name] for name in _TIMES} | {name: held[name] for name in _HELD}
    distributions = metrics[-1].get("distributions") or {}
    return Progress(
        batch_id=batch_id,
        counters=metrics[-1].get("counters") or {},
        distributions={name: DistributionResult(**each) for name, each in distributions.items()},
        **values,
    )


def _of_all_groups(values: dict[str, Any]) -> bool:
    """Return whether the metrics of a micro-batch are those of all key groups."""
    groups, all_groups = (values[name] for name in _REPORTED)
    return groups is not None and groups >= all_groups
