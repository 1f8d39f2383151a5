"""Timers, watermarks and windows for PySpark Structured Streaming, with the semantics of Flink.

The heaps, and the vocabulary of functions that run on Spark (`timerheap.spark`). Windows are in
`timerheap.windows`, whose names can also be imported from here, and in `timerheap.tvf`, asynchronous calls in
`timerheap.async_io`, and Flink's runtime classes in `timerheap.flink`.
"""

import importlib
import typing
from inspect import ismodule as _ismodule

from timerheap._native._core import KeyTimerHeap as KeyTimerHeap
from timerheap._native._core import TimerHeap as TimerHeap
from timerheap.broadcast import BroadcastState as BroadcastState
from timerheap.broadcast import KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction
from timerheap.broadcast import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from timerheap.functions import AggregateFunction as AggregateFunction
from timerheap.functions import BatchProcessFunction as BatchProcessFunction
from timerheap.functions import BatchRuntimeContext as BatchRuntimeContext
from timerheap.functions import BatchTimerService as BatchTimerService
from timerheap.functions import DueTimers as DueTimers
from timerheap.functions import KeyedCoProcessFunction as KeyedCoProcessFunction
from timerheap.functions import KeyedProcessFunction as KeyedProcessFunction
from timerheap.functions import RuntimeContext as RuntimeContext
from timerheap.functions import TimerService as TimerService
from timerheap.interval_join import IntervalJoin as IntervalJoin
from timerheap.interval_join import ProcessJoinFunction as ProcessJoinFunction
from timerheap.metrics import Counter as Counter
from timerheap.metrics import Distribution as Distribution
from timerheap.metrics import DistributionResult as DistributionResult
from timerheap.metrics import Meter as Meter
from timerheap.metrics import MetricGroup as MetricGroup
from timerheap.output_tag import OutputTag as OutputTag
from timerheap.row import Row as Row
from timerheap.state import AggregatingState as AggregatingState
from timerheap.state import AggregatingStateDescriptor as AggregatingStateDescriptor
from timerheap.state import BatchValueState as BatchValueState
from timerheap.state import ListState as ListState
from timerheap.state import ListStateDescriptor as ListStateDescriptor
from timerheap.state import MapState as MapState
from timerheap.state import MapStateDescriptor as MapStateDescriptor
from timerheap.state import ReducingState as ReducingState
from timerheap.state import ReducingStateDescriptor as ReducingStateDescriptor
from timerheap.state import ValueState as ValueState
from timerheap.state import ValueStateDescriptor as ValueStateDescriptor
from timerheap.state_ttl import StateTtlConfig as StateTtlConfig
from timerheap.time import Duration as Duration
from timerheap.time import Time as Time
from timerheap.time import TimeDomain as TimeDomain
from timerheap.timer import MAX_WATERMARK as MAX_WATERMARK
from timerheap.timer import MIN_WATERMARK as MIN_WATERMARK
from timerheap.timer import Timer as Timer
from timerheap.timer import TimerBatch as TimerBatch
from timerheap.timer import round_up as round_up
from timerheap.types import TypeInformation as TypeInformation
from timerheap.types import Types as Types
from timerheap.watermarks import TimestampAssigner as TimestampAssigner
from timerheap.watermarks import WatermarkStrategy as WatermarkStrategy

if typing.TYPE_CHECKING:
    from timerheap.windows import *  # noqa: F403
else:
    __all__ = [name for name, value in list(globals().items()) if name[0] != "_" and not _ismodule(value)]

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
        windows = importlib.import_module("timerheap.windows")
        if name in windows.__all__:
            return getattr(windows, name)
    raise AttributeError(f"module 'timerheap' has no attribute {name!r}")
