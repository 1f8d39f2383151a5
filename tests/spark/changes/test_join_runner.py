"""Joins of changes on a key group without Spark, compared with DuckDB on the live tables."""

from __future__ import annotations

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
from timerheap.spark._changes.joins.join_runner import JoinWork
from timerheap.spark._columns import INPUT, WEIGHT
from timerheap.spark._query import Query

LEFT = pa.schema([("k", pa.string()), ("x", pa.float64()), ("note", pa.string())])
RIGHT = pa.schema([("k", pa.string()), ("y", pa.int32()), ("name", pa.string())])
CONNECTION = duckdb.connect()
CHANGE = T.StructField("_change_type", T.StringType())
HOW = {
    "inner": {"pairs": True},
    "left": {"pairs": True, "alone": (True, False)},
    "right": {"pairs": True, "alone": (False, True)},
    "full": {"pairs": True, "alone": (True, True)},
    "semi": {"matched": True},
    "anti": {"alone": (True, False)},
}


def join_query(how: str, shared: bool, null_safe: bool) -> Query:
    left, right = (
        {name: f"{side}.{name}" for name in names}
        for side, names in (("l", LEFT.names[1:]), ("r", RIGHT.names[1:]))
    )
    rows = T.StructType().add("k", "string").add(INPUT, "byte")
    rows = rows.add("l.x", "double").add("l.note", "string").add("r.y", "integer").add("r.name", "string")
    of_left = T.StructType().add("k", "string").add("x", "double").add("note", "string")
    results: list[Any] = [(None if shared else 0, "k"), (0, "x"), (0, "note")]
    if how in ("semi", "anti"):
        right = {}
        result = of_left
    else:
        if not shared:
            results.append((1, "k"))
            of_left.add("k_right", "string")
        results += [(1, "y"), (1, "name")]
        result = of_left.add("y", "integer").add("name", "string")
    work = JoinWork((left, right), tuple(results), how, null_safe=null_safe, **HOW[how])
    return Query(
        work=work,
        key=["k"],
        rows=rows.add(WEIGHT, "byte"),
        result=T.StructType([*result, CHANGE]),
        event_time=None,
        watermarks=(WatermarkStrategy.no_watermarks(),) * 2,
        channels=(None, None),
        order="arrival",
        time_mode="None",
        max_parallelism=1,
    )


def left_row(rng: np.random.Generator) -> Row:
    key = (None, "a", "b", "c", "d")[rng.integers(5)]
    return key, (None, float("nan"), -0.0, 0.0, 2.5)[rng.integers(5)], (None, "n", "m")[rng.integers(3)]


def right_row(rng: np.random.Generator) -> Row:
    key = (None, "a", "b", "c", "e")[rng.integers(5)]
    return key, (None, 1, 2, 3)[rng.integers(4)], (None, None, "p", "q")[rng.integers(4)]


def of_duckdb(left: list[Row], right: list[Row], how: str, shared: bool, null_safe: bool) -> Table:
    for name, schema, rows in (("l", LEFT, left), ("r", RIGHT, right)):
        named = [dict(zip(schema.names, row, strict=True)) for row in rows]
        CONNECTION.register(name, pa.Table.from_pylist(named, schema))
    equals = "IS NOT DISTINCT FROM" if null_safe else "="
    key = "coalesce(l.k, r.k) AS k, l.x, l.note, " if shared else "l.k, l.x, l.note, r.k AS k_right, "
    columns = "l.k, l.x, l.note" if how in ("semi", "anti") else key + "r.y, r.name"
    text = f"SELECT {columns} FROM l {how} JOIN r ON l.k {equals} r.k"
    return table_of(CONNECTION.sql(text).to_arrow_table().to_pylist())


