"""State stays flat over 300 micro-batches in which rows come and go, in the checkpoint and live."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from change_plans import Call, First, Groups, Pairs, Plan, Source
from changing_tables import Row
from plan_cases import Compiled, Running
from pyspark.sql import SparkSession
from random_changes import CHANGE_TYPE, TABLES, Applied, Changing, of_changes, of_rows

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

CYCLES = 150  # of inserts and then deletes
ORDERS, PEOPLE = Source("orders"), Source("people")
ORDER = ("v", True, False), ("u", True, False)
CALLS = (
    Call("count", None, "rows", pa.int64()),
    Call("sum", "v", "sum", pa.float64()),
    Call("avg", "d", "avg", pa.decimal128(13, 6)),
    Call("min", "s", "min", pa.string()),
    Call("max", "v", "max", pa.float64()),
    Call("count_distinct", "n", "distinct", pa.int64()),
    Call("var_samp", "v", "variance", pa.float64()),
    Call("max_by", "s", "last", pa.string(), by="u"),
)
PLANS: dict[str, Plan] = {
    "newest": Source("orders", upserts=True),
    "aggregates": Groups(ORDERS, ("k",), CALLS),
    "of all": Groups(ORDERS, (), CALLS),
    "row_number": First(ORDERS, ("k",), 2, ORDER, "row_number", "place"),
    "row_number, hidden": First(ORDERS, ("k",), 2, ORDER, "row_number", None),
    "rank": First(ORDERS, ("k",), 2, ORDER[:1], "rank", "place"),
    "dense_rank": First(ORDERS, ("k",), 2, ORDER[:1], "dense_rank", "place"),
    **{how: Pairs(ORDERS, PEOPLE, ("k",), how) for how in ("inner", "left", "full", "semi", "anti")},
}
LONELY = "inner", "left", "full", "semi", "anti"


def flat(spark: SparkSession, plan: Plan, present: tuple[str, ...]) -> None:
    """Check the state of a plan, of whose tables only those change that are `present`."""
    running = Running(
        Compiled(spark, plan, inserts_only=False), random.Random(1), parallelism=1, hashes=None, in_files=True
    )
    applied, sizes = Applied(), list[tuple[int, int]]()
    rng = random.Random(2)
    tables = {
        source.name: Changing(rng, source.name, hard=False, few_keys=False) for source in plan.sources()
    }
    for cycle in range(CYCLES):
        new = {name: [table.new_row() for _ in range(20)] for name, table in tables.items()}
        for number, what in enumerate(("insert", "delete")):
            inputs = {}
            for source in plan.sources():
                rows = new[source.name] if source.name in present else []
                if source.upserts:
                    marked = [marked_row(row, 2 * cycle + number, what == "delete") for row in rows]
                    inputs[source.stream] = of_rows(marked, TABLES[source.name])
                else:
                    inputs[source.stream] = of_changes([(what, row) for row in rows], TABLES[source.name])
            changes = running.run(plan, inputs)
            assert not applied.apply(changes.select([*plan.schema.names, CHANGE_TYPE]))
            running.save()
        assert len(applied.rows) == (1 if plan is PLANS["of all"] else 0)
        sizes.append(running.sizes())
    for of in zip(*sizes, strict=True):  # which rise until chunks are merged
        assert max(of[CYCLES // 2 :]) <= 1.5 * max(of[: CYCLES // 2]), of[::10]


def marked_row(row: Row, sequence: int, deleted: bool) -> Row:
    """Return a row of "orders" with a sequence that grows, which may say that the row is deleted."""
    return (*row[:-2], deleted, 1000 * sequence + row[-1])


@pytest.mark.parametrize("name", PLANS)
def test_state_is_flat_over_inserts_and_deletes(spark: SparkSession, name: str) -> None:
    flat(spark, PLANS[name], ("orders", "people"))


@pytest.mark.parametrize("side", ["orders", "people"])
@pytest.mark.parametrize("how", LONELY)
def test_state_is_flat_where_a_side_never_matches(spark: SparkSession, how: str, side: str) -> None:
    flat(spark, PLANS[how], (side,))
