"""Functions on Spark as work, and what they are handed: contexts, timer services, states, expiry clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.cloudpickle import dumps, loads
from pyspark.sql import Row

from timerheap._arguments import int64
from timerheap._contents import (
    EXPIRING,
    Codec,
    CurrentKey,
    Expiring,
    ExpiringValue,
    KeyedContents,
    RowClock,
    StateBackend,
)
from timerheap._native._core import CurrentKey as NativeKey
from timerheap._native._core import RowContext, RowTimerService, RowValue
from timerheap._states import H, KeyedRuntimeContext, ValueHandle
from timerheap._values import ArrowCodec, ArrowTypes, is_timed
from timerheap.functions import (
    BatchRuntimeContext,
    Function,
    KeyedCoProcessFunction,
    RuntimeContext,
    TimerService,
)
from timerheap.metrics import Metrics
from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import narrow_column, wide
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.columns import changeable_row
from timerheap.spark._group.key_group import GroupLayout, KeyGroup, UserState, expiry_namespace, state_name
from timerheap.spark._group.tables import StateTable
from timerheap.spark._group.timers import KeyTimers
from timerheap.spark._query import Query
from timerheap.spark._worker.operator import Rehearsal
from timerheap.spark._worker.output import cast as cast_column
from timerheap.spark._worker.partition import KeyedWork, Runner
from timerheap.state import BatchValueState, StateDescriptor, ValueState, ValueStateDescriptor
from timerheap.state_ttl import StateTtlConfig, has_event_time
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

CONTENTS: dict[str, Callable[..., pa.DataType]] = {
    "value": lambda type_: type_,
    "list": lambda element: pa.list_(pa.field("element", element)),
    "map": pa.map_,
}
"""The type of a key's contents, by the shape of the state."""


def no_processing_time() -> NoReturn:
    """Raise the error for processing time in a query without it."""
    raise RuntimeError(
        "processing_time must be True for a function that uses it, got False; processing-time timers need "
        "process(..., processing_time=True)"
    )


def endless(function: object, key: object, timestamp: int, name: str | None, ended: bool) -> NoReturn:
    """Raise the error for timers that register the next without end; `ended`: after the end of the input."""
    while hasattr(function, "function"):  # of two inputs, or with broadcast state
        function = function.function
    named = "" if name is None else f" with the name {name!r}"
    raise RuntimeError(
        f"{type(function).__name__} must not register timers without end, got the timer{named} at "
        f"{timestamp} of key {key!r}, which has registered the next "
        + (
            "long after the last row; a timer that repeats must ask ctx.input_has_ended() first"
            if ended
            else "again and again at the same time; register timers after the one that fires"
        )
    )


