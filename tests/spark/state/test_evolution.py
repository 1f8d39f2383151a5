"""State goes on when its types, names or time to live change, or the change is refused by name."""

from __future__ import annotations

import os
import random
import re
import signal
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from chunk_store import MemoryStore, load, save
from live_files import handed_over, live_file
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
from queries import query_of

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import IfStored
from timerheap.spark._arrow import narrow_column, wide
from timerheap.spark._group.evolution import evolved, misfit
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.testing import ProcessTester

A, B = pa.field("a", pa.int32()), pa.field("b", pa.string())
LONG_A = pa.field("a", pa.int64())
NEW = pa.field("new", pa.list_(pa.int8()))
D = pa.decimal128
KEPT: list[tuple[pa.DataType, pa.DataType, list[Any], list[Any]]] = [
    (pa.int8(), pa.int16(), [1, None, -128], [1, None, -128]),
    (pa.int32(), pa.int64(), [2**31 - 1, None], [2**31 - 1, None]),
    (pa.int16(), pa.float32(), [-(2**15), None], [-32768.0, None]),
    (pa.int32(), pa.float64(), [-(2**31)], [-2147483648.0]),
    (pa.float32(), pa.float64(), [1.5, None], [1.5, None]),
    (pa.int64(), D(21, 2), [2**63 - 1, None], [Decimal(2**63 - 1).quantize(Decimal("1.00")), None]),
    (D(5, 2), D(7, 3), [Decimal("999.99"), None], [Decimal("999.990"), None]),
    (pa.struct([A, B]), pa.struct([B, LONG_A]), [{"a": 1, "b": "x"}, None], [{"b": "x", "a": 1}, None]),
    (pa.struct([A, B]), pa.struct([A, B, NEW]), [{"a": 1, "b": None}], [{"a": 1, "b": None, "new": None}]),
    (pa.struct([A, B]), pa.struct([B]), [{"a": 1, "b": "x"}], [{"b": "x"}]),
    (pa.list_(pa.int8()), pa.list_(pa.int64()), [[1, None], [], None, [3]], [[1, None], [], None, [3]]),
    (
        pa.list_(pa.struct([A])),
        pa.list_(pa.struct([LONG_A, B])),
        [[{"a": 1}, None], None, [{"a": 2}]],
        [[{"a": 1, "b": None}, None], None, [{"a": 2, "b": None}]],
    ),
    (
        pa.map_(pa.string(), pa.int8()),
        pa.map_(pa.string(), pa.int32()),
        [[("x", 1), ("y", None)], None, []],
        [[("x", 1), ("y", None)], None, []],
    ),
    (
        pa.map_(pa.string(), pa.list_(pa.struct([A]))),
        pa.map_(pa.string(), pa.list_(pa.struct([B, LONG_A]))),
        [[("x", [{"a": 1}])], []],
        [[("x", [{"b": None, "a": 1}])], []],
    ),
]
REFUSED: list[tuple[pa.DataType, pa.DataType, str]] = [
    (pa.int64(), pa.int32(), "int64 does not widen to int32"),
    (pa.int64(), pa.float64(), "int64 does not widen to double"),
    (pa.int32(), pa.float32(), "int32 does not widen to float"),
    (pa.float64(), pa.float32(), "double does not widen to float"),
    (pa.int64(), pa.string(), "int64 does not widen to string"),
    (pa.bool_(), pa.int32(), "bool does not widen to int32"),
    (D(5, 2), D(5, 3), r"decimal128\(5, 2\) does not widen to decimal128\(5, 3\)"),
    (D(5, 2), D(6, 1), r"decimal128\(5, 2\) does not widen to decimal128\(6, 1\)"),
    (pa.int64(), D(18, 0), r"int64 does not widen to decimal128\(18, 0\)"),
    (pa.struct([A]), pa.struct([B]), r"would keep none of the fields \['a'\]"),
    (pa.struct([A, B]), pa.struct([pa.field("a", pa.string())]), "a: int32 does not widen to string"),
    (pa.list_(pa.int64()), pa.list_(pa.int8()), r"\[\]: int64 does not widen to int8"),
    (
        pa.map_(pa.int32(), A.type),
        pa.map_(pa.int64(), A.type),
        "the keys of maps cannot change from int32 to int64",
    ),
    (pa.map_(A.type, pa.int64()), pa.map_(A.type, pa.int8()), r"\{\}: int64 does not widen to int8"),
    (
        pa.struct([pa.field("r", pa.struct([LONG_A]))]),
        pa.struct([pa.field("r", pa.struct([A]))]),
        "r.a: int64",
    ),
]


