"""Debian's Prometheus beside a running query: it scrapes metrics and answers the dashboard's queries."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import prometheus_server
import pytest
from prometheus_server import DASHBOARD, watched_query
from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.world(),
    pytest.mark.skipif(bool(prometheus_server.missing()), reason=f"{prometheus_server.missing()} is missing"),
]
PATIENCE = 180  # seconds until a test gives up waiting


def test_promtool_takes_the_alerts() -> None:
    for command in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        subprocess.run(["promtool", *command], cwd=DASHBOARD.parent, check=True)


def test_prometheus_sees_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    questions = {panel["title"]: panel["targets"][0]["expr"].replace("$query", ".*") for panel in panels}
    end = time.monotonic() + PATIENCE
    with watched_query(spark, tmp_path) as (query, prometheus):
        dropped, firing = (
            'timerheap_dropped_rows_total{query="sensors"} > 0',
            'ALERTS{alertname="RowsDropped"}',
        )
        waiting = {**questions, "dropped": dropped, "alert": firing}
        while waiting := {title: asked for title, asked in waiting.items() if not prometheus.values(asked)}:
            assert time.monotonic() < end, f"no answer: {waiting}"
            time.sleep(0.5)
        query.stop()
        while prometheus.values('timerheap_query_up{query="sensors"}') != [0.0]:
            assert time.monotonic() < end, "the query is still up"
            time.sleep(0.5)
        assert prometheus.values("timerheap_keys") == []
