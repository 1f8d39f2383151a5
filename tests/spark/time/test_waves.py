"""Compares columns in event-time order with rows and with a plain Python model, without Spark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import place_inputs
import pyarrow as pa
import pytest
from chunk_store import MemoryStore, load, save
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from queries import opened, query_of

from timerheap import BatchProcessFunction, KeyedProcessFunction, ValueStateDescriptor
from timerheap._native._core import PlaceNumbers, wave_order
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.timers import TimerNames
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

ROWS, RESULT = StructType(), StructType()
for name in ("k", "at", "add", "drop", "ns"):
    ROWS.add(name, "long")
for name in ("k", "at", "ns", "watermark", "n"):
    RESULT.add(name, "long")
RESULT.add("new", "boolean")
ROW_NS = -1  # in the results of rows
NAMES = [None, *sorted(("silent", "weekly"), key=TimerNames().new)]  # in firing order, by `ns`


@dataclass(frozen=True)
class Step:
    """A row: registers a timer `add` later, then deletes the one `drop` later."""

    k: int
    at: int
    add: int
    drop: int
    ns: int


def cascade(at: int, ns: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the timers, with `ns`, that a timer registers and deletes; some are due already."""
    added = [(at + 2, ns)] * (at % 3 == 0) + [(at - 3, ns)] * (at % 5 == 0)
    return added, [(at + 2, ns)] * (at % 7 == 0) + [(at, (ns + 1) % 3)] * (at % 4 == 0)


class Columns(BatchProcessFunction):
    """Does what `model` does, for many keys at once."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", "bigint"))
        self.sizes: list[int] = []

    def count(self, ids: np.ndarray) -> np.ndarray:
        assert len(np.unique(ids)) == len(ids), "a call has each key at most once"
        self.sizes.append(len(ids))
        n = self.n.values(ids).fill_null(0).to_numpy() + 1
        self.n.update_many(ids, n)
        return n

    def register(self, ctx: Any, ids: np.ndarray, at: np.ndarray, ns: np.ndarray) -> np.ndarray:
        new = np.zeros(len(ids), bool)
        for number, name in enumerate(NAMES):
            mine = ns == number
            if mine.any():
                at_hand = ids if mine.all() else ids[mine]
                new[mine] = ctx.timer_service().register_event_time_timers(at_hand, at[mine], name=name)
        return new

    def delete(self, ctx: Any, ids: np.ndarray, at: np.ndarray, ns: np.ndarray) -> None:
        for number, name in enumerate(NAMES):
            timestamps = at[ns == number] if name is None else None
            ctx.timer_service().delete_event_time_timers(ids[ns == number], timestamps, name=name)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Any:
        at, add, drop, ns = (batch.column(name).to_numpy() for name in ("at", "add", "drop", "ns"))
        assert at.tolist() == ctx.timestamps.tolist()
        n = self.count(ctx.ids)
        new = self.register(ctx, ctx.ids, at + add, ns)
        some = drop > 0
        self.delete(ctx, ctx.ids[some], (at + drop)[some], ns[some])
        yield self.results(ctx, np.full(len(n), ROW_NS), n, new)

    def on_timers(self, due: Any, ctx: Any) -> Any:
        due_ns = np.array([NAMES.index(name) for name in due.names], np.int64)
        columns = (due.timestamps, due.ids, due_ns)
        fired = list(zip(*(column.tolist() for column in columns), strict=True))
        assert fired == sorted(fired)
        n = self.count(due.ids)
        done = [cascade(at, ns) for at, _, ns in fired]
        for part in (0, 1):
            timers = [(id_, *t) for id_, did in zip(due.ids, done, strict=True) for t in did[part]]
            if timers:
                ids, at, ns = np.array(timers, np.int64).T
                (self.delete if part else self.register)(ctx, ids, at, ns)
        yield self.results(ctx, due_ns, n, np.zeros(len(n), bool))

    def results(self, ctx: Any, ns: np.ndarray, n: np.ndarray, new: np.ndarray) -> pa.RecordBatch:
        assert ctx.timer_service().current_watermark() == min(ctx.watermarks.tolist())
        columns = [ctx.keys(ctx.ids).column("k"), ctx.timestamps, ns, ctx.watermarks, n, new]
        return pa.record_batch([pa.array(column) for column in columns], names=RESULT.names)


class Rows(KeyedProcessFunction):
    """Does what `model` does, row by row."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", "bigint"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        timers, at, name = ctx.timer_service(), value.at + value.add, NAMES[value.ns]
        if name is None:
            named = [timers.next_event_time_timer(name=each) for each in NAMES[1:]]
            new = timers.event_time_timers().count(at) == named.count(at)
        else:
            new = timers.next_event_time_timer(name=name) is None
        timers.register_event_time_timer(at, name=name)
        if value.drop > 0:
            self.delete(timers, value.at + value.drop, value.ns)
        yield self.result(ctx, ROW_NS, new)

    def delete(self, timers: Any, at: int, ns: int) -> None:
        timers.delete_event_time_timer(None if ns else at, name=NAMES[ns])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        number = NAMES.index(ctx.timer_name())
        added, dropped = cascade(timestamp, number)
        for at, ns in added:
            ctx.timer_service().register_event_time_timer(at, name=NAMES[ns])
        for at, ns in dropped:
            self.delete(ctx.timer_service(), at, ns)
        yield self.result(ctx, number, False)

    def result(self, ctx: Any, ns: int, new: bool) -> tuple[Any, ...]:
        self.n.update((self.n.value() or 0) + 1)
        watermark = ctx.timer_service().current_watermark()
        return ctx.get_current_key(), ctx.timestamp(), ns, watermark, self.n.value(), new


