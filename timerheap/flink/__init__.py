"""Flink's runtime classes: timer queues, timer services, clocks, key groups, valves and operators.

Experimental: the names may change in any release. For porting code of Flink's runtime; the rest
of timerheap does not use them, and shares with them the code that decides. To test a function, use
`timerheap.testing.ProcessTester`, which checks the types of rows and results, too.
"""

import typing
from inspect import ismodule as _ismodule

from timerheap._contents import KeyContext as KeyContext
from timerheap.flink.internal_timer_service import InternalTimerService as InternalTimerService
from timerheap.flink.internal_timer_service import Triggerable as Triggerable
from timerheap.flink.java_hashes import java_hash_code as java_hash_code
from timerheap.flink.key_groups import KeyGroupRange as KeyGroupRange
from timerheap.flink.key_groups import assign_key_to_parallel_operator as assign_key_to_parallel_operator
from timerheap.flink.key_groups import assign_to_key_group as assign_to_key_group
from timerheap.flink.key_groups import (
    compute_key_group_range_for_operator_index as compute_key_group_range_for_operator_index,
)
from timerheap.flink.operators import KeyedCoProcessOperator as KeyedCoProcessOperator
from timerheap.flink.operators import KeyedProcessOperator as KeyedProcessOperator
from timerheap.flink.processing_time import ManualProcessingTimeService as ManualProcessingTimeService
from timerheap.flink.processing_time import ProcessingTimeService as ProcessingTimeService
from timerheap.flink.processing_time import SystemProcessingTimeService as SystemProcessingTimeService
from timerheap.flink.rocksdb_queue import RocksDBTimerQueue as RocksDBTimerQueue
from timerheap.flink.timer_bytes import TypeSerializer as TypeSerializer
from timerheap.flink.timer_queue import InternalTimer as InternalTimer
from timerheap.flink.timer_queue import KeyedTimerQueue as KeyedTimerQueue
from timerheap.flink.timer_queue import TimerQueue as TimerQueue
from timerheap.flink.timer_service_manager import InternalTimeServiceManager as InternalTimeServiceManager
from timerheap.flink.valves import StatusWatermarkValve as StatusWatermarkValve
from timerheap.flink.watermark_operator import (
    TimestampsAndWatermarksOperator as TimestampsAndWatermarksOperator,
)
from timerheap.watermarks.output import StreamRecord as StreamRecord
from timerheap.watermarks.output import Watermark as Watermark

if not typing.TYPE_CHECKING:  # whose checkers take the imports above for it
    __all__ = [name for name, value in list(globals().items()) if name[0] != "_" and not _ismodule(value)]