@pytest.mark.parametrize(("was", "now", "values", "expected"), KEPT, ids=str)
def test_a_change_that_loses_nothing_keeps_the_values(
    was: pa.DataType, now: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    assert misfit(was, now) is None
    array = pa.array([values[0], *values], was)[1:].cast(wide(was))
    found = narrow_column(evolved(array, now), now)
    found.validate(full=True)
    assert found.to_pylist() == expected


@pytest.mark.parametrize(("was", "now", "why"), REFUSED, ids=str)
def test_a_change_that_would_lose_something_says_what(was: pa.DataType, now: pa.DataType, why: str) -> None:
    found = misfit(was, now)
    assert found is not None
    assert re.search(why, found)


CONTENTS = {"value": lambda t: t, "list": pa.list_, "map": lambda t: pa.map_(pa.string(), t)}
ROWS, RESULT = StructType().add("k", "long").add("at", "long"), StructType().add("k", "long")


class Nothing(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        pass


NO_CHANGES = query_of(Nothing(), ROWS, RESULT).state_changes
CHANGES = replace(NO_CHANGES, drop=("s.a", "s.x"))
LAYOUT = query_of(Nothing(), ROWS, RESULT, state_changes=CHANGES).layout


def put(table: Any, shape: str, key: int, value: Any) -> None:
    if shape == "value":
        table.store(key, value)
    elif shape == "list":
        table.append(key, [value])
    else:
        table.put(key, {f"e{key}": value})


def contents(table: Any) -> dict[int, Any]:
    ids = np.sort(table.ids())
    return dict(zip(ids.tolist(), table.get_many(ids).to_pylist(), strict=True))


@pytest.mark.parametrize("live", [False, True], ids=["loaded", "live file"])
@pytest.mark.parametrize("shape", ["value", "list", "map"])
def test_a_matrix_of_changes_equals_a_fresh_state_or_is_refused(shape: str, live: bool) -> None:
    cases: list[Any] = [(was, now, values, expected) for was, now, values, expected in KEPT]
    cases += [(was, now, [], why) for was, now, why in REFUSED]
    for was, now, values, expected in cases:
        group, stored, store = KeyGroup(LAYOUT, live_file()), Stored(Manifest(4)), MemoryStore()
        table = group.state("s", shape, CONTENTS[shape](was))
        given = [value for value in values if value is not None]
        for key, value in enumerate(given):
            put(table, shape, key, dict(value) if pa.types.is_map(was) else value)
        save(group, stored, store)
        if live:
            group, stored = handed_over(group, store)
        else:
            group = KeyGroup(LAYOUT, live_file())
            stored = load(store, group)
        if isinstance(expected, str):
            with pytest.raises(
                ValueError, match=rf"state 's' must stay a {shape} state .*state_changes=\{{'s': None\}}"
            ):
                group.state("s", shape, CONTENTS[shape](now))
            continue
        fresh = KeyGroup(LAYOUT).state("s", shape, CONTENTS[shape](now))
        for key, value in enumerate(value for value in expected if value is not None):
            put(fresh, shape, key, dict(value) if pa.types.is_map(now) else value)
        changed = group.state("s", shape, CONTENTS[shape](now))
        assert contents(changed) == contents(fresh)
        assert group.evolved
        save(group, stored, store)
        again = KeyGroup(LAYOUT)
        load(store, again)
        assert again.state("s", shape, CONTENTS[shape](now)) is again.states["s"], "converted once"
        assert not again.evolved
        assert contents(again.states["s"]) == contents(fresh)


PAIR = pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.struct([A, LONG_A.with_name("c")]))])
LESS = pa.struct([pa.field("b", pa.struct([A]))])
OTHER = pa.struct([pa.field("z", pa.int64()), pa.field("b", pa.struct([A, LONG_A.with_name("y")]))])


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("shape", ["value", "list", "map"])
@pytest.mark.parametrize(
    ("now", "changes", "expected"),
    [
        (
            LESS,
            NO_CHANGES,
            r"lose the values of s\.a; pass state_changes=\{'s\.a': None\} .* \{'s\.a': 's\.new'\}",
        ),
        (
            LESS,
            replace(NO_CHANGES, drop=("s.a",)),
            r"lose the values of s\.b\.c; pass state_changes=\{'s\.b\.c': None\}",
        ),
        (LESS, replace(NO_CHANGES, drop=("s.a", "s.b.c")), {"b": {"a": 2}}),
        (OTHER, NO_CHANGES, r"lose the values of s\.a; "),
        (
            OTHER,
            replace(NO_CHANGES, rename={"s.a": "s.z", "s.b.c": "s.b.y"}),
            {"z": 1, "b": {"a": 2, "y": 3}},
        ),
        (LESS, replace(NO_CHANGES, rename={"s.a": "s.b"}), r"two fields would have one name, of \['b'\]"),
    ],
)
def test_a_field_is_dropped_or_renamed_only_if_told(
    shape: str, timed: bool, now: pa.DataType, changes: Any, expected: Any
) -> None:
    def type_of(type_: pa.DataType) -> pa.DataType:
        at = pa.field("at", pa.int64(), nullable=False)
        return CONTENTS[shape](pa.struct([pa.field("value", type_), at]) if timed else type_)

    group, stored, store = KeyGroup(LAYOUT), Stored(Manifest(4)), MemoryStore()
    value = {"a": 1, "b": {"a": 2, "c": 3}}
    put(group.state("s", shape, type_of(PAIR)), shape, 1, {"value": value, "at": 9} if timed else value)
    save(group, stored, store)
    group = KeyGroup(query_of(Nothing(), ROWS, RESULT, state_changes=changes).layout)
    load(store, group)
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=rf"state 's' must stay a {shape} state .*{expected}"):
            group.state("s", shape, type_of(now))
        return
    found = contents(group.state("s", shape, type_of(now)))[1]
    kept = found if shape == "value" else found[0] if shape == "list" else dict(found)["e1"]
    assert kept == ({"value": expected, "at": 9} if timed else expected)


