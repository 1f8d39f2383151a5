"""Compares windows of the year's flights with Spark's own window() and with pandas on the wall clock."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demo_windows
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import streams
from click.testing import CliRunner
from flights import read_flights
from pyspark.sql import functions as F
from rich.console import Console

import timerheap.spark
from timerheap import WatermarkStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRAM = Path(__file__).parents[3] / "examples" / "demo_windows.py"
PATHS = filter(None, [str(PROGRAM.parent), os.environ.get("PYTHONPATH")])
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}  # as make sets it

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled")]

MINUTE = pd.Timedelta(minutes=1)
HOUR = pd.Timedelta(hours=1)
DAY = pd.Timedelta(days=1)
NEW_YORK = "America/New_York"
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(DAY.to_pytimedelta())
SCHEMA = pa.schema([("origin", pa.string()), ("departed", pa.timestamp("us", "UTC")), ("delay", pa.int32())])
BOUNDS = ["window_start", "window_end", "window_time"]

# No flight departs in the hours around a change of clocks; these are UTC, by what New York shows.
NIGHTS = [
    ("2013-03-10 06:30:00", "01:30 EST"),
    ("2013-03-10 06:59:59.999", "01:59 EST, the last ms before the gap"),
    ("2013-03-10 07:00:00", "03:00 EDT, the first after it"),
    ("2013-03-10 07:29:59.999", "03:29 EDT"),
    ("2013-03-10 07:40:00", "03:40 EDT"),
    ("2013-11-03 04:59:59.999", "00:59 EDT"),
    ("2013-11-03 05:00:00", "01:00 EDT"),
    ("2013-11-03 05:40:00", "01:40 EDT"),
    ("2013-11-03 05:59:59.999", "01:59 EDT, and then the clock is set back"),
    ("2013-11-03 06:00:00", "01:00 EST"),
    ("2013-11-03 06:10:00", "01:10 EST"),
    ("2013-11-03 06:59:59.999", "01:59 EST"),
    ("2013-11-03 07:00:00", "02:00 EST"),
]


@pytest.fixture(scope="module")
def departed() -> pd.DataFrame:
    """Return the year's departures in scheduled order: origin, departed (UTC), delay in minutes."""
    flights = read_flights().sort_values(["time_hour", "minute"], kind="stable")
    flights = flights[flights["dep_delay"].notna()]
    moment = flights["time_hour"] + pd.to_timedelta(flights["minute"] + flights["dep_delay"], unit="min")
    delay = flights["dep_delay"].astype("int32")
    return flights[["origin"]].assign(departed=moment, delay=delay).reset_index(drop=True)


@pytest.fixture(scope="module")
def with_nights(departed: pd.DataFrame) -> pd.DataFrame:
    """Return the departures with additional ones in the nights of the clock changes."""
    moments = pd.to_datetime([moment for moment, _ in NIGHTS], format="ISO8601", utc=True)
    nights = pd.DataFrame({"departed": moments, "delay": np.arange(len(NIGHTS), dtype=np.int32)})
    nights = pd.concat([nights.assign(origin=origin) for origin in ("EWR", "JFK")])
    local = departed["departed"].dt.tz_convert(NEW_YORK).dt.tz_localize(None).dt
    for start in (pd.Timestamp("2013-03-10 01:30"), pd.Timestamp("2013-11-03 01:00")):
        taken = (local.normalize() == start.normalize()) & (local.hour.between(start.hour, 3))
        assert not taken.any()
    places = np.searchsorted(departed["departed"].cummax(), nights["departed"])
    at = np.concatenate([np.arange(len(departed)), places - 0.5])
    return pd.concat([departed, nights]).iloc[np.argsort(at, kind="stable")].reset_index(drop=True)


def batch(spark: SparkSession, rows: pd.DataFrame, folder: Path) -> DataFrame:
    write(rows, folder, 1)
    return spark.read.parquet(str(folder))


