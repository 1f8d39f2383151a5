"""The as-of join of a key group, called without Spark, beside DuckDB and a plain model: 800 random cases."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest
from asof_cases import (
    END,
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
    watermarks,
)
from asof_operator import Operator
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Floating-point numbers have one order here, in Spark and in DuckDB, as long as none is NaN.
TEXT = """
    SELECT l."case", l.k, l."at", l.n, r."at" AS at_right, r.price, r.note, r.gone
    FROM lefts l ASOF {kind} JOIN rights r
    ON l."case" = r."case" AND l.k IS NOT DISTINCT FROM r.k AND l."at" {order} r."at"
"""
LAST = """
    SELECT * FROM all_rights QUALIFY row_number() OVER (
        PARTITION BY "case", k, "at" ORDER BY price DESC NULLS FIRST, note DESC NULLS FIRST, gone DESC
    ) = 1
"""


def of_duckdb(left: list[Row], right: list[Row], options: Options) -> list[tuple[Any, ...]]:
    """The same join by DuckDB; of right rows of one time it gets the last, since it would take any."""
    with duckdb.connect() as connection:
        connection.sql("SET TimeZone = 'UTC'")
        connection.register("lefts", pa.Table.from_pylist(left, LEFT))
        connection.register("all_rights", pa.Table.from_pylist(right, RIGHT))
        connection.sql(f"CREATE TABLE rights AS {LAST}")
        text = TEXT.format(kind="LEFT", order=">=" if options.exact else ">")
        rows = connection.sql(text).to_arrow_table().to_pylist()
    for row in rows:
        late = row["at_right"] is not None and options.tolerance is not None
        if (late and (row["at"] - row["at_right"]).total_seconds() * 1000 > options.tolerance) or (
            options.deleted and row["gone"]
        ):
            row.update(dict.fromkeys(["at_right", "price", "note", "gone"]))
    return values(row for row in rows if options.how == "left" or row["at_right"] is not None)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_operator_is_duckdb_and_the_model(spark: SparkSession, name: str) -> None:
    """200 cases for each of the options: all rows together, and in micro-batches with late rows."""
    options = OPTIONS[name]
    left, right = cases(2000 + len(name), 200)
    whole = Operator(spark, options)
    whole.run(left, right, END)
    results = values(
        {key: value for key, value in row.items() if key != "side_output"}
        for row in whole.found
        if row["side_output"] is None
    )
    assert results == of_duckdb(left, right, options)
    assert len(results) > 200
    expect(joined(left, right, options), whole.found)

    parts, rows = Operator(spark, options), (split(left, 9), split(right, 9))
    batches = [*zip(*rows, strict=True)]
    for batch, watermark in zip(batches, watermarks(batches), strict=True):
        parts.run(*batch, watermark)
    outputs = replayed(*rows, options)
    assert len(outputs.late) > 20
    expect(outputs, parts.found)
