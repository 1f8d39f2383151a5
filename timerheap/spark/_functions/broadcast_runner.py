"""Runs functions with broadcast state: rows that go to every key group come first in each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap._arguments import instance
from timerheap._expiry import has_event_time
from timerheap._native._core import CurrentKey
from timerheap._row_context import RowFunctionContext, WithoutStates
from timerheap._values import records
from timerheap.broadcast import BroadcastState, KeyedBroadcastProcessFunction, ReadOnlyBroadcastState
from timerheap.errors import UnsupportedError
from timerheap.functions import (
    TimerService,
)
from timerheap.output_tag import OutputTag
from timerheap.spark._functions.expiry_clocks import GroupExpiryClock
from timerheap.spark._functions.function_work import FunctionWork
from timerheap.spark._functions.guarded.dead_letters import Guard
from timerheap.spark._functions.guarded.revocable_states import Steps
from timerheap.spark._functions.row_runner import RowRunner
from timerheap.spark._functions.state_handles import GroupRuntimeContext
from timerheap.spark._functions.wrapped_functions import WrappedFunction
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.state_names import BROADCAST_ID
from timerheap.spark._query import Query
from timerheap.spark._row_objects import row_source
from timerheap.spark._worker.errors import add_call
from timerheap.spark._worker.output import ResultBuffer
from timerheap.state import MapState, MapStateDescriptor, StateDescriptor


class Broadcasting(WrappedFunction):
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
            expiring.purge(BROADCAST_ID, self.now(False))


class _BroadcastStates:
    """The broadcast states of the key group that is being processed."""

    def __init__(self, max_parallelism: int) -> None:
        key = CurrentKey()
        key.current_key = BROADCAST_ID
        self._context = GroupRuntimeContext(key, max_parallelism, broadcast=True)
        self._context.clock = self._clock = _BroadcastClock()
        self._states: dict[str, MapState] = {}

    def guard(self, steps: Steps | None) -> None:
        """Have changes of states leave steps that undo them."""
        self._context.steps = steps

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
                raise UnsupportedError(
                    f"broadcast state {descriptor.name!r} must have a time to live in processing time that "
                    f"no read renews, since it is the same in all key groups, got {ttl!r}"
                )
            state = self._states[descriptor.name] = self._context.get_map_state(descriptor)
        return state


class _KeyedContext(RowFunctionContext, KeyedBroadcastProcessFunction.OnTimerContext):
    """What `process_element` and `on_timer` are handed."""

    __slots__ = ("states",)

    states: _BroadcastStates

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        return ReadOnlyBroadcastState(self.states.of(state_descriptor))

    def current_watermark(self) -> int:
        timers: TimerService = self.timer_service()
        return timers.current_watermark()

    def current_processing_time(self) -> int:
        timers: TimerService = self.timer_service()
        return timers.current_processing_time()


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

    def guard(self, guard: Guard, query: Query) -> None:
        super().guard(guard, query)
        self._context.states.guard(self._states.steps)

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        super().begin(group, now, output)
        self._output = output
        self._context.states.bind(group, now)

    def broadcast(self, rows: pa.Table) -> None:
        name = "process_broadcast_element"
        parts = (row_source(batch, self._broadcast_type).tolist() for batch in rows.to_batches())
        for row in chain.from_iterable(parts):
            try:
                if self._failed is not None:
                    self._failed.mark()
                self._output.rows(records(name, self._process(row, self._of_broadcast)), name)
                if self._failed is not None:
                    self._failed.steps.clear()
            except Exception as e:
                add_call(e, f"in {name}, row {row!r}")
                if self._failed is None:
                    raise
                given = pa.array([row], self._failed.type_of("broadcast"))
                nobody = np.empty(0, np.int64)
                self._failed.add(e, name, self._loop.calls, nobody, [None], broadcast=given)
                self._current.current_key = None

    def apply_to_keyed_state(self, descriptor: StateDescriptor, call: Callable[[Any, Any], object]) -> None:
        state = self._states.get_any_state(descriptor)
        self._group.settling.bring_all()
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
