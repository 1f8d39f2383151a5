"""Each operator of a query has a name: its metrics have it, and so does its state in the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import timerheap.spark
from timerheap import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark import Rule, progress, read_checkpoint
from timerheap.windows import ReduceFunction, TumblingEventTimeWindows

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
OUTPUT = "k string, n long"
TIMED: dict[str, Any] = {"event_time": "at", "watermark": "1 second"}
Named = Callable[[DataFrame, str | None], DataFrame]


class Last(KeyedProcessFunction):
    """Passes rows on, and keeps the last number of each key."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.last.update(value.n)
        yield value.k, value.n


class Sides(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None:
        pass

    def process_element2(self, value: Any, ctx: Any) -> None:
        pass


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        pass


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1


class Nothing(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        pass


def windowed(df: DataFrame, cut: Callable[..., Any], *sizes: str, name: str | None) -> DataFrame:
    found: DataFrame = cut(df, "at", *sizes, watermark="1 second", name=name).groupBy("k").count()
    return found


def of_sql(query: str, df: DataFrame, name: str | None) -> DataFrame:
    df.createOrReplaceTempView("t")
    return timerheap.spark.sql(df.sparkSession, query, "1 second", name=name)


WINDOWS = """
    SELECT k, window_start, window_end, COUNT(*) AS c
    FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '1' MINUTE)) GROUP BY k, window_start, window_end
"""
SQL = {
    "windows": (WINDOWS, 1),
    "ranks of windows": (
        f"""SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY c DESC)
        AS place FROM ({WINDOWS})) WHERE place <= 2""",
        1,  # the windows of a micro-batch are whole, and ranked without state
    ),
    "groups": ("SELECT k, COUNT(*) AS c FROM t GROUP BY k", 1),
    "groups of groups": (
        "SELECT c, COUNT(*) AS f FROM (SELECT k, COUNT(*) AS c FROM t GROUP BY k) GROUP BY c",
        2,
    ),
    "joined groups": (
        """SELECT a.k, a.c, b.s FROM (SELECT k, COUNT(*) AS c FROM t GROUP BY k) a
        JOIN (SELECT k, SUM(n) AS s FROM t GROUP BY k) b ON a.k = b.k""",
        3,
    ),
    "patterns": (
        """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES A.n AS first, B.n AS last
        PATTERN (A B) DEFINE B AS B.n > A.n)""",
        1,
    ),
}

FEATURES: dict[str, tuple[Named, int]] = {
    "process": (lambda df, name: timerheap.spark.process(df, "k", Last(), OUTPUT, name=name), 1),
    "process_all": (
        lambda df, name: timerheap.spark.process_all(
            df, "k", {"a": Rule(Last(), OUTPUT), "b": Rule(Last(), OUTPUT)}, name=name
        ),
        1,
    ),
    "process_two": (
        lambda df, name: timerheap.spark.process_two(df, df, "k", Sides(), OUTPUT, name=name, **TIMED),
        1,
    ),
    "process_broadcast": (
        lambda df, name: timerheap.spark.process_broadcast(df, df, "k", Ruled(), OUTPUT, name=name),
        1,
    ),
    "drop_duplicates": (lambda df, name: timerheap.spark.drop_duplicates(df, "k", name=name, **TIMED), 1),
    "window_operator": (
        lambda df, name: timerheap.spark.window_operator(
            df, "k", TumblingEventTimeWindows.of(1000), Sum(), "v string", name=name, **TIMED
        ),
        1,
    ),
    "tumble": (lambda df, name: windowed(df, timerheap.spark.tumble, "1 minute", name=name), 1),
    "hop": (lambda df, name: windowed(df, timerheap.spark.hop, "1 minute", "1 second", name=name), 1),
    "cumulate": (
        lambda df, name: windowed(df, timerheap.spark.cumulate, "1 minute", "1 second", name=name),
        1,
    ),
    "session": (lambda df, name: windowed(df, timerheap.spark.session, "1 minute", name=name), 1),
    "join_asof": (lambda df, name: timerheap.spark.join_asof(df, df, "k", name=name, **TIMED), 1),
    "transform_with_state": (
        lambda df, name: timerheap.spark.transform_with_state(
            df, "k", Nothing(), OUTPUT, "Append", "None", name=name
        ),
        1,
    ),
    "transform_with_state_in_pandas": (
        lambda df, name: timerheap.spark.transform_with_state_in_pandas(
            df, "k", Nothing(), OUTPUT, "Append", "None", name=name
        ),
        1,
    ),
    "changes_of": (lambda df, name: timerheap.spark.changes_of(df, "k", "n", name=name), 1),
    "aggregate_changes": (
        lambda df, name: timerheap.spark.aggregate_changes(df, "k", F.count("*"), name=name),
        1,
    ),
    "top_changes": (lambda df, name: timerheap.spark.top_changes(df, "k", 1, "n", name=name), 1),
    "join_changes": (lambda df, name: timerheap.spark.join_changes(df, df, "k", name=name), 1),
    "join_changes on a condition": (
        lambda df, name: timerheap.spark.join_changes(
            df, df, "k", how="full", on=F.col("n") < F.col("n_right"), name=name
        ),
        3,
    ),
    **{f"sql: {kind}": (partial(of_sql, query), number) for kind, (query, number) in SQL.items()},
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    folder = tmp_path_factory.mktemp("names") / "in"
    streams.write_batches(folder, [[]], SCHEMA)
    return streams.read_stream(spark, folder)


def names_of(df: DataFrame) -> list[str]:
    """Return the names of the operators in a plan."""
    text = StringIO()
    with redirect_stdout(text):
        df.explain("extended")
    analyzed = text.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    return sorted(re.findall(r"CollectMetrics (\w+), \[", analyzed))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("feature", FEATURES)
def test_the_operators_of_each_feature_have_the_name(rows: DataFrame, feature: str) -> None:
    make, number = FEATURES[feature]
    assert names_of(make(rows, "alerts")) == ["alerts", "alerts_2", "alerts_3"][:number]
    assert set(names_of(make(rows, None))) <= {"timerheap", "timerheap_2", "timerheap_3"}
    with pytest.raises(TypeError, match="name must be a str, got 5"):
        make(rows, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a\nb", 201 * "a", "timerheap", "timerheap_2"])
def test_a_name_that_no_operator_may_have_is_an_error(rows: DataFrame, name: str) -> None:
    message = "name must be printable, of 1 to 200 characters; it must not be one that operators without"
    with pytest.raises(ValueError, match=f"{message}.*got {re.escape(repr(name))}"):
        timerheap.spark.process(rows, "k", Last(), OUTPUT, name=name)


def test_operators_behind_each_other_have_different_names(rows: DataFrame) -> None:
    def last(df: DataFrame, name: str | None = None) -> DataFrame:
        return timerheap.spark.process(df, "k", Last(), OUTPUT, name=name)

    both = last(last(last(last(rows), "alerts")), "alerts_2")
    assert names_of(both) == ["alerts", "alerts_2", "timerheap", "timerheap_2"]
    for name in ("alerts", "alerts_2"):
        with pytest.raises(ValueError, match=f"name must differ from the names .* got '{name}'; they have"):
            last(both, name)
    counts = "SELECT c, COUNT(*) AS f FROM (SELECT k, COUNT(*) AS c FROM t GROUP BY k) GROUP BY c"
    with pytest.raises(ValueError, match=r"got 'alerts_2'; they have \['alerts', 'alerts_2'\]"):
        of_sql(counts, last(rows, "alerts_2"), "alerts")


def test_an_operator_on_a_batch_may_have_any_name(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, n long")
    for _ in range(2):
        df = timerheap.spark.process(df, "k", Last(), OUTPUT, name="alerts")
    assert df.collect() == [("a", 1)]


@pytest.mark.in_turn(5)
def test_state_and_metrics_are_found_by_the_name(spark: SparkSession, tmp_path: Path) -> None:
    for side, number in ("left", 1), ("right", 2):
        streams.write_batches(tmp_path / side, [[{"k": side, "at": 0, "n": number}]], SCHEMA)
    left, right = (streams.read_stream(spark, tmp_path / side) for side in ("left", "right"))

    def both(*names: str) -> DataFrame:
        results = [
            timerheap.spark.process(df, "k", Last(), OUTPUT, max_parallelism=1, name=name)
            for df, name in zip((left, right), names, strict=True)
        ]
        return results[0].union(results[1])

    with streams.started(both("carts", "retries"), tmp_path) as query:
        query.processAllAvailable()
        found = [progress(query, name) for name in ("carts", "retries")]
        with pytest.raises(ValueError, match="got 'timerheap'; the query observes 'carts', 'retries'"):
            progress(query)
    assert [one and one.keys for one in found] == [1, 1]

    checkpoint = tmp_path / "checkpoint"
    state = read_checkpoint(spark, checkpoint, "carts")
    assert (state.name, state.state("last").drop("key_group").collect()) == ("carts", [("left", 1)])
    assert f"operator {state.operator_id} 'carts', micro-batch 0: key (k)" in repr(state)
    assert read_checkpoint(spark, checkpoint, state.operator_id).name == "carts"
    assert read_checkpoint(spark, checkpoint, 1 - state.operator_id).name == "retries"
    for wrong in (None, 2, "2", "cart"):
        known = r"operator 0 '\w+': key \(k\), states last; operator 1 '\w+': key \(k\), states last"
        message = f"operator must be the name or the number of one .*, got {wrong!r}; it has {known}"
        with pytest.raises(ValueError, match=message):
            read_checkpoint(spark, checkpoint, wrong)
    with pytest.raises(TypeError, match=r"operator, unless it is a name, must be an int, got 1\.5"):
        read_checkpoint(spark, checkpoint, 1.5)  # type: ignore[arg-type]

    for side in ("left", "right"):
        streams.write_batches(tmp_path / side, [[{"k": side, "at": 0, "n": 3}]], SCHEMA)
    swapped = (
        r"name must be '(\w+)', as that of this operator in the checkpoint, got '(?!\1)\w+'; if operators"
    )
    with pytest.raises(StreamingQueryException, match=swapped):
        streams.run(both("retries", "carts"), tmp_path)
    streams.run(both("carts", "retries"), tmp_path)
    assert read_checkpoint(spark, checkpoint, "retries").state("last").drop("key_group").collect() == [
        ("right", 3)
    ]
