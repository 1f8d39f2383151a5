"""Flink's timers, watermarks and windows for PySpark, on a native heap."""

from timerheap._heap import KeyTimerHeap, TimerHeap
from timerheap.clock import ManualProcessingTimeService, ProcessingTimeService, SystemProcessingTimeService
from timerheap.elements import StreamRecord, Watermark
from timerheap.functions import (
    BatchProcessFunction,
    BatchTimerService,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeContext,
)
from timerheap.hashing import java_hash_code, spark_xxhash64
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction
from timerheap.keys import (
    KeyGroupRange,
    assign_key_to_parallel_operator,
    assign_to_key_group,
    compute_default_max_parallelism,
    compute_key_group_for_key_hash,
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
)
from timerheap.manager import InternalTimeServiceManager
from timerheap.operators import KeyedCoProcessOperator, KeyedProcessOperator
from timerheap.queue import TimerQueue, create_timer_queue
from timerheap.rocksdb import RocksDBTimerQueue
from timerheap.serializers import TypeSerializer
from timerheap.service import (
    InternalTimerService,
    InternalTimersSnapshot,
    KeyContext,
    TimeDomain,
    Triggerable,
)
from timerheap.state import (
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from timerheap.timer import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    InternalTimer,
    KeyedTimerQueue,
    Timer,
    TimerBatch,
    coalesce,
)
from timerheap.timer_bytes import TimerSerializer
from timerheap.timer_service import TimerService
from timerheap.types import TypeInformation, Types
from timerheap.watermarks import (
    BroadcastingOutput,
    Duration,
    IndexedCombinedWatermarkStatus,
    StatusWatermarkValve,
    TimeCharacteristic,
    TimestampAssigner,
    TimestampsAndWatermarksOperator,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkOutputMultiplexer,
    WatermarkStatus,
    WatermarkStrategy,
)

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "BatchProcessFunction",
    "BatchTimerService",
    "BroadcastingOutput",
    "Duration",
    "IndexedCombinedWatermarkStatus",
    "InternalTimeServiceManager",
    "InternalTimer",
    "InternalTimerService",
    "InternalTimersSnapshot",
    "IntervalJoin",
    "KeyContext",
    "KeyGroupRange",
    "KeyTimerHeap",
    "KeyedCoProcessFunction",
    "KeyedCoProcessOperator",
    "KeyedProcessFunction",
    "KeyedProcessOperator",
    "KeyedTimerQueue",
    "ListState",
    "ListStateDescriptor",
    "ManualProcessingTimeService",
    "MapState",
    "MapStateDescriptor",
    "ProcessJoinFunction",
    "ProcessingTimeService",
    "RocksDBTimerQueue",
    "RuntimeContext",
    "StatusWatermarkValve",
    "StreamRecord",
    "SystemProcessingTimeService",
    "TimeCharacteristic",
    "TimeDomain",
    "Timer",
    "TimerBatch",
    "TimerHeap",
    "TimerQueue",
    "TimerSerializer",
    "TimerService",
    "TimestampAssigner",
    "TimestampsAndWatermarksOperator",
    "Triggerable",
    "TypeInformation",
    "TypeSerializer",
    "Types",
    "ValueState",
    "ValueStateDescriptor",
    "Watermark",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkOutputMultiplexer",
    "WatermarkStatus",
    "WatermarkStrategy",
    "assign_key_to_parallel_operator",
    "assign_to_key_group",
    "coalesce",
    "compute_default_max_parallelism",
    "compute_key_group_for_key_hash",
    "compute_key_group_range_for_operator_index",
    "compute_operator_index_for_key_group",
    "create_timer_queue",
    "java_hash_code",
    "spark_xxhash64",
]

_REFUSED = {
    "OutputTag": "there are no side outputs: yield rows of another kind, and split the result with where()",
    "StateTtlConfig": "there is no state time-to-live: register a timer and clear() the state in on_timer",
    "ReducingStateDescriptor": "there is no reducing state: keep the reduced value in a ValueState",
    "AggregatingStateDescriptor": "there is no aggregating state: keep the accumulator in a ValueState",
}


def __getattr__(name: str) -> object:
    if name in _REFUSED:
        raise ImportError(f"timerheap has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module 'timerheap' has no attribute {name!r}")
