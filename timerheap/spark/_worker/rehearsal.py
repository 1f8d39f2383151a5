"""Opens a function on the driver, so that errors in its states are raised before the query starts."""

from __future__ import annotations

from typing import cast

from pyspark.cloudpickle import dumps, loads

from timerheap.flink.internal_timer_service import KeyContext
from timerheap.functions import BatchProcessFunction, Function
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query
from timerheap.spark._worker.group_state import BatchGroupRuntimeContext, GroupRuntimeContext
from timerheap.state_ttl import StateTtlConfig

__all__ = ["rehearse"]


def rehearse(
    function: Function, query: Query, max_parallelism: int, group: KeyGroup, streaming: bool
) -> bool:
    """Open a copy of the query's function on a key group without keys, as a worker does, and close it.

    What ``open`` sets on the copy does not reach the workers. An exception is raised unchanged, with a note
    that says where it happened.

    Returns
    -------
    bool
        Whether the function has metrics of its own.
    """
    class_ = BatchGroupRuntimeContext if isinstance(function, BatchProcessFunction) else GroupRuntimeContext
    context = class_(KeyContext(), max_parallelism)
    copy = cast(Function, loads(dumps(function)))  # type: ignore[no-untyped-call]
    try:
        copy.open(context)
        context.bind(group)
        _expect_clocks(query, context.times_to_live(), streaming)
        copy.close()
    except Exception as e:
        e.add_note(
            "timerheap: in open() or close() on the driver, which opens and closes a copy of the function to "
            "check its states before the query starts. Put what only workers can reach behind "
            "`if pyspark.TaskContext.get() is not None`."
        )
        raise
    return context.metrics is not None


def _expect_clocks(query: Query, times_to_live: dict[str, StateTtlConfig], streaming: bool) -> None:
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
