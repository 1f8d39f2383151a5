"""The metrics of running queries for Prometheus."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    SourceProgress,
    StreamingQueryListener,
)

from timerheap.metrics import DistributionResult
from timerheap.spark._progress import Progress, after_batch, as_progress, has_run, operators_of

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
except ImportError as error:
    raise ImportError(
        "PrometheusMetrics needs prometheus_client; run pip install 'timerheap[prometheus]'"
    ) from error

_Combine = Callable[[Iterable[Any]], Any]

# Each: its name without "timerheap_", what it is, the field, with "{}" one for each time domain, and what
# makes one value of those of several queries with one name.
_TIMES: list[tuple[str, str, str, _Combine]] = [
    ("watermark_timestamp_seconds", "The watermark.", "watermark", min),
    ("event_time_lag_seconds", "How far the watermark is behind the newest row.", "event_time_lag", max),
    ("clock_lag_seconds", "How far the watermark was behind the micro-batch.", "clock_lag", max),
    ("next_timer_timestamp_seconds", "When the next pending timer is due.", "next_{}_time_timer", min),
]
_GAUGES: list[tuple[str, str, str, _Combine]] = [
    ("pending_timers", "The timers that have yet to fire.", "pending_{}_time_timers", sum),
    ("keys", "The keys with timers, state or waiting rows.", "keys", sum),
    ("buffered_rows", "The rows that wait for the watermark.", "buffered_rows", sum),
    ("state_bytes", "The size of the state in the checkpoint.", "state_bytes", sum),
    ("largest_group_bytes", "The size of the largest key group.", "largest_group_bytes", max),
    ("settled_keys", "The keys that are on the local disk, and not in memory.", "settled_keys", sum),
    ("settled_bytes", "What keys take on the local disk that are not in memory.", "settled_bytes", sum),
]
_COUNTERS = {
    "fired_timers": "The timers that have fired.",
    "late_rows": "The rows behind the watermark.",
    "dropped_rows": "The late rows that were dropped.",
    "dead_letters": "The rows and timers for which a function has raised an exception.",
    "null_time_rows": "The rows that were dropped since their event time is null.",
    "ahead_rows": "The rows too far ahead of the clock.",
    "out_of_order_rows": "The rows that were processed ahead of a timer that was due before them.",
    "groups_handed_over": "The key groups that came from a different Python worker.",
    "groups_loaded": "The key groups that were loaded from the state store.",
    "returned_keys": "The keys that have come back from the local disk.",
}

_ENDED = 100  # queries that have ended and are still reported


@dataclass
class _Totals:
    """What the operators of one name have counted so far."""

    counts: Counter[str] = field(default_factory=Counter)
    of_function: Counter[str] = field(default_factory=Counter)
    distributions: dict[str, DistributionResult] = field(default_factory=dict)

    def add(self, now: Progress) -> None:
        self.counts.update({name: getattr(now, name) for name in _COUNTERS})
        self.of_function.update({_label(name): count for name, count in now.counters.items()})
        for name, result in now.distributions.items():
            before = self.distributions.get(label := _label(name))
            self.distributions[label] = result if before is None else before.merged(result)


@dataclass
class _Operator:
    """One operator of a run: its metrics after the last micro-batch."""

    values: dict[str, Any] = field(default_factory=dict)
    now: Progress | None = None

    def add(self, batch_id: int, observed: dict[str, Any]) -> Progress | None:
        self.values = after_batch(self.values, observed)
        self.now = as_progress(batch_id, self.values, observed)
        return self.now


@dataclass
class _Run:
    """One run of a query.

    behind: for each partition of Kafka, by topic and number, the rows after the last one that was read
    """

    alive: float
    batch_id: int = -1
    seconds: float = 0.0
    behind: dict[tuple[str, str], int] = field(default_factory=dict)
    operators: dict[str, _Operator] = field(default_factory=dict)


@dataclass
class _Query:
    """The queries of one name: their runs, none if all have ended, and what these have counted.

    has_name: whether a user has given it, and not Spark
    """

    has_name: bool
    runs: dict[str, _Run] = field(default_factory=dict)
    rows: int = 0
    totals: dict[str, _Totals] = field(default_factory=dict)


def _label(text: str) -> str:
    """Return a text as the value of a label, which has to be valid in UTF-8."""
    # A lone surrogate comes by way of JSON. Without this, it would end each scrape with an error.
    return text.encode("utf-8", "backslashreplace").decode()


class PrometheusMetrics(StreamingQueryListener):
    """Collects the metrics of streaming queries for the package ``prometheus_client``.

    It is a listener of Spark, which receives what `progress` returns, and a collector of Prometheus.

    Notes
    -----
    The names of all metrics begin with ``timerheap_``; docs/operations/prometheus.md lists them. Their labels
    are `query`, the name of the query or else its id, and `operator`, its `name`. Times are in seconds.

    Counters begin with 0 when the listener is added. The metrics of a query that has ended are gone, but for
    ``timerheap_query_up``, which is then 0: of the last 100 that have ended, where those without a name go
    first. Of several queries with one name, as in several sessions, the metrics are those of all: sums of
    what is counted, otherwise the worst. A scrape costs time in proportion to the operators, not to their
    keys.

    Examples
    --------
    ::

        from prometheus_client import REGISTRY, start_http_server

        metrics = timerheap.spark.PrometheusMetrics()
        spark.streams.addListener(metrics)
        REGISTRY.register(metrics)
        start_http_server(9464, "127.0.0.1")  # or the address at which Prometheus finds the driver
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._queries: dict[str, _Query] = {}  # those that have ended are in the order of their ends
        self._names: dict[str, str] = {}  # by run: only the start and the progress of a query have its name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Begin with a query."""
        with self._lock:
            self._run(str(event.runId), event.name, str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Add the metrics of a micro-batch."""
        progress = event.progress
        with self._lock:
            query, run = self._run(str(progress.runId), progress.name, str(progress.id))
            run.alive = time.time()
            run.batch_id = progress.batchId
            run.seconds = progress.durationMs.get("triggerExecution", 0) / 1000
            run.behind = _rows_behind(progress.sources)
            query.rows += progress.numInputRows
            if has_run(progress):
                for operator, observed in operators_of(progress).items():
                    label = _label(operator)
                    now = run.operators.setdefault(label, _Operator()).add(progress.batchId, observed)
                    if now is not None:
                        query.totals.setdefault(label, _Totals()).add(now)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Note that a query without rows still runs."""
        with self._lock:
            _, run = self._run(str(event.runId), None, str(event.id))
            run.alive = time.time()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """End with a query."""
        with self._lock:
            run = str(event.runId)
            self._run(run, None, str(event.id))
            name = self._names.pop(run)
            query = self._queries[name]
            del query.runs[run]
            if query.runs:
                return
            del self._queries[name]
            self._queries[name] = _Query(query.has_name)
            ended = [name for name, query in self._queries.items() if not query.runs]
            if len(ended) > _ENDED:
                del self._queries[min(ended, key=lambda name: self._queries[name].has_name)]

    def _run(self, run: str, name: str | None, id_: str) -> tuple[_Query, _Run]:
        """Return a run and the queries of its name, which are new to the listener or not."""
        label = _label(name or id_)
        known = self._names.get(run)
        found = None
        if known is not None:
            if not name or known == label:
                query = self._queries[known]
                return query, query.runs[run]
            found = self._queries[known].runs.pop(run)  # only now its name is known
            if not self._queries[known].runs:
                del self._queries[known]
        query = self._queries.setdefault(label, _Query(bool(name)))
        self._names[run] = label
        query.runs[run] = found or _Run(time.time())
        return query, query.runs[run]

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
    runs = query.runs.values()
    add(GaugeMetricFamily, "query_up", "Whether the query is running.", of, bool(runs))
    if not runs:
        return
    text = "The last micro-batch or idle moment."
    add(GaugeMetricFamily, "alive_timestamp_seconds", text, of, min(run.alive for run in runs))
    if any(run.batch_id >= 0 for run in runs):
        add(GaugeMetricFamily, "batch_id", "The last micro-batch.", of, max(run.batch_id for run in runs))
        seconds = max(run.seconds for run in runs)
        add(GaugeMetricFamily, "batch_duration_seconds", "How long it took.", of, seconds)
        add(CounterMetricFamily, "input_rows", "The rows that were read.", of, query.rows)
    behind: dict[tuple[str, str], int] = {}
    for run in runs:
        behind |= {place: max(rows, behind.get(place, 0)) for place, rows in run.behind.items()}
    for (topic, partition), rows in behind.items():
        labels = of | {"topic": topic, "partition": partition}
        add(GaugeMetricFamily, "partition_rows_behind", "The rows that were not read yet.", labels, rows)
    for name, totals in query.totals.items():
        operators = (run.operators.get(name) for run in runs)
        now = [operator.now for operator in operators if operator is not None and operator.now is not None]
        _add_operator(add, totals, now, of | {"operator": name})


def _rows_behind(sources: Iterable[SourceProgress]) -> dict[tuple[str, str], int]:
    """Return what the newest offset of each partition of Kafka is ahead of the last one that was read."""
    found: Counter[tuple[str, str]] = Counter()
    for source in sources:
        if source.description.startswith("KafkaV2["):
            read, newest = _offsets_of(source.endOffset), _offsets_of(source.latestOffset)
            for topic, partitions in newest.items():
                for partition, offset in partitions.items():
                    rows = offset - read.get(topic, {}).get(partition, offset)
                    place = _label(topic), partition
                    found[place] = max(found[place], rows)
    return found


def _offsets_of(text: str | None) -> dict[str, dict[str, int]]:
    """Return the offsets of Kafka's partitions in a text, which Spark may not have."""
    return {} if text in (None, "", "null", "None") else json.loads(text)


def _add_operator(add: Callable[..., None], totals: _Totals, now: list[Progress], of: dict[str, str]) -> None:
    for scale, gauges in ((1000, _TIMES), (1, _GAUGES)):
        for metric, text, field_, combine in gauges:
            for kind in ("event", "processing") if "{}" in field_ else ("",):
                values = [getattr(each, field_.format(kind)) for each in now]
                if known := [value for value in values if value is not None]:
                    labels = of | {"time": kind} if kind else of
                    add(GaugeMetricFamily, metric, text, labels, combine(known) / scale)
    for metric, text, field_, combine in _TIMES[:3]:
        of_channels: dict[str, list[int]] = {}
        for each in now:
            for channel, value in _channels(each, field_).items():
                of_channels.setdefault(_label(channel), []).append(value)
        for channel, values in of_channels.items():
            labels = of | {"channel": channel}
            add(GaugeMetricFamily, f"channel_{metric}", text, labels, combine(values) / 1000)
    for metric, text in _COUNTERS.items():
        add(CounterMetricFamily, metric, text, of, totals.counts[metric])
    for name, count in totals.of_function.items():
        add(GaugeMetricFamily, "function_counter", "Of functions.", of | {"name": name}, count)
    for name, result in totals.distributions.items():
        text = "Distributions of functions."
        add(SummaryMetricFamily, "function_values", text, of | {"name": name}, result.count, result.sum)


def _channels(now: Progress, field_: str) -> dict[str, int]:
    """Return for each channel what the field of that name says of the watermark of all."""
    marks = now.channel_watermarks
    if field_ == "watermark":
        return marks
    if field_ == "event_time_lag":
        return {channel: (now.newest_event_time or mark) - mark for channel, mark in marks.items()}
    if now.watermark is None or now.clock_lag is None:
        return {}
    clock = now.watermark + now.clock_lag
    return {channel: clock - mark for channel, mark in marks.items()}
