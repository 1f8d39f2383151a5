"""Random plans over random changes, without Spark: after each micro-batch the table is that of the model.

``make fuzz-changes`` runs many more of them than ``make test``. A failure names its seed, and shows a case
with as few changes as are wrong, too.
"""

from __future__ import annotations

import os
import random

import duckdb
import pyarrow as pa
import pytest
from change_plans import Groups, Tables, plan_of
from changing_tables import Rows
from plan_cases import Case, Compiled
from pyspark.sql import SparkSession
from random_changes import TABLES, Changing, differences, of_rows, rows_of
from shares import chosen_share

pytestmark = pytest.mark.spark

CASES = int(os.environ.get("TIMERHEAP_CHANGE_CASES", "100"))
EACH = 20 if CASES < 2000 else 50  # cases of a plan
FIRST = int(os.environ.get("TIMERHEAP_CHANGE_SEED", 5 * (chosen_share() or 0)))  # others after each commit


@pytest.mark.in_turn(5)
def test_the_table_is_that_of_the_model(spark: SparkSession) -> None:
    for number in range(FIRST, FIRST + CASES // EACH):
        compiled = Compiled(spark, plan_of(number), inserts_only=number % 5 == 4)
        for at in range(EACH):
            case = Case(compiled, number * 1000 + at)
            if case.wrong():
                pytest.fail(f"TIMERHEAP_CHANGE_SEED={number}, case {at}: {case.smaller()}", pytrace=False)


def test_the_model_is_duckdb() -> None:
    """The oracle itself: tables of the same plans, computed by DuckDB."""
    with duckdb.connect() as connection:
        for number in range(FIRST, FIRST + max(CASES // 10, 100)):
            rng, tables = random.Random(number), dict[str, Rows]()
            plan = plan_of(number)
            for source in plan.sources():
                table = Changing(rng, source.name, hard=False, few_keys=rng.random() < 0.3)
                table.changes(40, inserts_only=False)
                rows = table.live
                if source.upserts:
                    rows = list({row[0]: row for row in rows}.values())
                tables[source.stream] = Rows(rows)
                connection.register("rows", pa.Table.from_batches([of_rows(rows, TABLES[source.name])]))
                connection.sql(f'CREATE OR REPLACE TABLE "{source.stream}" AS SELECT * FROM rows')
            found = Rows(rows_of(connection.sql(plan.sql()).to_arrow_table()))
            assert not differences(
                found,
                plan.rows(
                    Tables(tables, [one for one in plan.every() if isinstance(one, Groups) and not one.key])
                ),
            ), (number, plan)
