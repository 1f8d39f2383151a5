"""Lists, maps and multisets are written by their changes, and equal plain ones after any of them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from memories import Arena

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._group import growing_state
from timerheap.spark._group.growing_state import ListTable, MapTable
from timerheap.spark._group.multiset_state import multiset_of
from timerheap.spark._group.stored.chunks import pieces, read_chunk, write_chunk
from timerheap.spark._group.user_states import UserState, attached_state, head_of, new_state, restored_state
from timerheap.spark._memory.id_table import IdTable

KEYS = st.integers(0, 3)
ENTRIES = st.sampled_from([math.nan, 0.5, *(float(i) for i in range(20))])
MAP_KEYS = {pa.float64(): lambda entry: entry, pa.string(): str}
MEMBERS = st.sampled_from([None, math.nan, 0.0, -0.0, math.inf, 1.5, -1.5])
VALUES = st.none() | st.text("ab", max_size=2)
LIST = pa.list_(pa.field("element", pa.struct([("n", pa.int64()), ("s", pa.string())])))
MAP = pa.map_(pa.float64(), pa.string())


def written(state: UserState, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch as the chunks of a checkpoint return it."""
    for piece in pieces(batch, state.schema):
        yield read_chunk(state.kind, write_chunk(state.kind, piece), state.schema)


def sliced(rows: list[Any], type_: pa.DataType) -> pa.Array:
    """Return rows in an array that does not begin at 0."""
    return pa.array([*rows[:1], *rows], type_)[len(rows[:1]) :]


