"""Aggregates of rows that come and go equal those of the rows that are there, after each micro-batch."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from change_cases import history
from changes_model import Table, apply_changes, table_of
from only_adds import OnlyAdds
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap import AggregateFunction
from timerheap.errors import ArgumentValueError
from timerheap.spark import aggregate_changes, udaf

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]
Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("big", pa.decimal128(30, 3)),
        ("_change_type", pa.string()),
    ]
)
LARGE = (1 << 63) - 1
DOUBLES = [None, 0.1, 0.2, 1e17, -1e17, 1e308, -1e308, 5e-324, -0.0, math.nan, math.inf, -math.inf]


def new_row(rng: random.Random) -> Row:
    return {
        "k": rng.choice([None, "", "a", "b", "c"]),
        "n": rng.choice([None, 0, 1, -1, LARGE // 9, -LARGE // 9, rng.randrange(100)]),
        "x": rng.choice(DOUBLES) if rng.random() < 0.3 else rng.uniform(-1, 1),
        "d": rng.choice([None, Decimal("0.10"), Decimal("-9999999.99"), Decimal(rng.randrange(10**6)) / 100]),
        "big": rng.choice([None, Decimal(10) ** 26, -(Decimal(10) ** 26), Decimal("0.001")]),
    }


def aggregates() -> list[Column]:
    return [
        F.count("*").alias("rows"),
        F.count("n").alias("ns"),
        F.sum("n").alias("sum_n"),
        F.avg("n").alias("avg_n"),
        F.sum("x").alias("sum_x"),
        F.avg("x").alias("avg_x"),
        F.var_samp("x").alias("var_x"),
        F.stddev_pop("n").alias("dev_n"),
        F.sum("d").alias("sum_d"),
        F.avg("d").alias("avg_d"),
        F.sum("big").alias("sum_big"),
        F.avg("big").alias("avg_big"),
        F.count(F.when(F.col("n") > 0, 1)).alias("positive"),
    ]


def exact_sum(values: Sequence[float]) -> float:
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= {*values}:
        return math.nan
    if not all(map(math.isfinite, values)):
        return next(value for value in values if not math.isfinite(value))
    try:
        return float(sum(map(Fraction, values)))
    except OverflowError:
        return math.inf if sum(map(Fraction, values)) > 0 else -math.inf


def variance(values: Sequence[float], sample: bool) -> float | None:
    if len(values) < 1 + sample:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    fractions = [Fraction(value) for value in values]
    try:
        return float((statistics.variance if sample else statistics.pvariance)(fractions))
    except OverflowError:
        return math.inf


def total(values: Sequence[Decimal]) -> Decimal | None:
    with localcontext(prec=60):
        return sum(values, Decimal(0)) if values else None


def mean(values: Sequence[Decimal], scale: int) -> Decimal | None:
    with localcontext(prec=60):
        unit = Decimal(1).scaleb(-scale)
        return (sum(values) / len(values)).quantize(unit, ROUND_HALF_UP) if values else None


def expected(rows: Sequence[Row]) -> Row:
    n, x, d, big = ([row[name] for row in rows if row[name] is not None] for name in ("n", "x", "d", "big"))
    deviation = variance([float(value) for value in n], sample=False)
    return {
        "rows": len(rows),
        "ns": len(n),
        "sum_n": sum(n) if n else None,
        "avg_n": float(sum(n)) / len(n) if n else None,
        "sum_x": exact_sum(x) + 0.0 if x else None,
        "avg_x": (exact_sum(x) + 0.0) / len(x) if x else None,
        "var_x": variance(x, sample=True),
        "dev_n": None if deviation is None else math.sqrt(deviation),
        "sum_d": total(d),
        "avg_d": mean(d, 6),
        "sum_big": total(big),
        "avg_big": mean(big, 7),
        "positive": sum(value > 0 for value in n),
    }


class Median(AggregateFunction):
    """The lower median, of all values."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int | None, accumulator: list[int]) -> list[int]:
        return accumulator if value is None else [*accumulator, value]

    def retract(self, value: int | None, accumulator: list[int]) -> list[int]:
        if value is not None:
            accumulator.remove(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> int | None:
        return statistics.median_low(accumulator) if accumulator else None


def of_values() -> list[Any]:
    return [
        udaf(Median(), "n", returns="long", accumulator="array<long>", name="median_n"),
        F.min("n").alias("min_n"),
        F.max("n").alias("max_n"),
        F.min("x").alias("min_x"),
        F.max("x").alias("max_x"),
        F.max("d").alias("max_d"),
        F.min("k").alias("min_k"),
        F.count_distinct("x").alias("distinct_x"),
        F.count_distinct("n", "d").alias("distinct_nd"),
        F.sum_distinct("n").alias("sum_distinct_n"),
        F.sum_distinct("big").alias("sum_distinct_big"),
        F.sum_distinct("x").alias("sum_distinct_x"),
        F.min_by("d", "n").alias("first_d"),
        F.max_by("n", "x").alias("last_n"),
        F.bool_and(F.col("n") > 0).alias("all"),
        F.bool_or(F.col("x") > 0).alias("some"),
    ]


def in_order(value: Any) -> tuple[Any, ...]:
    """As Spark orders numbers: NaN is the largest; null comes before all."""
    return (0,) if value is None else (1, value != value, 0 if value != value else value)


def expected_of_values(rows: Sequence[Row]) -> Row:
    n, x, d, big = ([row[name] for row in rows if row[name] is not None] for name in ("n", "x", "d", "big"))
    x = [value + 0.0 for value in x]
    different = {"NaN" if value != value else value: value for value in x}
    first = min(
        (row for row in rows if row["n"] is not None),
        key=lambda row: (row["n"], in_order(row["d"])),
        default={"d": None},
    )
    last = max(
        (row for row in rows if row["x"] is not None),
        key=lambda row: (in_order(row["x"]), in_order(row["n"])),
        default={"n": None},
    )
    return {
        "median_n": statistics.median_low(n) if n else None,
        "min_n": min(n, default=None),
        "max_n": max(n, default=None),
        "min_x": min(x, key=in_order, default=None),
        "max_x": max(x, key=in_order, default=None),
        "max_d": max(d, default=None),
        "min_k": min((row["k"] for row in rows if row["k"] is not None), default=None),
        "distinct_x": len(different),
        "distinct_nd": len({(row["n"], row["d"]) for row in rows if None not in (row["n"], row["d"])}),
        "sum_distinct_n": sum({*n}) if n else None,
        "sum_distinct_big": total([*{*big}]),
        "sum_distinct_x": exact_sum([*different.values()]) + 0.0 if x else None,
        "first_d": first["d"],
        "last_n": last["n"],
        "all": all(value > 0 for value in n) if n else None,
        "some": any(value > 0 or value != value for value in x) if x else None,
    }


Model = Callable[[Sequence[Row]], Row]


def by_key(rows: Sequence[Row], model: Model) -> Table:
    keys = {row["k"]: [other for other in rows if other["k"] == row["k"]] for row in rows}
    return table_of({"k": key} | model(some) for key, some in keys.items())


def check(
    spark: SparkSession,
    work: Path,
    key: list[str],
    wanted: Callable[[], list[Any]],
    model: Model,
    seed: int,
) -> None:
    """Run a history in two runs, and compare the table after each micro-batch."""
    steps = [(changes, live) for changes, live in history(seed, new_row, batches=10) if changes]
    changes, lives = zip(*steps, strict=True)
    found: Table = Counter()
    done = 0
    for part in (changes[:4], changes[4:]):
        streams.write_batches(work / "in", part, SCHEMA)
        rows = streams.read_stream(spark, work / "in")
        result = aggregate_changes(rows, key, *wanted(), max_parallelism=4)
        names = result.columns
        for batch in streams.batches(result, work):
            apply_changes(found, [dict(zip(names, row, strict=True)) for row in batch], key)
            assert found == (by_key(lives[done], model) if key else table_of([model(lives[done])]))
            done += 1
    assert done == len(steps)


@pytest.mark.parametrize("key", [["k"], []], ids=["by key", "of all"])
def test_sums_are_those_of_the_rows_that_are_there(
    spark: SparkSession, tmp_path: Path, key: list[str]
) -> None:
    check(spark, tmp_path, key, aggregates, expected, 3)


@pytest.mark.parametrize("key", [["k"], []], ids=["by key", "of all"])
def test_values_are_those_of_the_rows_that_are_there(
    spark: SparkSession, tmp_path: Path, key: list[str]
) -> None:
    check(spark, tmp_path, key, of_values, expected_of_values, 4)


def test_values_of_rows_that_only_come(spark: SparkSession, tmp_path: Path) -> None:
    rows = history_of(7)
    parts = [rows[:10], rows[10:11], rows[11:30]]
    streams.write_batches(tmp_path / "in", parts, SCHEMA.remove(5))
    result = aggregate_changes(streams.read_stream(spark, tmp_path / "in"), "k", *of_values())
    found: Table = Counter()
    for number, batch in enumerate(streams.batches(result, tmp_path), 1):
        apply_changes(found, [dict(zip(result.columns, row, strict=True)) for row in batch], ["k"])
        assert found == by_key([row for part in parts[:number] for row in part], expected_of_values)


def test_a_batch_gives_the_table_as_spark_does(spark: SparkSession) -> None:
    rows = [row | {"x": None, "n": row["n"] and row["n"] % 100} for row in history_of(5)]
    df = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA.remove(5)))
    ours, spark_s = aggregate_changes(df, "k", *aggregates()), df.groupBy("k").agg(*aggregates())
    table = ours.drop("_change_type")
    assert table.schema.simpleString() == spark_s.schema.simpleString()
    found, wanted = (each.drop("dev_n").toArrow().to_pylist() for each in (table, spark_s))
    assert table_of(found) == table_of(wanted)  # Spark rounds a deviation on its way
    assert {row[0] for row in ours.select("_change_type").collect()} == {"insert"}