def write(rows: pd.DataFrame, folder: Path, batches: int) -> None:
    table = pa.Table.from_pandas(rows, SCHEMA, preserve_index=False)
    cuts = [table.num_rows * number // batches for number in range(batches + 1)]
    parts = [table.slice(start, stop - start) for start, stop in pairwise(cuts)]
    streams.write_batches(folder, parts, SCHEMA)


def taken(result: DataFrame) -> pd.DataFrame:
    """Return a result in the order of its windows, with instants in UTC."""
    table = result.toArrow().to_pandas()
    for name in BOUNDS:
        table[name] = table[name].astype("datetime64[us]" if local(table[name]) else "datetime64[us, UTC]")
    return table.sort_values(table.columns.tolist(), ignore_index=True)


def local(times: pd.Series[pd.Timestamp]) -> bool:
    return times.dt.tz is None


def streamed(spark: SparkSession, work: Path, rows: pd.DataFrame, batches: int, cut: Any) -> pd.DataFrame:
    """Return the result of `cut` for a stream with several micro-batches."""
    write(rows, work / "input", batches)
    progress = streams.run(cut(streams.read_stream(spark, work / "input")), work)
    assert len(progress) >= batches
    return taken(spark.read.parquet(str(work / "sink")))


def equal(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """Compare row by row, with means rounded to nine digits."""
    wanted = wanted.assign(**{name: wanted[name].astype(found[name].dtype) for name in BOUNDS})
    wanted = wanted[found.columns].sort_values(found.columns.tolist(), ignore_index=True)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, check_exact=False, rtol=1e-9, atol=1e-9)


def sparks(df: DataFrame, size: str, slide: str | None = None) -> pd.DataFrame:
    """Return Spark's own windows."""
    found = df.groupBy("origin", F.window("departed", size, slide).alias("w")).agg(*aggregates())
    start, end = F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end")
    last = (F.col("w.end") - F.expr("INTERVAL '0.001' SECOND")).alias("window_time")
    return taken(found.select("origin", start, end, last, "n", "mean"))


def aggregates() -> list[Any]:
    return [F.count("*").alias("n"), F.avg("delay").alias("mean")]


def test_hourly_departures_equal_those_of_spark(
    spark: SparkSession, departed: pd.DataFrame, tmp_path: Path
) -> None:
    df = batch(spark, departed, tmp_path / "rows")
    wanted = sparks(df, "1 hour")
    assert wanted["n"].sum() == len(departed) == 328_521

    def cut(df: DataFrame) -> DataFrame:
        windows = timerheap.spark.tumble(
            df, "departed", size=HOUR.to_pytimedelta(), watermark=STRATEGY, max_parallelism=4
        )
        return windows.groupBy("origin").agg(*aggregates())

    equal(taken(cut(df)), wanted)
    found = streamed(spark, tmp_path, departed, 2, cut)
    equal(found, wanted[wanted["window_end"] <= departed["departed"].max() - DAY])


def test_a_day_sliding_by_a_quarter_of_an_hour_equals_that_of_spark(
    spark: SparkSession, departed: pd.DataFrame, tmp_path: Path
) -> None:
    # Of the week of the blizzard a part, and of the rest so few that many windows are empty.
    storm = departed["departed"].between("2013-02-06", "2013-02-12")
    some = departed[(storm & (departed.index % 4 == 0)) | (departed.index % 5003 == 0)]
    df = batch(spark, some, tmp_path / "rows")
    windows = timerheap.spark.hop(
        df,
        "departed",
        slide=15 * MINUTE.to_pytimedelta(),
        size=DAY.to_pytimedelta(),
        watermark=STRATEGY,
        max_parallelism=4,
    )
    found = taken(windows.groupBy("origin").agg(*aggregates()))
    equal(found, sparks(df, "24 hours", "15 minutes"))
    assert found["n"].sum() == 96 * len(some)


def on_the_wall_clock(rows: pd.DataFrame, kind: str, slide: pd.Timedelta, size: pd.Timedelta) -> pd.DataFrame:
    """Compute all windows with pandas, on wall-clock times."""
    shown = rows["departed"].dt.tz_convert(NEW_YORK).dt.tz_localize(None)
    pieces = []
    for number in range(size // slide):
        if kind == "hop":
            end = shown.dt.floor(slide) + slide * (number + 1)
            start, within = end - size, slice(None)
        else:
            start = shown.dt.floor(size)
            end = start + slide * (number + 1)
            within = shown < end
        piece = rows.assign(window_start=start, window_end=end)
        pieces.append(piece[within])
    grouped = pd.concat(pieces).groupby(["origin", "window_start", "window_end"])["delay"]
    table = grouped.agg(n="count", mean="mean").reset_index()
    return table.assign(window_time=last_instants(table["window_end"], NEW_YORK))


def last_instants(ends: pd.Series[pd.Timestamp], zone: str) -> pd.Series[pd.Timestamp]:
    last, first = ends - pd.Timedelta(milliseconds=1), np.ones(len(ends), bool)
    return last.dt.tz_localize(zone, ambiguous=first, nonexistent=HOUR).dt.tz_convert("UTC")


def ended(table: pd.DataFrame, watermark: pd.Timestamp) -> pd.DataFrame:
    """Return the windows that end by a watermark, which no change of clocks is near."""
    return table[table["window_time"] < watermark]


@pytest.mark.parametrize("slide", [HOUR, HOUR / 2])
def test_windows_follow_the_clock_changes(
    slide: pd.Timedelta, spark: SparkSession, with_nights: pd.DataFrame, tmp_path: Path
) -> None:
    days = with_nights["departed"].dt.date.astype(str)
    rows = with_nights[days.between("2013-03-08", "2013-03-12") | days.between("2013-11-01", "2013-11-05")]

    def cut(df: DataFrame) -> DataFrame:
        windows = timerheap.spark.hop(
            df,
            "departed",
            slide=slide.to_pytimedelta(),
            size=HOUR.to_pytimedelta(),
            watermark=STRATEGY,
            time_zone=NEW_YORK,
            max_parallelism=4,
        )
        return windows.groupBy("origin").agg(*aggregates())

    wanted = on_the_wall_clock(rows, "hop", slide, HOUR)
    equal(taken(cut(batch(spark, rows, tmp_path / "rows"))), wanted)
    found = streamed(spark, tmp_path, rows, 2, cut)
    equal(found, ended(wanted, rows["departed"].max() - DAY))
    assert set(found["window_end"] - found["window_start"]) == {HOUR}
    assert not found.duplicated(["origin", "window_start"]).any()
    repeated = found[(found["origin"] == "JFK") & (found["window_start"] == "2013-11-03 01:00")]
    assert repeated["n"].tolist() == [6]  # of both passes


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK])
def test_cumulated_departures_equal_an_independent_count(
    zone: str, spark: SparkSession, with_nights: pd.DataFrame, tmp_path: Path
) -> None:
    def cut(df: DataFrame) -> DataFrame:
        windows = timerheap.spark.cumulate(
            df,
            "departed",
            step=HOUR.to_pytimedelta(),
            max_size=DAY.to_pytimedelta(),
            watermark=STRATEGY,
            time_zone=zone,
            max_parallelism=4,
        )
        return windows.groupBy("origin").agg(*aggregates())

    found = streamed(spark, tmp_path, with_nights, 3, cut)
    wanted = cumulated(with_nights, zone)
    equal(found, ended(wanted, with_nights["departed"].max() - DAY))