class Machine(RuleBasedStateMachine):
    """States whose chunks are merged and replayed at any time."""

    key_type = pa.float64()
    member_type = pa.float64()

    def __init__(self) -> None:
        super().__init__()
        self.memory = Arena()
        self.states: list[UserState] = [
            new_state(64, "value", "value", pa.string(), self.memory),
            new_state(65, "log", "list", LIST, self.memory),
            new_state(66, "book", "map", pa.map_(self.key_type, pa.string()), self.memory),
            new_state(67, "bag", "multiset", multiset_of(self.member_type), self.memory),
        ]
        self.chunks: list[list[pa.RecordBatch]] = [[], [], [], []]
        self.values: dict[int, str] = {}
        self.lists: dict[int, list[Any]] = {}
        self.maps: dict[int, dict[Any, Any]] = {}
        self.bags: dict[int, Counter[str]] = {}

    @rule(key=KEYS, value=VALUES)
    def update(self, key: int, value: str | None) -> None:
        self.states[0].store(key, value)
        self.values.pop(key, None)
        if value is not None:
            self.values[key] = value

    @rule(key=KEYS, n=st.integers(0, 40), whole=st.booleans())
    def change_list(self, key: int, n: int, whole: bool) -> None:
        elements = [{"n": i, "s": None} for i in range(n)]
        if whole:
            self.states[1].replace(key, elements.copy())
            self.lists[key] = elements
        elif n:
            self.states[1].append(key, elements)
            self.lists[key] = self.lists.get(key, []) + elements

    @rule(key=KEYS, entries=st.dictionaries(ENTRIES, VALUES))
    def put(self, key: int, entries: dict[Any, Any]) -> None:
        entries = {MAP_KEYS[self.key_type](entry): value for entry, value in entries.items()}
        self.states[2].put(key, entries)
        self.maps.setdefault(key, {}).update(entries)

    @rule(key=KEYS, entries=st.lists(ENTRIES, unique=True))
    def remove(self, key: int, entries: list[float]) -> None:
        for entry in map(MAP_KEYS[self.key_type], entries):
            self.states[2].remove(key, entry)
            self.maps.get(key, {}).pop(entry, None)

    @rule(key=KEYS)
    def clear(self, key: int) -> None:
        self.states[2].remove_all(key)
        self.maps.pop(key, None)

    @rule(rows=st.lists(st.tuples(KEYS, st.integers(0, 12)), max_size=6), whole=st.booleans())
    def change_lists(self, rows: list[tuple[int, int]], whole: bool) -> None:
        ids, lists = [key for key, _ in rows], [[{"n": i, "s": str(i)} for i in range(n)] for _, n in rows]
        change = self.states[1].replace_many if whole else self.states[1].append_many
        change(np.array(ids, np.int64), sliced(lists, LIST))
        for key, elements in zip(ids, lists, strict=True):
            self.lists[key] = elements if whole else self.lists.get(key, []) + elements

    @rule(rows=st.lists(st.tuples(KEYS, st.dictionaries(ENTRIES, VALUES)), max_size=6), whole=st.booleans())
    def put_maps(self, rows: list[tuple[int, dict[Any, Any]]], whole: bool) -> None:
        ids = np.array([key for key, _ in rows], np.int64)
        maps = [{MAP_KEYS[self.key_type](e): value for e, value in entries.items()} for _, entries in rows]
        change = self.states[2].replace_many if whole else self.states[2].put_many
        change(ids, sliced([[*entries.items()] for entries in maps], pa.map_(self.key_type, pa.string())))
        for key, entries in zip(ids.tolist(), maps, strict=True):
            self.maps[key] = dict(entries) if whole else {**self.maps.get(key, {}), **entries}

    @rule(rows=st.lists(st.tuples(KEYS, ENTRIES), max_size=6))
    def remove_entries(self, rows: list[tuple[int, float]]) -> None:
        ids, keys = [key for key, _ in rows], [MAP_KEYS[self.key_type](entry) for _, entry in rows]
        self.states[2].remove_many(np.array(ids, np.int64), pa.array(keys, self.key_type))
        for key, entry in zip(ids, keys, strict=True):
            self.maps.get(key, {}).pop(entry, None)

    @rule(rows=st.lists(st.tuples(KEYS, MEMBERS, st.integers(-2, 2)), max_size=12))
    def add(self, rows: list[tuple[int, Any, int]]) -> None:
        ids, values, weights = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
        if pa.types.is_struct(self.member_type):
            values = [None if value is None else {"x": value, "s": "a"} for value in values]
        self.states[3].add_many(
            np.array(ids, np.int64), pa.array(values, self.member_type), np.array(weights, np.int64)
        )
        for key, value, weight in zip(ids, values, weights, strict=True):
            bag = self.bags.setdefault(key, Counter())
            bag[repr(value)] += weight
            if not bag[repr(value)]:
                del bag[repr(value)]

    @rule(keys=st.lists(KEYS))
    def empty(self, keys: list[int]) -> None:
        self.states[3].clear_many(np.array(keys, np.int64))
        self.states[1].clear_many(np.array(keys, np.int64))
        for key in keys:
            self.bags.pop(key, None)
            self.lists.pop(key, None)

    @rule()
    def read_all(self) -> None:
        ids = np.arange(4)
        lists, maps, bags = (state.get_many(ids).to_pylist() for state in self.states[1:])
        assert lists == [self.lists.get(key, []) for key in range(4)]
        assert repr(maps) == repr([[*self.maps.get(key, {}).items()] for key in range(4)])  # NaN, too
        counted = [Counter({repr(each["value"]): each["weight"] for each in bag}) for bag in bags]
        assert counted == [self.bags.get(key, Counter()) for key in range(4)]
        assert [len(bag) for bag in bags] == [len(bag) for bag in counted], "each value is there once"

    @rule(key=KEYS)
    def read(self, key: int) -> None:
        self.states[1].announce(np.arange(4))
        assert self.states[0].load(key) == self.values.get(key)
        assert self.states[1].load(key) == self.lists.get(key, [])
        assert [*self.states[2].load(key).items()] == [*self.maps.get(key, {}).items()]

    @rule(key=KEYS)
    def look(self, key: int) -> None:
        assert self.states[1].is_empty(key) == (not self.lists.get(key))
        assert self.states[2].is_empty(key) == (not self.maps.get(key))

    @rule(key=KEYS, entry=ENTRIES)
    def find(self, key: int, entry: float) -> None:
        entries = self.maps.get(key, {})
        entry = MAP_KEYS[self.key_type](entry)
        assert self.states[2].find(key, entry) == (entry in entries, entries.get(entry))

    @rule()
    def save(self) -> None:
        for state, chunks in zip(self.states, self.chunks, strict=True):
            changes = state.changes()
            if changes is not None:
                chunks += written(state, changes)

    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        for state, chunks in zip(self.states, self.chunks, strict=True):
            start = data.draw(st.integers(0, len(chunks)))
            stop = data.draw(st.integers(start, len(chunks)))
            if start < stop:
                merged = state.merge(chunks[start:stop])
                chunks[start:stop] = written(state, merged)

    @rule(whole=st.booleans())
    def restore(self, whole: bool) -> None:
        self.save()
        for at, state in enumerate(self.states):
            if whole:
                self.chunks[at] = [*written(state, state.snapshot())]
            restored = restored_state(state.kind, state.name, state.schema, self.memory)
            for chunk in self.chunks[at]:
                restored.replay(chunk)
            assert restored.type == state.type
            self.same_snapshot(state, restored)
            self.states[at] = restored

    def same_snapshot(self, state: UserState, restored: UserState) -> None:
        """All attempts of a task write the same, whichever has loaded the group."""
        if state.shape in ("value", "multiset"):
            pairs = zip(written(state, state.snapshot()), written(restored, restored.snapshot()), strict=True)
            assert all(write_chunk(64, one) == write_chunk(64, other) for one, other in pairs)

    @rule()
    def attach(self) -> None:
        self.save()
        heads = json.loads(json.dumps([head_of(state) for state in self.states]))
        self.states = [attached_state(self.memory, head) for head in heads]

    @invariant()
    def holds_the_keys_with_contents(self) -> None:
        models = self.values, self.lists, self.maps, self.bags
        for state, model in zip(self.states, models, strict=True):
            assert sorted(state.ids().tolist()) == sorted(
                key for key in model if model[key] or model is self.values
            )


