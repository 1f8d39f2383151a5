"""Temporal joins and ASOF JOIN in sql(): the cases of Flink's tests, and Spark's own join of one text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from asof_cases import LEFT, RIGHT, cases
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

ORDERS = "order_id long, currency string, no string, amount long, order_time timestamp_ntz"
RATES = "op string, currency string, no string, rate long, currency_time timestamp_ntz"
ROWS_OF_ORDERS = [
    (1, "Euro", "no1", 12, "2020-08-15 00:01:00"),
    (2, "US Dollar", "no1", 18, "2020-08-16 00:03:00"),
    (3, "RMB", "no1", 40, "2020-08-15 00:03:00"),
    (4, "Euro", "no1", 14, "2020-08-16 00:04:00"),
    (5, "RMB", "no1", 40, "2020-08-16 00:03:00"),
]
FIRST_RATES = [
    ("+I", "Euro", "no1", 114, "2020-08-15 00:00:01"),
    ("+I", "US Dollar", "no1", 102, "2020-08-15 00:00:02"),
    ("+I", "Yen", "no1", 1, "2020-08-15 00:00:03"),
    ("+I", "RMB", "no1", 702, "2020-08-15 00:00:04"),
    ("+U", "Euro", "no1", 118, "2020-08-16 00:01:00"),
]
VERSIONED = [  # of Flink's upserts and deletes; what it retracts, the next version replaces
    *FIRST_RATES,
    ("+U", "US Dollar", "no1", 106, "2020-08-16 00:02:00"),
    ("-D", "RMB", "no1", 702, "2020-08-16 00:02:00"),
]
BEFORE_TIME = [*VERSIONED[:-1], ("-D", "RMB", "no1", 702, "2020-08-15 00:00:04")]
HISTORY = [
    *FIRST_RATES,
    ("+I", "US Dollar", "no1", 102, "2020-08-16 00:02:00"),
    ("+I", "US Dollar", "no1", 106, "2020-08-16 00:02:00"),
]
EURO, DOLLAR, RMB, EURO_4 = (1, 114), (2, 106), (3, 702), (4, 118)
AS_OF = "FOR SYSTEM_TIME AS OF o.order_time AS r ON o.currency = r.currency"
BOTH = f"{AS_OF} AND o.no = r.no"

# By the names of Flink's TemporalJoinITCase, without testEventTime: the rates, what follows FROM orders AS o,
# and the orders with their rates. Its cases of processing time fail there, too.
FLINK = {
    "TemporalJoin": (VERSIONED, f"JOIN rates {AS_OF}", [EURO, DOLLAR, RMB, EURO_4]),
    "TemporalJoinThatJoinkeyContainsPk": (VERSIONED, f"JOIN rates {BOTH}", [EURO, DOLLAR, RMB, EURO_4]),
    "TemporalJoinWithFilter": (VERSIONED, f"JOIN rates {AS_OF} WHERE rate < 115", [EURO, DOLLAR]),
    "LeftTemporalJoin": (VERSIONED, f"LEFT JOIN rates {AS_OF}", [EURO, DOLLAR, RMB, EURO_4, (5, None)]),
    "TemporalJoinChangelogUsingBeforeTime": (
        BEFORE_TIME,
        f"LEFT JOIN rates {AS_OF}",
        [EURO, DOLLAR, (3, None), EURO_4, (5, None)],
    ),
    "TemporalJoinWithMultiKeys": (
        VERSIONED,
        "JOIN rates FOR SYSTEM_TIME AS OF o.order_time AS r ON o.no = r.no AND o.currency = r.currency",
        [EURO, DOLLAR, RMB, EURO_4],
    ),
    "TemporalJoinWithNonEqualCondition": (
        BEFORE_TIME,
        f"JOIN rates {BOTH} AND o.order_id < 5 AND r.rate > 102",
        [EURO, DOLLAR, EURO_4],
    ),
    "TemporalJoinEqualConditionOnKey": (
        BEFORE_TIME,
        f"JOIN rates {BOTH} AND o.currency = 'Euro' AND r.rate > 102",
        [EURO, EURO_4],
    ),
    "TemporalJoinWithDeduplicateLastView": (
        HISTORY,
        f"JOIN rates {AS_OF}",
        [EURO, DOLLAR, RMB, EURO_4, (5, 702)],
    ),
    "LeftTemporalJoinWithView": (
        HISTORY,
        f"LEFT JOIN rates {AS_OF} AND substr(o.currency, 1, 2) = 'US'",
        [(1, None), DOLLAR, (3, None), (4, None), (5, None)],
    ),
}
DELETED = {"rates": "op = '-D'"}
WATERMARKS = {
    "orders": "order_time - INTERVAL '2' DAY",
    "rates": "WATERMARK FOR currency_time AS currency_time - INTERVAL '10' SECOND",
}


def frame(spark: SparkSession, rows: list[Any], schema: str) -> DataFrame:
    time = schema.split()[-2]
    texts = spark.createDataFrame(rows, schema.replace("timestamp_ntz", "string"))
    return texts.withColumn(time, F.col(time).cast("timestamp_ntz"))


@pytest.mark.parametrize("name", FLINK)
@pytest.mark.promises("Flink SQL", "supported", "temporal JOIN (FOR SYSTEM_TIME AS OF)")
def test_cases_of_flink(spark: SparkSession, name: str) -> None:
    rates, text, wanted = FLINK[name]
    frame(spark, ROWS_OF_ORDERS, ORDERS).createOrReplaceTempView("orders")
    frame(spark, rates, RATES).createOrReplaceTempView("rates")
    query = f"SELECT o.order_id, o.order_time, r.rate, currency_time FROM orders AS o {text}"
    found = timerheap.spark.sql(spark, query, WATERMARKS, deleted=DELETED)
    assert found.columns == ["order_id", "order_time", "rate", "currency_time"]
    rows = found.collect()
    assert sorted((row.order_id, row.rate) for row in rows) == wanted
    assert all((row.rate is None) == (row.currency_time is None) for row in rows)
    assert all(row.currency_time is None or row.currency_time <= row.order_time for row in rows)


def test_a_stream_of_versions(spark: SparkSession, tmp_path: Path) -> None:
    """The batch's answer, up to the watermark: the last rows of both tables advance it beyond the others."""
    for name, rows, schema in (("orders", ROWS_OF_ORDERS, ORDERS), ("rates", VERSIONED, RATES)):
        table = frame(spark, rows, schema).toArrow()
        later = [(*rows[0][:-1], f"2020-09-0{day} 00:00:00") for day in (1, 2)]
        parts = [table.slice(3), table.slice(0, 3), frame(spark, later, schema).toArrow()]
        order = [1, 0, 2] if name == "rates" else [0, 1, 2]  # orders come out of order
        streams.write_batches(tmp_path / name, [parts[n] for n in order], table.schema)
        df, time = streams.read_stream(spark, tmp_path / name), schema.split()[-2]
        df = df.withColumn(time, F.col(time).cast("timestamp"))
        df = df.withWatermark(time, "10 seconds") if name == "rates" else df
        df.createOrReplaceTempView(name)
    query = f"SELECT order_id, rate FROM orders AS o LEFT JOIN rates {AS_OF}"
    result = timerheap.spark.sql(spark, query, {"orders": WATERMARKS["orders"]}, deleted=DELETED)
    found = [row for part in streams.batches(result, tmp_path / "work") for row in part]
    assert sorted(found) == [EURO, DOLLAR, RMB, EURO_4, (5, None)]


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[None]:
    """Random tables; Spark says nothing of right rows of one time, so there are none."""
    left, right = cases(5, 200)
    distinct = {(row["case"], row["k"], row["at"]): row for row in right}
    for name, rows, schema in (("l", left, LEFT), ("r", list(distinct.values()), RIGHT)):
        spark.createDataFrame(pa.Table.from_pylist(rows, schema)).createOrReplaceTempView(name)
    with streams.configured(spark, **({"join_asofJoin_enabled": True} if has_asof(spark) else {})):
        yield


