"""Windows of zones whose clocks change, compared with the local times of each row in plain Python."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tvf_model import CHANGES, EPOCH, MILLISECOND, Model, to_local

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

MINUTE = 60_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
KINDS = {
    "TUMBLE": (30, 30, "INTERVAL '30' MINUTES"),
    "HOP": (75, 30, "INTERVAL '30' MINUTES, INTERVAL '75' MINUTES"),
    "CUMULATE": (1_440, 30, "INTERVAL '30' MINUTES, INTERVAL '1' DAY"),
}
BOUNDS = "window_start, window_end"


def times(change: int) -> list[int]:
    """Return instants from three hours before a change to three hours after it."""
    return [change + minutes * MINUTE for minutes in range(-180, 181, 10)]


def naive(local: int) -> dt.datetime:
    return EPOCH + local * MILLISECOND


def windows_of(kind: str, zone: str, ms: int) -> list[tuple[dt.datetime, dt.datetime]]:
    size, step, _ = KINDS[kind]
    model = Model(kind, size * MINUTE, step * MINUTE, zone=zone)
    found = [(naive(start), naive(end)) for start, end in model.windows_of(ms)]
    local = naive(to_local(ms, zone))
    assert all(start <= local < end for start, end in found)
    return found


def union(parts: Iterator[DataFrame]) -> list[tuple[Any, ...]]:
    return streams.rows(reduce(DataFrame.union, parts))


@pytest.mark.in_turn(5)
@pytest.mark.promises("Flink SQL", "supported", "HOP whose size is not a multiple of its slide")
def test_each_row_is_in_the_windows_that_contain_its_local_time(spark: SparkSession) -> None:
    """Of each change of clocks; no two windows of one key have the same bounds."""
    rows = [(zone, ms) for zone, change in CHANGES for ms in times(change)]
    df = spark.createDataFrame(rows, "z string, ms long").coalesce(1)
    df.withColumn("ts", F.timestamp_millis("ms")).createOrReplaceTempView("changes")

    def queries(select: str, kinds: list[str], group: str = "") -> Iterator[DataFrame]:
        for zone in dict.fromkeys(zone for zone, _ in CHANGES):
            for kind in kinds:
                table = f"TABLE({kind}(TABLE changes, DESCRIPTOR(ts), {KINDS[kind][2]}))"
                query = f"SELECT '{zone}' AS z, '{kind}' AS kind, {select} FROM {table} WHERE z = '{zone}'"
                yield timerheap.spark.sql(spark, f"{query} {group}", time_zone=zone, max_parallelism=1)

    found = union(queries(f"ms, {BOUNDS}", [*KINDS]))
    wanted = [
        (zone, kind, ms, *bounds)
        for kind in KINDS
        for zone, ms in rows
        for bounds in windows_of(kind, zone, ms)
    ]
    assert found == sorted(wanted, key=repr)
    counts = Counter((zone, kind, *bounds) for zone, kind, _, *bounds in wanted if kind == "CUMULATE")
    counted = union(queries(f"{BOUNDS}, COUNT(*) AS n", ["CUMULATE"], f"GROUP BY {BOUNDS}"))
    assert counted == sorted(((*window, n) for window, n in counts.items()), key=repr)


FROM = "FROM TABLE({kind}(TABLE {table}, DESCRIPTOR(ts), {size}))"
JOIN = (
    f"SELECT L.v, R.n, R.window_start, R.window_end FROM (SELECT * {FROM} WHERE v % 3 = 0) L JOIN "
    f"(SELECT k, COUNT(*) AS n, {BOUNDS} {FROM} GROUP BY k, {BOUNDS}) R "
    "ON L.k = R.k AND L.window_start = R.window_start AND L.window_end = R.window_end"
)
TOP = (
    f"SELECT v, {BOUNDS} FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {BOUNDS}, k ORDER BY v DESC) AS n "
    f"{FROM}) WHERE n = 1"
)
OVER_WINDOWS = (
    f"SELECT {BOUNDS}, SUM(n) AS n, COUNT(*) AS ks FROM (SELECT k, COUNT(*) AS n, {BOUNDS} {FROM} "
    f"GROUP BY k, {BOUNDS}) GROUP BY {BOUNDS}"
)
LAST = f"SELECT {BOUNDS}, n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY {BOUNDS} ORDER BY n) AS p FROM "
LAST += f"({OVER_WINDOWS})) WHERE p = 1"

Window = tuple[dt.datetime, dt.datetime]
Rows = list[tuple[str, int]]  # keys and values


def pairs(window: Window, rows: Rows) -> list[Any]:
    of_key = Counter(k for k, _ in rows)
    return [(v, of_key[k], *window) for k, v in rows if v % 3 == 0]


def largest(window: Window, rows: Rows) -> list[Any]:
    return [(max(v for k, v in rows if k == key), *window) for key in {k for k, _ in rows}]


def totals(window: Window, rows: Rows) -> list[Any]:
    return [(*window, len(rows), len({k for k, _ in rows}))]


def counts(window: Window, rows: Rows) -> list[Any]:
    return [(*window, len(rows))]


@pytest.mark.parametrize(
    ("query", "wanted", "kind", "zone", "streaming"),
    [
        (JOIN, pairs, "CUMULATE", "America/New_York", True),
        (TOP, largest, "HOP", "Australia/Lord_Howe", True),
        (LAST, counts, "CUMULATE", "Pacific/Chatham", True),
        (JOIN, pairs, "HOP", "Africa/Casablanca", False),
        (TOP, largest, "CUMULATE", "Pacific/Apia", False),
        (OVER_WINDOWS, totals, "CUMULATE", "America/New_York", False),
    ],
)
def test_queries_over_windows_use_the_window(
    query: str, wanted: Any, kind: str, zone: str, streaming: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Joins, ranks and aggregates do not confuse windows around a change; each is emitted once."""
    moments = sorted(ms for name, change in CHANGES if name == zone for ms in times(change))
    rows = [
        {"k": "ab"[at % 2], "v": at, "ts": naive(ms).replace(tzinfo=dt.UTC)} for at, ms in enumerate(moments)
    ]
    of_window: dict[Window, Rows] = {}
    for row, ms in zip(rows, moments, strict=True):
        for window in windows_of(kind, zone, ms):
            of_window.setdefault(window, []).append((row["k"], row["v"]))
    end = {"k": "c", "v": -1, "ts": rows[-1]["ts"] + dt.timedelta(days=3)}
    parts = [rows[:40], [*rows[40:], end] if streaming else rows[40:]]
    streams.write_batches(tmp_path / "input", parts, SCHEMA)
    source = streams.read_stream(spark, tmp_path / "input")
    (source if streaming else spark.read.parquet(str(tmp_path / "input"))).createOrReplaceTempView("rows")
    text = query.format(kind=kind, table="rows", size=KINDS[kind][2])
    result = timerheap.spark.sql(spark, text, "1 minute", time_zone=zone, max_parallelism=2)
    if streaming:
        streams.run(result, tmp_path)
    found = streams.sink(spark, tmp_path) if streaming else streams.rows(result)
    assert found == sorted((one for each in of_window.items() for one in wanted(*each)), key=repr)