class Counts(KeyedProcessFunction):
    """Counts rows, and keeps the last ones, in states of the given types and names."""

    def __init__(self, ttl: int = 0, killed: Path | None = None, **types: Any) -> None:
        self.ttl, self.killed, self.types = ttl, killed, types

    def open(self, runtime_context: Any) -> None:
        types = {"n": "int", "last": "struct<at: int>", "seen": "struct<at: int>", "by": "int"} | self.types
        names = {"n": "n", "last": "last", "seen": "seen", "by": "by"} | types.pop("names", {})
        descriptors = [
            ValueStateDescriptor(names["n"], types["n"]),
            ValueStateDescriptor(names["last"], types["last"]),
            ListStateDescriptor(names["seen"], types["seen"]),
            MapStateDescriptor(names["by"], "string", types["by"]),
        ]
        for descriptor in descriptors if self.ttl else []:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(self.ttl).build())
        self.n = runtime_context.get_state(descriptors[0])
        self.last = runtime_context.get_state(descriptors[1])
        self.seen = runtime_context.get_list_state(descriptors[2])
        self.by = runtime_context.get_map_state(descriptors[3])

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.killed is not None and value.at % 7 == 0 and not self.killed.exists():
            self.killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self.n.update((self.n.value() or 0) + 1)
        before = self.last.value()
        self.last.update(
            {"at": value.at} | ({"note": value.note} if "note" in self.types.get("last", "") else {})
        )
        self.seen.add({"at": value.at} | ({"note": None} if "note" in self.types.get("seen", "") else {}))
        self.by.put(str(value.at % 3), value.at)
        seen = [row["at"] for row in self.seen.get()]
        what = (
            int(self.n.value()),
            before and before["at"],
            seen,
            sorted((k, int(v)) for k, v in self.by.items()),
        )
        yield ctx.get_current_key(), value.at, repr(what)


