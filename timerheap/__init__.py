"""Flink's timers, watermarks and windows for PySpark, on a native heap.

The heaps, and the vocabulary of functions that run on Spark (`timerheap.spark`). Windows are in
`timerheap.windows` and `timerheap.tvf`, asynchronous calls in `timerheap.async_io`, and Flink's runtime
classes in `timerheap.flink`.
"""

from timerheap._native._heap import KeyTimerHeap, TimerHeap
from timerheap.functions import (
    AggregateFunction,
    BatchProcessFunction,
    BatchRuntimeContext,
    BatchTimerService,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    TimerService,
)
from timerheap.hashing import spark_xxhash64
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction
from timerheap.state import (
    BatchValueState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from timerheap.time import Duration, Time, TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, Timer, TimerBatch, coalesce
from timerheap.types import TypeInformation, Types
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "AggregateFunction",
    "BatchProcessFunction",
    "BatchRuntimeContext",
    "BatchTimerService",
    "BatchValueState",
    "Duration",
    "IntervalJoin",
    "KeyTimerHeap",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "ProcessJoinFunction",
    "RuntimeContext",
    "Time",
    "TimeDomain",
    "Timer",
    "TimerBatch",
    "TimerHeap",
    "TimerService",
    "TimestampAssigner",
    "TypeInformation",
    "Types",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "coalesce",
    "spark_xxhash64",
]

_REFUSED = {
    "OutputTag": "there are no side outputs: yield rows of another kind, and split the result with where()",
    "StateTtlConfig": "there is no state time-to-live: register a timer and clear() the state in on_timer",
    "ReducingStateDescriptor": "there is no reducing state: keep the reduced value in a ValueState "
    "(triggers have one: timerheap.windows.ReducingStateDescriptor)",
    "AggregatingStateDescriptor": "there is no aggregating state: keep the accumulator in a ValueState",
}


def __getattr__(name: str) -> object:
    if name == "__version__":  # importlib.metadata would be a fifth of what the import costs
        from importlib.metadata import version

        return version("timerheap")
    if name in _REFUSED:
        raise ImportError(f"timerheap has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module 'timerheap' has no attribute {name!r}")
