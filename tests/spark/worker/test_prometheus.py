"""Tests what Prometheus is told of a query, and that the dashboard and the alerts ask for what there is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from streams import read_stream, write_batches

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import EventTime, PrometheusMetrics, progress
from timerheap.spark._worker.task_metrics import TASK_METRICS

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64())])
FILES = Path(__file__).resolve().parents[3] / "docs/operations/prometheus"
PATIENCE = 120  # seconds until the test gives up waiting


class Reminder(KeyedProcessFunction):
    """Each row sets a timer 1,000 ms later, and is counted."""

    def open(self, runtime_context: Any) -> None:
        self.metrics = runtime_context.get_metrics_group()

    def process_element(self, value: Row, ctx: Any) -> None:
        self.metrics.counter("rows").inc()
        self.metrics.distribution("at").update(value.at)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


def wait_for(registry: CollectorRegistry, name: str, labels: dict[str, str], value: float) -> None:
    """Wait until Spark has told its listeners, which it does a little later."""
    end = time.monotonic() + PATIENCE
    while registry.get_sample_value(name, labels) != value:
        assert time.monotonic() < end, f"{name} did not become {value}"
        time.sleep(0.05)


@pytest.mark.spark
def test_prometheus_is_told_what_progress_returns(spark: SparkSession, tmp_path: Path) -> None:
    later = [("a", 900), ("b", 6500), ("b", 7100), ("c", 7050)]  # the first row is late
    batches = [[("a", 1000), ("b", 5000)], later]
    tables = [[dict(zip(SCHEMA.names, row, strict=True)) for row in batch] for batch in batches]
    write_batches(tmp_path / "in", tables, SCHEMA)
    reminders = timerheap.spark.process(
        read_stream(spark, tmp_path / "in"),
        "k",
        Reminder(),
        "k string not null, at bigint",
        EventTime("at", channel=F.expr("IF(k = 'b', 'one', 'the others')")),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(99),
    )
    metrics, registry = PrometheusMetrics(), CollectorRegistry()
    registry.register(metrics)
    spark.streams.addListener(metrics)
    try:
        query = (
            reminders.writeStream.format("noop")
            .queryName("reminders")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        wait_for(registry, "timerheap_batch_id", {"query": "reminders"}, query.lastProgress.batchId)
        operator = {"query": "reminders", "operator": "timerheap"}
        seen = progress(query)
        assert seen is not None
        assert seen.watermark is not None
        assert seen.event_time_lag is not None
        expected = {
            "watermark_timestamp_seconds": seen.watermark / 1000,
            "event_time_lag_seconds": seen.event_time_lag / 1000,
            "fired_timers_total": 2,
            "late_rows_total": 1,
            "dropped_rows_total": 1,
            "keys": seen.keys,
            "buffered_rows": seen.buffered_rows,
            "state_bytes": seen.state_bytes,
        }
        found = {name: registry.get_sample_value(f"timerheap_{name}", operator) for name in expected}
        assert found == expected
        assert seen.channel_watermarks == {"one": 7000, "the others": 6950}
        for channel, watermark, lag in (("one", 7.0, 0.1), ("the others", 6.95, 0.15)):
            labels = operator | {"channel": channel}
            assert seen.clock_lag is not None
            behind = (seen.watermark + seen.clock_lag) / 1000 - watermark
            found_behind = registry.get_sample_value("timerheap_channel_clock_lag_seconds", labels)
            assert found_behind == pytest.approx(behind)
            assert registry.get_sample_value("timerheap_channel_event_time_lag_seconds", labels) == lag
            name = "timerheap_channel_watermark_timestamp_seconds"
            assert registry.get_sample_value(name, labels) == watermark
        by_time = operator | {"time": "event"}
        assert registry.get_sample_value("timerheap_pending_timers", by_time) == 1
        assert registry.get_sample_value("timerheap_next_timer_timestamp_seconds", by_time) == 7.5
        of_function = {name: operator | {"name": name} for name in ("rows", "at")}
        assert registry.get_sample_value("timerheap_function_counter", of_function["rows"]) == 3
        assert registry.get_sample_value("timerheap_function_values_sum", of_function["at"]) == 12500
        assert registry.get_sample_value("timerheap_input_rows_total", {"query": "reminders"}) == 6

        names = {sample.name for family in registry.collect() for sample in family.samples}
        asked = set(re.findall(r"timerheap_\w+", (FILES / "alerts.yml").read_text()))
        for panel in json.loads((FILES / "dashboard.json").read_text())["panels"]:
            asked.update(re.findall(r"timerheap_\w+", panel["targets"][0]["expr"]))
        assert asked <= names

        query.stop()
        wait_for(registry, "timerheap_query_up", {"query": "reminders"}, 0)
        assert registry.get_sample_value("timerheap_keys", operator) is None
    finally:
        spark.streams.removeListener(metrics)


class Told:
    """What Spark tells a listener of one run of a query, without Spark."""

    def __init__(self, metrics: PrometheusMetrics, run: str, name: str | None, id_: str = "id") -> None:
        self._metrics, self._named = metrics, {"runId": run, "name": name, "id": id_}
        self.sources: list[SimpleNamespace] = []

    def started(self) -> None:
        self._metrics.onQueryStarted(SimpleNamespace(**self._named))  # type: ignore[arg-type]

    def idle(self) -> None:
        event = SimpleNamespace(runId=self._named["runId"], id=self._named["id"])
        self._metrics.onQueryIdle(event)  # type: ignore[arg-type]

    def ended(self) -> None:
        event = SimpleNamespace(runId=self._named["runId"], id=self._named["id"])
        self._metrics.onQueryTerminated(event)  # type: ignore[arg-type]

    def batch(self, operator: str = "timerheap", counters: Any = None, **metrics: int) -> None:
        """Tell of a micro-batch whose operator has observed these metrics."""
        groups = {"groups": 1, "max_parallelism": 1}
        own = {"counters": counters} if counters else {}
        row = Row(metrics=HELD | groups | metrics, **own)
        progress = SimpleNamespace(
            **self._named,
            batchId=3,
            durationMs={"triggerExecution": 500, "addBatch": 400},
            numInputRows=10,
            observedMetrics={operator: row},
            sources=self.sources,
        )
        self._metrics.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]


HELD = {metric.name: 0 for metric in TASK_METRICS if metric.of_all}


@pytest.fixture
def told() -> tuple[PrometheusMetrics, CollectorRegistry]:
    metrics, registry = PrometheusMetrics(), CollectorRegistry()
    registry.register(metrics)
    return metrics, registry


def ups(registry: CollectorRegistry) -> dict[str, float]:
    """Return which queries a scrape says to be up, each once."""
    samples = [s for f in registry.collect() for s in f.samples if s.name == "timerheap_query_up"]
    found = {sample.labels["query"]: sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def test_few_of_the_ended_queries_are_kept(told: tuple[PrometheusMetrics, CollectorRegistry]) -> None:
    metrics, registry = told
    orders, other = Told(metrics, "run", "orders"), Told(metrics, "run 2", "other")
    for one in (orders, other):
        one.started()
    orders.ended()
    for number in range(5000):
        unnamed = Told(metrics, f"run of {number}", None, f"id {number}")
        unnamed.started()
        unnamed.batch(keys=1)
        unnamed.ended()
    found = ups(registry)
    assert len(found) == 101
    assert (found["orders"], found["other"], found["id 4999"]) == (0, 1, 0)  # one with a name is kept
    assert not metrics._names.keys() - {"run 2"}
    for number in range(5000):
        named = Told(metrics, f"named run of {number}", f"job {number}")
        named.started()
        named.ended()
    assert len(ups(registry)) == 101
    orders.started()
    assert ups(registry)["orders"] == 1


def test_queries_of_one_name_are_reported_together(
    told: tuple[PrometheusMetrics, CollectorRegistry],
) -> None:
    metrics, registry = told
    one, two = Told(metrics, "run 1", "jobs", "id 1"), Told(metrics, "run 2", "jobs", "id 2")
    operator = {"query": "jobs", "operator": "timerheap"}

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"timerheap_{name}", operator)

    for run, watermark in ((one, 5_000), (two, 9_000)):
        run.started()
        run.batch(keys=4, dropped_rows=2, watermark=watermark, clock_lag=10_000 - watermark)
    assert ups(registry) == {"jobs": 1}
    assert (value("keys"), value("dropped_rows_total")) == (8, 4)
    assert (value("watermark_timestamp_seconds"), value("clock_lag_seconds")) == (5, 5)
    one.ended()
    assert ups(registry) == {"jobs": 1}
    assert (value("keys"), value("dropped_rows_total")) == (4, 4)
    assert value("watermark_timestamp_seconds") == 9
    two.ended()
    assert ups(registry) == {"jobs": 0}
    assert value("keys") is None
    two.started()
    two.batch(keys=1, dropped_rows=1, settled_keys=7, settled_bytes=300, returned_keys=2)
    assert (value("keys"), value("dropped_rows_total")) == (1, 1)
    assert (value("settled_keys"), value("settled_bytes"), value("returned_keys_total")) == (7, 300, 2)


def test_dead_letters_of_all_rules_are_one_number(told: tuple[PrometheusMetrics, CollectorRegistry]) -> None:
    metrics, registry = told
    run, operator = Told(metrics, "run", "jobs"), {"query": "jobs", "operator": "timerheap"}
    run.started()
    for counters in (
        {"rows": 1},
        {"dead_letters": 3, "dead_letters of others": 9},
        {"spikes.dead_letters": 2},
    ):
        run.batch(counters=counters)
    assert registry.get_sample_value("timerheap_dead_letters_total", operator) == 5


def test_a_name_may_come_after_an_idle_moment(told: tuple[PrometheusMetrics, CollectorRegistry]) -> None:
    """As for a listener that is added while a query runs."""
    metrics, registry = told
    query = Told(metrics, "run", "jobs")
    query.idle()
    assert ups(registry) == {"id": 1}
    query.batch(keys=1)
    assert ups(registry) == {"jobs": 1}
    query.ended()
    assert ups(registry) == {"jobs": 0}


def test_any_name_can_be_scraped(told: tuple[PrometheusMetrics, CollectorRegistry]) -> None:
    metrics, registry = told
    query = Told(metrics, "run", "a\ud800")
    query.started()
    marks = {"watermark": 1000, "clock_lag": 500, "channel c\ud800": 1000}
    query.batch("b\ud800", {"n\ud800": 1}, keys=1, **marks)
    text = generate_latest(registry).decode()
    assert 'timerheap_query_up{query="a\\\\ud800"} 1.0' in text
    for label in ('operator="b', 'channel="c', 'name="n'):
        assert f'{label}\\\\ud800"' in text


def test_channels_are_measured_by_the_clock(told: tuple[PrometheusMetrics, CollectorRegistry]) -> None:
    """A store whose clock is two hours ahead does not make the others look late."""
    metrics, registry = told
    query = Told(metrics, "run", "stores")
    now, ahead = 1_700_000_000_000, 2 * 3600_000
    marks = {"channel ahead": now + ahead, "channel well": now - 2000, "channel late": now - 3600_000}
    query.batch(watermark=now - 3600_000, clock_lag=3600_000, newest_event_time=now + ahead, **marks)
    lags = {}
    for channel in ("ahead", "well", "late"):
        labels = {"query": "stores", "operator": "timerheap", "channel": channel}
        lags[channel] = registry.get_sample_value("timerheap_channel_clock_lag_seconds", labels)
    assert lags == {"ahead": -7200, "well": 2, "late": 3600}


def test_how_far_partitions_of_kafka_are_behind(told: tuple[PrometheusMetrics, CollectorRegistry]) -> None:
    """A topic that two sources read counts where it is further behind; other sources have no offsets."""
    metrics, registry = told
    query = Told(metrics, "run", "orders")

    def source(description: str, read: Any, newest: Any) -> SimpleNamespace:
        return SimpleNamespace(
            description=description, endOffset=json.dumps(read), latestOffset=json.dumps(newest)
        )

    query.sources = [
        source("KafkaV2[Subscribe[a,b]]", {"a": {"0": 5, "1": 7}}, {"a": {"0": 9, "1": 7}, "b": {"0": 3}}),
        source("KafkaV2[Subscribe[a]]", {"a": {"0": 2}}, {"a": {"0": 9}}),
        source("FileStreamSource[in]", {"logOffset": 3}, None),
        SimpleNamespace(description="KafkaV2[Subscribe[c]]", endOffset="", latestOffset="null"),
    ]
    query.batch()

    def rows(topic: str, partition: str) -> float | None:
        labels = {"query": "orders", "topic": topic, "partition": partition}
        return registry.get_sample_value("timerheap_partition_rows_behind", labels)

    assert [rows("a", "0"), rows("a", "1"), rows("b", "0"), rows("c", "0")] == [7, 0, 0, None]
