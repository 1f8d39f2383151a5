"""The demo's job gives the same alerts in any number of micro-batches, and on a batch DataFrame."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest
from demo import compare
from flights import (
    SCHEMA,
    departures,
    micro_batches,
    read_flights,
    start_replay,
    write_replay,
)
from local_spark import JAVA_OPTIONS
from overdue import DELAY, overdue
from overdue_pandas import departed, final_watermark, overdue_planes
from rich.console import Console

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRAM = Path(__file__).parents[3] / "examples" / "demo.py"
PATHS = filter(None, [str(PROGRAM.parent), os.environ.get("PYTHONPATH")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}  # as make sets it

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

Alert = tuple[str, str, str, int]


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """Return the first quarter of the year, with a change of clocks; the command takes the whole year."""
    return read_flights().query("month <= 3")


@pytest.fixture(scope="module")
def watermark(flights: pd.DataFrame) -> pd.Timestamp:
    return final_watermark(flights, pd.Timedelta(milliseconds=DELAY))


@pytest.fixture(scope="module")
def quick(spark: SparkSession):
    """Set one shuffle partition, for many small micro-batches."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 1)
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", before)


def once(alerts: DataFrame) -> set[Alert]:
    """Return the alerts as a set; check that none occurs twice."""
    rows = [tuple(row) for row in alerts.collect()]
    assert len(rows) == len(set(rows))
    return set(rows)


def expected(flights: pd.DataFrame, watermark: pd.Timestamp | None) -> set[Alert]:
    alerts = overdue_planes(flights, watermark)
    since = alerts.pop("since").map(lambda time: time.value // 1_000_000)
    return set(alerts.assign(since=since).itertuples(index=False, name=None))


@pytest.mark.in_turn
@pytest.mark.parametrize("batches", [1, 6])
def test_any_number_of_micro_batches_gives_the_same_alerts(
    batches: int, quick: SparkSession, flights: pd.DataFrame, watermark: pd.Timestamp, tmp_path: Path
) -> None:
    write_replay(flights, tmp_path / "flights", batches)
    progress = list(micro_batches(start_replay(quick, tmp_path)))
    alerts = once(quick.read.parquet(str(tmp_path / "alerts")))

    assert len(progress) == batches
    assert alerts == expected(flights, watermark)
    counts = [
        {**p.observedMetrics["flights"].asDict(), **p.observedMetrics["timers"].asDict()} for p in progress
    ]
    totals = {name: sum(count[name] for count in counts) for name in counts[0] if name != "day"}
    passed = departed(flights).query("since <= @watermark")
    running = (passed.groupby("plane")["since"].max() + pd.Timedelta(hours=72) > watermark).sum()
    assert totals == {
        "scheduled": len(flights),
        "departed": len(departed(flights)),
        "registered": len(alerts) + running,
        "moved": len(passed) - len(alerts) - running,
        "fired": len(alerts),
    }


def test_a_batch_dataframe_also_gives_the_alerts_after_the_last_watermark(
    quick: SparkSession, flights: pd.DataFrame, watermark: pd.Timestamp, tmp_path: Path
) -> None:
    write_replay(flights, tmp_path, 3)
    alerts = once(overdue(departures(quick.read.schema(SCHEMA).parquet(str(tmp_path)))))

    assert alerts == expected(flights, None)
    due = watermark.value // 1_000_000 - 72 * 60 * 60 * 1000
    assert {alert for alert in alerts if alert[-1] <= due} == expected(flights, watermark)


@pytest.mark.in_turn
def test_the_command_checks_its_alerts(tmp_path: Path) -> None:
    scratch = {name: str(tmp_path) for name in ("TMPDIR", "TEMP", "TMP")}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--batches", "3"],
        cwd=tmp_path,
        env={**ENVIRONMENT, **scratch, "COLUMNS": "200", "JDK_JAVA_OPTIONS": JAVA_OPTIONS},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=590,
    )
    assert done.returncode == 0, done.stderr
    for shown in ("336,776", "8,255", "328,521", "Micro-batch 3 of 3", "equal"):
        assert shown in done.stdout
    assert "different" not in done.stdout
    assert done.stderr == ""
    assert not list(tmp_path.glob("timerheap-*")), "the temporary directory is gone"


def test_the_command_keeps_its_files_in_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    command = [sys.executable, str(PROGRAM), "--directory", str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"must be an empty directory, got {tmp_path}" in " ".join(done.stderr.split())


def test_a_difference_is_printed_row_by_row(watermark: pd.Timestamp) -> None:
    def alerts(*planes: str) -> pd.DataFrame:
        return pd.DataFrame([(plane, "EWR", "ORD", 1_370_000_000_000) for plane in planes], columns=names)

    names = ["plane", "origin", "dest", "since"]
    right = alerts("N1", "N2")
    right["since"] = pd.to_datetime(right["since"], unit="ms", utc=True)
    console = Console(file=io.StringIO(), width=200)
    assert compare(alerts("N2", "N1"), right, watermark, console)
    assert not compare(alerts("N1"), right, watermark, console)
    assert "1 missing" in console.file.getvalue()
    assert "N2" in console.file.getvalue()
    assert not compare(alerts("N1", "N2", "N2"), right, watermark, console)
    assert "1 too many" in console.file.getvalue()
