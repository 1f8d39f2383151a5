"""Numbers of several rows in MATCH_RECOGNIZE against Spark's own expressions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from itertools import combinations_with_replacement
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._patterns import OPERATORS, DoesNotFitError, condition, typed

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

FLOATS = [None, math.nan, math.inf, -math.inf, -0.0, 0.0, 0.1, 1.0, 16777217.0, 9007199254740993.0, 9.3e18]
TYPES: dict[str, list[Any]] = {
    "tinyint": [None, -128, 0, 1, 127],
    "int": [None, -(2**31), 0, 1, 16_777_217, 2**31 - 1],
    "bigint": [None, -(2**63), -1, 0, 1, 2**53 + 1, 1_795_891_478_321_000_001, 2**63 - 1],
    "float": FLOATS,
    "double": FLOATS,
    "decimal(10,2)": [None, Decimal("-99999999.99"), Decimal("0.00"), Decimal("0.10"), Decimal("1.00")],
    "decimal(18,9)": [None, Decimal("123456789.123456789"), Decimal("-0.000000001"), Decimal("1.000000000")],
    "decimal(38,18)": [None, Decimal("12345678901.123456789012345678"), Decimal("0.1"), Decimal("1E-18")],
    "decimal(38,0)": [None, Decimal(10**38 - 1), Decimal(2**63), Decimal(0), Decimal(1)],
}
COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ARITHMETIC = {
    "add": "try_add(x, y)",
    "sub": "try_subtract(x, y)",
    "mul": "try_multiply(x, y)",
    "div": "try_divide(x, y)",
}


def column_of(term: tuple[Any, ...], columns: dict[str, pa.Array]) -> pa.Array:
    if term[0] == "row":
        return columns[term[1]]
    return OPERATORS[term[0]][1](*(column_of(part, columns) for part in term[1:]))


def one_by_one(term: tuple[Any, ...], columns: dict[str, pa.Array]) -> Iterator[Any]:
    """Yield the values, "error" where one is out of the range of its type."""
    values = [columns[name].to_pylist() for name in "xy"]
    asked = condition(term, {("x", 0): 0, ("y", 0): 1}, ())
    for row in range(len(values[0])):
        try:
            yield asked(values, row, ())
        except (DoesNotFitError, ZeroDivisionError):
            yield None  # as Spark's try_ functions


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return bool(one == other) and (one is None) == (other is None)


@pytest.mark.parametrize(("one", "other"), [*combinations_with_replacement(TYPES, 2)])
def test_all_pairs_of_types_are_as_spark_says(spark: SparkSession, one: str, other: str) -> None:
    pairs = [(x, y) for x in TYPES[one] for y in TYPES[other]]
    df = spark.createDataFrame(pairs, f"x {one}, y {other}").coalesce(1)
    for names in (("x", "y"), ("y", "x")):
        df = df.selectExpr(f"{names[0]} AS x", f"{names[1]} AS y")
        compared = [f"x {sign} y" for sign in COMPARISONS.values()]
        wanted = df.selectExpr("x", "y", *compared, *ARITHMETIC.values()).toArrow()
        columns = {name: wanted.column(name).combine_chunks() for name in "xy"}
        types = lambda leaf, of=columns: of[leaf[1]].type  # noqa: E731
        for at, name in enumerate([*COMPARISONS, *ARITHMETIC], 2):
            term, _ = typed((name, ("row", "x", 0), ("row", "y", 0)), types)
            found = list(one_by_one(term, columns))
            for x, y, mine, spark_says in zip(
                columns["x"].to_pylist(),
                columns["y"].to_pylist(),
                found,
                wanted.column(at).to_pylist(),
                strict=True,
            ):
                assert same(mine, spark_says), (name, one, other, x, y, mine, spark_says)
            if name in COMPARISONS:
                assert column_of(term, columns).to_pylist() == found, (name, one, other)
            elif name != "div":
                fits = pa.array(
                    [
                        a is None or b is None or c is not None
                        for a, b, c in zip(
                            columns["x"].to_pylist(), columns["y"].to_pylist(), found, strict=True
                        )
                    ]
                )
                some = {of: column.filter(fits) for of, column in columns.items()}
                kept = [value for value, fit in zip(found, fits.to_pylist(), strict=True) if fit]
                results = column_of(term, some).to_pylist()
                assert all(map(same, results, kept)), (name, one, other, results, kept)


def first(
    spark: SparkSession, rows: list[tuple[Any, ...]], schema: str, clause: str
) -> list[tuple[Any, ...]]:
    df = spark.createDataFrame(rows, f"at int, {schema}").selectExpr("*", "timestamp_seconds(at) AS ts")
    df.createOrReplaceTempView("t")
    query = f"SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts {clause})"
    return [tuple(row) for row in timerheap.spark.sql(spark, query).collect()]


def test_decimals_keep_all_of_their_digits(spark: SparkSession) -> None:
    rows = [(1, Decimal("12345678901.123456789012345678")), (2, Decimal("0.000000000000000001"))]
    clause = "MEASURES SUM(A.d) AS s, AVG(A.d) AS m PATTERN (A+) DEFINE A AS SUM(d) > 12345678901"
    ((total, mean),) = first(spark, rows, "d decimal(38,18)", clause)
    wanted = spark.createDataFrame(rows, "at int, d decimal(38,18)").selectExpr("sum(d)", "avg(d)").first()
    assert (total, mean) == tuple(wanted or ())
    assert total == Decimal("12345678901.123456789012345679")
    rows = [(1, Decimal("123456789.123456789"))] * 2
    clause = "MEASURES COUNT(*) AS n PATTERN (A B) DEFINE B AS A.d * d > 15241578780673678.51562262075019052"
    assert first(spark, rows, "d decimal(18,9)", clause) == [(2,)]


def test_a_null_beside_nan_is_no_match(spark: SparkSession) -> None:
    rows = [(1, math.nan, 1)]
    clause = "MEASURES COUNT(*) AS n PATTERN (A) DEFINE A AS x > PREV(i)"
    assert first(spark, rows, "x double, i bigint", clause) == []


@pytest.mark.parametrize(
    ("define", "count"),
    [("v > PREV(x)", 2), ("v / PREV(v) > 0.5", 2), ("f < PREV(n)", 2), ("n >= PREV(f)", 2)],
)
def test_large_integers_beside_doubles_and_floats(spark: SparkSession, define: str, count: int) -> None:
    rows = [(at, 1795891478321000001, 0.5, 16_777_217, 16_777_217.0) for at in (1, 2)]
    schema = "v bigint, x double, n int, f float"
    found = first(spark, rows, schema, f"MEASURES COUNT(*) AS n PATTERN (A B) DEFINE B AS {define}")
    assert found == [(2,)] * (count // 2)


def test_a_number_out_of_range_is_an_error_that_names_the_column_and_the_value(spark: SparkSession) -> None:
    rows, schema = [(1, 2**63 - 1), (2, 2**63 - 1)], "v bigint"
    for clause, column in (
        ("MEASURES SUM(A.v) AS s PATTERN (A+)", "SUM\\(v\\) in MEASURES"),
        ("MEASURES COUNT(*) AS n PATTERN (A+) DEFINE A AS SUM(v) > 0", "DEFINE A computes of v"),
        ("MEASURES COUNT(*) AS n PATTERN (A B) DEFINE B AS v + PREV(v) > 0", "DEFINE B computes of v"),
        ("MEASURES COUNT(*) AS n PATTERN (A B) DEFINE B AS v + A.v > 0", "DEFINE B computes of v"),
    ):
        with pytest.raises(
            Exception, match=f"query: .*{column}.* must fit into bigint, got 18446744073709551614"
        ):
            first(spark, rows, schema, clause)


def test_the_type_of_a_result_is_that_of_spark(spark: SparkSession) -> None:
    """The values of conditions are typed on the driver, from the schema alone."""
    df: DataFrame = spark.createDataFrame([], "x int, y decimal(10,2)")
    schema = to_arrow_schema(df.schema)
    _, type_ = typed(("add", ("row", "x", 0), ("row", "y", 0)), lambda leaf: schema.field(leaf[1]).type)
    assert type_ == to_arrow_schema(df.selectExpr("x + y AS z").schema).field("z").type
