"""Runs the window queries in Flink's documentation, unchanged, and compares with the documented results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

SCHEMA = pa.schema(
    [
        ("bidtime", pa.timestamp("us", "UTC")),
        ("price", pa.decimal128(10, 2)),
        ("item", pa.string()),
        ("supplier_id", pa.string()),
    ]
)
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(1_000)
BIDS = "805 4 C 1, 807 2 A 1, 809 5 D 2, 811 3 B 2, 813 1 E 1, 817 6 F 2"
MORE_BIDS = (
    "805 4 A 1, 806 4 C 2, 807 2 G 1, 808 2 B 3, 809 5 D 4, 811 2 B 3, 813 1 E 1, 815 3 H 2, 817 6 F 5"
)


def at(clock: int) -> dt.datetime:
    """Return a time of 2020-04-15, given as 805 or 1202."""
    return dt.datetime(2020, 4, 15, clock // 100, clock % 100, tzinfo=dt.UTC)


def bids(text: str) -> list[dict[str, Any]]:
    rows = (row.split() for row in text.split(", "))
    values = (
        (at(int(time)), Decimal(f"{price}.00"), item, f"supplier{by}") for time, price, item, by in rows
    )
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in values]


@pytest.fixture
def bid(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[None]:
    """Create the batch table ``Bid``."""
    streams.write_batches(tmp_path / "bids", [bids(request.param)], SCHEMA)
    spark.read.parquet(str(tmp_path / "bids")).createOrReplaceTempView("Bid")
    yield
    spark.catalog.dropTempView("Bid")


def results(text: str) -> list[tuple[Any, ...]]:
    """Return results that begin with a start and an end."""
    rows = (row.split() for row in text.strip().split("\n"))
    return sorted(
        (
            (
                *(at(int(time)).replace(tzinfo=None) for time in (start, end)),
                *(None if value == "null" else value for value in values),
            )
            for start, end, *values in rows
        ),
        key=repr,
    )


def found(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows with everything but times as text."""

    def text(value: Any) -> Any:
        shown = value is None or isinstance(value, dt.datetime)
        return value if shown else str(value).removeprefix("supplier")

    return sorted((tuple(map(text, row)) for row in rows), key=repr)


TUMBLE = "FROM TABLE(\n    TUMBLE(TABLE Bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))"
SETS = f"SELECT window_start, window_end, supplier_id, SUM(price) as price\n  {TUMBLE}\n"
BY_SUPPLIER = """
800 810 null 11.00
800 810 2 5.00
800 810 1 6.00
810 820 null 10.00
810 820 2 9.00
810 820 1 1.00
"""


@pytest.mark.parametrize("bid", [BIDS], indirect=True)
@pytest.mark.parametrize("sets", ["GROUPING SETS ((supplier_id), ())", "ROLLUP (supplier_id)"])
@pytest.mark.promises("Flink SQL", "supported", "GROUPING SETS", "CUBE", "ROLLUP")
def test_grouping_sets_return_the_documented_results(sets: str, bid: None, spark: SparkSession) -> None:
    query = f"{SETS}  GROUP BY window_start, window_end, {sets};"
    result = timerheap.spark.sql(spark, query, max_parallelism=2)
    assert found(streams.rows(result)) == results(BY_SUPPLIER)


@pytest.mark.parametrize("bid", [BIDS], indirect=True)
@pytest.mark.promises("Flink SQL", "supported", "GROUPING", "GROUPING_ID")
def test_grouping_distinguishes_the_nulls_of_a_cube_from_those_of_rows(
    bid: None, spark: SparkSession
) -> None:
    """Aggregates see the row's own values even where its keys become null."""
    spark.table("Bid").selectExpr(
        "bidtime", "price", "IF(item = 'A', NULL, item) AS item", "supplier_id"
    ).createOrReplaceTempView("b")
    query = (
        "SELECT window_start, window_end, item, supplier_id, GROUPING(item), GROUPING_ID(item, supplier_id), "
        f"COUNT(item), COUNT(DISTINCT supplier_id) {TUMBLE.replace('Bid', 'b')} WHERE price < 5 "
        "GROUP BY window_start, window_end, CUBE (supplier_id, item) HAVING window_end < "
        "TIMESTAMP '2020-04-15 08:15:00'"
    )
    result = timerheap.spark.sql(spark, query, max_parallelism=2)
    assert found(streams.rows(result)) == results("""
800 810 C 1 0 0 1 1
800 810 null 1 0 0 0 1
800 810 null 1 1 2 1 1
800 810 C null 0 1 1 1
800 810 null null 0 1 0 1
800 810 null null 1 3 1 1
""")


TOP_SUPPLIERS = """SELECT *
  FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) as rownum
    FROM (
      SELECT window_start, window_end, supplier_id, SUM(price) as price, COUNT(*) as cnt
      FROM TABLE(
        TUMBLE(TABLE Bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))
      GROUP BY window_start, window_end, supplier_id
    )
  ) WHERE rownum <= 3;"""
BEST_SUPPLIERS = """
800 810 1 6.00 2 1
800 810 4 5.00 1 2
800 810 2 4.00 1 3
810 820 5 6.00 1 1
810 820 2 3.00 1 2
810 820 3 2.00 1 3
"""
TOP_ITEMS = """SELECT *
  FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) as rownum
    FROM TABLE(
               TUMBLE(TABLE Bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))
  ) WHERE rownum <= 3;"""
