"""Top-N over changes on a key group without Spark, compared with DuckDB on the live table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from change_runs import ChangeRun, rows_read
from changes_model import Table, table_of
from live_tables import LiveTable, Row
from pyspark.sql import types as T

from timerheap import WatermarkStrategy
from timerheap.errors import CheckpointMismatchError
from timerheap.spark._changes.tops.top_runner import TopWork
from timerheap.spark._columns import WEIGHT
from timerheap.spark._order_by import Order
from timerheap.spark._query import Query

TABLE = T.StructType().add("k", "string").add("x", "double").add("y", "integer").add("note", "string")
ARROW = pa.schema([("k", pa.string()), ("x", pa.float64()), ("y", pa.int32()), ("note", pa.string())])
CONNECTION = duckdb.connect()
CHANGE = T.StructField("_change_type", T.StringType())


def top_query(work: TopWork, table: T.StructType = TABLE) -> Query:
    numbered = [T.StructField("number", T.LongType())] if work.number else []
    return Query(
        work=work,
        key=["k"],
        rows=T.StructType([*table, T.StructField(WEIGHT, T.ByteType())]),
        result=T.StructType([*table, *numbered, CHANGE]),
        event_time=None,
        watermarks=(WatermarkStrategy.no_watermarks(),),
        channels=(None,),
        order="arrival",
        time_mode="None",
        max_parallelism=1,
        reduction=work.reduction(["k"]),
    )


def some_row(rng: np.random.Generator) -> Row:
    x = ([None, float("nan"), -1.5, 0.0, 1.0, 2.5, float("inf")])[rng.integers(7)]
    y, note = (None, 1, 2, 3)[rng.integers(4)], (None, "a", "b")[rng.integers(3)]
    return f"key {rng.integers(4)}" if rng.random() < 0.9 else None, x, y, note


def of_duckdb(rows: list[Row], work: TopWork) -> Table:
    named = [dict(zip(ARROW.names, row, strict=True)) for row in rows]
    ordered = ", ".join(
        f"{one.by} {'DESC' if one.descending else 'ASC'} NULLS {'FIRST' if one.nulls_first else 'LAST'}"
        for one in work.order
    )
    rest = [name for name in ARROW.names if name not in {"k", *(one.by for one in work.order)}]
    ties = "".join(f", {name} ASC NULLS FIRST" for name in rest) if work.rank == "row_number" else ""
    text = f"""SELECT *, {work.rank}() OVER (PARTITION BY k ORDER BY {ordered}{ties}) AS number FROM live
        QUALIFY number <= {work.limit}"""
    CONNECTION.register("live", pa.Table.from_pylist(named, ARROW))
    found = CONNECTION.sql(text).to_arrow_table().to_pylist()
    if not work.number:
        for row in found:
            del row["number"]
    return table_of(found)


def works() -> Iterator[tuple[TopWork, str]]:
    orders = (Order("x", True, False),), (Order("y", False, False), Order("x", True, True))
    for rank in ("row_number", "rank", "dense_rank"):
        for number in (False, True):
            for grows in (False, True):
                for order, limit in zip(orders, (1, 3), strict=True):
                    name = f"{rank}{'-number' * number}{'-grows' * grows}-{limit}"
                    yield TopWork(order, rank, limit, number, grows), name


@pytest.mark.parametrize("work", [pytest.param(work, id=name) for work, name in works()])
def test_the_changes_make_the_first_rows_of_the_live_table(work: TopWork) -> None:
    live, run = LiveTable(ARROW.names, some_row, work.limit), ChangeRun(top_query(work))
    for step in range(25):
        run.run(live.change(grows=work.grows))
        assert run.table == of_duckdb(live.rows, work), step
        run.restart(step)


def changed(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Rows of a key and a number, with their weights."""
    names = [*ARROW.names, WEIGHT]
    return [dict(zip(names, (key, x, 1, "n", weight), strict=True)) for key, x, weight in rows]


NEWEST = TopWork((Order("x", True, False),), "row_number", 2, number=True, grows=False)


def test_a_key_is_forgotten_after_its_last_change_and_its_result_stays() -> None:
    run = ChangeRun(top_query(replace(NEWEST, forget_after=100)), key=["k", "number"])
    run.run(changed(("a", 1.0, 1), ("b", 1.0, 1)), now=1000)
    run.restart(0)
    run.run(changed(("a", 2.0, 1)), now=1060)
    before = dict(run.table)
    assert run.run([], now=1110) == []
    assert run.run(changed(("b", 1.0, -1)), now=1120) == []
    assert run.counted == {"rows_in": 1, "changes_out": 0, "unmatched_deletes": 1}
    assert run.table == before
    run.run(changed(("a", 2.0, -1)), now=1150)
    assert run.counted["unmatched_deletes"] == 0
    assert sorted(row[1] for row in run.table if row[0] == "a") == ["1.0"]


def test_the_delete_of_a_forgotten_row_does_not_wait_for_the_row() -> None:
    run = ChangeRun(top_query(replace(NEWEST, forget_after=100)))
    run.run(changed(("a", 1.0, 1)), now=1000)
    run.run([], now=1110)
    run.restart(2)
    assert run.run(changed(("a", 1.0, -1)), now=1120) == []
    (new,) = run.run(changed(("a", 1.0, 1)), now=1130)
    assert new["_change_type"] == "insert"


@pytest.mark.parametrize(
    "other",
    [
        replace(NEWEST, limit=3),
        replace(NEWEST, order=(Order("x", False, False),)),
        replace(NEWEST, order=(Order("x", True, True),)),
        replace(NEWEST, order=(Order("y", True, False),)),
        replace(NEWEST, rank="rank"),
        replace(NEWEST, number=False),
    ],
    ids=["n", "direction", "nulls", "column", "rank", "number"],
)
@pytest.mark.parametrize("step", [1, 2], ids=["handed over", "loaded"])
def test_over_a_checkpoint_other_arguments_are_refused(other: TopWork, step: int) -> None:
    run = ChangeRun(top_query(NEWEST), key=["k", "number"])
    run.run(changed(("a", 1.0, 1), ("a", 2.0, 1)))
    run.restart(step)
    run.query = top_query(other)
    asked = "n 2, order_by x DESC NULLS LAST, rank row_number with numbers"
    text = f"top_changes must have the arguments of the checkpoint, {asked}, got "
    with pytest.raises(CheckpointMismatchError, match=text):
        run.run(changed(("a", 3.0, 1)))
    run.query = top_query(replace(NEWEST, forget_after=100))
    run.run(changed(("a", 3.0, 1)))
    assert sorted(row[1] for row in run.table) == ["2.0", "3.0"]


def test_a_row_that_is_taken_back_before_it_comes_is_never_shown() -> None:
    run = ChangeRun(top_query(NEWEST))
    assert run.run(changed(("a", 5.0, -1), ("a", 1.0, 1)))
    assert [row[1] for row in run.table] == ["1.0"]
    assert run.counted["unmatched_deletes"] == 1
    run.restart(2)
    assert run.run(changed(("a", 5.0, 1))) == []
    run.run(changed(("a", 5.0, 1)))
    assert sorted(row[1] for row in run.table) == ["1.0", "5.0"]


def test_of_many_rows_of_a_key_the_first_ones_alone_are_read() -> None:
    run = ChangeRun(top_query(NEWEST))
    run.run(changed(*(("a", float(x), 1) for x in range(1000))))
    read = rows_read(run)
    for best in range(999, 990, -1):
        run.run(changed(("a", float(best), -1)))
    assert sorted(row[1] for row in run.table) == ["989.0", "990.0"]
    assert sum(read) <= 9 * 4
