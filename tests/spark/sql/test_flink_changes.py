"""sql() over tables that change, beside the final tables that Flink's own tests expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flink_changes import CASES, PAGE
from flink_runs import batches_of, check, refusal_of, results_of
from flink_tables import Case, markdown
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

GROUPS = 8  # of cases, each run as one query
RUN = [case for case in CASES if case.result is not None]
REFUSED = [case for case in CASES if case.result is None]


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "GROUP BY without windows",
    "SELECT DISTINCT",
    "regular JOIN",
    "JOIN of more than two tables in one SELECT",
    "SEMI JOIN and ANTI JOIN (IN, EXISTS)",
    "UNION",
    "INTERSECT, EXCEPT",
    "comparison with a subquery of one row",
)
@pytest.mark.promises(
    "Flink SQL",
    "different",
    "Top-N of all rows",
    "deduplication, last row (ORDER BY time DESC)",
    note="rows that are equal in `ORDER BY` follow each other by their other columns, in Flink by arrival",
)
@pytest.mark.promises(
    "Flink SQL", "added", "Top-N with RANK and DENSE_RANK", note="Flink has them only on batches"
)
def test_a_stream_has_the_final_tables_of_flink(group: int, spark: SparkSession, tmp_path: Path) -> None:
    cases = RUN[group::GROUPS]
    check(cases, batches_of(spark, cases, tmp_path))


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_batch_has_the_final_tables_of_flink(group: int, spark: SparkSession, tmp_path: Path) -> None:
    # A batch without rows has a row of such an aggregate, as in SQL; a stream has none before its first row.
    cases = [case for case in RUN[group::GROUPS] if "EmptyInputAggregationWithoutGroupBy" not in case.test]
    result = results_of(spark, cases, tmp_path, streaming=False)
    check(cases, [[tuple(row) for row in result.collect()]])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.test)
def test_what_is_refused_says_what_to_write(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    assert re.search(re.escape(case.refused), refusal_of(spark, case, tmp_path))


def test_the_page_has_all_cases() -> None:
    page = (Path(__file__).parents[3] / PAGE).read_text()
    assert "\n".join(markdown(CASES)) in page, "run `make flink-sql`, which writes the table"
