"""What a save writes is in proportion to what changed, and a run has few chunks; by count, not by time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import MemoryStore, Parts
from hypothesis import given
from hypothesis import strategies as st

from timerheap import TimerHeap
from timerheap._native._core import seal
from timerheap.spark._arrow import size_of
from timerheap.spark._group.growing_state import ListTable, MapTable
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.formats import CHECKPOINT
from timerheap.spark._group.stored.kinds import EVENT_TIMERS, USER_STATE, WATERMARK
from timerheap.spark._group.stored.manifest import Manifest, Run, Segment, Standing
from timerheap.spark._group.stored.tiers import Tiers
from timerheap.spark._group.stored.watermark_bytes import InputWatermark, StoredWatermark, encode_watermark
from timerheap.spark._group.stored_watermark import INLINE_WATERMARK, read_watermark
from timerheap.spark._group.timers import JournalledTimers
from timerheap.spark._group.value_state import StateTable
from timerheap.spark._memory.blocks import PROCESS, Block, ProcessMemory

SMALL_WATERMARK = bytes(50)


def large_watermark(watermark: int, channels: int = 200) -> bytes:
    marks = np.full(channels, watermark)
    names: list[str | None] = [f"channel {n}" for n in range(channels)]
    input_ = InputWatermark("channel", watermark, names, marks, marks, np.ones(channels, bool), marks)
    return encode_watermark(StoredWatermark(watermark, None, [input_]))


class Group:
    """A group of two parts: timers, and one value state."""

    def __init__(self, memory: ProcessMemory = PROCESS) -> None:
        self.timers = JournalledTimers(EVENT_TIMERS, memory)
        self.state = StateTable(USER_STATE, "last", pa.int64(), memory)

    def parts(self) -> list[Any]:
        return [self.timers, self.state]

    def part(self, kind: int, name: str, schema: pa.Schema) -> Any:
        return self.timers if kind == EVENT_TIMERS else self.state

    def contents(self) -> tuple[Any, ...]:
        ids = np.sort(self.state.ids())
        return sorted(self.timers.heap), ids.tolist(), self.state.get_many(ids).to_pylist()


def chunks_bound(nbytes: int) -> float:
    """Return how many chunks a run of small saves may have: at most 10 segments a level."""
    return 10 * (1 + max(0, np.log2(nbytes / 4096) / 3 + 1))


@pytest.mark.parametrize(
    ("keys", "saves"), [(1, 500), (300, 1_000), (10**9, 3_000)], ids=["one key", "few keys", "new keys"]
)
def test_many_small_saves_leave_few_chunks_and_few_calls(keys: int, saves: int) -> None:
    group, stored, store = Group(), Stored(Manifest(4)), MemoryStore()
    for n in range(saves):
        key = n % keys
        group.timers.push_many([10**12 + n], key, 0)
        group.timers.pop_due(10**12 + n - min(keys, 2_000))
        group.state.store(key, n)
        stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    for part in group.parts():
        of_part = [data for (kind, _), data in store.chunks.items() if kind == part.kind]
        size = sum(map(len, of_part))
        assert len(of_part) <= 1 + chunks_bound(size)
        assert size <= 3 * size_of(part.snapshot()) + 24_000, "the space is within a factor of the live state"
    assert store.written <= 1200 * saves
    assert store.calls <= 6 * saves, "the manifest, two parts, and what their merges take"
    assert len(store.reads) <= saves / 5, "small chunks are not read again"
    restored = Group()
    store.reads.clear()
    Stored.load(store, store.read_manifest(), restored.part)
    assert sorted(store.reads) == sorted(store.chunks), "a load reads each chunk once"
    assert restored.contents() == group.contents()


def test_a_save_without_changes_writes_the_manifest_alone() -> None:
    group, stored, store = Group(), Stored(Manifest(4)), MemoryStore()
    group.state.put_many(np.arange(1000), pa.array(np.arange(1000)))
    stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    store.calls = store.written = 0
    stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    assert (store.calls, store.written) == (1, len(store.manifest or b""))
    assert store.written < 200


def test_one_changed_key_costs_few_bytes_and_calls() -> None:
    group, stored, store = Group(), Stored(Manifest(4)), MemoryStore()
    group.state.put_many(np.arange(100_000), pa.array(np.arange(100_000)))
    group.timers.push_many(np.arange(100_000), np.arange(100_000), 0)
    stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    store.calls = store.written = 0
    for n in range(100):
        group.state.store(n, -1)
        stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    assert store.written <= 100 * 350
    assert store.calls <= 100 * 3


class CountingMemory(ProcessMemory):
    """Memory that counts its blocks."""

    def __init__(self) -> None:
        self.blocks = self.live = self.nbytes = 0

    def allocate(self, nbytes: int) -> Block:
        self.blocks += 1
        self.live += 1
        self.nbytes += nbytes
        return super().allocate(nbytes)

    def release(self, block: Block) -> None:
        self.live -= 1


def of_keys(memory: ProcessMemory) -> list[Any]:
    """Return empty parts: timers, and a state of each shape."""
    entries = pa.list_(pa.field("element", pa.int64())), pa.map_(pa.string(), pa.int64())
    return [
        JournalledTimers(EVENT_TIMERS, memory),
        StateTable(USER_STATE, "last", pa.int64(), memory),
        ListTable(USER_STATE + 1, "all", entries[0], memory),
        MapTable(USER_STATE + 2, "by name", entries[1], memory),
    ]


@pytest.mark.parametrize("saves", [1, 5])
def test_a_load_makes_room_once(saves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timerheap.spark._group.stored.chunks._TARGET_BYTES", 256 << 10)
    parts, stored, store = of_keys(PROCESS), Stored(Manifest(4)), MemoryStore()
    timers, last, lists, maps = parts
    n = 50_000 // saves
    for first in range(0, n * saves, n):
        keys = np.arange(first, first + n)
        timers.push_many(keys, keys, 0)
        last.put_many(keys, pa.array(keys))
        for key in keys.tolist():
            lists.append(key, [key, 1])
            maps.put(key, {"a": key})
        stored.save(store, Parts(parts), SMALL_WATERMARK)
    assert len(store.chunks) > 15
    memory = CountingMemory()
    restored = of_keys(memory)
    Stored.load(store, store.read_manifest(), lambda kind, *_: next(p for p in restored if p.kind == kind))
    assert sorted(restored[0].heap) == sorted(timers.heap)
    for one, other in zip(restored[1:], parts[1:], strict=True):
        found, wanted = (part.snapshot().sort_by("key_hash") for part in (one, other))
        assert found.equals(wanted)
    assert memory.blocks <= 2 * memory.live, "one for the first chunk of a part, and one for the others"
    assert restored[0].heap.nbytes <= 1.01 * TimerHeap(len(timers)).nbytes


@pytest.mark.parametrize("first", ["small", "large"])
def test_a_load_of_uneven_rows_makes_no_room_in_vain(first: str) -> None:
    values = ["x"] * 20_000 + ["y" * 100_000] * 60
    column = pa.array(values if first == "small" else values[::-1])
    state, store = StateTable(USER_STATE, "text", pa.string()), MemoryStore()
    state.put_many(np.arange(len(values)), column)
    Stored(Manifest(4)).save(store, Parts([state]), SMALL_WATERMARK)
    assert len(store.chunks) > 5
    memory = CountingMemory()
    restored = StateTable(USER_STATE, "text", pa.string(), memory)
    Stored.load(store, store.read_manifest(), lambda *_: restored)
    assert memory.nbytes < 60_000_000, "with all blocks while 6 MB of values grow"
    assert restored.get_many(np.arange(len(values))).equals(state.get_many(np.arange(len(values))))


def test_a_load_of_one_chunk_makes_no_room_for_others() -> None:
    state, store = StateTable(USER_STATE, "text", pa.string()), MemoryStore()
    state.put_many(np.arange(1), pa.array(["x" * 1_000_000]))
    Stored(Manifest(4)).save(store, Parts([state]), SMALL_WATERMARK)
    memory = CountingMemory()
    restored = StateTable(USER_STATE, "text", pa.string(), memory)
    Stored.load(store, store.read_manifest(), lambda *_: restored)
    assert memory.nbytes < 1_100_000


def test_another_process_continues_and_merges_what_was_saved() -> None:
    group, store = Group(), MemoryStore()
    group.state.put_many(np.arange(10_000), pa.array(np.arange(10_000)))
    Stored(Manifest(4)).save(store, Parts(group.parts()), SMALL_WATERMARK)
    for n in range(200):
        group.state.store(n, -n)
        Stored(store.read_manifest()).save(store, Parts(group.parts()), SMALL_WATERMARK)
    assert all(kind == USER_STATE and id_ > 1 for kind, id_ in store.reads), "the oldest is not read"
    assert len(store.chunks) <= 2 + 20
    restored = Group()
    Stored.load(store, store.read_manifest(), restored.part)
    assert restored.contents() == group.contents()


OPERATIONS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4), st.integers(0, 1)), max_size=12
)


@given(st.booleans(), st.lists(st.tuples(OPERATIONS, st.booleans()), min_size=1, max_size=8), st.data())
def test_a_merged_journal_of_timers_replays_like_its_parts(
    named: bool, saves: list[Any], data: st.DataObject
) -> None:
    timers = JournalledTimers(EVENT_TIMERS, named=named)
    journals: list[pa.RecordBatch] = []
    for operations, many in saves:
        for op, time, key, namespace in operations:
            if op == 0:
                timers.pop_due(time)
            elif op == 1:
                timers.remove_many([time], [key], namespace)
            elif many:
                timers.push_many([time, time + 1], [key, key + 1], namespace)
            else:
                timers.push_many([time], key, namespace)
        journals += [batch for batch in [timers.changes()] if batch is not None]
    start = data.draw(st.integers(0, len(journals)))
    stop = data.draw(st.integers(start, len(journals)))
    if start < stop:
        journals[start:stop] = [timers.merge(journals[start:stop])]
    restored = JournalledTimers(EVENT_TIMERS, named=named)
    for journal in journals:
        restored.replay(journal)
    assert sorted(restored.heap) == sorted(timers.heap)


def test_a_journal_of_many_single_changes_is_replayed_in_bulk() -> None:
    timers, restored = (JournalledTimers(EVENT_TIMERS) for _ in range(2))
    for n in range(1000):
        timers.push_many([n], n % 7, n % 2)
        if n >= 5:
            timers.remove_many([n - 5], (n - 5) % 7, (n - 5) % 2)
    journal = timers.changes()
    assert journal is not None
    restored.replay(journal)
    assert sorted(restored.heap) == sorted(timers.heap)
    assert timers.merge([journal]).num_rows <= 1000


def test_groups_merge_and_rewrite_at_different_times() -> None:
    ids = [bytes([n * 16 + 3, n * 16, *range(6)]) for n in range(16)]
    first = [next(n for n in range(1, 99) if Tiers(id_).merge_from([100] * n) != n - 1) for id_ in ids]
    assert min(first) >= 6
    assert max(first) <= 10
    assert len(set(first)) == 5
    grown = [next(n for n in range(200) if Tiers(id_).overgrown(n << 20, 1, 64 << 20)) for id_ in ids]
    assert len(set(grown)) == 16


def test_a_large_segment_is_not_merged_with_small_ones() -> None:
    tiers = Tiers(bytes([2, 0, *range(6)]))  # merges 8
    assert tiers.merge_from([10**6] + [100] * 7) == 7
    assert tiers.merge_from([10**6] + [100] * 8) == 1
    assert tiers.merge_from([10**6] * 7 + [100] * 7 + [10**6]) == 0, "the small ones go with the large ones"
    assert tiers.merge_from([10**7] + [30_000] * 7 + [3_900] * 8) == 1, "a merge may complete the next level"


def manifest() -> Manifest:
    runs = [
        Run(USER_STATE, 2**32 - 1, 10**7, 10**5, [Segment(3, 10**6, 10**5, 2**32 - 1), Segment(1, 64, 1, 0)]),
        Run(EVENT_TIMERS, 0),
    ]
    standing = Standing(1, 300, 2, 70_000, -5, 2**62)
    return Manifest(
        16, bytes(range(8)), bytes(range(16)), -3, b"clock", True, True, 10**12, 2**40, -1, standing, runs
    )


def test_a_manifest_is_read_back() -> None:
    assert Manifest.from_bytes(manifest().to_bytes()) == manifest()
    none = Manifest(1, token=bytes(16))
    assert Manifest.from_bytes(none.to_bytes()) == none


@given(at=st.integers(0, len(manifest().to_bytes()) - 1), byte=st.integers(1, 255), cut=st.booleans())
def test_a_damaged_manifest_raises(at: int, byte: int, cut: bool) -> None:
    data = bytearray(manifest().to_bytes())
    if cut:
        del data[at:]
    else:
        data[at] ^= byte
    with pytest.raises(ValueError):  # noqa: PT011
        Manifest.from_bytes(bytes(data))


@given(payload=st.binary(max_size=120))
def test_a_sealed_invalid_manifest_raises(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"manifest|format"):
        Manifest.from_bytes(seal(32, payload))
    with pytest.raises(ValueError, match="manifest"):
        Manifest.from_bytes(seal(32, CHECKPOINT.written.to_bytes(2, "little") + payload))


def test_chunks_of_two_attempts_of_a_task_raise() -> None:
    """Spark keeps the changes of one attempt and hands the next task the state of the other."""
    group, stored, store = Group(), Stored(Manifest(4)), MemoryStore()
    group.timers.push_many(np.arange(100), np.arange(100), 0)
    stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    group.timers.push_many([200], 1, 0)
    stored.save(store, Parts(group.parts()), SMALL_WATERMARK)
    other_group, other = Group(), MemoryStore()
    other_group.timers.push_many(np.arange(1, 101), np.arange(100), 0)
    Stored(Manifest(4)).save(other, Parts(other_group.parts()), SMALL_WATERMARK)
    store.chunks[EVENT_TIMERS, 1] = other.chunks[EVENT_TIMERS, 1]
    with pytest.raises(ValueError, match=r"mixes chunks of kind 16 'timers' from two attempts of a"):
        Stored.load(store, store.read_manifest(), Group().part)


def test_another_format_raises() -> None:
    with pytest.raises(ValueError, match="timerheap's state format 1, and this version reads"):
        Manifest.from_bytes(seal(32, b"\x01\x00" + bytes(60)))


def test_a_large_clock_is_written_only_when_it_changes() -> None:
    stored, store = Stored(Manifest(4)), MemoryStore()
    states = [large_watermark(1), large_watermark(2), SMALL_WATERMARK]
    for state in states:
        stored.save(store, Parts(), state)
        assert (WATERMARK, 0) in store.chunks or len(state) <= INLINE_WATERMARK
        calls = store.calls
        stored.save(store, Parts(), state)
        assert store.calls == calls + 1, "the manifest"
        assert read_watermark(stored.manifest, store) == read_watermark(store.read_manifest(), store) == state
    assert not store.chunks


def test_only_the_first_group_of_a_task_writes_what_changes_in_a_large_watermark() -> None:
    first, other = MemoryStore(), MemoryStore()
    stored = {True: (Stored(Manifest(4)), first), False: (Stored(Manifest(4)), other)}
    for watermark in (1, 2, 3):
        for writes, (group, store) in stored.items():
            before = store.written
            group.save(store, Parts([], watermark), large_watermark(watermark), writes_watermark=writes)
            manifest = store.read_manifest()
            written = store.written - before - len(store.manifest or b"")
            assert written == 0 if watermark > 1 and not writes else written > 0
            assert manifest.watermark == watermark
            assert manifest.watermark_stale == (watermark > 1 and not writes)
            assert read_watermark(manifest, store) == large_watermark(watermark if writes else 1)
    names = first.chunks[WATERMARK, 1]
    assert names == other.chunks[WATERMARK, 1]
    group, store = stored[False]
    group.save(
        store, Parts(), large_watermark(4, channels=201)
    )  # as every group does when there are new channels
    assert not store.read_manifest().watermark_stale
    assert store.chunks[WATERMARK, 1] != names
    group.save(store, Parts(), SMALL_WATERMARK, writes_watermark=False)
    assert not store.chunks
    assert read_watermark(store.read_manifest(), store) == SMALL_WATERMARK


def test_a_watermark_that_is_not_the_manifest_s_raises() -> None:
    stored, store = Stored(Manifest(4)), MemoryStore()
    stored.save(store, Parts(), large_watermark(1))
    before = dict(store.chunks)
    stored.save(store, Parts(), large_watermark(2))
    store.chunks = before
    with pytest.raises(ValueError, match="is not that of the manifest"):
        read_watermark(stored.manifest, store)
    store.chunks = {}
    with pytest.raises(ValueError, match="lacks a chunk of the watermark's state"):
        read_watermark(stored.manifest, store)
