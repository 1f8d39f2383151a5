"""Flink's runtime classes: timer queues, timer services, clocks, key groups, valves and operators.

Experimental: the names may change in any release. For porting code of Flink's runtime; the rest
of timerheap does not use them. To test a function, use `timerheap.testing.ProcessTester`, which runs it as on
Spark.
"""

from timerheap._elements import StreamRecord, Watermark
from timerheap._states import KeyContext
from timerheap.flink.internal_timer import InternalTimer, KeyedTimerQueue
from timerheap.flink.internal_timer_service import InternalTimerService, Triggerable
from timerheap.flink.java_hashes import java_hash_code
from timerheap.flink.key_groups import (
    KeyGroupRange,
    assign_key_to_parallel_operator,
    assign_to_key_group,
    compute_key_group_range_for_operator_index,
)
from timerheap.flink.operators import KeyedCoProcessOperator, KeyedProcessOperator
from timerheap.flink.processing_time import (
    ManualProcessingTimeService,
    ProcessingTimeService,
    SystemProcessingTimeService,
)
from timerheap.flink.rocksdb_queue import RocksDBTimerQueue
from timerheap.flink.timer_bytes import TypeSerializer
from timerheap.flink.timer_queue import TimerQueue
from timerheap.flink.timer_service_manager import InternalTimeServiceManager
from timerheap.flink.valves import StatusWatermarkValve
from timerheap.flink.watermark_operator import TimestampsAndWatermarksOperator

__all__ = [
    "InternalTimeServiceManager",
    "InternalTimer",
    "InternalTimerService",
    "KeyContext",
    "KeyGroupRange",
    "KeyedCoProcessOperator",
    "KeyedProcessOperator",
    "KeyedTimerQueue",
    "ManualProcessingTimeService",
    "ProcessingTimeService",
    "RocksDBTimerQueue",
    "StatusWatermarkValve",
    "StreamRecord",
    "SystemProcessingTimeService",
    "TimerQueue",
    "TimestampsAndWatermarksOperator",
    "Triggerable",
    "TypeSerializer",
    "Watermark",
    "assign_key_to_parallel_operator",
    "assign_to_key_group",
    "compute_key_group_range_for_operator_index",
    "java_hash_code",
]