def model(steps: Sequence[Step]) -> list[tuple[Any, ...]]:
    """Return the results for the rows of one key, one row or timer after the other."""
    timers: dict[Any, tuple[int, int]] = {}
    out: list[tuple[Any, ...]] = []
    watermark = MIN_WATERMARK

    def identity(at: int, ns: int) -> Any:
        return ns or (at, ns)

    def report(at: int, ns: int, new: bool) -> None:
        out.append((steps[0].k, at, ns, watermark, len(out) + 1, new))

    def fire_before(end: int) -> None:
        nonlocal watermark
        while timers and min(timers.values())[0] < end:
            at, ns = min(timers.values())
            del timers[identity(at, ns)]
            watermark = max(watermark, at)
            added, dropped = cascade(at, ns)
            timers.update({identity(*timer): timer for timer in added})
            for timer in dropped:
                timers.pop(identity(*timer), None)
            report(at, ns, False)

    for step in sorted(steps, key=lambda step: (step.at, step.add, step.drop, step.ns)):
        if watermark < step.at - 1:  # no timer comes between rows of one timestamp
            fire_before(step.at)
        watermark = step.at - 1
        timer = step.at + step.add, step.ns
        new = identity(*timer) not in timers
        timers[identity(*timer)] = timer
        if step.drop > 0:
            timers.pop(identity(step.at + step.drop, step.ns), None)
        report(step.at, ROW_NS, new)
    fire_before(MAX_WATERMARK)
    return out


