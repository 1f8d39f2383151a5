"""Lists and maps are written by their changes, and equal plain lists and dicts after any of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from memories import Arena

from timerheap.spark._group import growing_state
from timerheap.spark._group.checkpoint import pieces, read_chunk, write_chunk
from timerheap.spark._group.growing_state import ListTable, MapTable
from timerheap.spark._group.key_group import UserState, attached_state, head_of, new_state, restored_state
from timerheap.spark._group.tables import IdTable

KEYS = st.integers(0, 3)
ENTRIES = st.sampled_from([math.nan, 0.5, *(float(i) for i in range(20))])
MAP_KEYS = {pa.float64(): lambda entry: entry, pa.string(): str}
VALUES = st.none() | st.text("ab", max_size=2)
LIST = pa.list_(pa.field("element", pa.struct([("n", pa.int64()), ("s", pa.string())])))
MAP = pa.map_(pa.float64(), pa.string())


def written(state: UserState, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch as the chunks of a checkpoint return it."""
    for piece in pieces(batch, state.schema):
        yield read_chunk(state.kind, write_chunk(state.kind, piece), state.schema)


class Machine(RuleBasedStateMachine):
    """Three states whose chunks are merged and replayed at any time."""

    key_type = pa.float64()

    def __init__(self) -> None:
        super().__init__()
        self.memory = Arena()
        self.states: list[UserState] = [
            new_state(64, "value", "value", pa.string(), self.memory),
            new_state(65, "log", "list", LIST, self.memory),
            new_state(66, "book", "map", pa.map_(self.key_type, pa.string()), self.memory),
        ]
        self.chunks: list[list[pa.RecordBatch]] = [[], [], []]
        self.values: dict[int, str] = {}
        self.lists: dict[int, list[Any]] = {}
        self.maps: dict[int, dict[Any, Any]] = {}

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
            self.states[at] = restored

    @rule()
    def attach(self) -> None:
        self.save()
        heads = json.loads(json.dumps([head_of(state) for state in self.states]))
        self.states = [attached_state(self.memory, head) for head in heads]

    @invariant()
    def holds_the_keys_with_contents(self) -> None:
        for state, model in zip(self.states, (self.values, self.lists, self.maps), strict=True):
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
