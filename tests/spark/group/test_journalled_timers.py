"""The timers of a key group equal a plain model; replaying their journal restores them."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from timerheap import TimerHeap
from timerheap._key_timers import KeyTimers, KeyTimerService, TimersOfKeys
from timerheap._native._core import CurrentKey, KnownKeys, RecordColumns, RowCells, RowContext, RowLoop
from timerheap.spark._group.timers import (
    POP_DUE,
    PUSH,
    REMOVE,
    JournalledTimers,
    TimerNames,
    due_keys,
)

timestamps = st.integers(-2, 12)
key_ids = st.sampled_from([-(2**63), -1, 0, 1, 2, 2**63 - 1])
NAMES = TimerNames()
names = st.sampled_from(["silent", "weekly"])
some_timers = st.lists(st.tuples(timestamps, key_ids), max_size=20)


class Again:
    """Registers a timer in each of the first calls; then it may fail."""

    def __init__(self, keys: CurrentKey, again: list[int], fails: bool) -> None:
        self.keys, self.again, self.fails = keys, again, fails
        self.fired: list[tuple[int, int]] = []

    def process_element(self, value: Any, ctx: Any) -> None:
        raise AssertionError("there are no rows")

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.fired.append((timestamp, self.keys.current_key))
        if self.again:
            ctx.timer_service().register_event_time_timer(self.again.pop(0))
        elif self.fails:
            raise ZeroDivisionError


class AgainstTheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.timers = JournalledTimers(kind=0)
        self.keys = CurrentKey()
        self.service = KeyTimerService()
        self.begin()
        self.saved = JournalledTimers(kind=0)
        self.model: set[tuple[int, int, int]] = set()  # timestamp, key, namespace
        self.losses = 0

    def begin(self) -> None:
        self.of_key = KeyTimers(self.timers, self.keys, NAMES)
        self.service.bind_group(self.of_key, self.of_key, 0, 0)

    def lose(self, gone: set[tuple[int, int, int]]) -> int:
        self.losses += len(gone & self.model)
        self.model -= gone
        return len(gone)

    @rule(timestamp=timestamps, key=key_ids)
    def register(self, timestamp: int, key: int) -> None:
        self.keys.current_key = key
        self.service.register_event_time_timer(timestamp)
        self.model.add((timestamp, key, 0))

    @rule(timestamp=timestamps, key=key_ids, name=names)
    def register_named(self, timestamp: int, key: int, name: str) -> None:
        self.keys.current_key = key
        self.service.register_event_time_timer(timestamp, name=name)
        self.model -= self.named(key, name)
        self.model.add((timestamp, key, NAMES.new(name)))
        assert self.service.next_event_time_timer(name=name) == timestamp

    @rule(key=key_ids, name=names)
    def delete_named(self, key: int, name: str) -> None:
        self.keys.current_key = key
        self.service.delete_event_time_timer(name=name)
        self.lose(self.named(key, name))

    def named(self, key: int, name: str) -> set[tuple[int, int, int]]:
        return {timer for timer in self.model if timer[1:] == (key, NAMES.new(name))}

    @rule(timestamp=timestamps, key=key_ids)
    def delete(self, timestamp: int, key: int) -> None:
        self.keys.current_key = key
        self.service.delete_event_time_timer(timestamp)
        self.lose({(timestamp, key, 0)})

    @rule(old=timestamps, new=timestamps, key=key_ids)
    def move(self, old: int, new: int, key: int) -> None:
        self.keys.current_key = key
        self.service.delete_event_time_timer(old)
        self.service.register_event_time_timer(new)
        self.model.discard((old, key, 0))  # the key keeps a timer: nothing is lost
        self.model.add((new, key, 0))

    @rule(key=key_ids)
    def listed(self, key: int) -> None:
        self.keys.current_key = key
        assert self.of_key.timestamps() == sorted(t for t, k, _ in self.model if k == key)

    @rule(key=key_ids)
    def delete_all(self, key: int) -> None:
        self.keys.current_key = key
        assert self.of_key.delete_all() == self.lose({timer for timer in self.model if timer[1] == key})

    @rule(many=some_timers)
    def push_many(self, many: list[tuple[int, int]]) -> None:
        new = {(*timer, 0) for timer in many} - self.model
        times, ids = np.array([*zip(*many, strict=True)] or [[], []], np.int64)
        assert np.count_nonzero(self.timers.push_many(times, ids, 0)) == len(new)
        self.model |= new
        self.begin()

    @rule(time=timestamps, limit=st.none() | st.integers(0, 4))
    def pop_due(self, time: int, limit: int | None) -> None:
        due = sorted(timer for timer in self.model if timer[0] <= time)[:limit]
        assert [*self.timers.pop_due(time, limit)] == due
        self.lose({*due})

    @rule(time=timestamps, again=st.lists(timestamps, max_size=4), fails=st.booleans())
    def fire(self, time: int, again: list[int], fails: bool) -> None:
        """Fire timers, whose keys register others as long as there are some in `again`."""
        before, wanted, rest = {*self.model}, [], [*again]
        while before and (first := min(before))[0] <= time:
            before.remove(first)
            wanted.append(first[:2])
            if not rest:
                self.losses += 1
                if fails:
                    break
            else:
                before.add((rest.pop(0), first[1], 0))
        function = Again(self.keys, [*again], fails)
        columns = RecordColumns([abs], 9, str)
        loop = RowLoop(function, RowContext(self.service), self.service, self.keys, "event", "processing")
        output = SimpleNamespace(rows=None, columns=columns)
        loop.begin(output, KnownKeys(), KnownKeys(), lambda id_, timestamp: id_)
        with suppress(ZeroDivisionError):
            loop.advance(time)
        assert function.fired == wanted
        self.model = before
        self.begin()

    @rule()
    def save(self) -> None:
        changes = self.timers.changes()
        if changes is not None:
            self.saved.replay(changes)
        assert sorted(self.saved.heap) == sorted(self.timers.heap)

    @invariant()
    def same(self) -> None:
        assert sorted(self.timers.heap) == sorted(self.model)
        assert self.timers.count_losses() == self.losses

    def teardown(self) -> None:
        self.save()


TestAgainstTheModel = AgainstTheModel.TestCase


@given(
    heap=st.lists(st.tuples(timestamps, key_ids), max_size=300, unique=True),
    time=timestamps,
    limit=st.integers(1, 40),
)
def test_the_keys_of_the_first_due_timers_are_found(heap: list[Any], time: int, limit: int) -> None:
    timers = TimerHeap()
    for timestamp, key_id in heap:
        timers.push(timestamp, key_id, 0)
    due = sorted((timestamp, key_id) for timestamp, key_id in heap if timestamp <= time)
    assert sorted(due_keys(timers, time, limit)) == sorted(key_id for _, key_id in due[:limit])


class CountedHeap:
    """A heap that counts how often its timers are looked at as a whole."""

    def __init__(self, heap: TimerHeap) -> None:
        self.heap = heap
        self.scans = 0

    def __getattr__(self, name: str) -> Any:
        self.scans += name == "key_hashes"
        return getattr(self.heap, name)

    def __contains__(self, timer: Any) -> bool:
        return timer in self.heap


@given(
    saves=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["register", "delete", "fire"]),
                timestamps,
                st.integers(0, 2),
                st.none() | names,
            ),
            max_size=20,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_journal_in_which_names_overwrite_their_rows_replays_the_same(saves: list[Any]) -> None:
    timers, saved = JournalledTimers(kind=0), JournalledTimers(kind=0)
    keys, service = CurrentKey(), KeyTimerService()
    of_key = KeyTimers(timers, keys, NAMES)
    service.bind_group(of_key, of_key, 0, 0)
    for operations in saves:
        keys.renumber()
        cells = RowCells(keys.numbers, int, lambda ids: (ids, ids > 0))  # so that changes are tracked by key
        for operation, timestamp, key, name in operations:
            keys.current_key = key
            if operation == "register":
                service.register_event_time_timer(timestamp, name=name)
            elif operation == "delete":
                service.delete_event_time_timer(None if name else timestamp, name=name)
            else:
                loop = RowLoop(Again(keys, [], False), RowContext(service), service, keys, "event", "wall")
                output = SimpleNamespace(rows=None, columns=RecordColumns([abs], 9, str))
                loop.begin(output, KnownKeys(), KnownKeys(), lambda id_, timestamp: id_)
                loop.advance(timestamp)
        assert cells.numbers is keys.numbers
        if (journal := timers.changes()) is not None:
            saved.replay(journal)
        assert sorted(saved.heap) == sorted(timers.heap)


def test_names_that_no_timer_has_are_dropped() -> None:
    found = TimerNames()
    kept, gone = found.new("kept"), found.new("gone")
    assert 0 not in (kept, gone)
    assert found.find("absent") == 0
    found.retain([np.array([kept, 0])])
    assert [found.name(kept), found.name(0), found.find("gone"), "gone" in found.known] == [
        "kept",
        None,
        0,
        False,
    ]
    assert found.names(np.array([0, kept, 0])).tolist() == [None, "kept", None]
    with pytest.raises(ValueError, match=r"name must be valid Unicode, got '.ud800'"):
        found.new("\ud800")


@pytest.mark.parametrize("hash_", [7, (1 << 63) - 2], ids=["a hash", "the last ones"])
def test_names_with_one_hash_are_kept_apart(monkeypatch: pytest.MonkeyPatch, hash_: int) -> None:
    monkeypatch.setattr("timerheap._key_timers.namespace_of", lambda name: hash_)
    found = TimerNames()
    assert found.find("a") == 0
    a, b, c, d = map(found.new, "abcd")
    assert len({a, b, c, d}) == 4
    assert min(a, b, c, d) > 0
    other = TimerNames()
    other.part().replay(found.part().snapshot())
    for names in (found, other):
        assert [names.find(name) for name in "abcde"] == [a, b, c, d, 0]
        assert names.names(np.array([d, 0, b])).tolist() == ["d", None, "b"]
    found.retain([np.array([0, c])])
    assert [found.name(each) for each in (a, b, c, d)] == ["a", "b", "c", None], "c is behind a and b"
    assert [found.find("c"), found.new("b"), found.new("d")] == [c, b, d]
    found.retain([np.array([0])])
    found.retain([np.array([0])])
    assert found.part().ids().tolist() == []


def test_the_timers_of_many_keys_are_found_without_a_scan_for_each() -> None:
    journalled = JournalledTimers(kind=0)
    keys, service = CurrentKey(), KeyTimerService()
    timers = KeyTimers(journalled, keys, TimerNames())
    service.bind_group(timers, timers, 0, None)
    counted = CountedHeap(journalled.heap)
    timers._of_keys = TimersOfKeys(counted)  # type: ignore[arg-type]
    timers.on_push(timers._of_keys.push)
    for keys.current_key in range(1_000):
        service.register_event_time_timer(keys.current_key)
    for key in range(1_000):
        keys.current_key = key
        service.register_event_time_timer(key + 5)
        assert service.event_time_timers() == [key, key + 5]
        service.delete_event_time_timer(key)
        assert timers.delete_all() == 1
    assert not len(journalled.heap)
    assert counted.scans < 50


def test_a_function_sees_the_timers_of_its_key_only() -> None:
    journalled = [JournalledTimers(kind) for kind in (0, 1)]
    keys, timers = CurrentKey(), KeyTimerService()
    timers.bind_group(*(KeyTimers(each, keys, TimerNames()) for each in journalled), 0, 0)
    for keys.current_key in (-7, 7):
        for timestamp in (30, 10, 20):
            timers.register_event_time_timer(timestamp)
            timers.register_processing_time_timer(timestamp + 1)
    assert timers.event_time_timers() == [10, 20, 30]
    assert timers.processing_time_timers() == [11, 21, 31]
    assert (timers.next_event_time_timer(), timers.next_processing_time_timer()) == (10, 11)
    assert timers.delete_all_timers() == 6
    assert timers.event_time_timers() == timers.processing_time_timers() == []
    assert timers.next_event_time_timer() is timers.next_processing_time_timer() is None
    keys.current_key = -7
    for kind, (held, first) in enumerate(zip(journalled, (10, 11), strict=True)):
        assert held.count_losses() == 3
        saved = JournalledTimers(kind)
        saved.replay(held.changes())
        assert sorted(saved.heap) == [(first + step, -7, 0) for step in (0, 10, 20)]


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        ("push_many", ([1, "2"], [1, 1], 0), (TypeError, ValueError)),
        ("push_many", ([1, 2**63], [1, 1], 0), OverflowError),
        ("remove_many", ([1, 2], [1], 0), ValueError),
        ("pop_due", ("7",), TypeError),
    ],
)
def test_an_error_changes_nothing(method: str, arguments: Any, error: type[Exception]) -> None:
    journalled = JournalledTimers(kind=0)
    journalled.push_many([7], [7], 0)
    journalled.changes()
    with pytest.raises(error):
        getattr(journalled, method)(*arguments)
    assert list(journalled.heap) == [(7, 7, 0)]
    assert journalled.changes() is None


def test_the_journal_holds_what_the_columns_were_at_each_call() -> None:
    timers = JournalledTimers(kind=0)
    times, read_only, behind_a_view = np.arange(3), np.arange(3), np.arange(5, 7)
    read_only.setflags(write=False)
    view = behind_a_view[:]
    view.setflags(write=False)
    timers.push_many(times, read_only, 0)
    timers.push_many([50], [60], 70)
    timers.push_many(7, view, 5)
    times[:], behind_a_view[:] = 99, 99
    timers.pop_due(1)
    timers.remove_many(0, [60], 70)
    batch = timers.changes()
    assert batch is not None
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        *((PUSH, time, time, 0) for time in range(3)),
        (PUSH, 50, 60, 70),
        (PUSH, 7, 5, 5),
        (PUSH, 7, 6, 5),
        (POP_DUE, 1, 0, 0),
        (REMOVE, 0, 60, 70),
    ]
    assert timers.changes() is None
