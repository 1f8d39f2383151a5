"""An IdTable equals a dict for any sequence of puts and removals and any type of value."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from memories import Arena

from timerheap.spark._arrow import wide
from timerheap.spark._memory.id_table import IdTable
from timerheap.spark._memory.slab import Slab

INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(st.integers(0, 30), st.sampled_from([-(2**63), -1, 2**63 - 1]))
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
TYPES = {
    "bigint": (pa.int64(), INT64),
    "nothing": (pa.struct([]), st.just({})),
    "numbers": (
        pa.struct([("a", pa.float32()), ("b", pa.bool_())]),
        st.fixed_dictionaries({"a": st.none() | st.floats(width=32, allow_nan=False), "b": st.booleans()}),
    ),
    "string": (pa.string(), st.text(max_size=3)),
    "struct": (
        STRUCT,
        st.fixed_dictionaries({"a": st.none() | INT64, "b": st.none() | st.text(max_size=2)}),
    ),
    "list": (pa.list_(pa.int64()), st.lists(INT64, max_size=3)),
    "map": (pa.map_(pa.string(), pa.int64()), st.dictionaries(st.text(max_size=2), INT64, max_size=3)),
}


def int64s(ids: Any) -> np.ndarray:
    return np.array(list(ids), np.int64)


@pytest.mark.parametrize("name", TYPES)
def test_an_id_table_behaves_like_a_dict(name: str) -> None:
    type_, values = TYPES[name]
    if name == "map":
        values = values.map(lambda value: list(value.items()))
    entries = st.lists(st.tuples(IDS, st.none() | values), max_size=20, unique_by=lambda entry: entry[0])

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.memory = Arena()
            self.table = IdTable(type_, self.memory)
            self.model: dict[int, Any] = {}

        @rule(entries=entries)
        def put(self, entries: list[tuple[int, Any]]) -> None:
            self.table.put(
                int64s(id_ for id_, _ in entries), pa.array([value for _, value in entries], type_)
            )
            self.model.update(entries)
            self.model = {id_: value for id_, value in self.model.items() if value is not None}

        @rule(ids=st.lists(IDS, max_size=20, unique=True))
        def remove(self, ids: list[int]) -> None:
            self.table.remove(int64s(ids))
            for id_ in ids:
                self.model.pop(id_, None)

        @rule(ids=st.lists(IDS, max_size=20))
        def get(self, ids: list[int]) -> None:
            found = self.table.get(int64s(ids))
            assert found.type == wide(type_)
            assert found.to_pylist() == [self.model.get(id_) for id_ in ids]
            assert self.table.find(int64s(ids)).tolist() == [id_ in self.model for id_ in ids]

        @rule()
        def go_on_in_another_process(self) -> None:
            self.table = IdTable(type_, self.memory, json.loads(json.dumps(self.table.head())))

        @rule()
        def read_all(self) -> None:
            ids, values = self.table.items()
            assert sorted(self.table.ids().tolist()) == sorted(ids.tolist()) == sorted(self.model)
            assert values.to_pylist() == [self.model[id_] for id_ in ids.tolist()]

        @rule(holders=st.lists(st.lists(IDS, max_size=20), max_size=3))
        def unreferenced(self, holders: list[list[int]]) -> None:
            held = {id_ for ids in holders for id_ in ids}
            left = self.table.unreferenced([int64s(ids) for ids in holders]).tolist()
            assert sorted(left) == sorted(self.model.keys() - held)

        @invariant()
        def has_as_many(self) -> None:
            assert len(self.table) == len(self.model)

    Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
    Machine.TestCase("runTest").runTest()


def test_many_small_puts_after_a_large_one_keep_all_values() -> None:
    table = IdTable(pa.int64())
    table.put(np.arange(0, 20_000, 2), pa.array(np.arange(10_000)))
    model = {2 * value: value for value in range(10_000)}
    rng = np.random.default_rng(7)
    for step in range(300):
        ids = rng.choice(20_000, 40, replace=False)
        values: list[int | None] = [None if id_ % 5 == 0 else step for id_ in ids.tolist()]
        table.put(ids, pa.array(values, pa.int64()))
        model.update(zip(ids.tolist(), values, strict=True))
    model = {id_: value for id_, value in model.items() if value is not None}
    everything = np.arange(-1, 20_001)
    assert table.get(everything).to_pylist() == [model.get(id_) for id_ in everything.tolist()]
    assert len(table) == len(model)


def filled(memory: Arena, type_: pa.DataType, values: list[Any]) -> tuple[IdTable, dict[int, Any]]:
    """Return a table of some ids in which a value is dead, and its contents."""
    table = IdTable(type_, memory)
    table.put(int64s(range(20)), pa.array(values, type_))
    table.put(int64s([3, 4]), pa.array(values[:2], type_))
    table.remove(int64s([7]))
    model = dict(enumerate(values)) | {3: values[0], 4: values[1]}
    del model[7]
    return table, model


PAIRS = pa.struct([("a", pa.int64()), ("b", pa.bool_())])
FILLED = {
    "fixed": (PAIRS, [{"a": i, "b": True} for i in range(20)], {"a": None, "b": None}),
    "variable": (STRUCT, [{"a": i, "b": "x" * i} for i in range(20)], {"a": None, "b": "y" * 99}),
}


@pytest.mark.parametrize("case", FILLED)
def test_a_failed_allocation_leaves_the_table_as_it_was(case: str) -> None:
    type_, values, fresh = FILLED[case]
    ids = int64s([*range(3, 9), *range(100, 400), 5])
    rows = pa.array([None, *[fresh] * (len(ids) - 1)], type_)
    for allowed in range(100):
        memory = Arena()
        table, model = filled(memory, type_, values)
        memory.allowed = allowed
        try:
            table.put(ids, rows)
        except MemoryError:
            memory.allowed = None
            held = int64s(model)
            assert table.get(held).to_pylist() == [*model.values()]
            assert sorted(table.ids().tolist()) == sorted(model)
            table.put(ids, rows)
        enough = bool(memory.allowed)
        memory.allowed = None
        assert table.get(ids).to_pylist() == [None, *rows.to_pylist()[1:]]
        table.clear()
        assert not memory.blocks, "no block is lost"
        if enough:
            break
    assert allowed > 3


def test_values_of_fixed_width_that_are_updated_leave_no_garbage() -> None:
    table = IdTable(PAIRS)
    for batch in range(50):
        table.put(np.arange(1000), pa.array([{"a": batch, "b": None}] * 1000, PAIRS))
        table.remove(np.arange(700, 1000))
        assert len(table._slab) == 1000


def test_garbage_is_bounded_and_is_not_removed_by_all_tables_at_once() -> None:
    tables = [IdTable(pa.string()) for _ in range(16)]
    swept: set[tuple[int, ...]] = set()
    for batch in range(40):
        before = [len(table._slab) for table in tables]
        for table in tables:
            table.put(np.arange(batch % 4, 1000, 4), pa.array([f"{batch:90}"] * 250))
            assert table._slab.nbytes() <= 2.25 * 100 * len(table) + 1.25 * (64 << 10)
        swept.add(tuple(i for i, table in enumerate(tables) if len(table._slab) < before[i]))
    assert set(range(16)) <= {i for some in swept for i in some}, "each table is swept"
    assert len(swept) > 3


def compactions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes that each compaction from now on keeps."""
    kept: list[int] = []
    compact = Slab.compact

    def counting(slab: Slab, places: np.ndarray) -> None:
        compact(slab, places)
        kept.append(slab.nbytes())

    monkeypatch.setattr(Slab, "compact", counting)
    return kept