@pytest.fixture(autouse=True, scope="module")
def short_rows() -> Iterator[None]:
    """Chunk rows of 8 entries, and contents of more than 10 are not loaded with others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing_state, "_ROW_ENTRIES", 8)
        patch.setattr(growing_state, "SMALL", 10)
        yield


class TextMachine(Machine):
    """With text as the key of the map, which is searched for without loading the map."""

    key_type = pa.string()
    member_type = pa.struct([("x", pa.float64()), ("s", pa.string())])


SETTINGS = settings(max_examples=15, stateful_step_count=40, deadline=None)
TestStates = Machine.TestCase
TestStates.settings = SETTINGS
TestTextStates = TextMachine.TestCase
TestTextStates.settings = SETTINGS


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of entries in each segment written from now on."""
    lengths: list[int] = []
    put = IdTable.put

    def counting(table: IdTable, ids: np.ndarray, values: pa.Array) -> None:
        if pa.types.is_large_list(table.type) and table.type.value_field.name != "link":
            lengths.extend(values.value_lengths().to_pylist())
        put(table, ids, values)

    monkeypatch.setattr(IdTable, "put", counting)
    return lengths


def test_appends_in_as_many_batches_copy_n_log_n_elements(copied: list[int]) -> None:
    state, n = ListTable(64, "log", pa.list_(pa.field("element", pa.int64()))), 200
    rows = []
    for i in range(n):
        state.append(7, [i])
        changes = state.changes()
        assert changes is not None
        rows.append(changes.num_rows)
        assert changes.nbytes < 40, "a chunk holds what was appended"
    assert rows == [1] * n
    assert sum(copied) < n * (math.log2(n) + 1)
    assert state.load(7) == list(range(n))


def test_a_map_is_copied_n_log_n_times_and_its_chunks_hold_the_changes(copied: list[int]) -> None:
    state, n = MapTable(64, "book", MAP), 200
    for i in range(n):
        state.put(7, {float(i % 150): str(i)})
        state.remove(7, float(i % 150 - 2))
        changes = state.changes()
        assert changes is not None
        assert changes.nbytes < 100
    assert sum(copied) < 2 * n * (math.log2(n) + 2)
    model: dict[float, str] = {}
    for i in range(n):
        model[float(i % 150)] = str(i)
        model.pop(float(i % 150 - 2), None)
    assert [*state.load(7).items()] == [*model.items()]


def test_changes_are_made_without_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    log, book = ListTable(64, "log", LIST), MapTable(65, "book", MAP)
    many = {float(i): "x" for i in range(100)}
    log.append(1, [{"n": 1, "s": "a"}] * 100)
    book.put(1, many)
    for state in (log, book):
        state.changes()

    def read(*_: Any) -> None:
        raise AssertionError("contents were read")

    with monkeypatch.context() as patch:
        patch.setattr(growing_state.GrowingState, "_load", read)
        for state in (log, book):
            state.announce(np.array([1]))
        log.append(1, [{"n": 2, "s": "b"}])
        book.put(1, {0.0: "y"})
        book.remove(1, 1.0)
        assert book.find(1, 0.0) == (True, "y")
        assert book.find(1, 1.0) == (False, None)
        assert all(state.changes().num_rows == 1 for state in (log, book))
    assert len(log.load(1)) == 101
    del many[1.0]
    assert book.load(1) == many | {0.0: "y"}


