"""Change feeds as they come: Debezium's, with and without images, Spark's and Delta's; what refuses them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from change_runs import ChangeRun, planned_query
from changes_model import Table, apply_changes
from only_adds import OnlyAdds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction
from timerheap.errors import ArgumentValueError, CheckpointMismatchError
from timerheap.spark import (
    aggregate_changes,
    changes_of,
    join_changes,
    progress,
    read_checkpoint,
    top_changes,
    udaf,
)
from timerheap.spark._changes.guarantees import unique_keys

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]
IMAGE = pa.struct([("id", pa.int64()), ("city", pa.string()), ("n", pa.int64())])
DEBEZIUM = pa.schema([("op", pa.string()), ("before", IMAGE), ("after", IMAGE), ("lsn", pa.int64())])


def event(op: str, before: tuple[Any, ...] | None, after: tuple[Any, ...] | None, lsn: int) -> dict[str, Any]:
    images = ({"id": row[0], "city": row[1], "n": row[2]} if row else None for row in (before, after))
    return dict(zip(DEBEZIUM.names, (op, *images, lsn), strict=True))


EVENTS = [
    [event("r", None, (1, "rome", 10), 1), event("c", None, (2, "oslo", 5), 2)],
    [event("u", (1, "rome", 10), (1, "oslo", 11), 3), event("c", None, (3, "rome", 7), 4)],
    [event("d", (2, "oslo", 5), None, 5), event("u", (3, "rome", 7), (3, "rome", 8), 6)],
]
CITIES = [
    {("rome", 1, 10), ("oslo", 1, 5)},
    {("rome", 1, 7), ("oslo", 2, 16)},
    {("rome", 1, 8), ("oslo", 1, 11)},
]


def with_images(events: DataFrame) -> DataFrame:
    """The changes of Debezium's events, each of which has the row before and the row after."""
    before = F.struct(F.lit("update_preimage").alias("_change_type"), "before.*")
    after = F.struct(F.lit("update_postimage").alias("_change_type"), "after.*")
    rows = events.select(F.explode(F.array(before, after)).alias("row")).select("row.*")
    return rows.where("id IS NOT NULL")


def without_images(events: DataFrame, **options: Any) -> DataFrame:
    """The same of events that have the row after alone: the newest row of each key."""
    rows = events.select(
        F.coalesce("after.id", "before.id").alias("id"), "after.city", "after.n", "op", "lsn"
    )
    return changes_of(rows, "id", "lsn", deleted=F.col("op") == "d", **options).drop("op", "lsn")


def by_city(changes: DataFrame) -> DataFrame:
    wanted = F.count("*").alias("people"), F.sum("n").alias("n")
    return aggregate_changes(changes, "city", *wanted, max_parallelism=4)


@pytest.mark.parametrize("source", [with_images, without_images])
def test_debezium_is_aggregated(spark: SparkSession, tmp_path: Path, source: Any) -> None:
    """In a chain of two operators, over a restart with a different number of partitions."""
    found: Table = Counter()
    done = 0
    for part, partitions in ((EVENTS[:2], 2), (EVENTS[2:], 3)):
        streams.write_batches(tmp_path / "in", part, DEBEZIUM)
        with streams.configured(spark, shuffle_partitions=partitions):
            result = by_city(source(streams.read_stream(spark, tmp_path / "in")))
            names = result.columns
            for batch in streams.batches(result, tmp_path):
                apply_changes(found, [dict(zip(names, row, strict=True)) for row in batch], ["city"])
                assert {*found} == CITIES[done]
                done += 1
    assert done == len(EVENTS)
    state = read_checkpoint(spark, str(tmp_path / "checkpoint"), 0)
    rows = state.state("aggregates").select("city", "value.rows").collect()
    assert {tuple(row) for row in rows} == {(city, people) for city, people, _ in CITIES[-1]}


def test_feeds_of_delta_and_of_spark_are_taken_as_they_are(spark: SparkSession) -> None:
    feed = spark.createDataFrame(
        [("a", 1, "insert", 1), ("a", 1, "update_preimage", 2), ("a", 3, "update_postimage", 2)],
        "k string, n long, _change_type string, _commit_version long",
    ).withColumn("_commit_timestamp", F.lit("2026-01-01").cast("timestamp"))
    result = aggregate_changes(feed, "k", F.sum("n").alias("s"))
    assert [tuple(row) for row in result.collect()] == [("a", 3, "insert")]


def test_metrics_tell_of_changes(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("_change_type", pa.string())])
    rows = [{"k": "a", "_change_type": word} for word in ("insert", "insert")]
    batches = [[*rows, {"k": "b", "_change_type": "delete"}]]
    streams.write_batches(tmp_path / "in", batches, schema)
    df = streams.read_stream(spark, tmp_path / "in")
    result = aggregate_changes(df, "k", F.count("*"), name="counts")
    query = (
        result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "sink"), format="parquet")
    )
    query.awaitTermination()
    found = progress(query, "counts")
    assert found is not None
    assert found.counters == {"rows_in": 3, "changes_out": 1, "unmatched_deletes": 1}
    assert found.distributions["rows_of_key"].max == 2