@pytest.mark.parametrize("column", ["ts", "ms", "shown"])
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "window_start and window_end as local TIMESTAMP",
    "TIMESTAMP without a time zone, and TIMESTAMP_LTZ",
)
def test_the_types_of_bounds_depend_on_the_zone_and_the_column(column: str, spark: SparkSession) -> None:
    """In sql(), and with a zone, they are local times; without, they are instants that follow UTC."""
    midnight = 1772946000000  # 2026-03-08T00:00 in New York; 2:00 does not exist
    moments = [midnight + minutes * MINUTE for minutes in (90, 130)]
    rows = [(ms, naive(to_local(ms, "America/New_York"))) for ms in moments]
    df = spark.createDataFrame(rows, "ms long, shown timestamp_ntz")
    df = df.withColumn("ts", F.timestamp_millis("ms"))
    df.createOrReplaceTempView("rows")
    table = f"TABLE(CUMULATE(TABLE rows, DESCRIPTOR({column}), {KINDS['CUMULATE'][2]}))"
    day = dt.datetime(2026, 3, 8)
    wanted = [(day + dt.timedelta(minutes=end), 1 if end < 210 else 2) for end in range(120, 1441, 30)]
    with streams.configured(spark, session_timeZone="America/New_York"):
        query = f"SELECT window_start, window_end, window_time, COUNT(*) AS n FROM {table} GROUP BY {BOUNDS}"
        found = timerheap.spark.sql(spark, query)
        windows = timerheap.spark.tumble(df, column, "1 day", watermark="0 seconds")
        local = timerheap.spark.tumble(
            df, column, "1 day", watermark="0 seconds", time_zone="America/New_York"
        )
        results = [found, windows.groupBy().count(), local.groupBy().count()]
        starts = [{row[0] for row in streams.rows(result)} for result in results]
        assert sorted((row[1], row[3]) for row in streams.rows(found)) == wanted
        rows_of = timerheap.spark.sql(spark, f"SELECT window_end FROM {table}")
        assert Counter(row[0] for row in streams.rows(rows_of)) == dict(wanted)
        text = f"{query} HAVING window_end = TIMESTAMP '2026-03-08 02:30:00'"  # another one has 03:30
        assert [row[3] for row in streams.rows(timerheap.spark.sql(spark, text))] == [1]
        ranked = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {BOUNDS} ORDER BY ms DESC) AS n FROM {table}"
        top = timerheap.spark.sql(spark, f"SELECT window_end, ms FROM ({ranked}) WHERE n = 1")
        assert sorted(streams.rows(top)) == [(end, moments[n - 1]) for end, n in wanted]
    naive_ = column == "shown"
    utc = dt.datetime(2026, 3, 8, tzinfo=dt.UTC)
    assert starts == [{day}, {day if naive_ else utc}, {day}]
    last = "timestamp_ntz" if naive_ else "timestamp"
    types = [[field.dataType.simpleString() for field in result.schema.fields[:3]] for result in results]
    bounds = ["timestamp_ntz", "timestamp_ntz", last]
    assert types == [bounds, bounds if naive_ else ["timestamp"] * 3, bounds]
