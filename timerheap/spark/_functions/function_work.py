"""A user's function as work: opened on the driver for a rehearsal, then in each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pyarrow as pa
from pyspark.cloudpickle import dumps, loads

from timerheap._native._core import CurrentKey as NativeKey
from timerheap.errors import ArgumentValueError
from timerheap.functions import (
    Function,
)
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._functions.function_runner import FunctionRunner
from timerheap.spark._functions.guarded.dead_letters import Guard
from timerheap.spark._functions.state_handles import GroupRuntimeContext
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.state_names import state_name
from timerheap.spark._query import Query
from timerheap.spark._worker.errors import add_call
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.runner import Runner
from timerheap.spark._worker.work import Rehearsal
from timerheap.state_ttl import StateTtlConfig


class _AskedStates:
    """Stands for a key group: checks and notes the states that a function asks for, and keeps nothing.

    group: one that compares their types with its own, if any
    """

    def __init__(self, layout: GroupLayout, group: KeyGroup | None) -> None:
        self._layout = layout
        self._group = group
        self.types: dict[str, pa.DataType] = {}

    def state(self, name: str, shape: str, type_: pa.DataType, *, broadcast: bool = False) -> Any:
        own = state_name(self._layout, name, broadcast)
        self.types[own] = type_
        if self._group is not None:
            return self._group.state(name, shape, type_, broadcast=broadcast)
        return SimpleNamespace(name=own, type=type_)


@dataclass(frozen=True)
class FunctionWork(KeyedWork):
    """A function to run; a kind of function has a class of its own, which says what runs it.

    guard: what becomes of calls that raise an exception; None: they end the query
    """

    function: Function
    guard: Guard | None = field(default=None, kw_only=True)
    context_class: ClassVar[type[GroupRuntimeContext]] = GroupRuntimeContext
    runner_class: ClassVar[type[Any]]  # made with the function, the query and the number of key groups

    @property
    def results_behind(self) -> int | None:
        return self.function._results_behind

    def rehearse(
        self, query: Query, max_parallelism: int, group: KeyGroup | None, streaming: bool
    ) -> Rehearsal:
        """Open and close a copy of the function."""
        # What open sets on the copy does not reach the workers. An exception is raised unchanged, with a
        # note that says where it happened.
        context = self.context_class(NativeKey(), max_parallelism)
        copy = cast(Function, loads(dumps(self.function)))  # type: ignore[no-untyped-call]
        # A real group is needed only to compare types: building one takes most of a rehearsal's time.
        asked = _AskedStates(query.layout, group)
        try:
            copy.open(context)
            context.bind(cast(KeyGroup, asked))
            _expect_clocks(query, context.times_to_live(), streaming)
            copy.close()
        except Exception as e:
            add_call(
                e,
                "in open() or close() on the driver, which opens and closes a copy of the "
                "function to check its states before the query starts. Put what only workers can reach "
                "behind `if pyspark.TaskContext.get() is not None`.",
            )
            raise
        has_metrics = context.metrics is not None or self.guard is not None
        return Rehearsal(has_metrics, context.times_to_live(), states=asked.types)

    def runner(self, query: Query, placement: Placement) -> Runner:
        runner: FunctionRunner = self.runner_class(self.function, query, placement.max_parallelism)
        if self.guard is not None:
            runner.guard(self.guard, query)
        return runner


def _expect_clocks(query: Query, times_to_live: Mapping[str, StateTtlConfig], streaming: bool) -> None:
    """Raise ArgumentValueError if a state has a time to live of a clock that the query has not."""
    for name, ttl in times_to_live.items():
        if ttl.get_ttl_time_characteristic() is ttl.TtlTimeCharacteristic.EventTime:
            if query.event_time is None:
                raise ArgumentValueError(
                    f"event_time must name the event-time column, since the time to live of state {name!r} "
                    "is of event time, got None"
                )
        elif streaming and query.time_mode != "ProcessingTime":
            raise ArgumentValueError(
                f"processing_time must be True, since the time to live of state {name!r} is of processing "
                "time, got False"
            )
