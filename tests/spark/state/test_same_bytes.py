"""All attempts of a task send and write the same bytes, wherever the group that they continue came from."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from children import PROGRAMS
from chunk_store import MemoryStore, Parts, load, save
from live_files import handed_over, live_file
from memories import Arena
from queries import QUERY

from timerheap import (
    BatchProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap._contents import KeyContext
from timerheap.spark._arrow import KeyedRows, widen
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._functions.state_handles import GroupRuntimeContext
from timerheap.spark._group.growing_state import MapTable
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.timers import timers_in_order
from timerheap.spark._query import Query
from timerheap.spark._tvf.sliced_rows import WindowSpec
from timerheap.spark._tvf.windows_part import WindowsPart
from timerheap.tvf import HoppingSliceAssigner
from timerheap.tvf.aggregates import Max, Sum
from timerheap.tvf.distinct import CountDistinct
from timerheap.tvf.slices import SessionUnsliceAssigner


class Timers(BatchProcessFunction):
    def process_batch(self, batch: Any, ctx: Any) -> None:
        pass


class Attempts:
    """One key group, continued by a process in one of three ways before each micro-batch."""

    def __init__(self, query: Query, ways: list[str], seed: int) -> None:
        self.query, self.ways, self.draw = query, ways, random.Random(seed)
        self.store = MemoryStore()
        self.group, self.stored = KeyGroup(query.layout, live_file()), Stored(Manifest(4))
        self.key: KeyContext[int] = KeyContext()
        self.context = GroupRuntimeContext(self.key, 4)
        pair = Types.TUPLE([Types.STRING(), Types.LONG()])
        self.number = self.context.get_state(ValueStateDescriptor("number", Types.LONG()))
        self.text = self.context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.both = self.context.get_state(ValueStateDescriptor("both", pair))
        self.log = self.context.get_list_state(ListStateDescriptor("log", pair))
        self.book = self.context.get_map_state(MapStateDescriptor("book", Types.LONG(), Types.STRING()))
        self.context.bind(self.group)

    def begin(self) -> None:
        way = self.draw.choice(self.ways)
        if self.store.manifest is None or way == "live":
            return
        if way == "attached":
            self.group, self.stored = handed_over(self.group, self.store)
        else:
            self.group = KeyGroup(self.query.layout, live_file())
            self.stored = load(self.store, self.group)
        self.context.bind(self.group)

    def run(self, batch: int, rows: int, keys: int, seed: int) -> None:
        draw, group, now = random.Random(seed), self.group, 10 * batch
        names = [f"k{int(draw.triangular(batch, batch + keys, batch))}" for _ in range(rows)]
        hashes = np.array([int(name[1:]) % 50 - 20 * (int(name[1:]) % 2) for name in names], np.int64)
        ids = group.keys.resolve(hashes, [pa.array(names)])
        times = np.array([now + draw.randrange(-5, 60) for _ in names])
        columns = [pa.array(names), pa.array([draw.choice([None, n]) for n in range(rows)], pa.int64())]
        waiting = pa.RecordBatch.from_arrays(columns, schema=self.query.schema)
        group.rows.append(KeyedRows(widen(waiting), ids, times).where(times > group.watermark))
        group.watermark = now
        rows, order = group.rows.release(now)
        released = rows.take(order)
        for id_, time in zip(released.ids.tolist(), released.timestamps.tolist(), strict=True):
            self.touch(draw, id_, time)
        for timers in (group.event_timers, group.processing_timers):
            limit = draw.choice([None, 3])
            for due in timers.pop_due(now, limit):
                self.key.current_key = due.key_hash
                for state in draw.sample([self.number, self.text, self.both, self.log, self.book], 4):
                    state.clear()
        if draw.randrange(20) == 0 and len(ids):
            heap = group.event_timers.heap
            of_ids = np.isin(heap.key_hashes, ids[:3])
            columns = (column[of_ids] for column in (heap.timestamps, heap.key_hashes, heap.namespaces))
            group.event_timers.remove_many(*timers_in_order(*columns))
        group.forget_dead_keys()

    def touch(self, draw: random.Random, id_: int, time: int) -> None:
        self.key.current_key = id_
        group = self.group
        name = draw.choice([None, None, "silent", "weekly", str(id_ % 7)])
        namespace = 0 if name is None else group.timer_names.new(name)
        group.event_timers.push_many([time + draw.randrange(90)], id_, namespace)
        group.processing_timers.push_many([time + draw.randrange(90)], id_, 0)
        if draw.randrange(3) == 0:
            group.event_timers.remove_many([time + draw.randrange(90)], [id_], namespace)
        if draw.randrange(9) == 0:
            group.processing_timers.push_many([time, time + 70], [id_, id_], [0, namespace])
        choice = draw.randrange(8)
        if choice == 0:
            self.number.update(draw.choice([None, time]))
        elif choice == 1:
            self.text.update(draw.choice([None, "", "Zoë" * draw.randrange(40)]))
        elif choice == 2:
            self.both.update(draw.choice([None, ("x", None), (None, 3), ("y" * draw.randrange(9), 4)]))
        elif choice == 3:
            self.log.add_all(
                [(draw.choice([None, "log" * draw.randrange(9)]), time) for _ in range(draw.randrange(4))]
            )
        elif choice == 4:
            list(self.log)
            self.log.update([(str(time), None)] * draw.randrange(3))
        elif choice == 5:
            self.book.put(draw.randrange(6), str(time))
        elif choice == 6:
            self.book.remove(draw.randrange(6))
        else:
            dict(self.book.items())
            self.book.remove(draw.randrange(6))
            self.book.put(draw.randrange(6), None)

    def save(self) -> None:
        save(self.group, self.stored, self.store)


def assert_same(one: Attempts, other: Attempts, what: Any) -> None:
    for at in one.store.chunks.keys() | other.store.chunks.keys():
        assert one.store.chunks.get(at) == other.store.chunks.get(at), (what, at)
    manifests = [attempts.store.read_manifest() for attempts in (one, other)]
    assert replace(manifests[0], token=b"") == replace(manifests[1], token=b""), what


@pytest.mark.parametrize(("batches", "rows"), [(60, 3), (8, 60), (2, 1_200)])
def test_what_a_save_writes_depends_on_the_state_and_the_input_alone(batches: int, rows: int) -> None:
    query = replace(QUERY, work=work_of(Timers()))
    ways = [["live"], ["loaded"], ["live", "attached", "loaded"]]
    groups = [Attempts(query, way, seed) for seed, way in enumerate(ways)]
    for batch in range(batches):
        for group in groups:
            group.begin()
            group.run(batch, rows, 2 * rows, batch)
            group.save()
        for group in groups[1:]:
            assert_same(groups[0], group, (batch, group.ways))
    assert len(groups[0].store.chunks) > 10


@pytest.mark.parametrize(
    "assigner", [HoppingSliceAssigner(60, 20), SessionUnsliceAssigner(15)], ids=["slices", "sessions"]
)
def test_what_a_save_writes_of_windows_depends_on_their_state_alone(assigner: Any) -> None:
    aggregates = [Sum("n", np.int64), CountDistinct("text", object), Max("text", object)]
    spec, draw = WindowSpec(assigner, aggregates, {"text": pa.string()}, "windows"), random.Random(1)
    arena = Arena()
    ways = ["live", "attached", "loaded"]
    windows = [WindowsPart(spec, arena) for _ in ways]
    stored, stores = [Stored(Manifest(4)) for _ in ways], [MemoryStore() for _ in ways]
    for watermark in range(0, 500, 10):
        times = [draw.randrange(watermark, watermark + 60) for _ in range(draw.randrange(8))]
        keys = [draw.randrange(9) for _ in times]
        columns = {"n": times, "text": np.array([draw.choice("xyz") * (t % 3) for t in times], object)}
        for at, (way, store) in enumerate(zip(ways, stores, strict=True)):
            if way == "attached":
                windows[at] = WindowsPart(spec, arena, json.loads(json.dumps(windows[at].head())))
                stored[at] = Stored(stored[at].manifest)
            elif way == "loaded" and watermark:
                windows[at] = WindowsPart(spec, arena)
                stored[at] = Stored.load(store, store.read_manifest(), lambda *_, at=at: windows[at])
                windows[at].loaded(watermark - 10)
            windows[at].windows.add(keys, times, columns)
            windows[at].windows.advance_watermark(watermark)
            stored[at].save(store, Parts([windows[at]]), b"")
        for store in stores[1:]:
            assert store.chunks == stores[0].chunks, watermark
    assert stores[0].written > 10_000


def test_a_removal_is_written_whether_the_map_is_loaded_or_too_large_for_that() -> None:
    live = MapTable(64, "map", pa.map_(pa.int64(), pa.int64()))
    for n in (250, 50):  # stored one after the other, and as one in a snapshot
        live.put(1, dict.fromkeys(range(n), n))
        live.changes()
    loaded = MapTable.restored(64, "map", live.schema)
    loaded.replay(live.snapshot())
    for table in (live, loaded):
        assert table.find(1, 1000) == (False, None)
        table.remove(1, 1000)
    assert live.changes() == loaded.changes()


def test_all_attempts_of_a_pack_task_send_the_same_bytes() -> None:
    """Spark ends a query whose tasks send something else when a lost executor makes them run again."""
    program = PROGRAMS / "packed_bytes.py"

    def run(number: int) -> str:
        # Other hashes of texts, and other bytes in memory that is not written.
        settings = {"PYTHONHASHSEED": str(number), "MALLOC_PERTURB_": str(number), "PYTHONMALLOC": "malloc"}
        settings["ARROW_DEFAULT_MEMORY_POOL"] = "system"
        command = [sys.executable, program]
        return subprocess.run(
            command, env=os.environ | settings, check=True, capture_output=True, text=True
        ).stdout

    sent = run(1)
    assert len(sent.split()) == 3
    assert run(2) == sent