LAST_BIDS = """SELECT *
  FROM (
    SELECT bidtime, price, item, supplier_id, window_start, window_end,
      ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY bidtime DESC) as rownum
    FROM TABLE(
               TUMBLE(TABLE Bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))
  ) WHERE rownum <= 1;"""


@pytest.mark.parametrize("bid", [MORE_BIDS], indirect=True)
@pytest.mark.promises("Flink SQL", "supported", "window Top-N", "window deduplication")
def test_top_n_and_deduplication_return_the_documented_results(bid: None, spark: SparkSession) -> None:
    suppliers = timerheap.spark.sql(spark, TOP_SUPPLIERS)
    assert suppliers.columns == ["window_start", "window_end", "supplier_id", "price", "cnt", "rownum"]
    assert found(streams.rows(suppliers)) == results(BEST_SUPPLIERS)
    items = timerheap.spark.sql(spark, TOP_ITEMS, max_parallelism=2)
    assert items.columns == [*SCHEMA.names, "window_start", "window_end", "window_time", "rownum"]
    firsts = {row[2]: row[-1] for row in streams.rows(items)}
    assert firsts == {"A": 2, "C": 3, "D": 1, "B": 3, "H": 2, "F": 1}
    last = timerheap.spark.sql(spark, LAST_BIDS, max_parallelism=2)
    assert {(row[0], row[2], row[6]) for row in streams.rows(last)} == {(at(809), "D", 1), (at(817), "F", 1)}


@pytest.mark.parametrize("what", ["results", "rows"])
def test_top_n_of_a_stream_ignores_late_rows(what: str, spark: SparkSession, tmp_path: Path) -> None:
    """A late row is never among the first, and nulls are sorted as in Spark."""
    batches = [MORE_BIDS, "820 9 X 9, 803 8 L 8, 821 7 Y 9", "840 1 Z 1"]
    streams.write_batches(tmp_path / "input", map(bids, batches), SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("Bid")
    query = TOP_SUPPLIERS if what == "results" else TOP_ITEMS.replace("*,", "item, window_start,").replace(
        "price DESC", "IF(item = 'F', NULL, price) DESC NULLS FIRST, item DESC"
    ).replace("<= 3", "< 3")  # fmt: skip
    streams.run(timerheap.spark.sql(spark, query, STRATEGY, max_parallelism=2), tmp_path)
    rows = streams.sink(spark, tmp_path)
    if what == "results":
        assert found(rows) == results(BEST_SUPPLIERS + "820 830 9 16.00 2 1\n")
    else:
        assert [(item, rank) for item, _, rank in sorted(rows, key=lambda row: row[1:])] == [
            ("D", 1), ("C", 2), ("F", 1), ("H", 2), ("X", 1), ("Y", 2),
        ]  # fmt: skip


@pytest.mark.promises(
    "Flink SQL",
    "different",
    "windows over window_time",
    note="through a view; they end when a later window of the view is emitted",
)
def test_windows_over_a_view_of_windows_return_the_documented_results(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Flink's cascading windows: longer windows over a view of windows."""
    streams.write_batches(tmp_path / "input", map(bids, [BIDS, "835 1 Z 1", "855 1 Z 1"]), SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("Bid")
    inner = timerheap.spark.sql(
        spark,
        "SELECT window_start, window_end, window_time as rowtime, SUM(price) as partial_price FROM TABLE("
        "TUMBLE(TABLE Bid, DESCRIPTOR(bidtime), INTERVAL '5' MINUTES)) "
        "GROUP BY supplier_id, window_start, window_end, window_time",
        STRATEGY,
        max_parallelism=2,
    )
    inner.createOrReplaceTempView("window1")
    outer = timerheap.spark.sql(
        spark,
        "SELECT window_start, window_end, SUM(partial_price) as total_price FROM TABLE(TUMBLE(TABLE window1, "
        "DESCRIPTOR(rowtime), INTERVAL '10' MINUTES)) GROUP BY window_start, window_end;",
        max_parallelism=2,
    )
    streams.run(outer, tmp_path)
    assert found(streams.sink(spark, tmp_path)) == results("800 810 11.00\n810 820 10.00\n830 840 1.00")


def test_of_rows_of_one_time_a_deduplication_keeps_the_first_or_the_last_to_arrive(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Flink: RowTimeDeduplicateFunction compares with < for the first row, and with <= for the last."""
    batches = ["805 1 A 1, 805 2 B 1, 805 3 C 1", "805 4 D 1, 804 5 E 1, 806 6 F 2, 806 7 G 2", "840 1 Z 1"]
    streams.write_batches(tmp_path / "input", map(bids, batches), SCHEMA)
    streams.read_stream(spark, tmp_path / "input").createOrReplaceTempView("Bid")
    for order, wanted in (("ASC", {"E", "F"}), ("DESC", {"D", "G"})):
        query = LAST_BIDS.replace("PARTITION BY", "PARTITION BY supplier_id,").replace(
            "bidtime DESC", f"bidtime {order}"
        )
        work = tmp_path / order
        streams.run(timerheap.spark.sql(spark, query, STRATEGY, max_parallelism=2), work)
        assert {row[2] for row in streams.sink(spark, work)} == wanted
