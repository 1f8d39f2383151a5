"""`join_asof` on batches and streams beside a plain model, pandas and Spark's own ASOF JOIN."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import streams
from asof_cases import (
    DELAY,
    LEFT,
    OPTIONS,
    RIGHT,
    Options,
    Row,
    cases,
    expect,
    joined,
    replayed,
    split,
    values,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.spark import EventTime, RightInput, join_asof, read_checkpoint, unmatched_rows

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

CASES = int(os.environ.get("TIMERHEAP_ASOF_CASES", "50"))
WATERMARK = f"{DELAY} milliseconds"


def frame(spark: SparkSession, rows: Iterable[Row], schema: pa.Schema) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema))


def asof(left: DataFrame, right: DataFrame, options: Options, **more: Any) -> DataFrame:
    return join_asof(
        left,
        right,
        ["case", "k"],
        "at",
        watermark=WATERMARK,
        late="emit",
        unmatched="emit",
        max_parallelism=4,
        **options.arguments(),
        **more,
    )


@pytest.mark.parametrize("name", ["left", "inner, tolerance"])
def test_a_batch_is_the_model(spark: SparkSession, name: str) -> None:
    """50 cases, or as many as the environment says, for each of two options; pandas has the same answer.

    `test_asof_operator` has the others.
    """
    options = OPTIONS[name]
    left, right = cases(len(name) + CASES - 50, CASES)
    result = asof(frame(spark, left, LEFT), frame(spark, right, RIGHT), options)
    assert result.columns == ["case", "k", "at", "n", "at_right", "price", "note", "gone"]
    outputs = joined(left, right, options)
    assert len(outputs.left) > 10
    assert len(outputs.right) > 10
    expect(outputs, timerheap.spark.with_side_outputs(result).toArrow().to_pylist())
    assert of_pandas(left, right, options) == values(outputs.results)


def of_pandas(left: list[Row], right: list[Row], options: Options) -> list[tuple[Any, ...]]:
    """The same join by `pandas.merge_asof`, which takes the last of several rows of one time."""
    keys = ["case", "k"]
    lefts, rights = (pd.DataFrame(rows).fillna({"k": "null"}) for rows in (left, right))
    rights["at_right"] = rights["at"]
    rights = rights.sort_values(["at", "price", "note", "gone"], na_position="last")
    tolerance = None if options.tolerance is None else pd.Timedelta(options.tolerance, "ms")
    found = pd.merge_asof(
        lefts.sort_values("at"),
        rights,
        on="at",
        by=keys,
        tolerance=tolerance,
        allow_exact_matches=options.exact,
    )
    if options.how == "inner":
        found = found[found["at_right"].notna()]
    return frame_rows(found, [*LEFT, ("at_right", LEFT.field("at").type), *list(RIGHT)[3:]])


def frame_rows(found: pd.DataFrame, fields: list[Any]) -> list[tuple[Any, ...]]:
    schema = pa.schema(fields)
    rows = pa.Table.from_pandas(found[schema.names], schema, preserve_index=False).to_pylist()
    return values(row | {"k": None if row["k"] == "null" else row["k"]} for row in rows)


VERSION = "IF(side = 1, NAMED_STRUCT('at', at, 'price', price, 'note', note), NULL)"
AHEAD = f"""SELECT `case`, k, at, n, {{answer}}
    FROM (
        SELECT *, LAST_VALUE({VERSION}) IGNORE NULLS OVER (w ROWS UNBOUNDED PRECEDING) AS before,
            LEAD({VERSION}) IGNORE NULLS OVER w AS after
        FROM sides WINDOW w AS (PARTITION BY `case`, k ORDER BY at, side))
    WHERE side = 0"""
NEAREST = "CASE WHEN after.at - at < at - before.at OR before IS NULL THEN {0} ELSE {1} END"
NAMES = ("at", "price", "note")
ANSWERS = {
    "forward": ", ".join(f"after.{name} AS {name}_found" for name in NAMES),
    "nearest": ", ".join(f"{NEAREST.format(f'after.{n}', f'before.{n}')} AS {n}_found" for n in NAMES),
}


def sides(left: DataFrame, right: DataFrame) -> DataFrame:
    both = left.withColumn("side", F.lit(0)).unionByName(
        right.withColumn("side", F.lit(1)), allowMissingColumns=True
    )
    return both.select("case", "k", "at", "side", "n", "price", "note")


@pytest.mark.parametrize("direction", ANSWERS)
@pytest.mark.promises(
    "Flink SQL",
    "added",
    "as-of joins forward and to the nearest row",
    note="as LEAD and LAST_VALUE IGNORE NULLS OVER both tables; `join_asof` looks backward alone",
)
def test_forward_and_nearest_over_both_sides(spark: SparkSession, tmp_path: Path, direction: str) -> None:
    """50 cases, or as many as the environment says: a batch and a stream are as in pandas."""
    left, right = cases(3000 + CASES, CASES)
    if direction == "nearest":  # of several rows of the very time of a left row, pandas takes the last
        right = list({(row["case"], row["k"], row["at"]): row for row in right}.values())
    query = AHEAD.format(answer=ANSWERS[direction])
    lefts, rights = (pd.DataFrame(rows).fillna({"k": "null"}) for rows in (left, right))
    rights["at_found"] = rights["at"]
    found = pd.merge_asof(
        lefts.sort_values("at"),
        rights.sort_values(["at", "price", "note"], na_position="last").drop(columns="gone"),
        on="at",
        by=["case", "k"],
        direction=direction,
    )
    wanted = frame_rows(found, [*LEFT, ("at_found", LEFT.field("at").type), *list(RIGHT)[3:5]])
    sides(frame(spark, left, LEFT), frame(spark, right, RIGHT)).createOrReplaceTempView("sides")
    assert values(timerheap.spark.sql(spark, query).toArrow().to_pylist()) == wanted

    last = max(row["at"] for row in [*left, *right]) + timedelta(seconds=1)
    ends = {"case": -1, "k": "end", "at": last}
    parts = [*split(left, 3), [ends | {"n": -1}]], [*split(right, 3), [ends]]
    for folder, batches, schema in zip(("left", "right"), parts, (LEFT, RIGHT), strict=True):
        streams.write_batches(tmp_path / folder, batches, schema)
    inputs = (streams.read_stream(spark, tmp_path / folder) for folder in ("left", "right"))
    sides(*inputs).createOrReplaceTempView("sides")
    result = timerheap.spark.sql(
        spark, query, "at - INTERVAL '0.1' SECOND", lead_within=500, max_parallelism=4
    )
    streams.run(result, tmp_path)
    assert values(spark.read.parquet(str(tmp_path / "sink")).toArrow().to_pylist()) == wanted


@pytest.mark.parametrize("name", ["inner, tolerance", "earlier, deletes"])
def test_a_stream_is_the_model_over_a_restart(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """50 more cases for each of two options, in five micro-batches, the last two of them after a restart."""
    options = OPTIONS[name]
    left, right = cases(1000 + len(name), 50)
    parts = split(left, 5), split(right, 5)
    parts[1][1].extend(parts[1][2])  # and a micro-batch without right rows
    parts[1][2].clear()
    for start, stop in ((0, 3), (3, 5)):
        for folder, batches, schema in zip(("left", "right"), parts, (LEFT, RIGHT), strict=True):
            streams.write_batches(tmp_path / folder, batches[start:stop], schema)
        inputs = (streams.read_stream(spark, tmp_path / folder) for folder in ("left", "right"))
        result = asof(*inputs, options)
        streams.run(timerheap.spark.with_side_outputs(result), tmp_path)
    outputs = replayed(*parts, options)
    assert len(outputs.late) > 5
    assert len(outputs.results) > 30
    expect(outputs, spark.read.parquet(str(tmp_path / "sink")).toArrow().to_pylist())


TRADES = "sym string, at long, price double"
QUOTES = "symbol string, since long, price double, AT long"


@pytest.fixture
def trades(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", 10, 1.0), ("a", 20, 2.0), (None, 15, 3.0), ("b", 1, 4.0)], TRADES)


@pytest.fixture
def quotes(spark: SparkSession) -> DataFrame:
    rows = [("A", 10, 1.5, 1), ("A", 10, 1.25, 9), ("A", 21, 9.0, 2), (None, 14, None, 3), ("c", 1, 0.0, 4)]
    return spark.createDataFrame(rows, QUOTES)


def test_names_of_the_result_and_rows_of_one_time(trades: DataFrame, quotes: DataFrame) -> None:
    """The right input has other names, an expression as its key, and names that differ in case alone."""
    found = {}
    for tie_break in (None, "AT", F.col("AT") * -1):
        right = RightInput(
            quotes, key=F.lower("symbol"), event_time=EventTime("since", tie_break=tie_break), watermark=0
        )
        result = join_asof(trades, right, "sym", "at", watermark=0)
        assert result.columns == ["sym", "at", "price", "symbol", "since", "price_right", "AT_right"]
        assert [field.dataType for field in result.schema][3:] == [f.dataType for f in quotes.schema]
        found[str(tie_break)] = {tuple(row) for row in result.collect()}
    common = {(None, 15, 3.0, None, 14, None, 3), ("b", 1, 4.0, *[None] * 4)}
    first, last = (10, 1.25, 9), (10, 1.5, 1)
    a = [("a", 10, 1.0, "A"), ("a", 20, 2.0, "A")]
    assert found.pop("None") == common | {(*row, *last) for row in a}
    assert found.pop("AT") == common | {(*row, *first) for row in a}
    assert found.popitem()[1] == common | {(*row, *last) for row in a}


def test_a_key_of_the_same_name_is_one_column(trades: DataFrame, quotes: DataFrame) -> None:
    right = quotes.withColumnRenamed("symbol", "sym").drop("AT")
    result = join_asof(
        trades.groupBy("sym"),
        RightInput(right, event_time="since", watermark=0),
        event_time="at",
        watermark=0,
        suffix="_of_quote",
        deleted=F.col("price").isNull(),
        unmatched="emit",
    )
    assert result.columns == ["sym", "at", "price", "since", "price_of_quote"]
    rows = {tuple(row) for row in result.collect()}
    assert (None, 15, 3.0, None, None) in rows
    assert len(rows) == 4
    assert unmatched_rows(result).where("right is not null").count() == 4


def test_columns_of_any_type_pass(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(1, 5, ["x", None], {"a": 1.5}, (1, None))],
        "k int, at long, l array<string>, m map<string,double>, s struct<a:int,b:string>",
    )
    (row,) = join_asof(rows, rows, "k", "at", watermark=0).collect()
    assert tuple(row) == (*row[:5], row["at"], *row[2:5])


def test_columns_of_the_key_and_time_alone(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, 5), (2, 6)], "k int, at long")
    right = spark.createDataFrame([(2, 2)], "k int, at long")
    found = join_asof(left, right, ["k", "k"], "at", watermark=0)
    assert streams.rows(found) == [(1, 5, None), (2, 6, 2)]
    assert join_asof(left, right.where("false"), "k", "at", watermark=0, how="inner").count() == 0
    assert join_asof(left.where("false"), right, "k", "at", watermark=0).count() == 0


def test_the_key_may_be_the_time(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(5, "x"), (6, "y")], "at long, v string")
    found = join_asof(rows, rows, "at", "at", watermark=0)
    assert streams.rows(found) == [(5, "x", "x"), (6, "y", "y")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"how": "right"}, 'how must be "left" or "inner", got \'right\''),
        ({"tolerance": -1}, "tolerance must be 0 or more, got -1"),
        ({"allow_exact_matches": 1}, "allow_exact_matches must be a bool, got 1"),
        ({"unmatched": "keep"}, 'unmatched must be "drop" or "emit", got \'keep\''),
        ({"suffix": ""}, "suffix must make the names of the result different, got '', and 'at' twice"),
        ({"deleted": "price"}, "deleted must be boolean, got column 'price' of type double"),
        ({"deleted": "absent"}, "deleted must name one column, got 'absent', which names none"),
        ({"event_time": None}, "event_time must name the event-time column, got None"),
        ({"key": ["sym", "at"]}, "right.key must"),
    ],
)
def test_wrong_arguments(trades: DataFrame, arguments: dict[str, Any], message: str) -> None:
    if arguments.get("event_time", 0) is None:
        arguments = arguments | {"watermark": None}
    right = trades if "key" not in arguments else RightInput(trades, key="sym")
    given = {"key": "sym", "event_time": "at", "watermark": 0} | arguments
    with pytest.raises((TypeError, ValueError), match=message):
        join_asof(trades, right, **given)


def test_only_a_join_has_unmatched_rows(trades: DataFrame) -> None:
    with pytest.raises(ValueError, match='df must be the result of a join_asof with unmatched="emit"'):
        unmatched_rows(join_asof(trades, trades, "sym", "at", watermark=0, late="emit"))


def test_state_has_what_can_still_match(spark: SparkSession, tmp_path: Path) -> None:
    """One row a key; with a tolerance none once it is too old, though its key never comes again."""
    batches = [[{"k": n, "at": 1000 * step + n} for n in range(10)] for step in range(2)]
    batches += [[{"k": 0, "at": 1_000_000}], [{"k": 0, "at": 2_000_000}]]
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64())])
    streams.write_batches(tmp_path / "in", batches, schema)
    for tolerance, keys, states in ((None, 10, 10), (5_000, 1, 0)):
        left, right = (streams.read_stream(spark, tmp_path / "in") for _ in "lr")
        result = join_asof(left, right, "k", "at", watermark=0, tolerance=tolerance, max_parallelism=2)
        progress = streams.run(result, tmp_path / str(tolerance))
        state = read_checkpoint(spark, tmp_path / str(tolerance) / "checkpoint")
        groups = state.groups().collect()
        assert sum(group["states"].get("right", 0) for group in groups) == states
        assert sum(group["keys"] for group in groups) == keys
        assert sum(group["event_time_timers"] for group in groups) == 0
        assert state.buffered_rows().count() == 2  # at the last time, behind which the watermark is
        assert progress[-1].observedMetrics["timerheap"].metrics["late_rows"] == 0
        if states:
            newest = {row["k"]: row["value"]["at"] for row in state.state("right").collect()}
            assert newest == {n: 1_000_000 if n == 0 else 1000 + n for n in range(10)}