def test_a_batch_without_rows_has_a_result_for_all_of_them(spark: SparkSession) -> None:
    df = spark.createDataFrame([], "k string, n long")
    result = aggregate_changes(df, [], F.count("*").alias("c"), F.sum("n").alias("s"), F.max("n").alias("m"))
    assert [tuple(row) for row in result.collect()] == [(0, None, None, "insert")]
    assert aggregate_changes(df, "k", F.count("*")).collect() == []


def history_of(seed: int) -> list[Row]:
    *_, (_, live) = history(seed, new_row, size=60, inserts=0.9)
    return live


def test_a_delete_may_come_a_micro_batch_before_its_row(spark: SparkSession, tmp_path: Path) -> None:
    one = {"k": "a", "n": 5, "_change_type": "insert"}
    schema = SCHEMA.remove(2).remove(2).remove(2)
    batches = [[one | {"_change_type": "delete"}], [one | {"n": 1}], [one], [one]]
    streams.write_batches(tmp_path / "in", batches, schema)
    result = aggregate_changes(
        streams.read_stream(spark, tmp_path / "in"), "k", F.sum("n").alias("s"), F.count("*").alias("c")
    )
    found = [sorted(batch, key=repr) for batch in streams.batches(result, tmp_path)]
    assert found == [
        [],
        [],
        [("a", 1, 1, "insert")],
        [("a", 1, 1, "update_preimage"), ("a", 6, 2, "update_postimage")],
    ]