def test_replacing_a_large_value_keeps_few_dead_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    table, kept = IdTable(pa.binary()), compactions(monkeypatch)
    table.put(np.arange(1_000), pa.array([b"x"] * 1_000))
    for n in range(50):
        table.put(np.array([1_000]), pa.array([bytes([n]) * 100_000]))
        assert table._slab.nbytes() < 500_000
    assert table.get(np.array([999, 1_000])).to_pylist() == [b"x", bytes([49]) * 100_000]
    assert sum(kept) < 2 * 50 * 100_000


def test_replacing_small_values_beside_a_large_one_seldom_copies_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table, kept = IdTable(pa.binary()), compactions(monkeypatch)
    table.put(np.array([0]), pa.array([bytes(1_000_000)]))
    for n in range(5_000):
        table.put(np.array([1]), pa.array([b"%d" % n]))
    assert sum(kept) < 2_000_000


def test_the_fields_of_a_missing_value_are_null() -> None:
    table = IdTable(pa.struct([("n", pa.int64()), ("x", pa.struct([("y", pa.float64())]))]))
    table.put(np.array([1, 2]), pa.array([{"n": 1, "x": {"y": 0.5}}, {"n": 2, "x": {"y": 1.5}}], table.type))
    found = table.get(np.array([2, 3, 1]))
    assert found.to_pylist() == [{"n": 2, "x": {"y": 1.5}}, None, {"n": 1, "x": {"y": 0.5}}]
    assert found.field("n").to_pylist() == [2, None, 1]
    assert found.field("x").field("y").to_pylist() == [1.5, None, 0.5]
