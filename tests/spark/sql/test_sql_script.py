"""Scripts in Flink's SQL as they are pasted, and INSERT INTO."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap.errors import ArgumentTypeError, ArgumentValueError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
ROWS = [
    {"user_id": number % 3, "page": f"p{number % 4}", "ts": EPOCH + timedelta(seconds=number)}
    for number in range(30)
]
SCHEMA = pa.schema([("user_id", pa.int64()), ("page", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
CREATE = """
CREATE TABLE clicks (
    user_id BIGINT NOT NULL COMMENT 'of the user, who; clicks',
    page STRING,
    ts TIMESTAMP_LTZ(3),
    amount DECIMAL(10, 2) METADATA FROM 'amount' VIRTUAL,
    title AS UPPER(page),
    proc AS PROCTIME(),
    PRIMARY KEY (user_id) NOT ENFORCED,
    WATERMARK FOR ts AS ts - INTERVAL '2' SECOND
) WITH ('connector' = 'kafka', 'topic' = 'clicks', 'format' = 'json');
""".replace("    amount DECIMAL(10, 2) METADATA FROM 'amount' VIRTUAL,\n", "")
SCRIPT = f"""
-- what users do; as it is pasted
{CREATE}
CREATE TABLE IF NOT EXISTS per_window (starts TIMESTAMP(3), clicks BIGINT) WITH ('connector' = 'print');
CREATE TEMPORARY VIEW some AS SELECT * FROM clicks WHERE user_id > 0;
CREATE VIEW titles (who, what) AS SELECT user_id, title FROM some UNION ALL SELECT 9, 'P9' FROM clicks;
EXECUTE STATEMENT SET BEGIN
INSERT INTO per_window
SELECT window_start, COUNT(*) FROM TABLE(TUMBLE(TABLE some, DESCRIPTOR(ts), INTERVAL '10' SECOND))
GROUP BY window_start, window_end;
INSERT INTO per_user (clicks, `user`) SELECT COUNT(*) AS n, who FROM titles GROUP BY who;
END;
INSERT INTO pairs SELECT a.page, b.page AS other FROM some AS a JOIN some AS b
ON a.user_id = b.user_id AND a.ts BETWEEN b.ts + INTERVAL '1' SECOND AND b.ts + INTERVAL '3' SECOND;
"""


@pytest.fixture
def clicks(spark: SparkSession, tmp_path: Path) -> Path:
    streams.write_batches(tmp_path / "clicks", [ROWS[:15], ROWS[15:]], SCHEMA)
    return tmp_path / "clicks"


@pytest.fixture
def batch(spark: SparkSession, clicks: Path) -> Iterator[DataFrame]:
    df = spark.read.parquet(str(clicks))
    df.createOrReplaceTempView("clicks")
    yield df
    spark.catalog.dropTempView("clicks")


def starts(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    begins = [row["ts"].replace(tzinfo=None, second=row["ts"].second // 10 * 10) for row in rows]
    return [(one, begins.count(one)) for one in sorted(set(begins))]


def pairs(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    found = [
        (one["page"], other["page"])
        for one in rows
        for other in rows
        if one["user_id"] == other["user_id"] and 1 <= (one["ts"] - other["ts"]).seconds <= 3
    ]
    return sorted(found, key=repr)


@pytest.mark.promises(
    "Flink SQL", "supported", "CREATE TABLE with WATERMARK FOR", "CREATE VIEW", "INSERT INTO"
)
@pytest.mark.promises("Flink SQL", "different", "EXECUTE STATEMENT SET", note="a query for each INSERT INTO")
def test_a_script_of_batches_has_a_result_for_each_insert_into(spark: SparkSession, batch: DataFrame) -> None:
    found = timerheap.spark.sql_script(spark, SCRIPT, tables={"clicks": batch}, max_parallelism=2)
    assert list(found) == ["per_window", "per_user", "pairs"]
    some = [row for row in ROWS if row["user_id"] > 0]
    assert found["per_window"].columns == ["starts", "clicks"]
    assert streams.rows(found["per_window"]) == starts(some)
    assert found["per_user"].columns == ["clicks", "user", "_change_type"]
    assert streams.rows(found["per_user"].drop("_change_type")) == [(10, 1), (10, 2), (30, 9)]
    assert found["pairs"].columns == ["page", "other"]
    assert streams.rows(found["pairs"]) == pairs(some)


def test_a_script_of_streams_has_the_watermark_of_its_tables(
    spark: SparkSession, clicks: Path, tmp_path: Path
) -> None:
    stream = streams.read_stream(spark, clicks)
    found = timerheap.spark.sql_script(spark, SCRIPT, tables={"clicks": stream}, max_parallelism=2)
    some = [row for row in ROWS if row["user_id"] > 0]
    for name, wanted in (("per_window", starts(some)[:2]), ("pairs", pairs(some))):
        streams.run(found[name], tmp_path / name)
        assert streams.sink(spark, tmp_path / name) == wanted
    given = timerheap.spark.sql_script(spark, SCRIPT, {"clicks": "1 day"}, tables={"clicks": stream})
    streams.run(given["pairs"].limit(5), tmp_path / "given")


def test_the_result_of_insert_into_has_the_columns_of_its_table(
    spark: SparkSession, batch: DataFrame
) -> None:
    query = "INSERT INTO totals (n, who) SELECT COUNT(*), user_id FROM clicks GROUP BY user_id"
    assert timerheap.spark.sql(spark, query).columns == ["n", "who", "_change_type"]
    assert timerheap.spark.sql(spark, "INSERT INTO x SELECT page FROM clicks;").columns == ["page"]
    assert timerheap.spark.sql(spark, "INSERT INTO x (a, b, c) (SELECT * FROM clicks)").columns == [
        "a",
        "b",
        "c",
    ]
    with pytest.raises(
        ArgumentValueError, match=r"as many columns as its SELECT, got \['a'\] and \['page', 'ts'\]"
    ):
        timerheap.spark.sql(spark, "INSERT INTO x (a) SELECT page, ts FROM clicks")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            CREATE.replace("clicks", "c") + "INSERT INTO x SELECT * FROM c",
            "the connector 'kafka' of table c is",
        ),
        ("CREATE TABLE clicks (a INT, page STRING); INSERT INTO x SELECT * FROM clicks", r"without \['a'\]"),
        (
            "INSERT INTO x SELECT 1 FROM clicks; INSERT INTO x SELECT 2 FROM clicks",
            "one INSERT INTO x, got two",
        ),
        ("SELECT * FROM clicks", "must have INSERT INTO before each SELECT"),
        ("SET 'parallelism.default' = '2'", "SET is not supported; pass options"),
        ("DROP TABLE x", "DROP is not supported; leave it out"),
        ("CREATE FUNCTION f AS 'x.F'", "CREATE FUNCTION is not supported; write CREATE TABLE or CREATE VIEW"),
        ("CREATE TABLE x LIKE clicks", "CREATE TABLE x without columns is not supported"),
        ("CREATE VIEW v (a, b) AS SELECT * FROM clicks", "with 2 columns of 1 is not supported; list a"),
        ("CREATE VIEW v SELECT * FROM clicks", "CREATE VIEW v must be followed by AS SELECT"),
        ("CREATE TABLE x (a INT", "a parenthesis is not closed"),
        ("INSERT OVERWRITE x SELECT * FROM clicks", "INSERT OVERWRITE is not supported; write INSERT INTO"),
        ("INSERT INTO x VALUES (1)", "INSERT INTO with VALUES is not supported; make a DataFrame"),
        ("INSERT INTO x PARTITION (a = 1) SELECT * FROM clicks", "with PARTITION is not supported; select"),
        (
            "CREATE TABLE x (a INT, p AS PROCTIME()); CREATE TABLE y (a INT, q AS PROCTIME())",
            "one name of the processing time, got 'q' beside 'p'",
        ),
    ],
)
@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "connectors of CREATE TABLE",
    note="pass a DataFrame in `tables`, and write the result",
)
def test_what_a_script_must_not_have_is_refused(
    script: str, message: str, spark: SparkSession, batch: DataFrame
) -> None:
    with pytest.raises(ArgumentValueError, match=message):
        timerheap.spark.sql_script(spark, script)


def test_arguments_of_a_script_are_checked(spark: SparkSession, batch: DataFrame) -> None:
    wrong: Any = "5 seconds"
    with pytest.raises(ArgumentTypeError, match="watermark must be a dict such as"):
        timerheap.spark.sql_script(spark, SCRIPT, wrong)
    with pytest.raises(ArgumentTypeError, match="tables must be a dict"):
        timerheap.spark.sql_script(spark, SCRIPT, tables=wrong)
    with pytest.raises(ArgumentValueError, match="got 2 statements; run several with sql_script"):
        timerheap.spark.sql(spark, "SELECT page FROM clicks; SELECT ts FROM clicks")
    with pytest.raises(ArgumentValueError, match="got CREATE; run several with sql_script"):
        timerheap.spark.sql(spark, "CREATE VIEW v AS SELECT page FROM clicks")
    with pytest.raises(
        ArgumentTypeError, match=r"tables\['clicks'\] must be a pyspark.sql.DataFrame, got '5"
    ):
        timerheap.spark.sql(spark, "SELECT page FROM clicks", tables={"clicks": wrong})


def test_tables_are_those_that_are_given_before_views(spark: SparkSession, batch: DataFrame) -> None:
    given = {"clicks": batch.where("user_id = 1"), "shop.seen": batch.where("user_id = 2")}
    query = "SELECT user_id, COUNT(*) AS n FROM {} GROUP BY user_id"
    for table, wanted in (("clicks", (1, 10)), ("shop.seen", (2, 10))):
        found = timerheap.spark.sql(spark, query.format(table), tables=given, max_parallelism=2)
        assert streams.rows(found.drop("_change_type")) == [wanted]