def of_side(number: int, changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    prefix, plain = "lr"[number] + ".", ("k", WEIGHT)
    return [
        {name if name in plain else prefix + name: value for name, value in change.items()} | {INPUT: number}
        for change in changes
    ]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("null_safe", [False, True], ids=["nulls-apart", "null-safe"])
@pytest.mark.parametrize("shared", [True, False], ids=["one-key", "two-keys"])
@pytest.mark.parametrize("how", HOW)
def test_the_changes_make_the_join_of_the_live_tables(
    how: str, shared: bool, null_safe: bool, seed: int
) -> None:
    left, right = LiveTable(LEFT.names, left_row, seed), LiveTable(RIGHT.names, right_row, seed + 100)
    run = ChangeRun(join_query(how, shared, null_safe))
    for step in range(25):
        sizes = (8, 8) if step % 3 else ((8, 1), (1, 8), (3, 3))[step // 3 % 3]
        run.run([*of_side(0, left.change(sizes[0])), *of_side(1, right.change(sizes[1]))])
        assert run.table == of_duckdb(left.rows, right.rows, how, shared, null_safe), step
        run.restart(step)


@pytest.mark.parametrize("how", HOW)
def test_a_side_with_many_rows_of_a_key_is_not_read_for_rows_of_its_own(
    how: str,
) -> None:
    many = [{"k": "a", "x": float(at), "note": "n", WEIGHT: 1} for at in range(1000)]
    few = [{"k": "a", "y": 1, "name": "p", WEIGHT: 1}]
    run = ChangeRun(join_query(how, True, False))
    run.run([*of_side(0, many[:-2]), *of_side(1, few)])
    read = rows_read(run)
    run.run(of_side(0, many[-2:]))
    run.run(of_side(0, [many[0] | {WEIGHT: -1}]))
    assert len(run.table) == (0 if how == "anti" else 999)
    assert sum(read) <= 3
    if how in ("semi", "anti"):  # of which only the first row of the right side, and the last, matter
        run.run(of_side(1, few))
        assert sum(read) <= 3


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_rows_that_come_together_are_not_read_again_for_their_pairs(how: str) -> None:
    left = [{"k": key, "x": float(at), "note": "n", WEIGHT: 1} for key in "abc" for at in range(10)]
    right = [{"k": key, "y": at, "name": "p", WEIGHT: 1} for key in "abc" for at in range(10)]
    run = ChangeRun(join_query(how, True, False))
    run.run(of_side(0, left[:1]))
    read = rows_read(run)
    run.run([*of_side(0, left[1:]), *of_side(1, right)])
    assert len(run.table) == 300
    assert sum(read) == 1  # the one of before


def test_a_row_that_is_taken_back_before_it_comes_matches_nothing() -> None:
    run = ChangeRun(join_query("left", True, False))
    row, other = {"k": "a", "x": 1.0, "note": "n"}, {"k": "a", "y": 1, "name": "p"}
    assert run.run(of_side(0, [row | {WEIGHT: -1}])) == []
    assert run.counted["unmatched_deletes"] == 1
    assert run.run(of_side(1, [other | {WEIGHT: 1}])) == []
    run.restart(2)
    assert run.run(of_side(0, [row | {WEIGHT: 1}])) == []
    assert len(run.run(of_side(0, [row | {WEIGHT: 1}]))) == 1


@pytest.mark.parametrize("how", ["left", "semi"])
def test_over_a_checkpoint_another_kind_is_refused(how: str) -> None:
    run = ChangeRun(join_query("inner", True, False))
    row, other = {"k": "a", "x": 1.0, "note": "n", WEIGHT: 1}, {"k": "a", "y": 1, "name": "p", WEIGHT: 1}
    run.run(of_side(0, [row]))
    run.restart(2)
    run.query = join_query(how, True, False)
    text = f"join_changes must have the arguments of the checkpoint, how 'inner', got how '{how}'"
    with pytest.raises(CheckpointMismatchError, match=text):
        run.run(of_side(1, [other]))
    run.query = join_query("inner", True, False)
    assert len(run.run(of_side(1, [other]))) == 1


def test_a_key_is_forgotten_after_its_last_change_on_either_side() -> None:
    query = join_query("left", True, False)
    run = ChangeRun(replace(query, work=replace(query.work, forget_after=100)))
    row, other = {"k": "a", "x": 1.0, "note": "n"}, {"k": "a", "y": 1, "name": "p"}
    assert len(run.run([*of_side(0, [row | {WEIGHT: 1}, row | {"k": "b", WEIGHT: 1}])], now=1000)) == 2
    run.restart(1)
    assert len(run.run(of_side(1, [other | {WEIGHT: 1}]), now=1060)) == 2  # with its match now
    before = dict(run.table)
    assert run.run([], now=1110) == []  # b is forgotten
    run.restart(2)
    assert run.run(of_side(1, [other | {"k": "b", WEIGHT: 1}]), now=1120) == []
    assert run.run(of_side(0, [row | {"k": "b", WEIGHT: -1}]), now=1130) == []
    assert run.counted["unmatched_deletes"] == 1
    assert run.table == before
    # The delete does not wait for a row, and a is still known.
    assert len(run.run(of_side(0, [row | {"k": "b", WEIGHT: 1}]), now=1140)) == 1
    assert len(run.run(of_side(0, [row | {WEIGHT: -1}]), now=1150)) == 1
    run.run([], now=9000)
    assert not sum(map(len, run.group.states.values()))