def run(function: Any, steps: Sequence[Step], cuts: Sequence[int] = ()) -> dict[int, list[tuple[Any, ...]]]:
    """Run a function on rows divided into micro-batches at these times; return the results of each key."""
    query = query_of(function, ROWS, RESULT)
    group, runner = KeyGroup(query.layout), opened(query)
    store, stored = MemoryStore(), Stored(Manifest(1))
    results: dict[int, list[tuple[Any, ...]]] = {}
    start = MIN_WATERMARK
    for batch, stop in enumerate([*sorted(cuts), MAX_WATERMARK]):
        numbers = [n for n in range(len(steps)) if start < _arrival(steps, n) <= stop]
        output = ResultBuffer(query.result_schema)
        run_key_group(MicroBatch(query, runner, None, output), group, _rows(steps, numbers), stop)
        if batch % (1 + len(cuts) // 20) == 0:
            save(group, stored, store)
            group = KeyGroup(query.layout)
            group.watermark = stop
            stored = load(store, group)
        for row in output.table().to_pylist():
            results.setdefault(row["k"], []).append(tuple(row.values()))
        start = stop
    assert not len(group.event_timers.heap)
    return results


def _arrival(steps: Sequence[Step], n: int) -> int:
    return steps[n].at - 3 * (n % 2)


def _rows(steps: Sequence[Step], numbers: Sequence[int]) -> KeyedRows:
    columns = {name: np.array([getattr(steps[n], name) for n in numbers], np.int64) for name in ROWS.names}
    return KeyedRows(pa.record_batch(columns), columns["k"] * 11 + 5, columns["at"])


STEPS = st.lists(
    st.builds(
        Step,
        k=st.integers(0, 3),
        at=st.integers(0, 40),
        add=st.integers(-6, 20),
        drop=st.integers(-10, 12),
        ns=st.integers(0, 2),
    ),
    max_size=25,
)
CUTS = st.lists(st.integers(0, 60), max_size=5)


def expected(steps: Sequence[Step]) -> dict[int, list[tuple[Any, ...]]]:
    return {k: model([s for s in steps if s.k == k]) for k in {step.k for step in steps}}


@pytest.mark.parametrize("function", [Columns, Rows])
@settings(max_examples=60)
@given(steps=STEPS, cuts=CUTS)
def test_columns_and_rows_equal_a_model_for_any_micro_batches(
    function: type[Any], steps: list[Step], cuts: list[int]
) -> None:
    assert run(function(), steps, cuts) == expected(steps)


@pytest.mark.parametrize("micro_batches", [1, 20, 200])
def test_results_do_not_depend_on_the_number_of_micro_batches(micro_batches: int) -> None:
    draw = random.Random(micro_batches)
    steps = [
        Step(
            draw.randrange(20),
            draw.randrange(1000),
            draw.randrange(-6, 60),
            draw.randrange(-10, 40),
            draw.randrange(3),
        )
        for _ in range(400)
    ]
    cuts = [n * 1000 // micro_batches for n in range(1, micro_batches)]

    assert run(Columns(), steps, cuts) == run(Rows(), steps, cuts) == expected(steps)


def test_a_call_has_each_key_and_all_keys_share_calls() -> None:
    steps = [Step(k, 10 * n + k, 5, 0, 0) for k in range(100) for n in range(3)]
    function = Columns()
    run(function, steps)
    assert function.sizes[0] == 100
    assert len(function.sizes) < 30, "and not one call for each of 300 rows and their timers"


def test_waves_are_the_first_rows_of_all_keys_then_the_second_ones() -> None:
    order, numbers, stops = wave_order(np.array([0, 1, 2, 3, 6, 5]), np.array([0, 1, 0, 2, -1, 1, 0]), 3)
    assert order.tolist() == [0, 1, 3, 2, 5, 6]
    assert numbers.tolist() == [0, 1, 2, 0, 1, 0]
    assert stops.tolist() == [3, 5, 6]
    none = np.zeros(0, np.int64)
    assert [each.tolist() for each in wave_order(none, none, 0)] == [[], [], []]
    for rows, number in (([0, 1], 2), ([0, 1], -1), ([0, 2], 0), ([-1, 0], 0)):
        with pytest.raises(ValueError, match="rows must be from 0 to 1, and numbers from 0 to 1"):
            wave_order(np.array(rows), np.array([0, number]), 2)


def test_places_are_numbered_as_they_first_occur() -> None:
    keys = PlaceNumbers(10)
    numbers, added = keys.number_many(np.array([9, 0, 9, 4]))
    assert (numbers.tolist(), added.tolist()) == ([0, 1, 0, 2], [True, True, False, True])
    numbers, added = keys.number_many(np.array([4, 5]))
    assert (numbers.tolist(), added.tolist()) == ([2, 3], [False, True])
    assert len(keys) == 4
    for place in (-1, 10):
        with pytest.raises(ValueError, match="places must be from 0 to 9"):
            keys.number_many(np.array([place]))
    with pytest.raises(ValueError, match="places must be from 0"):
        PlaceNumbers(-1)


@given(st.binary(max_size=80))
def test_places_and_waves_equal_a_model(data: bytes) -> None:
    place_inputs.run(data)


def test_timers_that_are_always_due_again_raise() -> None:
    class Endless(Columns):
        def on_timers(self, due: Any, ctx: Any) -> None:
            ctx.timer_service().register_event_time_timers(due.ids, due.timestamps)

    with pytest.raises(RuntimeError, match=r"Endless must not .* got the timer at 15 of key \{'k': 3\}"):
        run(Endless(), [Step(3, 10, 5, 0, 0)])
