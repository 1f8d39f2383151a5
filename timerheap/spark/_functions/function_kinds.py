"""Which kind of function is run by what."""

from __future__ import annotations

from timerheap.broadcast import KeyedBroadcastProcessFunction
from timerheap.functions import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
)
from timerheap.spark._functions.batch_runner import BatchWork
from timerheap.spark._functions.broadcast_runner import Broadcasting, BroadcastWork
from timerheap.spark._functions.guarded.dead_letters import Guard
from timerheap.spark._functions.row_runner import RowWork
from timerheap.spark._functions.wrapped_functions import Tagged
from timerheap.spark._worker.keyed_work import KeyedWork


def work_of(function: object, guard: Guard | None = None) -> KeyedWork:
    """Return the work that runs a process function of any kind, which has been checked."""
    if isinstance(function, BatchProcessFunction):
        return BatchWork(function, guard=guard)
    if isinstance(function, KeyedBroadcastProcessFunction):
        return BroadcastWork(Broadcasting(function), guard=guard)
    if isinstance(function, KeyedCoProcessFunction):
        return RowWork(Tagged(function), guard=guard)
    assert isinstance(function, KeyedProcessFunction)
    return RowWork(function, guard=guard)
