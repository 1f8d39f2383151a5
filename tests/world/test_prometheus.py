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


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    # Grafana's own types drop a field that they do not know.
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    plugins.register_default_plugins()
    written = json.loads(DASHBOARD.read_text())
    read = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(written)))
    assert known(written, read) == written
    written["panels"][0]["titel"] = "misspelt"
    assert known(written, read) != written


def known(written: object, read: object) -> object:
    """Return what was read, without what Grafana has added."""
    if isinstance(written, dict) and isinstance(read, dict):
        return {name: known(value, read[name]) for name, value in written.items() if name in read}
    if isinstance(written, list) and isinstance(read, list):
        return [known(*pair) for pair in zip(written, read, strict=True)]
    return read


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
