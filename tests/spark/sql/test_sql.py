"""Compares Flink's SQL on Spark's tables with the DataFrame API and with loops over the rows."""

from __future__ import annotations

import datetime as dt
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import streams
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

MINUTE = 60_000
FROM = "FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '10' MINUTES))"
GROUP = "GROUP BY window_start, window_end"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

SCHEMA = pa.schema(
    [("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("user", pa.string())]
)


def make(seed: int, count: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {
            "k": draw.choice(["a", "b", "c", None]),
            "ts": EPOCH + dt.timedelta(milliseconds=number * 4_000 + draw.randrange(2 * MINUTE)),
            "v": draw.choice([None, -3, 0, 7, 2**40]),
            "user": draw.choice([None, "p", "q", "r"]),
        }
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Return the rows of the view ``events``."""
    rows, folder = make(1, 300), tmp_path_factory.mktemp("events")
    streams.write_batches(folder, [rows], SCHEMA)
    spark.read.parquet(str(folder)).createOrReplaceTempView("events")
    yield rows
    spark.catalog.dropTempView("events")


def test_sessions_equal_those_of_a_loop(spark: SparkSession, events: list[dict[str, Any]]) -> None:
    result = timerheap.spark.sql(
        spark,
        "SELECT `user`, window_start, window_end, COUNT(*) AS n FROM TABLE(SESSION(TABLE events PARTITION BY "
        "`user`, DESCRIPTOR(ts), INTERVAL '20' SECONDS)) GROUP BY `user`, window_start, window_end",
    )
    gap, wanted = dt.timedelta(seconds=20), []
    for user in (None, "p", "q", "r"):
        session: list[dt.datetime] = []
        for ts in sorted(row["ts"].replace(tzinfo=None) for row in events if row["user"] == user):
            if session and ts >= session[-1] + gap:
                wanted.append((user, session[0], session[-1] + gap, len(session)))
                session = []
            session.append(ts)
        wanted.append((user, session[0], session[-1] + gap, len(session)))
    assert streams.rows(result) == sorted(wanted, key=repr)
    assert len(wanted) > 20


def at(minutes: float) -> dt.datetime:
    return EPOCH + dt.timedelta(minutes=minutes)


def shown(moment: dt.datetime) -> dt.datetime:
    """Return what the clock of the session's zone, UTC, shows."""
    return moment.replace(tzinfo=None)


def test_results_equal_those_of_loops(spark: SparkSession, events: list[dict[str, Any]]) -> None:
    result = timerheap.spark.sql(
        spark,
        """
        SELECT w.k AS key, window_start, window_end AS until, COUNT(*) AS n, COUNT(DISTINCT `user`) AS users,
               SUM(v) + COUNT(v) AS total, AVG(v), STDDEV_POP(v) AS deviation,
               MAX(v * 2) FILTER (WHERE `user` = 'p') AS most, UPPER(k) AS upper_key
        FROM TABLE(CUMULATE(TABLE events, DESCRIPTOR(ts), INTERVAL '5' MINUTE, INTERVAL '10' MINUTES)) AS w
        WHERE k <> 'c'
        GROUP BY window_start, window_end, k
        HAVING COUNT(*) >= 10
        """,
        max_parallelism=2,
    )
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in events:
        minute = (row["ts"] - EPOCH).total_seconds() / 60
        start = int(minute // 10 * 10)
        for end in (start + 5, start + 10):
            if minute < end and row["k"] not in ("c", None):
                groups[row["k"], start, end].append(row)
    wanted = []
    for (key, start, end), rows in groups.items():
        values = [row["v"] for row in rows if row["v"] is not None]
        of_p = [row["v"] * 2 for row in rows if row["user"] == "p" and row["v"] is not None]
        users = len({row["user"] for row in rows} - {None})
        if len(rows) >= 10:
            head = (key, *map(shown, (at(start), at(end))), len(rows), users, sum(values) + len(values))
            means = (statistics.fmean(values), statistics.pstdev(values))
            wanted.append((*head, *means, max(of_p, default=None), key.upper()))
    assert result.columns == [
        "key", "window_start", "until", "n", "users", "total", "AVG(v)", "deviation", "most", "upper_key",
    ]  # fmt: skip
    found = streams.rows(result)
    assert len(found) > 5
    wanted.sort(key=repr)
    for one, other in zip(found, wanted, strict=True):
        assert (*one[:6], *one[8:]) == (*other[:6], *other[8:])
        assert one[6:8] == pytest.approx(other[6:8])


def test_results_equal_those_of_the_dataframe_api(spark: SparkSession, events: list[dict[str, Any]]) -> None:
    """Includes offsets and time zones; a batch needs no watermark."""
    ours = timerheap.spark.sql(
        spark,
        "SELECT window_time, window_start, APPROX_COUNT_DISTINCT(`user`) AS users FROM TABLE(HOP(TABLE "
        "events, DESCRIPTOR(ts), INTERVAL '2' MINUTE, INTERVAL '6' MINUTE, INTERVAL '30' SECOND)) "
        "GROUP BY window_start, window_end, window_time",
        time_zone="Asia/Kolkata",
        max_parallelism=2,
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(10 * MINUTE)
    windows = timerheap.spark.hop(
        spark.table("events"), "ts", slide=2 * MINUTE, size=6 * MINUTE, offset=30_000, watermark=strategy,
        time_zone="Asia/Kolkata", max_parallelism=2,
    )  # fmt: skip
    theirs = windows.groupBy().agg(F.approx_count_distinct("user").alias("users"))
    assert streams.rows(ours) == streams.rows(theirs.select("window_time", "window_start", "users"))


def test_a_query_without_aggregates_returns_the_groups(
    spark: SparkSession, events: list[dict[str, Any]]
) -> None:
    result = timerheap.spark.sql(spark, f"SELECT k, window_end {FROM.replace('t,', 'events,')} {GROUP}, k")
    ends = {
        (row["k"], shown(at((row["ts"] - at(0)) // dt.timedelta(minutes=10) * 10 + 10))) for row in events
    }
    assert streams.rows(result) == sorted(ends, key=repr)


COUNTS = f"SELECT window_end, COUNT(*) AS n {FROM} {GROUP}"


def minutes(result: list[tuple[Any, ...]]) -> list[tuple[int, int]]:
    return sorted(((row[0] - shown(EPOCH)) // dt.timedelta(minutes=1), row[1]) for row in result)


@pytest.mark.parametrize("whose", ["the table's", "Spark's"])
def test_a_stream_uses_the_watermark_of_the_argument_or_the_view(
    whose: str, spark: SparkSession, tmp_path: Path
) -> None:
    def row(minute: int) -> dict[str, Any]:
        return {"k": "a", "ts": at(minute), "v": 1, "user": None}

    streams.write_batches(tmp_path / "input", [[row(1), row(19)], [row(8), row(33)]], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input")
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(12 * MINUTE)
    if whose == "Spark's":
        df = df.withWatermark("ts", "12 minutes")
    df.createOrReplaceTempView("t")
    watermark = {"t": strategy} if whose == "the table's" else None
    streams.run(timerheap.spark.sql(spark, COUNTS, watermark, max_parallelism=2), tmp_path)
    assert minutes(streams.sink(spark, tmp_path)) == [(10, 2), (20, 1)]


@pytest.mark.parametrize(
    "watermark",
    [
        "10 minutes",
        dt.timedelta(minutes=10),
        "INTERVAL '10' MINUTES",
        "ts - INTERVAL '10' MINUTE",
        "watermark for `ts` as `ts`\n - interval '10' minute",
        "Spark's",
    ],
)
def test_a_delay_is_that_of_flinks_sql(watermark: Any, spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load().withColumnRenamed("timestamp", "ts")
    if watermark == "Spark's":
        df, watermark = df.withWatermark("ts", "10 minutes"), None
    df.createOrReplaceTempView("t")
    planned = "timerheap.spark._tvf.window_plan"
    with patch(f"{planned}.build", wraps=import_module(planned).build) as build:
        timerheap.spark.sql(spark, COUNTS, watermark)
    query = build.call_args.args[0]
    (strategy,) = query.watermarks
    generator = strategy.create_watermark_generator()
    assert (query.event_time, strategy._delay) == ("ts", 599_999)
    assert generator.on_batch(25 * MINUTE, 1, None) == 15 * MINUTE


def test_a_time_without_a_delay_is_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """Flink: ``WATERMARK FOR ts AS ts``; a row of the largest time so far is late in the next micro-batch."""
    times = {"a": 1, "b": 1, "c": 2, "d": 3}
    rows = [{"k": k, "ts": at(minute), "v": 1, "user": None} for k, minute in times.items()]
    streams.write_batches(tmp_path / "input", [rows[:1], rows[1:3], rows[3:]], SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t")
    query = "SELECT k FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM t) WHERE n = 1"
    found = streams.batches(timerheap.spark.sql(spark, query, "ts", max_parallelism=2), tmp_path)
    assert found == [[("a",)], [("c",)], [("d",)]]


@pytest.mark.promises("Flink SQL", "supported", "PROCTIME")
def test_processing_time_windows_end_by_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """Of a column that the table lacks, whether it is named or not."""
    schema = pa.schema([("user_id", pa.string())])
    streams.write_batches(tmp_path / "input", [[{"user_id": user} for user in ("a", "b", "a", None)]], schema)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("user_log")
    results = []
    for windows, options in (
        ("TUMBLE(TABLE user_log, DESCRIPTOR(proc_time), INTERVAL '1' MINUTES)", {}),
        (
            "CUMULATE(TABLE user_log, DESCRIPTOR(proc_time), INTERVAL '1' SECONDS, INTERVAL '1' MINUTES)",
            {"processing_time": "proc_time"},
        ),
    ):
        query = f"SELECT COUNT(user_id) AS pv, COUNT(DISTINCT user_id) AS uv FROM TABLE({windows}) {GROUP}"
        assert timerheap.spark.sql(spark, query, **options).columns == ["pv", "uv"]
        short = query.replace("'1' MINUTES", "'2' SECONDS")
        short = short.replace("SELECT", "SELECT window_start, window_end,")
        result = timerheap.spark.sql(spark, short, max_parallelism=2, **options)
        results.append(result.withColumn("kind", F.lit(windows.partition("(")[0])))

    def whole(rows: list[Any]) -> bool:
        # The longest window of each kind has ended.
        return {kind for _, end, _, _, kind in rows if end.second % 2 == 0} == {"TUMBLE", "CUMULATE"}

    rows = streams.run_until(results[0].union(results[1]), whole, tmp_path)
    assert {row[2:4] for row in rows} == {(3, 2)}
    assert len({row[0] for row in rows}) == 1
    lengths = {
        of: sorted((end - start).total_seconds() for start, end, _, _, kind in rows if kind == of)
        for of in ("TUMBLE", "CUMULATE")
    }
    assert lengths["TUMBLE"] == [2.0]
    assert lengths["CUMULATE"] in ([1.0, 2.0], [2.0])


FIRST = (
    "SELECT v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY {}) AS n "
    f"FROM (SELECT *, ts AS moment, window_time AS w {FROM})) WHERE n <= {{}}"
)
EQUAL_TIMES = [
    {"k": "a", "ts": at(minute), "v": number, "user": None}
    for number, minute in enumerate((3, 5, 5, 0, 0), 1)
]


def test_a_deduplication_keeps_the_first_or_the_last_row(spark: SparkSession, tmp_path: Path) -> None:
    """Of equal times it keeps the one that arrives first, or last; a Top-N ranks that arrives first."""
    streams.write_batches(tmp_path / "input", [EQUAL_TIMES], SCHEMA)
    spark.read.parquet(str(tmp_path / "input")).createOrReplaceTempView("t")
    wanted = {
        ("ts", 1): [4],
        ("ts DESC", 1): [3],
        ("window_time ASC", 1): [1],
        ("window_time desc", 1): [5],
        ("w DESC", 1): [5],
        ("moment DESC", 1): [3],
        ("k DESC", 1): [1],
        ("ts DESC, window_time DESC", 1): [2],
        ("ts DESC", 2): [2, 3],
        ("window_time DESC", 2): [1, 2],
    }
    found = {
        given: [
            v for (v,) in streams.rows(timerheap.spark.sql(spark, FIRST.format(*given), max_parallelism=2))
        ]
        for given in wanted
    }
    assert found == wanted


def test_a_deduplication_keeps_the_last_row_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    end = {"k": "a", "ts": at(99), "v": 9, "user": None}
    streams.write_batches(tmp_path / "input", [EQUAL_TIMES[3:], EQUAL_TIMES[:3], [end]], SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t")
    result = timerheap.spark.sql(spark, FIRST.format("window_time DESC", 1), "9 minutes", max_parallelism=2)
    streams.run(result, tmp_path)
    assert streams.sink(spark, tmp_path) == [(3,)]


@pytest.mark.parametrize(
    ("frame", "late"),
    [
        ("ROWS BETWEEN 1 PRECEDING", {7: 2, 4: 2, 11: 2, 13: 2}),
        ("RANGE BETWEEN INTERVAL '60' SECOND PRECEDING", {7: 3, 4: 4, 11: 5, 13: 6}),
        ("RANGE BETWEEN INTERVAL '1' SECOND PRECEDING", {6: 1, 5: 2, 7: 3, 4: 3, 9: 1, 10: 2, 11: 3, 13: 1}),
    ],
)
def test_a_row_over_others_is_late_behind_the_last_of_its_key(
    frame: str, late: dict[int, int], spark: SparkSession, tmp_path: Path
) -> None:
    """As Flink 2.3 answers if the watermark follows each row; some rows of a are behind it."""
    keys, seconds = "aabaaaabaaabab", (1, 2, 60, 3, 2, 1.5, 2.5, 70, 2.9, 3, 3.5, 80, 3.6, 90)
    rows = [
        {"k": k, "ts": at(second / 60), "v": number, "user": None}
        for number, (k, second) in enumerate(zip(keys, seconds, strict=True), 1)
    ]
    streams.write_batches(tmp_path / "input", [rows[:3], rows[3:8], rows[8:12], rows[12:]], SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t")
    query = f"SELECT v, COUNT(*) OVER (PARTITION BY k ORDER BY ts {frame} AND CURRENT ROW) AS n FROM t"
    result = timerheap.spark.sql(spark, query, "ts - INTERVAL '1' SECOND", max_parallelism=2)
    found = dict(row for batch in streams.batches(result, tmp_path) for row in batch)
    assert {number: n for number, n in found.items() if keys[number - 1] == "a"} == {1: 1, 2: 2, **late}


LATE_QUERIES = {
    "windows": (
        f"SELECT * FROM (SELECT k, 6 / COUNT(*) AS v {FROM} {GROUP}, k HAVING COUNT(*) > 0) WHERE 1 / v < 1",
        [("a", 6.0), ("b", 6.0)],
        19 * MINUTE + 2,  # the window ends with its last ms
    ),
    "over": (
        "SELECT k, v / SUM(v) OVER (PARTITION BY k ORDER BY ts ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS "
        "v FROM t WHERE v > 0",
        [("a", 1.0), ("b", 1.0)],
        MINUTE // 2 + 1,
    ),
    "first": (
        "SELECT k, 1 / v AS v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) AS n FROM t) "
        "WHERE n = 1 AND 1 / v < 9",
        [("a", 1.0), ("b", 0.5)],
        29 * MINUTE + 1 - MINUTE // 2,
    ),
}


@pytest.mark.parametrize("name", LATE_QUERIES)
@pytest.mark.promises(
    "Flink SQL", "added", "late rows returned", note='`late="emit"`; Flink drops them in SQL'
)
def test_late_rows_of_a_query_are_returned(name: str, spark: SparkSession, tmp_path: Path) -> None:
    query, results, late_by = LATE_QUERIES[name]
    rows = [
        {"k": k, "ts": at(minute), "v": v, "user": None}
        for v, (k, minute) in enumerate((("a", 1), ("b", 30), ("a", 0.5), ("b", 45)), 1)
    ]
    streams.write_batches(tmp_path / "input", [rows[:2], rows[2:]], SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t")
    watermark = "ts - INTERVAL '1' MINUTE"
    result = timerheap.spark.sql(spark, query, watermark, late="emit", max_parallelism=2)
    assert result.columns == ["k", "v"]
    found = [row for batch in streams.batches(streams.with_late(result), tmp_path) for row in batch]
    assert sorted(row[:2] for row in found if row[2] is None) == results
    ((*nulls, by, late),) = [row for row in found if row[2] is not None]
    assert (nulls, by, late.k, late.v) == ([None, None], late_by, "a", 3)
    end = timerheap.spark.late_rows(result).columns
    assert end == ["k", "ts", "v", "user", "late_by"]


@pytest.mark.parametrize(
    "query",
    [
        FIRST.format("v", 1),
        f"SELECT * {FROM}",
        f"SELECT COUNT(*) AS n {FROM} {GROUP}, CUBE (k)",
        f"SELECT MAX(n) AS n FROM (SELECT COUNT(*) AS n, window_start, window_end {FROM} {GROUP}, k) {GROUP}",
        """
        SELECT k, SUM(v) OVER (PARTITION BY k ORDER BY ts) AS total
        FROM (SELECT * FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY ts) = 1)
        """,
    ],
)
def test_late_rows_of_other_queries_are_refused(query: str, spark: SparkSession) -> None:
    with pytest.raises(
        ValueError, match=r'late must be "drop" for a query of several operators: .* got "emit"\.'
    ):
        timerheap.spark.sql(spark, query, late="emit")


SESSION = COUNTS.replace("TUMBLE", "SESSION")
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(5_000)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        (COUNTS, {}, "watermark must be a WatermarkStrategy for the streaming table stream, got None"),
        (
            COUNTS,
            {"watermark": {"other": STRATEGY}},
            r"watermark must be .* for the streaming table stream, got one for \['other'\]",
        ),
        (COUNTS, {"watermark": 5.5}, "watermark must be a WatermarkStrategy, got 5.5"),
        (
            COUNTS.replace("ts", "nope"),
            {"watermark": STRATEGY},
            "the time must be a column of table stream, got nope",
        ),
        (COUNTS.replace("ts", "nope"), {"processing_time": "p"}, r"got nope; the columns are \['rate'"),
        (COUNTS, {"processing_time": "ts", "watermark": STRATEGY}, "if watermark is given, got None"),
        (COUNTS.replace("'10'", "'0'"), {"watermark": STRATEGY}, "size must be more than 0 ms"),
        (
            COUNTS.replace("window_end", "window_end, nope"),
            {"watermark": STRATEGY},
            "must name one column, got 'nope'",
        ),
        (SESSION, {"watermark": STRATEGY, "channel": "nope"}, "channel must name one column, got 'nope'"),
        (5, {}, "query must be a str, got 5"),
        (f"SELECT * {FROM.replace('ts', 'p')}", {}, "rows of windows of processing time are not supported"),
    ],
)
def test_an_invalid_argument_raises(
    query: Any, options: dict[str, Any], message: str, spark: SparkSession
) -> None:
    stream = (
        spark.readStream.format("rate")
        .load()
        .withColumnRenamed("timestamp", "ts")
        .withColumn("rate", F.lit(1))
    )
    stream.select("rate", "ts", "value").createOrReplaceTempView("stream")
    if isinstance(query, str):
        query = query.replace("TABLE t,", "TABLE stream,")
    with pytest.raises((TypeError, ValueError), match=message):
        timerheap.spark.sql(spark, query, **options)


def test_processing_time_on_a_batch_raises(spark: SparkSession, events: list[dict[str, Any]]) -> None:
    query = COUNTS.replace("ts", "proc_time").replace("TABLE t,", "TABLE events,")
    with pytest.raises(ValueError, match=r"column of table events, got proc_time; .* pass a stream"):
        timerheap.spark.sql(spark, query)
    with pytest.raises(ValueError, match=r"proc_time is processing time, which table events, a batch, does"):
        timerheap.spark.sql(spark, query, processing_time="proc_time")


@pytest.mark.parametrize("order", ["PROCTIME()", "p"])
@pytest.mark.promises("Flink SQL", "supported", "deduplication, first row by PROCTIME")
def test_the_first_row_by_processing_time_is_the_first_that_arrives(
    order: str, spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        {"k": k, "ts": at(minute), "v": v, "user": None}
        for k, minute, v in (("a", 9, 0), ("a", 8, 1), ("b", 7, 2), ("a", 6, 3), ("b", 5, 4), ("c", 1, 5))
    ]
    streams.write_batches(tmp_path / "input", [rows[:3], rows[3:]], SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("t")
    watermark = "1 second" if order == "PROCTIME()" else None  # which it does not need
    query = (
        f"SELECT v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY {order}) AS n FROM t "
        "WHERE v > 0) WHERE n = 1"
    )
    result = timerheap.spark.sql(spark, query, watermark, max_parallelism=2)
    assert list(map(sorted, streams.batches(result, tmp_path))) == [[(1,), (2,)], [(5,)]]
    query = f"SELECT k, COUNT(*) AS n FROM t GROUP BY k, TUMBLE({order}, INTERVAL '1' SECOND)"
    assert timerheap.spark.sql(spark, query, watermark).columns == ["k", "n"]


def test_without_sqlglot_the_error_names_the_extra(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "timerheap.spark._sql.read.statements", raising=False)
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(ImportError, match=r"pip install 'timerheap\[sql\]'"):
        timerheap.spark.sql(spark, COUNTS)