INPUT, OUTPUT = "k string, at bigint, note string", "k string, at bigint, what string"
STEPS: list[dict[str, Any]] = [
    {},
    {"n": "bigint"},
    {"n": "bigint", "last": "struct<at: bigint, note: string>", "by": "bigint"},
    {"n": "decimal(19, 0)", "last": "struct<note: string, at: bigint>", "by": "bigint"},
    {
        "n": "decimal(20, 0)",
        "last": "struct<at: bigint>",
        "seen": "struct<note: string, at: int>",
        "by": "bigint",
    },
    {
        "n": "decimal(20, 0)",
        "last": "struct<at: bigint>",
        "seen": "struct<at: bigint>",
        "by": "decimal(30, 2)",
    },
]


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_random_walks_of_allowed_changes_equal_a_run_without_changes(order: str) -> None:
    for seed in range(6):
        draw = random.Random(seed)
        rows = [(draw.choice("abc"), at + draw.randrange(5), f"n{at}") for at in range(200)]

        def tester(step: int, name: str, renamed: dict[str, str] | None = None) -> ProcessTester:
            function = Counts(names={"n": name}, **STEPS[step])
            options = {
                "order": order,
                "state_changes": IfStored({**(renamed or {}), "last.note": None, "seen.note": None}),
            }
            return ProcessTester(function, "k", INPUT, OUTPUT, "at", **options)

        steady, step, name = tester(0, "n"), 0, "n"
        test = tester(0, "n")
        for restart in range(20):
            part = rows[10 * restart : 10 * restart + 10]
            outputs = [one.push(part) + one.advance_watermark(10 * restart) for one in (test, steady)]
            assert outputs[0] == outputs[1]
            step = min(step + draw.randrange(2), len(STEPS) - 1)
            renamed = {name: f"n{restart}"} if draw.randrange(3) == 0 else None
            name = f"n{restart}" if renamed else name
            snapshot = test.snapshot()
            test = tester(step, name, renamed)
            test.restore(snapshot)
        assert test.advance_watermark(10**6) == steady.advance_watermark(10**6)


class Last(BatchProcessFunction):
    """Yields the value before, in columns."""

    def __init__(self, type_: str, ttl: int = 0) -> None:
        self.type, self.ttl = type_, ttl

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("last", self.type)
        if self.ttl:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(self.ttl).build())
        self.last = runtime_context.get_state(descriptor)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        before = self.last.values(ctx.ids)
        self.last.update_many(ctx.ids, batch.column("at").cast(pa.int64()).cast(before.type))
        what = pa.array([str(value) for value in before.to_pylist()])
        yield pa.record_batch([batch.column("k"), batch.column("at"), what], names=["k", "at", "what"])


def test_values_of_columns_change_their_type() -> None:
    test = ProcessTester(Last("int"), "k", INPUT, OUTPUT, order="arrival")
    test.push([("a", 1, ""), ("b", 2, "")])
    for type_ in ("bigint", "decimal(19, 0)"):
        other = ProcessTester(Last(type_), "k", INPUT, OUTPUT, order="arrival")
        other.restore(test.snapshot())
        assert [row.what for row in other.push([("a", 1, ""), ("b", 2, ""), ("c", 3, "")])][:2] == ["1", "2"]
        test = other
    refused = ProcessTester(Last("string"), "k", INPUT, OUTPUT, order="arrival")
    with pytest.raises(ValueError, match=r"state 'last' must stay a value state of decimal128\(19, 0\), got"):
        refused.restore(test.snapshot())


def test_waiting_rows_take_new_columns_and_types() -> None:
    test = ProcessTester(Counts(), "k", INPUT + ", n int", OUTPUT, "at")
    test.push([("a", at, f"n{at}", at) for at in (5, 6, 7)])
    test.advance_watermark(5)
    wider = "note string, k string, n double, at bigint, extra struct<x: int>"
    other = ProcessTester(Counts(), "k", wider, OUTPUT, "at")
    other.restore(test.snapshot())
    assert other.buffered_rows() == [("n6", "a", 6.0, 6, None), ("n7", "a", 7.0, 7, None)]
    narrower = ProcessTester(Counts(), "k", "k string, at bigint", OUTPUT, "at")
    narrower.restore(other.snapshot())
    assert [(row.at, row.what[:2]) for row in narrower.advance_watermark(9)] == [(6, "(2"), (7, "(3")]


HOUR = 3_600_000


def timed(ttl: int, now: int, function: Any = Counts, **types: Any) -> ProcessTester:
    made = function(ttl=ttl, **types)
    test = ProcessTester(made, "k", INPUT, OUTPUT, order="arrival", processing_time=True)
    if now:
        test.advance_clock(now)
    return test


