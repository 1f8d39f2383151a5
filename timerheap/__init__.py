"""Timers, watermarks and windows for PySpark Structured Streaming, with the semantics of Flink.

The heaps, and the vocabulary of functions that run on Spark (`timerheap.spark`). Windows are in
`timerheap.windows`, whose names can also be imported from here, and in `timerheap.tvf`, asynchronous calls in
`timerheap.async_io`, and Flink's runtime classes in `timerheap.flink`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from timerheap._native._core import KeyTimerHeap, TimerHeap
from timerheap.broadcast import BroadcastState, KeyedBroadcastProcessFunction, ReadOnlyBroadcastState
from timerheap.functions import (
    AggregateFunction,
    BatchProcessFunction,
    BatchRuntimeContext,
    BatchTimerService,
    DueTimers,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
    TimerService,
)
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction
from timerheap.metrics import Counter, Distribution, DistributionResult, Meter, MetricGroup
from timerheap.output_tag import OutputTag
from timerheap.row import Row
from timerheap.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    BatchValueState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from timerheap.state_ttl import StateTtlConfig
from timerheap.time import Duration, Time, TimeDomain
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, Timer, TimerBatch, round_up
from timerheap.types import TypeInformation, Types
from timerheap.watermarks import TimestampAssigner, WatermarkStrategy

if TYPE_CHECKING:
    from timerheap.windows import *  # noqa: F403

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BatchProcessFunction",
    "BatchRuntimeContext",
    "BatchTimerService",
    "BatchValueState",
    "BroadcastState",
    "Counter",
    "Distribution",
    "DistributionResult",
    "DueTimers",
    "Duration",
    "IntervalJoin",
    "KeyTimerHeap",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "Meter",
    "MetricGroup",
    "OutputTag",
    "ProcessJoinFunction",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "Row",
    "RuntimeContext",
    "StateTtlConfig",
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
    "round_up",
]

_REFUSED = {
    **dict.fromkeys(
        ("MapFunction", "FlatMapFunction", "FilterFunction", "ProcessFunction"),
        "use the DataFrame's own operations, or a KeyedProcessFunction",
    ),
    **dict.fromkeys(
        ("CoProcessFunction", "CoMapFunction", "CoFlatMapFunction"),
        "write a KeyedCoProcessFunction for timerheap.spark.process_two",
    ),
    **dict.fromkeys(
        ("AllWindowFunction", "ProcessAllWindowFunction"),
        "write a ProcessWindowFunction, and pass a key column that is the same in all rows",
    ),
    "StreamExecutionEnvironment": "sources, sinks and jobs are Spark's: SparkSession, spark.readStream, "
    "df.writeStream",
    "BroadcastProcessFunction": "pass a KeyedBroadcastProcessFunction to "
    "timerheap.spark.process_broadcast, with a key, or join the rules to the rows",
}


def __getattr__(name: str) -> object:
    if name == "__version__":  # importlib.metadata would be a fifth of what the import costs
        from importlib.metadata import version

        return version("timerheap")
    if name in _REFUSED:
        raise ImportError(f"timerheap has no {name}: {_REFUSED[name]}")
    if not name.startswith("_"):  # imported when used, since many programs have no windows
        windows = import_module("timerheap.windows")
        if name in windows.__all__:
            return getattr(windows, name)
    raise AttributeError(f"module 'timerheap' has no attribute {name!r}")
