"""Tests what Prometheus is told of a query, and that the dashboard and the alerts ask for what there is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from streams import read_stream, write_batches

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import EventTime, PrometheusMetrics, progress

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
