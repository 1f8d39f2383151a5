"""Opens a copy of a function on the driver, as a worker does, so that errors in its states come early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from pyspark.cloudpickle import dumps, loads

from timerheap.functions import Function
from timerheap.spark._group.key_group import GroupLayout, KeyGroup, state_name
from timerheap.spark._query import Query
from timerheap.spark._worker.states import GroupRuntimeContext
from timerheap.state_ttl import StateTtlConfig


@dataclass(frozen=True)
class Rehearsal:
    """What the driver has learned of a function.

    has_metrics: whether the function has metrics of its own
    times_to_live: those of its states that have one, by name
    keeps_expiries: whether such a value is kept with the time when it expires, else with its last access
    """

    has_metrics: bool = False
    times_to_live: Mapping[str, StateTtlConfig] = field(default_factory=dict)
    keeps_expiries: bool = False


class _AskedStates:
    """Stands for a key group: checks the names of the states that a function asks for, and keeps nothing."""

    def __init__(self, layout: GroupLayout) -> None:
        self._layout = layout

    def state(self, name: str, shape: str, type_: pa.DataType, *, broadcast: bool = False) -> Any:
        return SimpleNamespace(name=state_name(self._layout, name, broadcast), type=type_)


def rehearsed(
    function: Function,
    context: GroupRuntimeContext,
    query: Query,
    group: KeyGroup | None,
    streaming: bool,
) -> Rehearsal:
    """Open and close a copy of a function; see `timerheap.spark._worker.work.Work.rehearse`.

    What ``open`` sets on the copy does not reach the workers. An exception is raised unchanged, with a note
    that says where it happened.
    """
    copy = cast(Function, loads(dumps(function)))  # type: ignore[no-untyped-call]
    try:
        copy.open(context)
        # A real group is needed only to compare types: building one takes most of the time of a rehearsal.
        context.bind(cast(KeyGroup, _AskedStates(query.layout)) if group is None else group)
        _expect_clocks(query, context.times_to_live(), streaming)
        copy.close()
    except Exception as e:
        e.add_note(
            "timerheap: in open() or close() on the driver, which opens and closes a copy of the function to "
            "check its states before the query starts. Put what only workers can reach behind "
            "`if pyspark.TaskContext.get() is not None`."
        )
        raise
    return Rehearsal(context.metrics is not None, context.times_to_live())


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