class Silent(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


def test_operators_on_rows_that_stay_refuse_changes(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1, "insert")], "k string, at long, _change_type string")
    text = "df must have rows that stay, got column '_change_type', with which rows are taken back; use"
    with pytest.raises(ArgumentValueError, match=text):
        timerheap.spark.process(df, "k", Silent(), "k string")
    with pytest.raises(ArgumentValueError, match=text):
        changes_of(df, "k", "at")
    with pytest.raises(ArgumentValueError, match=text):
        timerheap.spark.drop_duplicates(df, "k", "at", watermark=0)
    timerheap.spark.process(df.withColumnRenamed("_change_type", "what"), "k", Silent(), "k string")


def test_a_result_says_which_keys_it_has(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1, "x")], "k string, seq long, v string")
    upserts = changes_of(df, ["k", "v"], "seq")
    assert unique_keys(upserts) == (("k", "v"),)
    assert unique_keys(upserts.where("seq > 1").withColumnRenamed("k", "key").drop("seq")) == (("key", "v"),)
    assert unique_keys(upserts.select("v", F.col("k").alias("key"), "_change_type")) == (("key", "v"),)
    counts = aggregate_changes(upserts, "v", F.count("*").alias("k"))
    assert unique_keys(counts) == (("v",),)
    for lost in (
        upserts.drop("k"),
        upserts.unionAll(upserts),
        upserts.withColumn("k", F.upper("k")),
        upserts.withColumn("one", F.explode(F.array(F.lit(1), F.lit(2)))),
        upserts.crossJoin(df.select(F.lit(1).alias("other"))),
        upserts.withColumn("_change_type", F.lit("insert")),
        upserts.drop("_change_type"),
        aggregate_changes(upserts, [], F.count("*")),
        df,
    ):
        assert unique_keys(lost) == ()


def test_a_result_says_whether_its_rows_only_come(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 1, "x")], "k string, seq long, v string")
    total = udaf(OnlyAdds(), F.lit(1), returns="long", accumulator="long")
    changes = changes_of(rows, "k", "seq")
    joined = join_changes(rows.drop("seq"), rows.withColumnRenamed("v", "w"), "k")
    for grows in (
        rows,
        joined,
        joined.where("v < w").select("k", F.upper("w").alias("u"), "_change_type"),
        join_changes(joined, rows, "k", how="semi"),
        join_changes(rows, joined, ["k", "seq"], on=F.col("v") != F.col("w")),
        aggregate_changes(rows, ["k", "v"]),
    ):
        aggregate_changes(grows, "k", total)
    for may_go in (
        changes,
        join_changes(rows, changes, "k"),
        join_changes(joined, changes.drop("seq", "v"), "k"),
        join_changes(rows, rows, "k", how="left"),
        join_changes(rows, rows, "k", how="anti"),
        aggregate_changes(rows, "k", F.count("*")),
        aggregate_changes(changes, "k"),
        top_changes(rows, "k", 1, "seq"),
        joined.unionAll(joined),
        joined.withColumn("_change_type", F.lit("delete")),
    ):
        with pytest.raises(ArgumentValueError, match="aggregates: OnlyAdds must have retract"):
            aggregate_changes(may_go, "k", total)


def test_a_query_starts_from_the_state_of_another_one(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "one", EVENTS[:2], DEBEZIUM)
    streams.write_batches(tmp_path / "two", EVENTS[2:], DEBEZIUM)
    found: Table = Counter()
    checkpoint, states = tmp_path / "one" / "checkpoint", [None, None]
    for name in ("one", "two"):
        rows = without_images(streams.read_stream(spark, tmp_path / name), initial_state=states[1])
        wanted = F.count("*").alias("people"), F.sum("n").alias("n"), F.max("n").alias("most")
        result = aggregate_changes(rows, "city", *wanted, initial_state=states[0])
        for batch in streams.batches(result, tmp_path / name):
            apply_changes(found, [dict(zip(result.columns, row, strict=True)) for row in batch], ["city"])
        states = [read_checkpoint(spark, str(checkpoint), number) for number in (0, 1)]
    assert {row[:3] for row in found} == CITIES[-1]


def test_aggregates_cannot_be_added_later(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    df = spark.readStream.format("rate").load().selectExpr("value k", "value n")

    def planned(*aggregates: Any) -> Any:
        plan = "aggregates.aggregate_changes_plan"
        return planned_query(monkeypatch, plan, lambda: aggregate_changes(df, "k", *aggregates))

    run = ChangeRun(planned(F.count("*")))
    run.run([{"k": 1}])
    run.query = planned(F.count("*"), F.sum("n"))
    with pytest.raises(CheckpointMismatchError, match="for which rows of the past are missing"):
        run.run([{"k": 1, "__timerheap_input0": 3}])
