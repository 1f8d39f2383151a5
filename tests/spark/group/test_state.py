"""A key group equals a model of dicts after any operations, also when it is loaded or handed over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import MemoryStore, load, save
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from live_files import handed_over, live_file
from queries import QUERY

from timerheap import ListStateDescriptor, MapStateDescriptor, Types, ValueStateDescriptor
from timerheap._contents import KeyContext
from timerheap._expiry import Expiry
from timerheap._native._core import CurrentKey
from timerheap.spark._arrow import KeyedRows, widen
from timerheap.spark._columns import VALUE
from timerheap.spark._functions.state_handles import GroupRuntimeContext, RowRuntimeContext
from timerheap.spark._group.key_group import KeyGroup, expiry_namespace
from timerheap.spark._group.key_table import KeyTable
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.split import contents_of, keyed, named_timers, restore, split
from timerheap.spark._group.stored.kinds import EVENT_TIMERS, KEYS, PROCESSING_TIMERS, TIMER_NAMES, USER_STATE
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.stored.tiers import Tiers
from timerheap.spark._group.user_states import new_state
from timerheap.spark._live.live_cache import Cache, Owner
from timerheap.spark._query import Query
from timerheap.spark._state.state_tables import ContentsTable
from timerheap.spark._state.stored_group import StoredGroup

NAMES = st.sampled_from(["", "a", "b", "Zoë", "e"])

TIMES = st.integers(0, 20)

PAIRS = st.tuples(st.sampled_from("xy"), st.integers(0, 2))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.group, self.stored = KeyGroup(QUERY.layout, live_file()), Stored(Manifest(4))
        self.ids: dict[str, int] = {}
        self.model: dict[str, dict[str, Any]] = {}
        self.timers: set[tuple[int, str]] = set()
        self.waiting: list[tuple[int, str, int]] = []
        self.key: KeyContext[int] = KeyContext()
        context = GroupRuntimeContext(self.key, 4)
        self.value = context.get_state(ValueStateDescriptor("value", Types.FLOAT()))
        self.log = context.get_list_state(
            ListStateDescriptor("log", Types.TUPLE([Types.LONG(), Types.STRING()]))
        )
        pair = Types.TUPLE([Types.STRING(), Types.LONG()])
        self.book = context.get_map_state(MapStateDescriptor("book", pair, Types.LIST(Types.LONG())))
        self.native_key = CurrentKey()
        rows = RowRuntimeContext(self.native_key, 4)
        self.count = rows.get_state(ValueStateDescriptor("count", Types.INT()))
        self.contexts = context, rows
        self.bind()

    def bind(self) -> None:
        self.native_key.renumber()
        for context in self.contexts:
            context.bind(self.group)

    def at(self, name: str) -> dict[str, Any]:
        """Make a key current, as one of its rows does."""
        hash_ = np.array([len(name) % 2], np.int64)  # two hashes for all keys
        id_ = int(self.group.keys.resolve(hash_, [pa.array([name])])[0])
        assert self.ids.setdefault(name, id_) == id_
        self.key.current_key = self.native_key.current_key = id_
        return self.model.setdefault(name, {"value": None, "count": None, "log": [], "book": {}})

    @rule(name=NAMES, value=st.none() | st.floats(allow_nan=False, width=32) | st.just(0.1))
    def update_value(self, name: str, value: float | None) -> None:
        self.at(name)["value"] = value and float(np.float32(value))
        if value == 0:
            self.model[name]["value"] = 0.0
        self.value.update(value)

    @rule(name=NAMES, value=st.none() | st.integers(-(2**31), 2**31 - 1))
    def update_count(self, name: str, value: int | None) -> None:
        self.at(name)["count"] = value
        self.count.update(value)

    @rule(
        name=NAMES,
        values=st.lists(st.tuples(st.integers(0, 9), st.text(max_size=2)), max_size=3),
        whole=st.booleans(),
    )
    def update_list(self, name: str, values: list[Any], whole: bool) -> None:
        contents = self.at(name)
        contents["log"] = values if whole else contents["log"] + values
        (self.log.update if whole else self.log.add_all)(values)

    @rule(name=NAMES, pair=PAIRS, value=st.none() | st.lists(st.integers(0, 9), max_size=2))
    def update_map(self, name: str, pair: Any, value: list[int] | None) -> None:
        book = self.at(name)["book"]
        if value is None:
            book.pop(pair, None)
            self.book.remove(pair)
        else:
            book[pair] = value
            self.book.put(pair, value)

    @rule(name=NAMES, state=st.sampled_from(["value", "count", "log", "book"]))
    def clear(self, name: str, state: str) -> None:
        self.at(name)[state] = {"value": None, "count": None, "log": [], "book": {}}[state]
        getattr(self, state).clear()

    @rule(name=NAMES, time=TIMES, delete=st.booleans())
    def change_timer(self, name: str, time: int, delete: bool) -> None:
        self.at(name)
        timers = self.group.event_timers
        if delete:
            timers.remove_many([time], self.ids[name], 0)
            self.timers.discard((time, name))
        else:
            timers.push_many([time], self.ids[name], 0)
            self.timers.add((time, name))

    @rule(watermark=TIMES)
    def fire(self, watermark: int) -> None:
        names = {id_: name for name, id_ in self.ids.items()}
        due = {
            (timer.timestamp, names[timer.key_hash]) for timer in self.group.event_timers.pop_due(watermark)
        }
        assert due == {timer for timer in self.timers if timer[0] <= watermark}
        self.timers -= due

    @rule(name=NAMES, time=TIMES, n=st.integers(0, 99))
    def wait(self, name: str, time: int, n: int) -> None:
        if time > self.group.watermark:
            self.at(name)
            row = pa.record_batch([[name], [n]], schema=QUERY.schema)
            self.group.rows.append(KeyedRows(widen(row), np.array([self.ids[name]]), np.array([time])))
            self.waiting.append((time, name, n))

    @rule(watermark=TIMES)
    def release(self, watermark: int) -> None:
        self.group.watermark = watermark = max(watermark, self.group.watermark)
        rows, order = self.group.rows.release(watermark)
        released = rows.take(order)
        due = sorted((time, self.ids[name], n) for time, name, n in self.waiting if time <= watermark)
        found = zip(
            released.timestamps.tolist(), released.ids.tolist(), released.rows["n"].to_pylist(), strict=True
        )
        assert list(found) == due
        self.waiting = [row for row in self.waiting if row[0] > watermark]

    @rule(then=st.sampled_from(["keep", "bind", "load", "hand over"]))
    def end_batch(self, then: str) -> None:
        if then == "bind":  # another call of the operator, before the group is saved
            self.bind()
            return
        self.group.forget_dead_keys()
        save(self.group, self.stored, self.store)
        live = {name for _, name in self.timers} | {name for _, name, _ in self.waiting}
        live |= {name for name, contents in self.model.items() if any(v or v == 0 for v in contents.values())}
        if then == "hand over":
            self.group, self.stored = handed_over(self.group, self.store)
            self.bind()
        if then == "load":
            before = self.group
            self.group = KeyGroup(QUERY.layout, live_file())
            self.stored = load(self.store, self.group)
            assert len(self.group.keys) == len(before.keys)
            assert self.group.losses() == before.losses(), "it looks for dead keys in the same micro-batch"
            save(self.group, self.stored, self.store)
            self.bind()
        known = set(self.group.keys.table.ids().tolist())
        assert {self.ids[name] for name in live} <= known
        self.ids = {name: id_ for name, id_ in self.ids.items() if id_ in known}
        self.model = {name: contents for name, contents in self.model.items() if name in self.ids}

    @invariant()
    def is_the_model(self) -> None:
        assert len(self.group.event_timers.heap) == len(self.timers)
        for name, contents in self.model.items():
            self.key.current_key = self.native_key.current_key = self.ids[name]
            assert self.count.value() == contents["count"]
            assert self.value.value() == contents["value"]
            assert list(self.log) == contents["log"]
            assert dict(self.book.items()) == contents["book"]
            assert self.book.is_empty() is not bool(contents["book"])


TestKeyGroup = Machine.TestCase

TestKeyGroup.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class Merging(Tiers):
    """Merges after every third save, but never the oldest segment, and rewrites nothing."""

    def overgrown(self, stored: int, changed: int, live: int) -> bool:
        return False

    def merge_from(self, sizes: list[int]) -> int:
        return 1 if len(sizes) > 3 else len(sizes) - 1


class MergingMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.stored._tiers = Merging(bytes(8))

    @rule(reload=st.booleans())
    def end_batch(self, reload: bool) -> None:
        super().end_batch(reload)
        self.stored._tiers = Merging(bytes(8))


TestMergedKeyGroup = MergingMachine.TestCase

TestMergedKeyGroup.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


def test_a_missing_or_foreign_chunk_raises_and_is_named() -> None:
    machine = Machine()
    machine.change_timer("a", 5, False)
    machine.end_batch("keep")
    kind = next(kind for kind, _ in machine.store.chunks)
    kept = machine.store.chunks.pop((kind, 1))
    with pytest.raises(ValueError, match=f"the checkpoint lacks chunk 1 of kind {kind}"):
        Stored.load(machine.store, machine.store.read_manifest(), KeyGroup(QUERY.layout).part)
    machine.store.chunks[kind, 1] = kept[:-1] + bytes([kept[-1] ^ 1])
    with pytest.raises(ValueError, match=r"checksum|damaged|corrupt"):
        Stored.load(machine.store, machine.store.read_manifest(), KeyGroup(QUERY.layout).part)


def with_states(store: MemoryStore, names: str, drop_state: tuple[str, ...] = ()) -> KeyGroup:
    """Save a group whose function has these states, each set for a key of its own."""
    group = KeyGroup(replace(QUERY, state_changes=replace(QUERY.state_changes, drop=drop_state)).layout)
    stored = Stored(Manifest(4))
    if store.manifest is not None:
        stored = load(store, group)
    key: KeyContext[int] = KeyContext()
    context = GroupRuntimeContext(key, 4)
    context.bind(group)
    for name in names:
        state = context.get_state(ValueStateDescriptor(name, Types.STRING()))
        key.current_key = int(group.keys.resolve(np.array([ord(name)]), [pa.array([name])])[0])
        assert state.value() in (None, name)
        state.update(name)
    group.forget_dead_keys()
    save(group, stored, store)
    return group


def test_an_unused_state_is_reported_and_kept_until_it_is_dropped() -> None:
    store = MemoryStore()
    assert not with_states(store, "abc").notices()
    group = with_states(store, "ad")  # b was renamed to d
    assert len(group.keys) == 4
    assert sorted(message.split(" is in")[0] for message in group.notices()) == ["state 'b'", "state 'c'"]
    assert all("pass state_changes={'" in message for message in group.notices())

    group = with_states(store, "ade", ("b", "c", "never was"))
    assert sorted(group.states) == ["a", "d", "e"]
    assert sorted(group.keys.keys(np.sort(group.keys.table.ids())).column("k").to_pylist()) == ["a", "d", "e"]
    assert not group.notices()
    assert store.manifest is not None
    runs = store.read_manifest().runs
    kinds = [run.kind for run in runs]
    assert len(kinds) == len(set(kinds)), "a new state may reuse the kind of a dropped one"
    assert {kind for kind, _ in store.chunks} == set(kinds)
    assert sum(1 + run.count for run in runs) == len(store.chunks)
    assert len(with_states(store, "ade", ("b",)).keys) == 3, "dropping a state again has no effect"


def test_dropping_a_used_state_raises() -> None:
    store = MemoryStore()
    with_states(store, "ab")
    before = dict(store.chunks)
    with pytest.raises(
        ValueError, match="state_changes must drop states that the function no longer has, got 'b'"
    ):
        with_states(store, "ab", ("b",))
    assert store.chunks == before


def test_groups_of_only_one_run_of_a_query_are_live() -> None:
    cache = Cache()
    group, stored = KeyGroup(QUERY.layout), Stored(Manifest(4))
    first, second, other = Owner("q", "first"), Owner("q", "second"), Owner("another query", "first")
    for owner, run in ((first, "1"), (second, "1"), (other, "9")):
        cache.begin(owner, QUERY.layout, run, 0)
        cache.put(owner, 7, group, stored)
    cache.begin(first, QUERY.layout, "1", 1)
    assert cache.take(first, 7), "two operators of one query have separate groups"
    assert not cache.take(first, 7), "what was taken is out"
    cache.put(first, 7, group, stored)

    again = Owner("q", "planned anew")
    cache.begin(again, QUERY.layout, "2", 1)
    assert not cache.take(first, 7)
    assert not cache.take(second, 7)
    assert cache.take(other, 7)
    cache.put(again, 7, group, stored)
    for batch in range(3, 12):
        cache.begin(again, QUERY.layout, "2", batch)
    assert not cache.take(again, 7), "it has moved to another worker"


def test_dead_keys_are_searched_for_once_a_good_part_of_the_group_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    monkeypatch.setattr(KeyTable, "retain", lambda keys, holders: searched.append(sum(map(len, holders))))
    group = KeyGroup(QUERY.layout)
    key_id = group.keys.resolve(np.array([7]), [pa.array(["a"])])
    n = 20_000
    group.event_timers.push_many(np.arange(n), np.repeat(key_id, n), 0)
    for watermark in range(0, n, 100):  # one key, whose timers fire over many micro-batches
        group.event_timers.pop_due(watermark)
        group.forget_dead_keys()
    assert sum(searched) < 3 * n


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_expiries_of_states_are_not_counted_or_shown_as_timers(domain: str) -> None:
    kind = EVENT_TIMERS if domain == "event" else PROCESSING_TIMERS
    spaces = [expiry_namespace("seen"), expiry_namespace("gone")]
    for n in (3, 0):
        group, stored, store = KeyGroup(QUERY.layout, live_file()), Stored(Manifest(4)), MemoryStore()
        timers = group.event_timers if domain == "event" else group.processing_timers
        assert group.keys.resolve(np.array([1, 2]), [pa.array(["a", "b"])]).tolist() == [1, 2]
        timers.push_many(*(column[:n] for column in ([50, 60, 70], [1, 1, 2], [0, 0, 0])))
        group.expiries(domain == "event").push_many([10, 20], [1, 2], spaces)
        save(group, stored, store)
        for found in (group, handed_over(group, store)[0], loaded(QUERY, store), moved(group)):
            count, other, _, _, *times = found.standing()
            assert (count if domain == "event" else other, times[domain != "event"]) == (n, 50 if n else None)
            assert found.next_due(domain == "event") == 10
        for found in (loaded(QUERY, store), moved(group)):
            assert list(found.due_expiries(domain == "event", 9, {"seen"})) == []
            ((name, ids),) = found.due_expiries(domain == "event", 30, {"seen"})
            assert (name, ids.tolist()) == ("seen", [1])
            assert found.next_due(domain == "event") == (50 if n else None), "those of no state go, too"
        heap = getattr(StoredGroup(store, store.read_manifest(), [kind]), f"{domain}_timers").heap
        assert len(heap) == n
        assert not heap.namespaces.any()


def test_names_of_timers_go_with_them_and_are_dropped_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    group, stored, store = KeyGroup(QUERY.layout, live_file()), Stored(Manifest(4)), MemoryStore()
    group.keys.resolve(np.array([1]), [pa.array(["a"])])
    weekly, silent = group.timer_names.new("weekly"), group.timer_names.new("silent")
    group.event_timers.push_many([50, 60, 70], [1, 1, 1], [0, weekly, silent])
    save(group, stored, store)
    stored_group = StoredGroup(store, store.read_manifest(), [KEYS, EVENT_TIMERS, TIMER_NAMES])
    for found in (group, handed_over(group, store)[0], loaded(QUERY, store), moved(group), stored_group):
        names = found.timer_names.names(np.sort(found.event_timers.heap.namespaces))
        assert sorted(names[1:]) == ["silent", "weekly"]
        assert names[0] is None
    other = KeyGroup(QUERY.layout)  # of a checkpoint with more key groups, in which "silent" has a namespace
    monkeypatch.setattr("timerheap._key_timers.namespace_of", lambda name: silent)
    other.event_timers.push_many([90, 91], 2, list(map(other.timer_names.new, ["daily", "silent"])))
    other.keys.resolve(np.array([2]), [pa.array(["b"])])
    both = KeyGroup(QUERY.layout)
    for each in (group, other):
        for _, contents in split(each, 2, first=each is group):
            restore(both, contents)
    heap = both.event_timers.heap
    names = both.timer_names.names(heap.namespaces).tolist()
    pending = set(zip(heap.timestamps.tolist(), heap.key_hashes.tolist(), names, strict=True))
    assert pending == {
        (50, 1, None),
        (60, 1, "weekly"),
        (70, 1, "silent"),
        (90, 2, "daily"),
        (91, 2, "silent"),
    }
    group.event_timers.pop_due(65)
    group.forget_dead_keys()
    save(group, stored, store)
    assert loaded(QUERY, store).timer_names.part().ids().tolist() == [silent]


@pytest.mark.parametrize("second", [60, 70])
def test_a_table_with_two_timers_of_one_key_and_name_raises(second: int) -> None:
    times, keys = pa.array([60, 60, 60, second]), [pa.array(["a", "a", "a", "a"])]
    timers = named_timers(times, pa.array([5, 5, 5, 5]), pa.array(["x", None, None, "x"]))
    contents = contents_of([(EVENT_TIMERS, "", keyed(timers, 1, keys, QUERY.layout.key_fields))])
    with pytest.raises(ValueError, match=r"timers must have one row for each key, .*and name, .*'x'"):
        restore(KeyGroup(QUERY.layout), contents)


def test_a_value_with_a_time_to_live_must_have_a_time() -> None:
    type_ = pa.struct([("value", pa.int64()), ("at", pa.int64())])
    schema = new_state(USER_STATE, "seen", "value", type_).schema
    table = ContentsTable("seen", "value", type_, schema, Expiry("at", 5, True), 9)
    values = pa.array([{"value": 1, "at": 2}, {"value": 1, "at": None}], type_)
    with pytest.raises(
        ValueError, match=r"states\['seen'\] must have the time 'at' .*got 1 values with null"
    ):
        list(table(pa.record_batch([values], names=[VALUE]), np.array([1, 2])))


def loaded(query: Query, store: MemoryStore) -> KeyGroup:
    group = KeyGroup(query.layout)
    load(store, group)
    return group


def moved(group: KeyGroup) -> KeyGroup:
    """Return the group as another query has it, of a checkpoint with another max_parallelism."""
    found = KeyGroup(group.layout)
    for _, contents in split(group, 2):
        restore(found, contents)
    return found.loaded()
