"""Opens a function on the driver, so that a state that does not fit is refused before the query starts."""

from __future__ import annotations

from typing import cast

from pyspark.cloudpickle import dumps, loads

from timerheap.flink.internal_timer_service import KeyContext
from timerheap.functions import Function
from timerheap.spark._group.key_group import GroupSpec, KeyGroup
from timerheap.spark._worker.state_handles import SparkRuntimeContext

__all__ = ["rehearse"]


def rehearse(function: Function, spec: GroupSpec) -> None:
    """Open a copy of `function` as a worker does, on a key group that is empty, and close it.

    The copy is made as one for a worker is, so what ``open`` sets on itself does not travel. An exception
    comes as it is, with a note that says where it was.
    """
    context = SparkRuntimeContext(KeyContext(), spec.max_parallelism)
    copy = cast(Function, loads(dumps(function)))  # type: ignore[no-untyped-call]
    try:
        copy.open(context)
        context.bind(KeyGroup(spec))
        copy.close()
    except Exception as e:
        e.add_note(
            "timerheap: in open() or close() on the driver, where a copy of the function is opened and "
            "closed when the query is planned, so that a state that does not fit is refused there. What only "
            "workers can reach belongs behind `if pyspark.TaskContext.get() is not None`."
        )
        raise
