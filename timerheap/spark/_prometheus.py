"""The metrics of running queries for Prometheus."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from timerheap.metrics import DistributionResult
from timerheap.spark._plan.progress import Progress, after_batch, as_progress, operators_of

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
except ImportError as error:
    raise ImportError(
        "PrometheusMetrics needs prometheus_client; run pip install 'timerheap[prometheus]'"
    ) from error

# Each: its name without "timerheap_", what it is, and the field, with "{}" one for each time domain.
_TIMES = [
    ("watermark_timestamp_seconds", "The watermark.", "watermark"),
    ("event_time_lag_seconds", "How far the watermark is behind the newest row.", "event_time_lag"),
    ("clock_lag_seconds", "How far the watermark was behind the micro-batch.", "clock_lag"),
    ("next_timer_timestamp_seconds", "When the next pending timer is due.", "next_{}_time_timer"),
]
_GAUGES = [
    ("pending_timers", "The timers that have yet to fire.", "pending_{}_time_timers"),
    ("keys", "The keys with timers, state or waiting rows.", "keys"),
    ("buffered_rows", "The rows that wait for the watermark.", "buffered_rows"),
    ("state_bytes", "The size of the state in the checkpoint.", "state_bytes"),
    ("largest_group_bytes", "The size of the largest key group.", "largest_group_bytes"),
]
_COUNTERS = {
    "fired_timers": "The timers that have fired.",
    "late_rows": "The rows behind the watermark.",
    "dropped_rows": "The late rows that were dropped.",
    "null_time_rows": "The rows that were dropped since their event time is null.",
    "ahead_rows": "The rows too far ahead of the clock.",
    "out_of_order_rows": "The rows that were processed ahead of a timer that was due before them.",
    "groups_handed_over": "The key groups that came from a different Python worker.",
    "groups_loaded": "The key groups that were loaded from the state store.",
}


@dataclass
class _Operator:
    """One operator of a query: its metrics after the last micro-batch, and what has been counted so far."""

    values: dict[str, Any] = field(default_factory=dict)
    now: Progress | None = None
    totals: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    distributions: dict[str, DistributionResult] = field(default_factory=dict)

    def add(self, batch_id: int, observed: dict[str, Any]) -> None:
        self.values = after_batch(self.values, observed)
        self.now = as_progress(batch_id, self.values, observed)
        if self.now is None:
            return
        self.totals.update({name: getattr(self.now, name) for name in _COUNTERS})
        self.counts.update(self.now.counters)
        for name, result in self.now.distributions.items():
            before = self.distributions.get(name)
            self.distributions[name] = result if before is None else before.merged(result)


@dataclass
class _Query:
    """One query, which `up` says is running."""

    up: bool = True
    alive: float = 0.0
    batch_id: int = -1
    seconds: float = 0.0
    rows: int = 0
    operators: dict[str, _Operator] = field(default_factory=dict)


class PrometheusMetrics(StreamingQueryListener):
    """Collects the metrics of streaming queries for the package ``prometheus_client``.

    It is a listener of Spark, which receives what `progress` returns, and a collector of Prometheus.

    Notes
    -----
    The names of all metrics begin with ``timerheap_``; docs/operations/prometheus.md lists them. Their labels
    are `query`, the name of the query or else its id, and `operator`, see `with_name`. Times are in seconds.

    Counters begin with 0 when the listener is added. The metrics of a query that has ended are gone, but for
    ``timerheap_query_up``, which is then 0. A scrape costs time in proportion to the operators, not to their
    keys.

    Examples
    --------
    ::

        from prometheus_client import REGISTRY, start_http_server

        metrics = timerheap.spark.PrometheusMetrics()
        spark.streams.addListener(metrics)
        REGISTRY.register(metrics)
        start_http_server(9464)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._queries: dict[str, _Query] = {}
        self._names: dict[str, str] = {}  # by run: only the start and the progress of a query have its name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Begin with a query."""
        name = event.name or str(event.id)
        with self._lock:
            self._names[str(event.runId)] = name
            self._queries[name] = _Query(alive=time.time())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add the metrics of a micro-batch."""
        progress = event.progress
        with self._lock:
            name = self._names.setdefault(str(progress.runId), progress.name or str(progress.id))
            query = self._queries.setdefault(name, _Query())
            query.alive = time.time()
            query.batch_id = progress.batchId
            query.seconds = progress.durationMs.get("triggerExecution", 0) / 1000
            query.rows += progress.numInputRows
            if progress.stateOperators:  # otherwise the micro-batch had nothing to do
                for operator, observed in operators_of(progress).items():
                    query.operators.setdefault(operator, _Operator()).add(progress.batchId, observed)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that a query without rows still runs."""
        with self._lock:
            name = self._names.get(str(event.runId), str(event.id))
            self._queries.setdefault(name, _Query()).alive = time.time()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """End with a query."""
        with self._lock:
            name = self._names.pop(str(event.runId), str(event.id))
            self._queries[name] = _Query(up=False)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all queries, as ``prometheus_client`` asks for them."""
        families: dict[str, Any] = {}

        def add(type_: Callable[..., Any], name: str, text: str, of: dict[str, str], *value: float) -> None:
            if name not in families:
                families[name] = type_(f"timerheap_{name}", text, labels=list(of))
            families[name].add_metric(list(of.values()), *value)

        with self._lock:
            for name, query in self._queries.items():
                _add_query(add, query, {"query": name})
        yield from families.values()


def _add_query(add: Callable[..., None], query: _Query, of: dict[str, str]) -> None:
    add(GaugeMetricFamily, "query_up", "Whether the query is running.", of, query.up)
    if query.up:
        text = "The last micro-batch or idle moment."
        add(GaugeMetricFamily, "alive_timestamp_seconds", text, of, query.alive)
    if query.batch_id >= 0:
        add(GaugeMetricFamily, "batch_id", "The last micro-batch.", of, query.batch_id)
        add(GaugeMetricFamily, "batch_duration_seconds", "How long it took.", of, query.seconds)
        add(CounterMetricFamily, "input_rows", "The rows that were read.", of, query.rows)
    for name, operator in query.operators.items():
        if operator.now is not None:
            _add_operator(add, operator, operator.now, of | {"operator": name})


def _add_operator(add: Callable[..., None], operator: _Operator, now: Progress, of: dict[str, str]) -> None:
    for scale, gauges in ((1000, _TIMES), (1, _GAUGES)):
        for metric, text, field_ in gauges:
            for kind in ("event", "processing") if "{}" in field_ else ("",):
                if (value := getattr(now, field_.format(kind))) is not None:
                    labels = of | {"time": kind} if kind else of
                    add(GaugeMetricFamily, metric, text, labels, value / scale)
    for channel, mark in now.channel_watermarks.items():
        lag = (now.newest_event_time or mark) - mark
        for (metric, text, _), value in zip(_TIMES[:2], (mark, lag), strict=True):
            add(GaugeMetricFamily, f"channel_{metric}", text, of | {"channel": channel}, value / 1000)
    for metric, text in _COUNTERS.items():
        add(CounterMetricFamily, metric, text, of, operator.totals[metric])
    for name, count in operator.counts.items():
        add(GaugeMetricFamily, "function_counter", "Of functions.", of | {"name": name}, count)
    for name, result in operator.distributions.items():
        text = "Distributions of functions."
        add(SummaryMetricFamily, "function_values", text, of | {"name": name}, result.count, result.sum)