class WithoutStates:
    """The context of a call, which says where states are if it is asked for one."""

    def __getattr__(self, name: str) -> NoReturn:
        if name == "get_runtime_context" or hasattr(RuntimeContext, name):
            raise AttributeError(
                f"{name} must be called in open(self, runtime_context), got a call of the context that other "
                "methods receive; keep the handle, as in self.seen = runtime_context.get_state(...)"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class RowFunctionContext(WithoutStates, RowContext, KeyedCoProcessFunction.OnTimerContext):
    """One object for all calls, as in PyFlink; the loop sets it for each row and timer.

    send: receives the values of side outputs
    function: the one that is called
    """

    send: Callable[[OutputTag, Any], None]
    function: object

    def endless(self, ended: bool) -> NoReturn:
        """Raise the error for the timer that has fired last."""
        endless(self.function, self.get_current_key(), self.timestamp(), self.timer_name(), ended)

    def output(self, tag: OutputTag, value: Any) -> None:
        self.send(tag, value)

    def set_output_timestamp(self, timestamp: int | None) -> None:
        if timestamp is not None:
            int64("timestamp", timestamp)


class KeyTimerService(RowTimerService, TimerService):
    """The timer service of the current key of a key group."""

    _domains: tuple[KeyTimers, KeyTimers]

    def bind_group(self, event: KeyTimers, processing: KeyTimers, watermark: int, now: int | None) -> None:
        """Use these timers from now on; `now` is the processing time, or None in a query without it."""
        self._domains = event, processing
        self.bind(event, processing, watermark, now)

    def event_time_timers(self) -> list[int]:
        return self._domains[0].timestamps()

    def processing_time_timers(self) -> list[int]:
        return self._domains[1].timestamps()

    def next_event_time_timer(self, *, name: str | None = None) -> int | None:
        return self._next(self._domains[0], name)

    def next_processing_time_timer(self, *, name: str | None = None) -> int | None:
        return self._next(self._domains[1], name)

    def _next(self, timers: KeyTimers, name: str | None) -> int | None:
        return next(iter(timers.timestamps()), None) if name is None else timers.timestamp_of(name)

    def delete_all_timers(self) -> int:
        return sum(timers.delete_all() for timers in self._domains)

    def _no_processing_time(self) -> NoReturn:
        no_processing_time()


class KeyValueState(RowValue, ValueHandle):
    """The `ValueState` of the current key of a key group."""

    _codec: ArrowCodec
    _contents: KeyedContents

    def __init__(self, contents: KeyedContents, name: str, codecs: Sequence[Codec]) -> None:
        ValueHandle.__init__(self, contents, name, codecs)
        assert isinstance(contents.keys, NativeKey)
        RowValue.__init__(self, contents.keys, self._codec, *self._codec.exact, contents.key)

    def bind_table(self) -> StateTable | None:
        """Use the table of the contents from now on; return it if its values are in native cells."""
        table: StateTable = self._contents.table
        cells = table.cells(cast(NativeKey, self._contents.keys).numbers)
        self.bind(table, *table.at_hand(), cells)
        return None if cells is None else table


class GroupExpiryClock:
    """Has the contents of a key group purged by the time of the micro-batch.

    See `timerheap._states.ExpiryClock`.
    """

    def begin(self, group: KeyGroup, now: int | None) -> None:
        """Begin a key group; without processing time the clock does not advance."""
        self._group = group
        self._now = now
        self._expiring: dict[str, Expiring] = {}

    def add(self, expiring: Expiring) -> None:
        """Purge these contents when they expire; if they have no times yet, their time to live begins."""
        name = expiring.table.name
        self._expiring[name] = expiring
        if name in self._group.untimed:
            self._group.untimed.remove(name)
            ids = expiring.table.ids()
            expiring.table.announce(ids)
            for id_ in ids.tolist():
                expiring.start(id_, self._group.watermark if expiring.event_time else self.now(False))

    def now(self, event_time: bool) -> int:
        return 0 if self._now is None else self._now

    def is_purged(self, time: int, event_time: bool) -> bool:
        return False  # what has expired is there until it is purged

    def purge_at(self, time: int, key: int, table: Any, event_time: bool) -> None:
        if (event_time or self._now is not None) and time < MAX_WATERMARK:
            # Numbers and a list of one take half as long as three lists.
            self._group.expiries(event_time).push_many(time, [key], expiry_namespace(table.name))

    def purge_all_at(self, time: int, keys: np.ndarray, table: Any) -> None:
        """Purge the contents of many keys at a processing time, unless the clock does not advance."""
        if self._now is not None and time < MAX_WATERMARK and len(keys):
            self._group.expiries(False).push_many(time, keys, expiry_namespace(table.name))

    def purge(self, event_time: bool, time: int) -> None:
        """Remove the contents that have expired by `time`."""
        for name, ids in self._group.due_expiries(event_time, time, self._expiring.keys()):
            expiring = self._expiring[name]
            expiring.table.announce(ids)
            for id_ in ids.tolist():
                expiring.purge(id_, time)


class RowExpiryClock(RowClock, GroupExpiryClock):
    """The times of a function on rows, which may also be event times."""

    def now(self, event_time: bool) -> int:
        """Return the micro-batch's time, or the time of the row or timer, but at least the watermark."""
        return self.event_time() if event_time else super().now(event_time)


class GroupRuntimeContext(KeyedRuntimeContext):
    """Returns handles of states, and binds them all to the group that is being processed, their backend.

    keys: holds the id of the current key
    broadcast: whether the states are broadcast states
    """

    group: KeyGroup

    def __init__(self, keys: CurrentKey, max_parallelism: int, *, broadcast: bool = False) -> None:
        super().__init__(keys, ArrowTypes(changeable_row, Row), max_parallelism)
        self._broadcast = broadcast

    def bind(self, group: KeyGroup) -> list[UserState]:
        """Bind all handles to this group; return the tables of their states."""
        self.group = group
        return self.bind_backend(self)

    def contents_of(self, name: str, shape: str, types: tuple[pa.DataType, ...]) -> UserState:
        return self.group.state(name, shape, CONTENTS[shape](*types), broadcast=self._broadcast)

    def _bind(self, contents: KeyedContents, backend: StateBackend) -> Any:
        table = super()._bind(contents, backend)
        if isinstance(contents.table, Expiring):
            cast(GroupExpiryClock, self.clock).add(contents.table)
        return table


class RowRuntimeContext(GroupRuntimeContext):
    """A `GroupRuntimeContext` for a `KeyedProcessFunction`, with value states in native code."""

    def bind(self, group: KeyGroup) -> list[UserState]:
        """Bind all handles to this group; return the tables of their states to which keys are announced."""
        tables = super().bind(group)
        handles = [handle for handle, _ in self._handles.values() if isinstance(handle, KeyValueState)]
        in_cells = [handle.bind_table() for handle in handles]
        return [table for table in tables if not any(table is other for other in in_cells)]

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState:
        if getattr(state_descriptor, "ttl_config", None) is not None:
            return self._value_state(ValueHandle, state_descriptor)
        state = self._value_state(KeyValueState, state_descriptor)
        if self._backend is not None:
            state.bind_table()
        return state


class ExpiringColumn(ExpiringValue):
    """`ExpiringValue` for many keys, in processing time."""

    table: StateTable

    def get_many(self, ids: np.ndarray) -> pa.Array:
        """Return the values of many keys, null for a key without one."""
        now = self._now()
        values, times = self.table.get_many(ids).flatten()
        there = pc.greater(times, max(now - self._ttl, MIN_WATERMARK)).fill_null(False)
        live = there.to_numpy(zero_copy_only=False)
        if self._renews and live.any():
            renewed, first = np.unique(ids[live], return_index=True)
            self._put(renewed, values.take(pa.array(np.flatnonzero(live)[first])), now)
        return values if self._shows else values.take(pa.array(np.arange(len(ids)), mask=~live))

    def put_many(self, ids: np.ndarray, values: pa.Array) -> None:
        """Set the values of many distinct keys; a null removes the key's value."""
        now = self._now()
        new = self.table.get_many(ids).is_null().to_numpy(zero_copy_only=False)
        new &= values.is_valid().to_numpy(zero_copy_only=False)
        cast(GroupExpiryClock, self._clock).purge_all_at(now + self._ttl, ids[new], self.table)
        self._put(ids, values, now)

    def _put(self, ids: np.ndarray, values: pa.Array, now: int) -> None:
        type_ = wide(self.table.type)
        columns = [values.cast(type_.field("value").type), pa.array(np.full(len(ids), now))]
        kept = pa.StructArray.from_arrays(columns, fields=list(type_), mask=values.is_null())
        self.table.put_many(ids, kept)


class BatchGroupRuntimeContext(GroupRuntimeContext, BatchRuntimeContext):
    """A `GroupRuntimeContext` whose value states read and write columns, for a `BatchProcessFunction`."""

    _expiring = EXPIRING | {"value": ExpiringColumn}

    def _handle(self, class_: type[H], descriptor: StateDescriptor, types: tuple[Any, ...]) -> H:
        ttl = descriptor.ttl_config
        if ttl is not None and (class_ is not _BatchValueHandle or has_event_time(ttl)):
            raise NotImplementedError(
                f"state {descriptor.name!r} of a BatchProcessFunction must be a value state to have a time "
                f"to live, in processing time, got a {class_.kind} state with {ttl}; register timers, and "
                "clear the state in on_timers"
            )
        return super()._handle(class_, descriptor, types)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> BatchValueState:
        state = self._value_state(_BatchValueHandle, state_descriptor)
        state.context = self
        return state


class _BatchValueHandle(ValueHandle, BatchValueState):
    context: GroupRuntimeContext
    _contents: KeyedContents

    def values(self, ids: npt.ArrayLike) -> pa.Array:
        return narrow_column(self._contents.table.get_many(_checked_ids(ids)), self._type)

    def update_many(self, ids: npt.ArrayLike, values: object) -> None:
        ids = _checked_ids(ids)
        try:
            column = values if isinstance(values, pa.Array) else pa.array(values)
            column = cast_column(column, wide(self._type))
            if isinstance(column, pa.ChunkedArray):  # of more than 2 GiB
                column = column.combine_chunks()
        except (pa.ArrowException, TypeError, ValueError) as e:
            raise ValueError(f"values must fit {self._type}, the type of state {self._name!r}: {e}") from None
        if len(column) != len(ids):
            raise ValueError(
                f"values must have one value for each of the {len(ids)} ids of state {self._name!r}, "
                f"got {len(column)}"
            )
        self.context.group.keys.expect(ids)
        distinct, last = np.unique(ids[::-1], return_index=True)
        self._contents.table.put_many(distinct, column.take(pa.array(len(ids) - 1 - last)))

    @property
    def _type(self) -> pa.DataType:
        (type_,) = self._contents.types
        return type_.field("value").type if is_timed(type_) else type_


def _checked_ids(given: npt.ArrayLike) -> np.ndarray[Any, np.dtype[np.int64]]:
    ids = np.asarray(given)
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise TypeError(f"ids must be an int64 array of shape (n,), got {ids.dtype} of shape {ids.shape}")
    return ids


class _AskedStates:
    """Stands for a key group: checks the names of the states that a function asks for, and keeps nothing."""

    def __init__(self, layout: GroupLayout) -> None:
        self._layout = layout

    def state(self, name: str, shape: str, type_: pa.DataType, *, broadcast: bool = False) -> Any:
        return SimpleNamespace(name=state_name(self._layout, name, broadcast), type=type_)


class FunctionRunner(Runner):
    """Runs one copy of a function with its states; a kind of function has a class of its own."""

    _function: Any
    _states: GroupRuntimeContext

    @property
    def metrics(self) -> Metrics | None:
        return self._states.metrics

    def open(self) -> None:
        self._function.open(self._states)

    def close(self) -> None:
        self._function.close()


@dataclass(frozen=True)
class FunctionWork(KeyedWork):
    """A function to run; a kind of function has a class of its own, which says what runs it."""

    function: Function
    context_class: ClassVar[type[GroupRuntimeContext]] = GroupRuntimeContext
    runner_class: ClassVar[type[Any]]  # made with the function, the query and the number of key groups

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Open and close a copy of the function."""
        # What open sets on the copy does not reach the workers. An exception is raised unchanged, with a
        # note that says where it happened.
        context = self.context_class(NativeKey(), max_parallelism)
        copy = cast(Function, loads(dumps(self.function)))  # type: ignore[no-untyped-call]
        try:
            copy.open(context)
            # A real group is needed only to compare types: building one takes most of a rehearsal's time.
            context.bind(cast(KeyGroup, _AskedStates(query.layout)) if group is None else group)
            _expect_clocks(query, context.times_to_live(), streaming)
            copy.close()
        except Exception as e:
            e.add_note(
                "timerheap: in open() or close() on the driver, which opens and closes a copy of the "
                "function to check its states before the query starts. Put what only workers can reach "
                "behind `if pyspark.TaskContext.get() is not None`."
            )
            raise
        return Rehearsal(context.metrics is not None, context.times_to_live())

    def runner(self, query: Query, placement: Placement) -> Runner:
        return self.runner_class(self.function, query, placement.max_parallelism)


def _expect_clocks(query: Query, times_to_live: Mapping[str, StateTtlConfig], streaming: bool) -> None:
    """Raise ValueError if a state has a time to live of a clock that the query has not."""
    for name, ttl in times_to_live.items():
        if ttl.get_ttl_time_characteristic() is ttl.TtlTimeCharacteristic.EventTime:
            if query.event_time is None:
                raise ValueError(
                    f"event_time must name the event-time column, since the time to live of state {name!r} "
                    "is of event time, got None"
                )
        elif streaming and query.time_mode != "ProcessingTime":
            raise ValueError(
                f"processing_time must be True, since the time to live of state {name!r} is of processing "
                "time, got False"
            )
