"""A RowBuffer equals a sorted list of rows, also when it is restored, and costs what comes and goes."""

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

from timerheap.spark._arrow import KeyedRows, narrow, widen
from timerheap.spark._group.row_buffer import RowBuffer

TEXTS = pa.schema([("order", pa.int64()), ("text", pa.string())])
NUMBERS = pa.schema([("order", pa.int64()), ("n", pa.int32())])
ENTRIES = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3), st.integers(-3, 3)), max_size=30)
Row = tuple[int, int, int, Any]  # timestamp, id, order, value


def keyed(rows: list[Row], schema: pa.Schema) -> KeyedRows:
    columns = [pa.array([row[2 + i] for row in rows], field.type) for i, field in enumerate(schema)]
    ids, timestamps = (np.array([row[at] for row in rows], np.int64) for at in (1, 0))
    return KeyedRows(widen(pa.RecordBatch.from_arrays(columns, schema=schema)), ids, timestamps)


def released_rows(buffer: RowBuffer, watermark: int) -> list[Row]:
    rows, positions = buffer.release(watermark)
    released = rows.take(positions)
    order, value = (column.to_pylist() for column in released.rows.columns)
    return list(zip(released.timestamps.tolist(), released.ids.tolist(), order, value, strict=True))


@pytest.mark.parametrize("schema", [TEXTS, NUMBERS], ids=["variable", "fixed"])
def test_a_buffer_equals_a_sorted_list_of_rows(schema: pa.Schema) -> None:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.memory = Arena()
            self.buffer = RowBuffer(schema, "event_time", self.memory)
            self.model: list[Row] = []
            self.watermark = 0
            self.count = 0
            self.chunks: list[pa.RecordBatch] = []

        @rule(entries=ENTRIES)
        def append(self, entries: list[tuple[int, int, int]]) -> None:
            rows: list[Row] = []
            for later, id_, order in entries:
                self.count += 1
                value = self.count if schema is NUMBERS else "x" * (self.count % 7)
                # Of rows that are equal in the order, either may come first.
                rows.append((self.watermark + later, id_, order * 1000 + self.count, value))
            self.buffer.append(keyed(rows, schema))
            self.model += rows

        @rule(by=st.integers(0, 20))
        def release(self, by: int) -> None:
            self.watermark += by
            due = sorted(row for row in self.model if row[0] <= self.watermark)
            assert released_rows(self.buffer, self.watermark) == due
            self.model = [row for row in self.model if row[0] > self.watermark]

        @rule(anew=st.booleans())
        def save(self, anew: bool) -> None:
            changes = self.buffer.changes()
            if anew:
                self.chunks = [narrow(self.buffer.snapshot(), self.buffer.schema)]
                assert self.chunks[0].num_rows == len(self.model)
            elif changes is not None:
                assert changes.num_rows > 0
                assert min(changes.column(-1).to_pylist()) > self.watermark
                self.chunks.append(narrow(changes, self.buffer.schema))

        @rule()
        def merge(self) -> None:
            if self.chunks:
                waiting = self.buffer.merge([widen(chunk) for chunk in self.chunks])
                assert all(timestamp > self.watermark for timestamp in waiting.column(-1).to_pylist())
                self.chunks = [narrow(waiting, self.buffer.schema)]

        @rule()
        def go_on_in_another_process(self) -> None:
            self.save(anew=False)
            head = json.loads(json.dumps(self.buffer.head()))
            self.buffer = RowBuffer(schema, "event_time", self.memory, head)

        @rule()
        def reload(self) -> None:
            self.save(anew=False)
            self.memory = Arena()
            self.buffer = RowBuffer(schema, "event_time", self.memory)
            for chunk in self.chunks:
                self.buffer.replay(chunk)
            self.buffer.loaded(self.watermark)
            assert self.buffer.changes() is None

        @invariant()
        def knows_whose_rows_wait(self) -> None:
            assert len(self.buffer) == len(self.model)
            assert sorted(self.buffer.ids().tolist()) == sorted(row[1] for row in self.model)

    Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
    Machine.TestCase("runTest").runTest()


