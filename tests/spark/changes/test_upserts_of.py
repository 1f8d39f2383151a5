"""`upserts_of` beside a dict, and what the functions for tables refuse before they write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from changelogs import ROWS, Step, changelog, row_of
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from timerheap.spark import (
    aggregate_changes,
    changes_of,
    merge_into,
    top_changes,
    upsert_jdbc,
    upsert_kafka,
    upserts_of,
)

pytestmark = pytest.mark.spark

URL = "jdbc:postgresql://localhost/shop"


def values(spark: SparkSession, rows: str, columns: str = "k, v, _change_type") -> DataFrame:
    return spark.sql(f"SELECT * FROM VALUES {rows} AS t({columns})")


def applied(table: dict[Any, Any], upserts: list[dict[str, Any]]) -> None:
    """Write final images to a dict, as a MERGE does."""
    assert len({row["k"] for row in upserts}) == len(upserts)
    for row in upserts:
        if row["_deleted"]:
            table.pop(row["k"], None)
        else:
            table[row["k"]] = row_of(row)


@pytest.mark.parametrize("net", [True, False])
def test_the_upserts_of_any_micro_batches_make_the_table(spark: SparkSession, net: bool) -> None:
    runs = [list(changelog(seed, 12, 9, net)) for seed in range(25)]
    steps = [(run, number, step) for run, found in enumerate(runs) for number, step in enumerate(found)]
    rows = [change | {"run": run, "step": number} for run, number, step in steps for change in step.changes]
    schema = pa.schema([*ROWS, ("run", pa.int64()), ("step", pa.int64())])
    # All micro-batches in one job: each has its own keys.
    found = upserts_of(spark.createDataFrame(pa.Table.from_pylist(rows, schema)), ["run", "step", "k"])
    by_step: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in found.toArrow().to_pylist():
        by_step.setdefault((row["run"], row["step"]), []).append(row)
    for run, of_run in enumerate(runs):
        table: dict[Any, Any] = {}
        for number, step in enumerate(of_run):
            for _ in range(1 + number % 2):  # some are repeated
                applied(table, by_step.get((run, number), []))
            assert table == step.table


def test_a_stream_of_changes_keeps_a_table(spark: SparkSession, tmp_path: Path) -> None:
    steps = list(changelog(1, 5, 6))
    streams.write_batches(tmp_path / "in", [step.arrow() for step in steps], ROWS)
    table: dict[Any, Any] = {}
    found = []

    def write(batch: DataFrame, batch_id: int) -> None:
        applied(table, upserts_of(batch, "k").toArrow().to_pylist())
        found.append(dict(table))

    writer = streams.read_stream(spark, tmp_path / "in").writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert found == [step.table for step in steps]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("('a', 1, 'insert')", [("a", 1, False)]),
        ("('a', 1, 'delete')", [("a", 1, True)]),
        ("('a', 1, 'update_preimage'), ('a', 2, 'update_postimage')", [("a", 2, False)]),
        ("('a', 1, 'delete'), ('a', 2, 'insert')", [("a", 2, False)]),  # one upsert
        ("('a', 1, 'delete'), ('a', 1, 'delete')", [("a", 1, True)]),
        ("('a', 1, 'delete'), ('a', 1, 'insert')", []),  # nothing has changed
        ("('a', null, 'insert'), ('a', 1, 'delete')", [("a", None, False)]),
        ("(cast(null as string), 1, 'insert'), ('', 2, 'insert')", [("", 2, False), (None, 1, False)]),
    ],
)
def test_one_row_a_key(spark: SparkSession, rows: str, expected: list[tuple[Any, ...]]) -> None:
    assert streams.rows(upserts_of(values(spark, rows), "k")) == expected


def test_keys_that_are_equal_are_one_key(spark: SparkSession) -> None:
    with streams.configured(spark, shuffle_partitions=20):
        rows = values(spark, "(0D, 'a', 'insert'), (-0D, 'b', 'delete'), (double('nan'), 'c', 'insert')")
        found = streams.rows(upserts_of(rows, "k", "gone").drop("k"))
    assert found == [("a", False), ("c", False)]


def test_columns_of_any_type_and_name(spark: SparkSession) -> None:
    rows = spark.sql("""
        SELECT k AS `a.b`, map('x', k) AS m, array(k) AS `l``s`, named_struct('n', k) AS s, _change_type,
            9 AS _commit_version FROM VALUES (1, 'insert'), (2, 'insert'), (2, 'delete') AS t(k, _change_type)
    """)
    assert upserts_of(rows, "a.b").collect() == [(1, {"x": 1}, [1], (1,), False)]
    assert upserts_of(rows, ["a.b"]).columns == ["a.b", "m", "l`s", "s", "_deleted"]


def raised(df: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        df.collect()
    return str(caught.value)


def test_two_rows_of_one_key_never_both_win(spark: SparkSession) -> None:
    rows = values(
        spark,
        "('c', 1, 'p', 'insert'), ('c', 1, 'q', 'insert'), ('c', 2, 'q', 'insert')",
        "k, l, v, _change_type",
    )
    for found in (upserts_of(rows, ["k", "l"]), upserts_of(rows, ["k", "l"]).select("k")):
        text = raised(found)
        assert (
            "key must be unique in the result, got ['k', 'l'], by which 2 rows of one micro-batch have "
            '{"k":"c","l":1}; choose a key that the result guarantees, such as that of its aggregate'
        ) in text
    assert len(upserts_of(rows, ["k", "l", "v"]).collect()) == 3
    # Twice the same row, and one row more than has gone.
    assert 'have {"k":null}' in raised(
        upserts_of(
            values(spark, "(null, 1, 'insert'), (null, 1, 'insert')").select(
                F.col("k").cast("int"), "v", "_change_type"
            ),
            "k",
        )
    )
    one_goes = "('a', 0, 'update_preimage'), ('a', 1, 'update_postimage'), ('a', 2, 'insert')"
    assert "2 rows" in raised(upserts_of(values(spark, one_goes), "k"))


@pytest.mark.parametrize("word", ["'upsert'", "cast(null as string)"])
def test_an_unknown_word_is_an_error(spark: SparkSession, word: str) -> None:
    text = raised(upserts_of(values(spark, f"('a', 1, {word})"), "k"))
    assert "must be insert, update_preimage, update_postimage or delete, got " in text


def test_arguments_of_upserts_are_checked(spark: SparkSession) -> None:
    rows = values(spark, "('a', 1, 'insert')")
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: upserts_of("rows", "k"), "changes must be a pyspark.sql.DataFrame, got 'rows'"),
        (
            lambda: upserts_of(rows.drop("_change_type"), "k"),
            r"changes must have the column '_change_type', got columns \['k', 'v'\]; keep it in select",
        ),
        (
            lambda: upserts_of(rows, "id"),
            r"key must name one column, got 'id', which names none; the columns are",
        ),
        (lambda: upserts_of(rows, "_change_type"), "key must name one column"),
        (lambda: upserts_of(rows, []), "key must be a column name or a list of column names, got"),
        (
            lambda: upserts_of(rows, "k", "v"),
            "deleted must be a new name, got 'v', which is a column of changes",
        ),
        (lambda: upserts_of(rows, "k", 1), "deleted must be a str, got 1"),
        (
            lambda: upserts_of(
                spark.readStream.format("rate").load().withColumn("_change_type", F.lit("insert")), "value"
            ),
            "changes must be a batch DataFrame, got a stream; pass the one that foreachBatch passes",
        ),
    ]
    for call, text in refused:
        with pytest.raises((ArgumentTypeError, ArgumentValueError), match=text):
            call()


def test_arguments_of_sinks_are_checked(spark: SparkSession) -> None:
    rows = values(spark, "('a', 1, 'insert')")
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: merge_into("t"), "key must name the key columns, got None; pass it, or the result as `of`"),
        (lambda: merge_into("t", []), "key must be a column name or a list of column names, got "),
        (lambda: merge_into("t", [1]), "key must be a column name or a list of column names, got "),
        (lambda: merge_into("t", "id", of=rows), "key must name one column, got 'id'"),
        (lambda: merge_into("t", of=rows), "the result has no key that is known; pass it"),
        (
            lambda: merge_into("t", "k", of=rows.drop("_change_type")),
            "of must have the column '_change_type'",
        ),
        (lambda: merge_into("t", "k", trust_key="yes"), "trust_key must be a bool, got 'yes'"),
        (lambda: merge_into(1, "k"), "table must be a str, got 1"),
        (
            lambda: upsert_kafka("broker:9092", "t", "k"),
            "trust_key must be True, got False, and nothing says that",
        ),
        (lambda: upsert_kafka("broker:9092", "t", "k", of=rows), "trust_key must be True, got False"),
        (lambda: upsert_jdbc(URL, "a.b.c", "k"), "table must be a table or a schema and a table"),
        (lambda: upsert_jdbc(URL, "t" * 60, "k"), "staging must have names of at most 63 bytes"),
    ]
    for call, text in refused:
        with pytest.raises((ArgumentTypeError, ArgumentValueError), match=text):
            call()
    with pytest.raises(UnsupportedError, match="url must begin with 'jdbc:postgresql:', got 'jdbc:mysql:"):
        upsert_jdbc("jdbc:mysql://localhost/shop", "t", "k")


def test_the_key_of_a_sink_is_one_of_the_result(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 1 AS id, 'a' AS word, 5 AS version")
    words = changes_of(rows, "id", "version").withColumnRenamed("id", "word id")
    # Known keys need no check of the table, and name the key.
    assert merge_into("t", of=words).key == (["word id"], True)
    assert merge_into("t", ["word", "word id"], of=words).key == (["word", "word id"], True)
    upsert_kafka("broker:9092", "t", of=words)
    with pytest.raises(
        ArgumentValueError, match=r"key must contain a key of the result, got \['word'\], by .*"
    ):
        merge_into("t", "word", of=words)
    assert merge_into("t", "word", of=words, trust_key=True).key == (["word"], True)
    assert merge_into("t", "word", of=words.union(words)).key == (["word"], False)
    counts = aggregate_changes(words, ["word", "version"], F.count("*").alias("n")).where("n > 0").drop("n")
    assert merge_into("t", of=counts).key == (["word", "version"], True)
    with pytest.raises(ArgumentValueError, match=r"its keys are \[\['word', 'version'\]\]"):
        merge_into("t", "version", of=counts)
    places = top_changes(words, "word", 2, "version", number="place")
    assert merge_into("t", of=places).key == (["word", "place"], True)


def test_a_micro_batch_is_checked_before_it_is_written(spark: SparkSession) -> None:
    rows = values(spark, "('a', 1, 'insert'), ('a', 2, 'insert')")
    sinks = merge_into("absent", "k"), upsert_jdbc(URL, "absent", "k")
    for sink in (*sinks, upsert_kafka("broker:9092", "absent", "k", trust_key=True)):
        with pytest.raises(ArgumentValueError, match="the micro-batch must have the column '_change_type'"):
            sink(rows.drop("_change_type"), 0)
    for sink in sinks:
        with pytest.raises(ArgumentValueError, match=r'^key must be unique .* have {"k":"a"}; choose a key '):
            sink(rows, 0)
        with pytest.raises(ArgumentValueError, match=r"^_change_type of changes must be "):
            sink(rows.withColumn("_change_type", F.lit("upsert")), 0)
        sink(rows.limit(0), 0)  # nothing to write


def test_cases_have_all_kinds_of_changes() -> None:
    steps: list[Step] = list(changelog(0, 40, 9))
    words = {change["_change_type"] for step in steps for change in step.changes}
    assert words == {"insert", "update_preimage", "update_postimage", "delete"}
    assert {None in step.table for step in steps} == {True, False}