def test_a_time_to_live_is_switched_on_changed_and_switched_off() -> None:
    test = timed(0, 1_000)
    test.push([("a", 1, ""), ("b", 2, "")])
    on = timed(HOUR, 0, n="bigint")
    on.restore(test.snapshot())
    on.advance_clock(1_000 + HOUR // 2)
    assert on.push([("a", 3, "")])[0].what.startswith("(2, 1, [1, 3]"), "it began with the change"
    on.advance_clock(1_000 + HOUR)
    assert sorted(on.state("n")) == ["a"], "the contents that nobody wrote again have gone"
    longer = timed(4 * HOUR, 0, n="bigint")
    longer.restore(on.snapshot())
    longer.advance_clock(3 * HOUR)
    assert longer.push([("a", 4, "")])[0].what.startswith("(3, 3, ")
    off = timed(0, 0, n="bigint")
    off.restore(longer.snapshot())
    off.advance_clock(100 * HOUR)
    assert off.push([("a", 5, "")])[0].what.startswith("(4, 4, ")
    assert off._group.next_due(event_time=False) is None, "no expiry is left"


class Nulls(KeyedProcessFunction):
    """Keeps nulls wherever a state may hold one."""

    def __init__(self, ttl: int = 0) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        row = "struct<a:int,b:map<string,int>>"
        value, elements = ValueStateDescriptor("value", row), ListStateDescriptor("list", row)
        numbers, rows = MapStateDescriptor("n", "string", "int"), MapStateDescriptor("rows", "int", row)
        for descriptor in (value, elements, numbers, rows) if self.ttl else ():
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(self.ttl).build())
        self.value = runtime_context.get_state(value)
        self.list = runtime_context.get_list_state(elements)
        self.maps = [runtime_context.get_map_state(each) for each in (numbers, rows)]

    def process_element(self, value: Any, ctx: Any) -> Any:
        numbers, rows = self.maps
        if value.at == 1:
            self.value.update((None, {"x": None}))
            self.list.update([(None, None), (None, {"x": None})])
            numbers.put_all({"x": None, "y": 5, "gone": None})
            rows.put_all({0: None, 1: (None, None), 2: (1, {"x": None})})
            numbers.remove("gone")
        kept = self.value.value(), list(self.list.get()), dict(numbers.items()), dict(rows.items())
        yield value.k, value.at, repr((*kept, numbers.get("x"), numbers.contains("x"), "gone" in numbers))


@pytest.mark.parametrize("large", [False, True])
def test_nulls_stay_when_a_time_to_live_is_switched_on_and_off(large: bool, monkeypatch: Any) -> None:
    if large:  # maps are searched, not loaded
        monkeypatch.setattr("timerheap.spark._group.growing_state.SMALL", 0)
    test = timed(0, 1_000, Nulls)
    (first,) = test.push([("a", 1, "")])
    for at, ttl in enumerate((HOUR, 2 * HOUR, 0, HOUR), 2):
        snapshot, test = test.snapshot(), timed(ttl, 1_000, Nulls)
        test.restore(snapshot)
        (row,) = test.push([("a", at, "")])
        assert row.what == first.what
    test.advance_clock(1_000 + HOUR)
    assert test.push([("a", 9, "")])[0].what == "(None, [], {}, {}, None, False, False)"