def changes_with(df: DataFrame, **columns: Column) -> DataFrame:
    return df.withColumns({"_change_type": F.lit("insert"), **columns})


def test_what_cannot_be_taken_back_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, n long")
    for column in (F.rand(), F.current_timestamp(), F.uuid(), F.when(F.rand(1) > 0.5, F.now())):
        with pytest.raises(ArgumentValueError, match="df must have columns that are the same each time"):
            aggregate_changes(changes_with(df, x=column), "k", F.count("*"))
        aggregate_changes(df.withColumn("x", column), "k", F.count("*"))  # rows that only come


def test_a_function_that_cannot_take_back_is_refused_by_name(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, n long")
    total = udaf(OnlyAdds(), "n", returns="long", accumulator="long")
    assert aggregate_changes(df, "k", total).columns == ["k", "OnlyAdds(n)", "_change_type"]
    with pytest.raises(ArgumentValueError, match="aggregates: OnlyAdds must have retract"):
        aggregate_changes(changes_with(df), "k", total)


def test_arguments_are_checked(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, n long")
    with pytest.raises(
        ArgumentValueError, match="aggregates: sum\\(k\\) must be of a numeric type, got string"
    ):
        aggregate_changes(df, "k", F.sum("k"))
    with pytest.raises(ArgumentValueError, match="aggregates must have names of their own, got 'k' twice"):
        aggregate_changes(df, "k", F.count("*").alias("k"))
    with pytest.raises(Exception, match="update_postimage or delete, got upsert"):
        aggregate_changes(df.withColumn("_change_type", F.lit("upsert")), "k").collect()
    with pytest.raises(ArgumentValueError, match="df must have change types that are strings, got column"):
        aggregate_changes(df.withColumn("_change_type", F.lit(1)), "k")