def cumulated(rows: pd.DataFrame, zone: str) -> pd.DataFrame:
    """Compute running sums by wall-clock hour, for each day from its first departure to its end."""
    shown = rows["departed"].dt.tz_convert(zone).dt.tz_localize(None)
    hourly = rows["delay"].groupby([rows["origin"], shown.dt.normalize(), shown.dt.hour.rename("hour")])
    by_hour = [
        moment.unstack("hour").reindex(columns=range(24)).fillna(0).cumsum(axis=1).stack()
        for moment in (hourly.count(), hourly.sum())
    ]
    table = pd.concat(by_hour, axis=1, keys=["n", "sum"]).query("n > 0").reset_index()
    end = table["departed"] + (table["hour"] + 1) * HOUR
    bounds = {"window_start": table["departed"], "window_end": end, "window_time": last_instants(end, zone)}
    return table[["origin", "n"]].assign(**bounds, mean=table["sum"] / table["n"])


def test_the_command_checks_its_windows_and_draws_a_chart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the tests' session; the test of the other demo starts the examples' own."""
    monkeypatch.setattr(demo_windows, "spark_session", lambda log: nullcontext(spark))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with streams.configured(spark, session_timeZone=NEW_YORK):
        arguments = ["--batches", "3", "--chart", "new/week.png"]
        done = CliRunner().invoke(demo_windows.main, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    for shown in ("22,953 windows", "Micro-batch 3 of 3", "equal", "new/week.png"):
        assert shown in done.stdout
    assert "different" not in done.stdout
    assert (tmp_path / "new" / "week.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("timerheap-*")), "the temporary directory is gone"


def test_a_chart_that_is_not_a_png_file_raises(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--chart", "week.svg"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2
    assert "must end in .png, got" in " ".join(done.stderr.split())


def test_a_difference_is_printed(tmp_path: Path) -> None:
    midnight = pd.Timestamp("2013-02-08 05:00", tz="UTC")
    start = pd.Timestamp("2013-02-08")
    right = pd.DataFrame(
        [("JFK", start, start + HOUR, 3), ("JFK", start, start + 2 * HOUR, 5)],
        columns=["origin", "window_start", "window_end", "departures"],
    )
    console = Console(file=io.StringIO(), width=200)
    assert demo_windows.compare(right[::-1], right, midnight, console)
    assert not demo_windows.compare(right.head(1), right, midnight, console)
    assert "1 missing" in console.file.getvalue()
    assert not demo_windows.compare(right.iloc[[0, 1, 1]], right, midnight, console)
    assert "1 too many" in console.file.getvalue()
    demo_windows.draw(right, start, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000