def test_values_of_columns_have_a_time_to_live() -> None:
    test = timed(HOUR, 1_000, lambda ttl: Last("bigint", ttl))
    test.push([("a", 1, ""), ("b", 2, "")])
    test.advance_clock(1_000 + HOUR // 2)
    assert [row.what for row in test.push([("a", 3, "")])] == ["1"]
    test.advance_clock(1_000 + HOUR)
    assert sorted(test.state("last")) == ["a"]
    assert [row.what for row in test.push([("a", 4, ""), ("b", 5, ""), ("a", 6, "")])] == ["3", "None", "3"]
    test.advance_clock(10 * HOUR)
    assert test.state("last") == {}
    test.push([("a", 7, "")])
    off = timed(0, 0, lambda ttl: Last("bigint", ttl))
    off.restore(test.snapshot())
    off.advance_clock(100 * HOUR)
    assert [row.what for row in off.push([("a", 8, "")])] == ["7"]


class Rules(KeyedBroadcastProcessFunction):
    def __init__(self, ttl: StateTtlConfig) -> None:
        self.rules = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
        self.rules.enable_time_to_live(ttl)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.get_current_key(), value.at, repr(sorted(ctx.get_broadcast_state(self.rules).items()))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(self.rules).put(value.rule, value.limit)


def test_broadcast_state_has_a_time_to_live() -> None:
    function = Rules(StateTtlConfig.new_builder(HOUR).build())
    schemas: dict[str, Any] = {"rules_schema": "rule string, limit bigint", "processing_time": True}
    test = ProcessTester(function, "k", INPUT, OUTPUT, order="arrival", **schemas)
    test.advance_clock(1_000)
    test.push_rules([("x", 1)])
    test.advance_clock(1_000 + HOUR // 2)
    test.push_rules([("y", 2)])
    assert test.push([("a", 1, "")])[0].what == "[('x', 1), ('y', 2)]"
    test.advance_clock(1_000 + HOUR)
    assert test.push([("a", 2, "")])[0].what == "[('y', 2)]"
    renewing = Rules(StateTtlConfig.new_builder(HOUR).update_ttl_on_read_and_write().build())
    test = ProcessTester(renewing, "k", INPUT, OUTPUT, order="arrival", **schemas)
    with pytest.raises(NotImplementedError, match="must have a time to live in processing time that no read"):
        test.push_rules([("x", 1)])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (["n"], TypeError, r"state_changes must be a dict of names of states, got \['n'\]"),
        ({"n": 5}, TypeError, "state_changes must be a dict of names of states"),
        ({"n": None, "m": "n"}, ValueError, "must name each state once, got 'n' more than once"),
        ({"a": "b", "b": "c"}, ValueError, "must name each state once, got 'b' more than once"),
        ({"n": "m"}, ValueError, "state_changes must rename states that the function no longer has"),
        ({"gone": "n"}, ValueError, "must give 'gone' a name that no state in the checkpoint has"),
    ],
)
def test_a_wrong_name_raises(changes: Any, error: type[Exception], message: str) -> None:
    before = ProcessTester(Counts(names={"last": "gone"}), "k", INPUT, OUTPUT, order="arrival")
    before.push([("a", 1, "")])
    with pytest.raises(error, match=message):
        ProcessTester(Counts(), "k", INPUT, OUTPUT, order="arrival", state_changes=changes).restore(
            before.snapshot()
        )


@pytest.mark.in_turn
@pytest.mark.spark
def test_a_stream_goes_on_with_changed_state_and_killed_workers(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.int64()), ("note", pa.string())])
    rows = [{"k": "abc"[at % 3], "at": at, "note": f"n{at}"} for at in range(10 * len(STEPS))]
    folder, steps = tmp_path / "input", {"true": (0, 1, 3, 5), "false": (0, 2, 4, 5)}

    def run(
        step: int,
        work: Path,
        killed: Path | None = None,
        name: str = "n",
        renamed: Any = None,
        **options: Any,
    ) -> None:
        names = {"n": name}
        options["state_changes"] = IfStored({**(renamed or {}), "last.note": None, "seen.note": None})
        result = timerheap.spark.process(
            streams.read_stream(spark, folder),
            "k",
            Counts(killed=killed, names=names, **STEPS[step]),
            OUTPUT,
            event_time="at",
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(5),
            **{"max_parallelism": 4} | options,
        )
        streams.run(result, work)

    steady, works = tmp_path / "steady", [tmp_path / "true", tmp_path / "false"]
    streams.write_batches(folder, [rows[:30], rows[30:]], schema)
    run(0, steady)
    for work in works:
        folder = work / "input"
        with streams.configured(
            spark, **{"streaming.stateStore.rocksdb.changelogCheckpointing.enabled": work.name}
        ):
            for at, step in enumerate(steps[work.name]):
                streams.write_batches(folder, [rows[15 * at : 15 * at + 15]], schema)
                options = {"name": "count", "renamed": {"n": "count"}} if step > 2 else {}
                killed = work / f"killed-{step}"
                run(step, work, killed, **options)
                assert killed.exists(), "a task was tried again"
        assert streams.sink(spark, work) == streams.sink(spark, steady)
    states = [timerheap.spark.read_checkpoint(spark, work / "checkpoint") for work in (steady, works[0])]
    folder = tmp_path / "more"
    streams.write_batches(folder, [[{**row, "at": row["at"] + 100} for row in rows]], schema)
    moved: dict[str, Any] = {"name": "m", "renamed": {"count": "m"}, "max_parallelism": 8}
    run(0, tmp_path / "from-steady", initial_state=states[0])
    run(5, tmp_path / "from-changed", initial_state=states[1], **moved)
    assert streams.sink(spark, tmp_path / "from-steady") == streams.sink(spark, tmp_path / "from-changed")
