"""A running query that Prometheus scrapes each second; as a program, it draws the dashboard's panels.

``python tests/support/servers/prometheus_server.py 180 docs/images/dashboard.png`` does so after 180 s.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from local_spark import running_spark
from prometheus_client import CollectorRegistry, start_http_server
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy

__all__ = ["DASHBOARD", "PrometheusServer", "missing", "watched_query"]

DASHBOARD = Path(__file__).resolve().parents[3] / "docs/operations/prometheus/dashboard.json"
SILENCE = 5_000  # ms until a sensor is said to be silent
LATE = 20_000  # ms behind the others


def missing() -> str | None:
    """Name the first program that is not there."""
    return next((name for name in ("prometheus", "promtool") if shutil.which(name) is None), None)


class PrometheusServer:
    """Debian's Prometheus on loopback, with the alerts of the documentation.

    folder: for its files
    target: the port that it scrapes
    """

    def __init__(self, folder: Path, target: int) -> None:
        folder.mkdir()
        scrape = {"job_name": "driver", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(DASHBOARD.with_name("alerts.yml"))],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML, too
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}/api/v1"
        files = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command = ["prometheus", *files, f"--web.listen-address={address}", "--log.level=error"]
        self._process = subprocess.Popen(command)

    def get(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer."""
        with urllib.request.urlopen(f"{self.url}/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        """Return the values of an instant query; none before it answers."""
        with suppress(OSError):
            return [float(each["value"][1]) for each in self.get("query", query=expression)["result"]]
        return []

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Silent(KeyedProcessFunction):
    """Reports a sensor from which no row has come for some seconds."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> None:
        timers = ctx.timer_service()
        if (due := self.due.value()) is not None:
            timers.delete_event_time_timer(due)
        self.due.update(ctx.timestamp() + SILENCE)
        timers.register_event_time_timer(ctx.timestamp() + SILENCE)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int]]:
        self.due.clear()
        yield ctx.get_current_key(), timestamp


def sensors(spark: SparkSession) -> Any:
    """Return the silent ones among 200 sensors, each silent for half a minute, and each 500th row late."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", 200).option("numPartitions", 1).load()
    rows = rows.selectExpr(
        "(value * 7919) % 200 AS sensor",
        f"unix_millis(timestamp) - IF(value % 500 = 0, {LATE}, 0) AS at",
    ).where("(at div 30000 + sensor) % 7 > 0")
    at = timerheap.spark.EventTime("at", channel=F.expr("IF(sensor % 4 > 0, 'north', 'south')"))
    watermark = WatermarkStrategy.for_bounded_out_of_orderness(1000)
    return timerheap.spark.process(rows, "sensor", Silent(), "sensor long, at long", at, watermark=watermark)


@contextmanager
def watched_query(spark: SparkSession, folder: Path) -> Iterator[tuple[Any, PrometheusServer]]:
    """Run a query, "sensors", and Prometheus."""
    metrics, registry = timerheap.spark.PrometheusMetrics(), CollectorRegistry()
    registry.register(metrics)
    spark.streams.addListener(metrics)
    http, _ = start_http_server(0, "127.0.0.1", registry)
    prometheus = PrometheusServer(folder / "prometheus", http.server_port)
    writer = sensors(spark).writeStream.format("noop").queryName("sensors")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield query, prometheus
    finally:
        query.stop()
        prometheus.close()
        http.shutdown()
        spark.streams.removeListener(metrics)


def draw(prometheus: PrometheusServer, since: float, path: str) -> None:
    """Draw each panel of the dashboard, as Prometheus answers its query."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = json.loads(DASHBOARD.read_text())["panels"]
    figure, axes = plt.subplots(
        -(-len(panels) // 3), 3, figsize=(15, 2.6 * -(-len(panels) // 3)), squeeze=False
    )
    for panel, axis in zip(panels, axes.flat, strict=False):
        expression = panel["targets"][0]["expr"].replace("$query", ".*")
        answer = prometheus.get("query_range", query=expression, start=since, end=time.time(), step=1)
        for series in answer["result"]:
            names = ("operator", "time", "channel")
            labels = [series["metric"][name] for name in names if name in series["metric"]]
            points = [(float(at) - since, float(value)) for at, value in series["values"]]
            axis.plot(*zip(*points, strict=True), label=" ".join(labels) or "sensors")
        unit = panel["fieldConfig"]["defaults"]["unit"]
        axis.set_title(
            panel["title"] + {"s": ", s", "ops": ", per s", "bytes": ", bytes"}.get(unit, ""), fontsize=10
        )
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="lower right")
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(path, dpi=70)


if __name__ == "__main__":
    with (
        TemporaryDirectory() as name,
        running_spark(Path(name) / "spark", {}) as session,
        watched_query(session, Path(name)) as (_, server),
    ):
        begin = time.time()
        time.sleep(float(sys.argv[1]))
        draw(server, begin, sys.argv[2])
