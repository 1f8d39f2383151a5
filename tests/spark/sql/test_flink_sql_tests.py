"""sql() beside the rows that Flink's own tests of SQL expect: of times, windows, patterns and rows alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flink_runs import batches_of, check, refusal_of, registered, results_of
from flink_sql_tests import CASES, PAGE
from flink_tables import Case, markdown
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition", "functions")]

GROUPS = 12  # of cases, each run as one query
RUN = [case for case in CASES if case.result is not None]
ON_BATCHES, ON_STREAMS = (
    [case for case in RUN if how in case.runs and not case.clock] for how in ("batch", "stream")
)
BY_THE_CLOCK = [case for case in RUN if case.clock]
REFUSED = [case for case in CASES if case.result is None]


@pytest.fixture(scope="module")
def functions(spark: SparkSession) -> Iterator[None]:
    with registered(spark):
        yield


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_stream_has_the_rows_of_flink(group: int, spark: SparkSession, tmp_path: Path) -> None:
    cases = ON_STREAMS[group::GROUPS]
    check(cases, batches_of(spark, cases, tmp_path))


@pytest.mark.in_turn(20)
def test_a_stream_that_follows_the_clock_has_the_rows_of_flink(spark: SparkSession, tmp_path: Path) -> None:
    check(BY_THE_CLOCK, batches_of(spark, BY_THE_CLOCK, tmp_path))


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("group", range(GROUPS))
def test_a_batch_has_the_rows_of_flink(group: int, spark: SparkSession, tmp_path: Path) -> None:
    cases = ON_BATCHES[group::GROUPS]
    result = results_of(spark, cases, tmp_path, streaming=False)
    check(cases, [[tuple(row) for row in result.collect()]])


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.test)
def test_what_is_refused_says_what_to_write(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    assert re.search(re.escape(case.refused), refusal_of(spark, case, tmp_path))


def test_the_page_has_all_cases() -> None:
    page = (Path(__file__).parents[3] / PAGE).read_text()
    assert "\n".join(markdown(CASES)) in page, "run `make flink-sql`, which writes the table"
