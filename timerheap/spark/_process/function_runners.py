"""Functions with two inputs or broadcast state, run as functions on rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._arguments import instance
from timerheap._native._core import CurrentKey
from timerheap._values import records
from timerheap.broadcast import BroadcastState, KeyedBroadcastProcessFunction, ReadOnlyBroadcastState
from timerheap.functions import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import INPUT, SIDES
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.batch_runner import BatchWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.partition import KeyedWork
from timerheap.spark._worker.row_runner import RowRunner, RowWork, row_source
from timerheap.spark._worker.states import (
    FunctionWork,
    GroupExpiryClock,
    GroupRuntimeContext,
    RowFunctionContext,
    WithoutStates,
)
from timerheap.state import MapState, MapStateDescriptor, StateDescriptor
from timerheap.state_ttl import has_event_time

_ID = 0x62726F6164636173  # of each broadcast state, in a table of its own


class _Wrapped(KeyedProcessFunction):
    """Runs a function of another kind on rows."""

    function: KeyedBroadcastProcessFunction | KeyedCoProcessFunction

    def open(self, runtime_context: RuntimeContext) -> None:
        self.function.open(runtime_context)

    def close(self) -> None:
        self.function.close()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        return self.function.on_timer(timestamp, ctx)


class Broadcasting(_Wrapped):
    """The keyed side of a function with broadcast state."""

    def __init__(self, function: KeyedBroadcastProcessFunction) -> None:
        self.function: KeyedBroadcastProcessFunction = function

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        return self.function.process_element(value, ctx)


class _BroadcastClock(GroupExpiryClock):
    """Purges broadcast states, which have few entries, at the start of each micro-batch."""

    def purge_at(self, time: int, key: int, table: Any, event_time: bool) -> None:
        """Do nothing."""

    def purge_all(self) -> None:
        """Remove the entries that have expired."""
        for expiring in self._expiring.values():
            expiring.purge(_ID, self.now(False))


class _BroadcastStates:
    """The broadcast states of the key group that is being processed."""

    def __init__(self, max_parallelism: int) -> None:
        key = CurrentKey()
        key.current_key = _ID
        self._context = GroupRuntimeContext(key, max_parallelism, broadcast=True)
        self._context.clock = self._clock = _BroadcastClock()
        self._states: dict[str, MapState] = {}

    def bind(self, group: KeyGroup, now: int | None) -> None:
        self._clock.begin(group, now)
        self._context.bind(group)
        self._clock.purge_all()

    def of(self, descriptor: MapStateDescriptor) -> MapState:
        instance("state_descriptor", descriptor, MapStateDescriptor)
        state = self._states.get(descriptor.name)
        if state is None:
            ttl = descriptor.ttl_config
            if ttl is not None and (
                has_event_time(ttl) or ttl.get_update_type() is ttl.UpdateType.OnReadAndWrite
            ):
                raise NotImplementedError(
                    f"broadcast state {descriptor.name!r} must have a time to live in processing time that "
                    f"no read renews, since it is the same in all key groups, got {ttl!r}"
                )
            state = self._states[descriptor.name] = self._context.get_map_state(descriptor)
        return state


class _KeyedContext(RowFunctionContext, KeyedBroadcastProcessFunction.OnTimerContext):
    """What `process_element` and `on_timer` are handed."""

    states: _BroadcastStates

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        return ReadOnlyBroadcastState(self.states.of(state_descriptor))

    def current_watermark(self) -> int:
        return self.timer_service().current_watermark()

    def current_processing_time(self) -> int:
        return self.timer_service().current_processing_time()


class _BroadcastContext(WithoutStates, KeyedBroadcastProcessFunction.Context):
    """What `process_broadcast_element` is handed."""

    def __init__(self, runner: BroadcastRunner, keyed: _KeyedContext) -> None:
        self._runner = runner
        self._keyed = keyed

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState:
        return BroadcastState(self._keyed.states.of(state_descriptor))

    def apply_to_keyed_state(
        self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], object]
    ) -> None:
        self._runner.apply_to_keyed_state(state_descriptor, getattr(function, "process", function))

    def timestamp(self) -> None:
        return None

    def current_watermark(self) -> int:
        return self._keyed.current_watermark()

    def current_processing_time(self) -> int:
        return self._keyed.current_processing_time()

    def output(self, tag: OutputTag, value: Any) -> None:
        self._keyed.output(tag, value)


class BroadcastRunner(RowRunner):
    """Runs the keyed side as `RowRunner` does; `broadcast` runs the other side before it."""

    context_class = _KeyedContext
    _context: _KeyedContext

    def __init__(self, work: Broadcasting, query: Query, max_parallelism: int) -> None:
        super().__init__(work, query, max_parallelism)
        assert query.broadcast is not None
        self._broadcast_type = query.broadcast
        self._process = work.function.process_broadcast_element
        self._context.states = _BroadcastStates(max_parallelism)
        self._of_broadcast = _BroadcastContext(self, self._context)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        self._output = output
        self._context.states.bind(group, now)

    def broadcast(self, rows: pa.Table) -> None:
        name = "process_broadcast_element"
        parts = (row_source(batch, self._broadcast_type).tolist() for batch in rows.to_batches())
        for row in chain.from_iterable(parts):
            try:
                self._output.rows(records(name, self._process(row, self._of_broadcast)), name)
            except Exception as e:
                e.add_note(f"timerheap: in {name}, row {row!r}")
                raise

    def apply_to_keyed_state(self, descriptor: StateDescriptor, call: Callable[[Any, Any], object]) -> None:
        state = self._states.get_any_state(descriptor)
        ids = np.sort(self._group.states[descriptor.name].ids())
        self._announce(ids)
        keys = self._group.keys.keys(ids)
        for id_, key in zip(ids.tolist(), row_source(keys, self._key_type, self._key).keys(), strict=True):
            self._current.current_key = id_
            call(key, state)
        self._current.current_key = None


@dataclass(frozen=True)
class BroadcastWork(FunctionWork):
    """A function with broadcast state, to run row by row."""

    function: Broadcasting
    runner_class = BroadcastRunner


class Tagged(_Wrapped):
    """Runs a two-input function on rows that name their input."""

    def __init__(self, function: KeyedCoProcessFunction) -> None:
        self.function: KeyedCoProcessFunction = function
        self._any_order = function._any_order

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        if value[INPUT]:
            return records("process_element2", self.function.process_element2(value[SIDES[1]], ctx))
        return records("process_element1", self.function.process_element1(value[SIDES[0]], ctx))


def work_of(function: object) -> KeyedWork:
    """Return the work that runs a process function of any kind, which has been checked."""
    if isinstance(function, BatchProcessFunction):
        return BatchWork(function)
    if isinstance(function, KeyedBroadcastProcessFunction):
        return BroadcastWork(Broadcasting(function))
    if isinstance(function, KeyedCoProcessFunction):
        return RowWork(Tagged(function))
    assert isinstance(function, KeyedProcessFunction)
    return RowWork(function)
