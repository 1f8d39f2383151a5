"""Features of Flink's SQL in each other: as batches and as streams, what DuckDB answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from flink_runs import batches_of, check, results_of
from mixed_queries import MIXED, cases_of
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

GROUPS = 10  # of queries, each run as one query


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "several as-of joins in one SELECT, beside interval joins and others",
    "GROUP BY and OVER beside an as-of join",
    "OVER RANGE BETWEEN INTERVAL ... MONTH or YEAR PRECEDING",
)
def test_a_batch_has_the_rows_of_duckdb(group: int, spark: SparkSession, tmp_path: Path) -> None:
    cases = cases_of(MIXED[group::GROUPS])
    check(cases, [[tuple(row) for row in results_of(spark, cases, tmp_path, streaming=False).collect()]])


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_stream_that_starts_again_has_the_rows_of_duckdb(
    group: int, spark: SparkSession, tmp_path: Path
) -> None:
    cases = cases_of(MIXED[group::GROUPS])
    check(cases, batches_of(spark, cases, tmp_path))
