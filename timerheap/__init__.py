"""Flink's timers, watermarks and windows for PySpark, on a native heap."""

from timerheap._heap import KeyTimerHeap, TimerHeap
from timerheap.clock import ManualProcessingTimeService, ProcessingTimeService, SystemProcessingTimeService
from timerheap.hashing import java_hash_code, spark_xxhash64
from timerheap.keys import (
    KeyGroupRange,
    assign_key_to_parallel_operator,
    assign_to_key_group,
    compute_default_max_parallelism,
    compute_key_group_for_key_hash,
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
)
from timerheap.queue import InternalTimer, KeyedTimerQueue, TimerQueue, create_timer_queue
from timerheap.service import (
    InternalTimerService,
    InternalTimersSnapshot,
    KeyContext,
    TimeDomain,
    TimerService,
    Triggerable,
)
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, Timer, TimerBatch

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "InternalTimer",
    "InternalTimerService",
    "InternalTimersSnapshot",
    "KeyContext",
    "KeyGroupRange",
    "KeyTimerHeap",
    "KeyedTimerQueue",
    "ManualProcessingTimeService",
    "ProcessingTimeService",
    "SystemProcessingTimeService",
    "TimeDomain",
    "Timer",
    "TimerBatch",
    "TimerHeap",
    "TimerQueue",
    "TimerService",
    "Triggerable",
    "assign_key_to_parallel_operator",
    "assign_to_key_group",
    "compute_default_max_parallelism",
    "compute_key_group_for_key_hash",
    "compute_key_group_range_for_operator_index",
    "compute_operator_index_for_key_group",
    "create_timer_queue",
    "java_hash_code",
    "spark_xxhash64",
]
