"""Tests a BatchProcessFunction on one key group without Spark: key ids, the current key, state."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from queries import query_of

from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.output import ResultBuffer

SCHEMA = pa.schema([("k", pa.string())])
STRANGER = 77


class Does(BatchProcessFunction):
    """Calls a function of the test."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "bigint"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", "bigint"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.do(self, ctx)

    do: Callable[[Any, Any], object]


def untimed(function: BatchProcessFunction) -> Query:
    """Return a query with one column of text keys and without event time."""
    clocks = {"event_time": None, "watermarks": (WatermarkStrategy.no_watermarks(),), "order": "arrival"}
    schema = from_arrow_schema(SCHEMA)
    return query_of(function, schema, schema, time_mode="ProcessingTime", max_parallelism=2, **clocks)


def new_group() -> KeyGroup:
    return KeyGroup(untimed(Does()).layout)


def run(*calls: Callable[[Any, Any], object], group: KeyGroup | None = None) -> KeyGroup:
    """Make each call in its own call of the function, with rows of three keys."""
    function = Does()
    group = group or new_group()
    rows = pa.record_batch([pa.array(["a", "b", "c"])], schema=SCHEMA)
    ids = group.keys.resolve(np.array([5, 6, 7]), rows.columns)
    query = untimed(function)
    runner: Any = query.work.runner(query, Placement(1, 2))
    runner.open()
    runner.begin(group, 1_000, ResultBuffer(SCHEMA))
    for call in calls:
        function.do = lambda function, ctx, call=call: call(function, ctx)  # type: ignore[misc]
        runner.process(KeyedRows(rows, ids, np.zeros(3, np.int64)), 0)
    return group


BAD: dict[str, Callable[[Any, Any], object]] = {
    "event time": lambda f, ctx: ctx.timer_service().register_event_time_timers([5, STRANGER], [1, 2]),
    "one of many": lambda f, ctx: ctx.timer_service().register_event_time_timers(STRANGER, [1, 2]),
    "processing time": lambda f, ctx: ctx.timer_service().register_processing_time_timers([STRANGER], [1]),
    "columns of state": lambda f, ctx: f.last.update_many(np.array([5, STRANGER]), [1, 2]),
    "columns of nothing": lambda f, ctx: f.last.update_many(np.array([STRANGER]), [None]),
    "the current key": lambda f, ctx: ctx.set_current_key(STRANGER),
    "keys": lambda f, ctx: ctx.keys([5, STRANGER]),
}


@pytest.mark.parametrize("name", BAD)
def test_an_unknown_key_id_raises_and_changes_nothing(name: str) -> None:
    group = new_group()
    with pytest.raises(KeyError, match=r"ids must be ids of live keys, got 77 .*pass ids from ctx.ids"):
        run(BAD[name], group=group)
    assert len(group.event_timers.heap) == len(group.processing_timers.heap) == 0
    assert group.event_timers.changes() is None
    assert all(not len(family.ids()) for family in group.states.values())


@pytest.mark.promises(
    "PyFlink", "added", "BatchValueState.values", "BatchValueState.update_many", "BatchRuntimeContext"
)
def test_key_ids_may_be_arrays_lists_or_columns() -> None:
    def call(function: Any, ctx: Any) -> None:
        timers, ids = ctx.timer_service(), ctx.ids
        assert timers.register_event_time_timers(ids, 10).all()
        assert timers.register_event_time_timers(ids[1:], [20, 30]).all()
        assert timers.register_event_time_timers(5, [40]).all()
        assert not len(timers.register_event_time_timers([], []))
        assert not timers.delete_event_time_timers([STRANGER], [10]).any(), "no such timers exist"
        function.last.update_many(ids[::2], [1, 2])
        assert function.last.values(np.array([5, 6, STRANGER])).to_pylist() == [1, None, None]
        with pytest.raises(ValueError, match="read-only"):
            ids[0] = STRANGER

    assert len(run(call).event_timers.heap) == 6


@pytest.mark.promises(
    "PyFlink", "added", "BatchProcessFunction.Context.set_current_key", "BatchProcessFunction.Context.keys"
)
def test_a_key_that_is_asked_for_again_is_that_of_the_key_group() -> None:
    found: list[str] = []
    function = Does()
    function.do = lambda _, ctx: found.extend(ctx.keys(some)[0][0].as_py() for some in ([5], [5], [6], [5]))
    query = untimed(function)
    runner: Any = query.work.runner(query, Placement(1, 2))
    runner.open()
    for names in ["a", "b"], ["c", "d"]:
        group, rows = new_group(), pa.record_batch([pa.array(names)], schema=SCHEMA)
        ids = group.keys.resolve(np.array([5, 6]), rows.columns)
        runner.begin(group, 1_000, ResultBuffer(SCHEMA))
        runner.process(KeyedRows(rows, ids, np.zeros(2, np.int64)), 0)
    assert found == ["a", "a", "b", "a", "c", "c", "d", "c"]


def test_the_current_key_is_set_anew_in_each_call() -> None:
    def chosen(function: Any, ctx: Any) -> None:
        ctx.set_current_key(6)
        function.seen.add(1)
        assert list(function.seen) == [1]

    def not_chosen(function: Any, ctx: Any) -> None:
        function.seen.add(2)

    with pytest.raises(
        RuntimeError, match=r"there is no current key; .* after ctx.set_current_key\(key_id\)"
    ):
        run(chosen, not_chosen)


def test_reading_the_start_of_a_list_state_does_not_copy_the_list() -> None:
    """Adding an element and reading the first ones costs the same for any length of the list."""

    def call(function: Any, ctx: Any) -> None:
        ctx.set_current_key(5)
        seen = function.seen
        seen.add_all(range(100_000))
        tracemalloc.start()
        before = seen.get()
        assert next(before) == 0
        assert tracemalloc.get_traced_memory()[1] < 100_000
        tracemalloc.stop()
        seen.add(100_000)
        assert sum(1 for _ in before) == 99_999, "what comes later is not seen"
        before = seen.get()
        seen.update([1])
        assert sum(1 for _ in before) == 100_001
        before = seen.get()
        seen.clear()
        assert list(before) == [1]
        assert list(seen) == []

    run(call)


class Fires(KeyedProcessFunction):
    """Emits the key of each timer."""

    def process_element(self, value: Any, ctx: Any) -> None:
        pass

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[str]:
        yield ctx.get_current_key()


def test_the_keys_of_timers_that_fire_at_once_are_looked_up_in_a_few_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function = Fires()
    query = replace(untimed(Does()), work=work_of(function))
    group = KeyGroup(query.layout)
    names = [f"key {i}" for i in range(150_000)]  # of which about 65,000 are looked up at once
    ids = group.keys.resolve(np.arange(len(names)) * 12345 % 150_001, [pa.array(names)])
    group.event_timers.push_many(0, ids, 0)
    lookups: list[int] = []
    keys_of = group.keys.keys
    monkeypatch.setattr(group.keys, "keys", lambda ids: lookups.append(len(ids)) or keys_of(ids))
    group.watermark = 5
    runner: Any = query.work.runner(query, Placement(1, 2))
    output = ResultBuffer(SCHEMA)
    runner.open()
    runner.begin(group, None, output)
    runner.advance(5)
    assert sorted(output.table()["k"].to_pylist()) == sorted(names)
    assert len(lookups) == 3
