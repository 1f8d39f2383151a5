"""Each feature goes on in a new query, with other key groups, where an old one has stopped."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import streams
from feature_queries import ALL, BATCHES, CUT, FEATURES, SCHEMA, TIMED, Feature, Query, windows
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction
from timerheap.spark import continue_from

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all rows."""
    folder = tmp_path_factory.mktemp("inputs")
    streams.write_batches(folder, BATCHES, SCHEMA)
    return folder


class Tell(KeyedProcessFunction):
    """Is in the way of other operators."""

    def process_element(self, value: Row, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5_000)
        yield (value.k,)


def with_other(feature: Feature, df: DataFrame, groups: int) -> DataFrame:
    """Return a query with an operator before that of a feature, which adds nothing to the result."""
    result = feature(df, groups)
    other = timerheap.spark.process(df, "k", Tell(), "k string", **TIMED, name="other").where("k = '?'")
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in result.schema]
    return other.select(*columns).union(result)


class Stopped:
    """A query that has stopped after some micro-batches, and whose other rows have come."""

    def __init__(self, spark: SparkSession, work: Path, query: Query) -> None:
        self.spark, self.work = spark, work
        streams.write_batches(work / "in", BATCHES[:CUT], SCHEMA)
        self.before = streams.batches(query(self.rows()), work / "old")
        streams.write_batches(work / "in", BATCHES[CUT:], SCHEMA)

    def rows(self) -> DataFrame:
        return streams.read_stream(self.spark, self.work / "in")

    def continued(self, query: Query, **options: Any) -> DataFrame:
        """Return a query that goes on, for a run in the folder "new"."""
        old, new = (self.work / name / "checkpoint" for name in ("old", "new"))
        return continue_from(self.spark, old, new, lambda: query(self.rows()), **options)


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("change", ["key groups", "partitions", "operator before", "operator removed"])
@pytest.mark.parametrize("name", ALL)
def test_a_changed_query_goes_on_where_the_old_one_has_stopped(
    spark: SparkSession, every: Path, tmp_path: Path, name: str, change: str
) -> None:
    def plain(df: DataFrame) -> DataFrame:
        return ALL[name](df, 4)

    def other(df: DataFrame) -> DataFrame:
        return with_other(ALL[name], df, 4)

    wanted = streams.batches(plain(streams.read_stream(spark, every)), tmp_path / "undisturbed")
    stopped = Stopped(spark, tmp_path, other if change == "operator removed" else plain)
    with streams.configured(spark, shuffle_partitions=3 if change == "partitions" else 1):
        if change == "key groups":
            result = stopped.continued(lambda df: ALL[name](df, 7))
        elif change == "operator before":
            result = stopped.continued(other)
        else:
            result = stopped.continued(plain, forget=["other"] if change == "operator removed" else [])
        found = streams.batches(result, tmp_path / "new")
    assert sum(map(len, wanted[CUT:])) > 2
    assert [sorted(rows, key=repr) for rows in [*stopped.before, *found]] == [
        sorted(rows, key=repr) for rows in wanted
    ]


def test_windows_that_a_query_would_lose_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before it starts."""
    stopped = Stopped(spark, tmp_path, lambda df: FEATURES["tumble"](df, 4))
    longer = windows("tumble", "60 seconds")
    with pytest.raises(ValueError, match=r"has the windows Tumbling .* without the windows that are open"):
        stopped.continued(lambda df: longer(df, 4))
    with pytest.raises(ValueError, match=r"has Tumbling windows, size 50000 ms.*, and would lose it"):
        stopped.continued(lambda df: FEATURES["process"](df, 4))


def test_windows_of_processing_time_end_in_the_new_query(spark: SparkSession, tmp_path: Path) -> None:
    """Those of the old query are open when it stops, or over: no row is lost, and none counts twice."""
    old: dict[int, list[tuple[Any, ...]]] = {}

    def windowed(groups: int) -> DataFrame:
        df = streams.read_stream(spark, tmp_path / "in", files=4)
        cuts = timerheap.spark.tumble(df, None, "6 seconds", max_parallelism=groups)
        return cuts.groupBy("k").agg(F.count("*").alias("rows")).select("k", "rows")

    def collect(rows: DataFrame, batch: int) -> None:
        old[batch] = [tuple(row) for row in rows.collect()]

    streams.write_batches(tmp_path / "in", BATCHES[:CUT], SCHEMA)
    checkpoint = tmp_path / "old" / "checkpoint"
    writer = windowed(4).writeStream.foreachBatch(collect)
    timerheap.spark.run_available_now(writer.option("checkpointLocation", str(checkpoint)))
    streams.write_batches(tmp_path / "in", BATCHES[CUT:], SCHEMA)
    before = [row for rows in old.values() for row in rows]
    result = continue_from(spark, checkpoint, tmp_path / "new" / "checkpoint", lambda: windowed(7))
    new: list[tuple[Any, ...]] = []
    query = (
        result.writeStream.foreachBatch(lambda rows, _: new.extend(tuple(row) for row in rows.collect()))
        .option("checkpointLocation", str(tmp_path / "new" / "checkpoint"))
        .trigger(processingTime="1 second")
        .start()
    )

    def counts() -> Counter[str | None]:
        total: Counter[str | None] = Counter()
        for key, n in [*before, *new]:
            total[key] += n
        return total

    wanted = Counter(row["k"] for batch in BATCHES for row in batch)
    deadline = time.monotonic() + streams.PATIENCE
    try:
        while counts().total() < wanted.total():
            assert query.isActive, query.exception()
            assert time.monotonic() < deadline, counts()
            time.sleep(0.1)
    finally:
        query.stop()
    assert counts() == wanted