def test_the_rows_of_a_save_are_the_new_ones_even_if_the_buffer_was_compacted() -> None:
    buffer, rewritten = RowBuffer(TEXTS, "event_time"), 0
    for time in range(1, 100):
        new = [(time + 1 + i % 10, i, 100 * time + i, f"{i}-{time} ".ljust(400)) for i in range(50)]
        before = len(buffer._slab)
        buffer.append(keyed([(time, 99, 99, "due"), *new], TEXTS))
        buffer.release(time)
        rewritten += len(buffer._slab) < before
        changes = buffer.changes()
        assert changes is not None
        columns = (
            changes.column(name).to_pylist()
            for name in ("__timerheap_timestamp", "__timerheap_id", "order", "text")
        )
        assert list(zip(*columns, strict=True)) == new
    assert rewritten


@pytest.mark.parametrize("schema", [TEXTS, NUMBERS], ids=["variable", "fixed"])
def test_released_rows_leave_no_garbage_behind(schema: pa.Schema) -> None:
    memory = Arena()
    buffer = RowBuffer(schema, "event_time", memory)
    value: Any = 7 if schema is NUMBERS else "x" * 400
    for time in range(1, 200):
        buffer.append(keyed([(time + i % 10, i, i, value) for i in range(50)], schema))
        buffer.release(time)
        if schema is TEXTS:
            assert buffer._slab.nbytes() <= 2.25 * 420 * (len(buffer) + 50) + 1.25 * (64 << 10)
        else:
            assert len(buffer._slab) <= 50 * 10, "places are used again"
    buffer.release(1000)
    assert len(buffer) == buffer._slab.nbytes() == 0


@pytest.mark.parametrize("schema", [TEXTS, NUMBERS], ids=["variable", "fixed"])
def test_a_failed_allocation_leaves_the_buffer_as_it_was(schema: pa.Schema) -> None:
    value: Any = None if schema is NUMBERS else "x" * 99
    old = [(i, 1, 0, 1 if schema is NUMBERS else "y") for i in range(1, 9)]
    new = [(i, 2, 0, value) for i in range(1, 99)]
    for allowed in range(100):
        memory = Arena()
        buffer = RowBuffer(schema, "event_time", memory)
        buffer.append(keyed(old, schema))
        assert released_rows(buffer, 2) == old[:2]
        buffer.append(keyed(new[:9], schema))
        buffer.append(keyed(new[9:], schema))
        memory.allowed = allowed
        try:
            released = released_rows(buffer, 3)
        except MemoryError:
            memory.allowed = None
            assert len(buffer) == 6 + 98
            released = released_rows(buffer, 3)
        else:
            allowed = 100 if memory.allowed else allowed
        assert released == sorted([old[2], *new[:3]])
        memory.allowed = 0
        assert released_rows(buffer, 95) == sorted([*old[3:], *new[3:95]]), "releasing needs no memory"
        memory.allowed = None
        changes = buffer.changes()
        assert changes is not None
        assert changes.num_rows == 3
        assert released_rows(buffer, 100) == new[95:]
        if allowed == 100:
            break
    assert allowed == 100


@pytest.mark.parametrize("schema", [TEXTS, NUMBERS], ids=["variable", "fixed"])
def test_a_snapshot_does_not_depend_on_the_places_of_rows(schema: pa.Schema) -> None:
    buffer = RowBuffer(schema, "event_time")
    for time in range(1, 40):
        times = [time + 1 + i % 7 for i in range(30)]
        values = ["x" * 300 * (at % 5) if schema is TEXTS else at for at in times]
        buffer.append(keyed([(at, i, -i, values[i]) for i, at in enumerate(times)], schema))
        buffer.release(time)
        loaded = RowBuffer(schema, "event_time")
        loaded.replay(narrow(buffer.snapshot(), buffer.schema))
        loaded.loaded(time)
        assert loaded.snapshot() == buffer.snapshot()
        if time % 3:
            buffer = loaded