def has_asof(spark: SparkSession) -> bool:
    return tuple(map(int, spark.version.split(".")[:2])) >= (4, 3)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("ASOF", "l.at >= r.at"),
        ("INNER ASOF", "l.at > r.at"),
        ("LEFT ASOF", "r.at <= l.at"),
        ("LEFT OUTER ASOF", "l.at > r.at"),
    ],
)
def test_asof_join_is_that_of_spark(spark: SparkSession, kind: str, order: str) -> None:
    if not has_asof(spark):
        pytest.skip("Spark has it since 4.3")
    joined = f"FROM l {kind} JOIN r MATCH_CONDITION ({order})"
    query = f"SELECT l.n, l.k, r.at, r.price, note AS text {joined} ON l.case = r.case AND l.k = r.k"
    found = streams.rows(timerheap.spark.sql(spark, query))
    assert found == streams.rows(spark.sql(query))
    assert len(found) > 60
    if kind == "ASOF":
        query = f"SELECT n, k, `case`, price {joined} USING (`case`, k) WHERE n > 20"
        assert streams.rows(timerheap.spark.sql(spark, query)) == streams.rows(spark.sql(query))


@pytest.mark.usefixtures("tables")
def test_asof_join_of_duckdb(spark: SparkSession) -> None:
    """Its order of the times is one of the conditions; ``*`` has the columns of both tables."""
    text = "SELECT * FROM l ASOF {} JOIN r ON l.case = r.case AND l.k = r.k AND l.at >= r.at"
    inner, left = (timerheap.spark.sql(spark, text.format(side)) for side in ("", "LEFT"))
    assert inner.columns == left.columns == [*LEFT.names, *RIGHT.names]
    assert 0 < inner.count() < left.count() == spark.table("l").count()
    same = text.format("LEFT").replace("l.k = r.k", "l.k IS NOT DISTINCT FROM r.k")
    wanted = timerheap.spark.join_asof(
        spark.table("l"), spark.table("r"), ["case", "k"], "at", watermark=0
    ).select("n", "price")
    assert streams.rows(timerheap.spark.sql(spark, same).select("n", "price")) == streams.rows(wanted)


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ({"late": "emit"}, "l.at", 'late must be "drop" for a query of several operators'),
        ({"deleted": "gone"}, "l.at", "deleted must be a dict"),
        ({"watermark": {"r": "x"}}, "l.n", "right.event_time must be of type bigint like column 'n' of left"),
        ({}, "l.absent", "the time must be a column of table l, got absent"),
    ],
)
def test_wrong_options(spark: SparkSession, options: dict[str, Any], text: str, message: str) -> None:
    query = f"SELECT l.n FROM l JOIN r FOR SYSTEM_TIME AS OF {text} AS r ON l.case = r.case"
    if text == "l.n":
        query = "SELECT l.n FROM l ASOF JOIN r MATCH_CONDITION (l.n >= r.at) ON l.case = r.case"
        options = {}
    with pytest.raises((TypeError, ValueError), match=message):
        timerheap.spark.sql(spark, query, **options)
