"""A name in state_changes that neither the checkpoint nor the function has is an error, unless it stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor
from timerheap.spark import IfStored, InitialState, read_checkpoint
from timerheap.testing import ProcessTester

KEYS = [f"k{n}" for n in range(9)]


class Count(KeyedProcessFunction):
    """Counts the rows of a key in states of these names and types, and in a map beside them."""

    def __init__(self, **states: str) -> None:
        self.names = states

    def open(self, runtime_context: Any) -> None:
        self.states = [
            runtime_context.get_state(ValueStateDescriptor(name, type_)) for name, type_ in self.names.items()
        ]
        self.seen = runtime_context.get_map_state(
            MapStateDescriptor("seen", "string", "struct<n bigint, note string>")
        )

    def process_element(self, value: Any, ctx: Any) -> Any:
        counts = []
        for state, type_ in zip(self.states, self.names.values(), strict=True):
            before, fields = state.value(), type_.startswith("struct") * (1 + type_.count(","))
            counts.append(1 + (0 if before is None else before[0] if fields else before))
            state.update((counts[-1], "note")[:fields] if fields else counts[-1])
        yield ctx.get_current_key(), counts[0]


# What a function has stored, the next one, the change, and the name that is wrong or None.
CASES: dict[str, tuple[Any, Any, dict[str, str | None], str | None]] = {
    "a state is dropped": ({"n": "int", "m": "int"}, {"n": "int"}, {"m": None}, None),
    "a state is renamed": ({"n": "int"}, {"m": "int"}, {"n": "m"}, None),
    "a field is dropped": ({"n": "struct<a int, b string>"}, {"n": "struct<a int>"}, {"n.b": None}, None),
    "a field and its state are renamed": (
        {"n": "struct<a int, b string>"},
        {"m": "struct<a int, c string>"},
        {"n": "m", "m.b": "m.c"},
        None,
    ),
    "a field of a map": ({"n": "int"}, {"n": "int"}, {"seen.note": None}, None),
    "a field that only the function has": (
        {"n": "struct<a int>"},
        {"n": "struct<a int, b string>"},
        {"n.b": None},
        None,
    ),
    "a state that is not there": ({"n": "int"}, {"n": "int"}, {"m": None}, "m"),
    "an old name with a typing error": ({"count": "int"}, {"number": "int"}, {"cuont": "number"}, "cuont"),
    "a new name with a typing error": ({"count": "int"}, {"number": "int"}, {"count": "nubmer"}, "nubmer"),
    "one of two": ({"n": "int", "m": "int"}, {"n": "int"}, {"m": None, "l": None}, "l"),
    "a field that is not there": ({"n": "int"}, {"n": "int"}, {"seen.nope": None}, "seen.nope"),
    "a field of a state that has none": ({"n": "int"}, {"n": "int"}, {"n.a": None}, "n.a"),
    "a new name of a field": (
        {"n": "struct<a int, b string>"},
        {"n": "struct<a int, c string>"},
        {"n.b": "n.d"},
        "n.d",
    ),
    "a name in upper case": ({"n": "int", "m": "int"}, {"n": "int"}, {"M": None}, "M"),
}


def made(states: dict[str, str], changes: Any = None) -> ProcessTester:
    function = Count(**states)
    return ProcessTester(function, "k", "k string", "k string, n int", state_changes=changes)


@pytest.mark.parametrize(("stored", "now", "changes", "wrong"), CASES.values(), ids=CASES)
def test_the_name_that_nobody_has_is_named(
    stored: Any, now: Any, changes: dict[str, str | None], wrong: str | None
) -> None:
    before = made(stored)
    assert [row.n for row in before.push([("a",), ("a",)])] == [1, 2]
    snapshot = before.snapshot()
    if wrong is None:
        after = made(now, changes)
        after.restore(snapshot)
        assert [row.n for row in after.push([("a",)])] == [3]
        return
    with pytest.raises(ValueError, match=rf"^state_changes must .*, got '{re.escape(wrong)}', and "):
        made(now, changes).restore(snapshot)
    if wrong not in changes.values():  # a name that the function lacks would lose what is stored
        after = made(now, IfStored(changes))
        after.restore(snapshot)
        assert len(after.push([("a",)])) == 1


def test_changes_that_stay_have_their_effect_once_and_no_more() -> None:
    before = made({"n": "int", "gone": "int"})
    before.push([("a",), ("a",)])
    snapshot, changes = before.snapshot(), {"n": "m", "gone": None}
    for restart in range(3):
        after = made({"m": "int"}, IfStored(changes))
        after.restore(snapshot)
        assert [row.n for row in after.push([("a",)])] == [3 + restart]
        snapshot = after.snapshot()
    again = made({"m": "int"}, changes)
    again.push([("a",)])
    with pytest.raises(ValueError, match=r"got 'n', and it has 'm', 'seen', 'seen\.n', 'seen\.note'; "):
        again.restore(snapshot)
    assert [row.n for row in again.push([("a",)])] == [2], "a tester that refuses a snapshot goes on"


def query(spark: SparkSession, work: Path, states: dict[str, str], **options: Any) -> DataFrame:
    """Return the result of a query over one more row of each key in each of two micro-batches."""
    batches = [[{"k": key} for key in KEYS]] * 2
    streams.write_batches(work / "in", batches, pa.schema([("k", pa.string())]))
    df = streams.read_stream(spark, work / "in")
    return timerheap.spark.process(df, "k", Count(**states), "k string, n int", max_parallelism=4, **options)


def run(result: DataFrame, work: Path, name: str = "checkpoint") -> list[int]:
    """Run a query, and return the counts of all its new rows."""
    found: list[int] = []

    def collect(rows: Any, _: int) -> None:
        found.extend(row.n for row in rows.collect())

    writer = result.writeStream.foreachBatch(collect).trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / name)).start().awaitTermination()
    return sorted(set(found))


@pytest.mark.in_turn
@pytest.mark.spark
def test_a_stream_refuses_the_name_before_it_changes_anything(spark: SparkSession, tmp_path: Path) -> None:
    assert run(query(spark, tmp_path, {"n": "int", "gone": "int"}), tmp_path) == [1, 2]
    message = r"state_changes must name states of the checkpoint, or fields in them, got 'gnoe', and it has"
    for states, changes in (({"n": "int"}, {"gnoe": None}), ({"m": "int"}, {"gnoe": "m", "n": None})):
        with pytest.raises(StreamingQueryException, match=message):
            run(query(spark, tmp_path, states, state_changes=changes), tmp_path)
    with pytest.raises(ValueError, match="give 'n' a name that the function uses, got 'mn', and "):
        query(spark, tmp_path, {"m": "int"}, state_changes={"n": "mn"})

    changes = {"n": "m", "gone": None}
    result = query(spark, tmp_path, {"m": "int"}, state_changes=changes)
    rows = 2 + 2 * 4  # of each key, those of the refused queries among them
    assert run(result, tmp_path) == list(range(3, rows + 1)), "in several micro-batches"
    query(spark, tmp_path, {"m": "int"})
    assert run(result, tmp_path) == [rows + 1, rows + 2], "the program is the same"
    assert read_checkpoint(spark, tmp_path / "checkpoint").states == ["m", "seen"]
    with pytest.raises(StreamingQueryException, match="got 'n', and it has 'm', 'seen'"):
        run(query(spark, tmp_path, {"m": "int"}, state_changes=changes), tmp_path)
    stays = query(spark, tmp_path, {"m": "int"}, state_changes=IfStored(changes))
    assert run(stays, tmp_path) == list(range(rows + 3, rows + 7))


@pytest.mark.spark
def test_a_state_to_start_from_is_looked_at_before_the_query_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert run(query(spark, tmp_path, {"n": "int", "gone": "int"}), tmp_path) == [1, 2]
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    tables = InitialState(states={"m": state.state("n"), "gone": state.state("gone")})
    for start, old in ((state, "n"), (tables, None)):
        changes = {"gnoe": None} | ({} if old is None else {old: "m"})
        with pytest.raises(ValueError, match=r"must name states of the checkpoint.* got 'gnoe'"):
            query(spark, tmp_path, {"m": "int"}, state_changes=changes, initial_state=start)
    (tmp_path / "in").rename(tmp_path / "read")
    changes = {"n": "m", "gone": None}
    result = query(spark, tmp_path, {"m": "int"}, state_changes=changes, initial_state=state)
    assert run(result, tmp_path, "again") == [3, 4]
    (tmp_path / "in").rename(tmp_path / "read again")
    result = query(spark, tmp_path, {"m": "int"}, state_changes={"gone": None}, initial_state=tables)
    assert run(result, tmp_path, "tables") == [3, 4]


def test_a_new_query_has_nothing_to_change() -> None:
    assert [row.n for row in made({"n": "int"}, {"m": None}).push([("a",)])] == [1]