def test_a_large_map_is_loaded_only_for_many_lookups() -> None:
    state = MapTable(64, "book", pa.map_(pa.string(), pa.int64()))
    state.put(7, {f"key {i}": i for i in range(1_000)})
    state.changes()
    for i in range(1_000):
        state.put(7, {f"key {i + 5}": -i})
        assert state.find(7, f"key {i}") == (True, 5 - i if i >= 5 else i)
        assert state.find(7, f"no {i}") == (False, None)
        assert bool(state._loaded) == (i >= 59), "after 64 searches in the log"


def test_a_multiset_stays_flat_over_inserts_and_deletes() -> None:
    memory = Arena()
    state = new_state(64, "bag", "multiset", multiset_of(pa.int64()), memory)
    ids, ones = np.repeat(np.arange(10), 50), np.ones(500, np.int64)
    sizes = []
    for cycle in range(40):
        values = pa.array(np.arange(500) + 1_000 * cycle)
        state.add_many(ids, values, ones)
        inserted = state.changes()
        assert inserted is not None
        state.add_many(ids, values, -ones)
        deleted = state.changes()
        assert deleted is not None
        assert not state.merge([inserted, deleted]).num_rows, "chunks add up as what is live does"
        assert not len(state)
        sizes.append(sum(len(block.bytes) for block in memory.blocks.values()))
    assert max(sizes[20:]) <= max(sizes[:20])


def test_a_delete_may_come_before_its_insert() -> None:
    state, one = new_state(64, "bag", "multiset", multiset_of(pa.string())), np.array([7])
    state.add_many(one, pa.array(["a"]), np.array([-1]))
    assert state.changes().num_rows == 1
    state.add_many(one, pa.array(["a"]), np.array([1]))
    assert state.get_many(one).to_pylist() == [[]]
    assert not len(state)
    assert state.count_losses() == 1


@pytest.mark.parametrize(
    "type_",
    [
        pa.int8(),
        pa.bool_(),
        pa.null(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.decimal128(20, 2),
        pa.float32(),
        pa.struct([("a", pa.struct([("b", pa.int64())])), ("c", pa.null())]),
    ],
    ids=str,
)
def test_multisets_have_values_of_any_flat_type_or_structs_of_such(type_: pa.DataType) -> None:
    state, none = new_state(64, "bag", "multiset", multiset_of(type_)), pa.nulls(3, type_)
    state.add_many(np.array([1, 1, 2]), none, np.array([1, 2, 3]))
    entry = {"value": None, "weight": 3}
    assert state.get_many(np.array([2, 1, 0])).to_pylist() == [[entry], [entry], []]
    state.add_many(np.array([1]), none[:1], np.array([-3]))
    assert state.ids().tolist() == [2]


def test_column_writes_say_what_is_wrong_and_change_nothing() -> None:
    log, book = ListTable(64, "log", pa.list_(pa.int64())), MapTable(65, "book", MAP)
    bag, one = new_state(66, "bag", "multiset", multiset_of(pa.int64())), np.array([1])
    with pytest.raises(ArgumentTypeError, match=r"state 'log': rows must be of list<item: int64>, got int64"):
        log.append_many(one, pa.array([1]))
    with pytest.raises(
        ArgumentValueError, match="rows and their elements must not be null, got 0 null rows and 1"
    ):
        log.replace_many(one, pa.array([[None]], pa.list_(pa.int64())))
    with pytest.raises(ArgumentValueError, match="one row for each id, got 2 ids and 1 rows"):
        log.append_many(np.array([1, 2]), pa.array([[1]]))
    with pytest.raises(ArgumentTypeError, match=r"state 'book': rows must be of map<double, string> and not"):
        book.put_many(one, pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())))
    with pytest.raises(
        ArgumentTypeError, match=r"state 'book': keys must be of double and not null, got double"
    ):
        book.remove_many(one, pa.array([None], pa.float64()))
    with pytest.raises(ArgumentTypeError, match=r"state 'bag': values must be of int64, got string"):
        bag.add_many(one, pa.array(["a"]), one)
    with pytest.raises(ArgumentValueError, match="got 1 ids, 1 values and 2 weights"):
        bag.add_many(one, pa.array([1]), np.array([1, 2]))
    with pytest.raises(
        ArgumentTypeError, match="values must be of a flat type, or structs of such, got list"
    ):
        multiset_of(pa.list_(pa.int64()))
    assert [state.changes() for state in (log, book, bag)] == [None] * 3
