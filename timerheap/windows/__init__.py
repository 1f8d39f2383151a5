"""Flink's DataStream windows: assigners, triggers, window functions, and the operator that runs them."""

import typing
from inspect import ismodule as _ismodule

from timerheap.functions import AggregateFunction as AggregateFunction
from timerheap.windows.assigners import CountSlidingWindowAssigner as CountSlidingWindowAssigner
from timerheap.windows.assigners import CountTumblingWindowAssigner as CountTumblingWindowAssigner
from timerheap.windows.assigners import DynamicEventTimeSessionWindows as DynamicEventTimeSessionWindows
from timerheap.windows.assigners import (
    DynamicProcessingTimeSessionWindows as DynamicProcessingTimeSessionWindows,
)
from timerheap.windows.assigners import EventTimeSessionWindows as EventTimeSessionWindows
from timerheap.windows.assigners import GlobalWindows as GlobalWindows
from timerheap.windows.assigners import MergingWindowAssigner as MergingWindowAssigner
from timerheap.windows.assigners import ProcessingTimeSessionWindows as ProcessingTimeSessionWindows
from timerheap.windows.assigners import SessionWindowTimeGapExtractor as SessionWindowTimeGapExtractor
from timerheap.windows.assigners import SlidingEventTimeWindows as SlidingEventTimeWindows
from timerheap.windows.assigners import SlidingProcessingTimeWindows as SlidingProcessingTimeWindows
from timerheap.windows.assigners import TumblingEventTimeWindows as TumblingEventTimeWindows
from timerheap.windows.assigners import TumblingProcessingTimeWindows as TumblingProcessingTimeWindows
from timerheap.windows.assigners import WindowAssigner as WindowAssigner
from timerheap.windows.assigners import count_window as count_window
from timerheap.windows.evictors import CountEvictor as CountEvictor
from timerheap.windows.evictors import DeltaEvictor as DeltaEvictor
from timerheap.windows.evictors import Evictor as Evictor
from timerheap.windows.evictors import TimeEvictor as TimeEvictor
from timerheap.windows.evictors import TimestampedValue as TimestampedValue
from timerheap.windows.operator import WindowOperator as WindowOperator
from timerheap.windows.triggers import ContinuousEventTimeTrigger as ContinuousEventTimeTrigger
from timerheap.windows.triggers import ContinuousProcessingTimeTrigger as ContinuousProcessingTimeTrigger
from timerheap.windows.triggers import CountTrigger as CountTrigger
from timerheap.windows.triggers import DeltaTrigger as DeltaTrigger
from timerheap.windows.triggers import EndOfStreamTrigger as EndOfStreamTrigger
from timerheap.windows.triggers import EventTimeTrigger as EventTimeTrigger
from timerheap.windows.triggers import NeverTrigger as NeverTrigger
from timerheap.windows.triggers import ProcessingTimeoutTrigger as ProcessingTimeoutTrigger
from timerheap.windows.triggers import ProcessingTimeTrigger as ProcessingTimeTrigger
from timerheap.windows.triggers import PurgingTrigger as PurgingTrigger
from timerheap.windows.triggers import Trigger as Trigger
from timerheap.windows.triggers import TriggerResult as TriggerResult
from timerheap.windows.window import CountWindow as CountWindow
from timerheap.windows.window import GlobalWindow as GlobalWindow
from timerheap.windows.window import TimeWindow as TimeWindow
from timerheap.windows.window_functions import DeltaFunction as DeltaFunction
from timerheap.windows.window_functions import ProcessWindowFunction as ProcessWindowFunction
from timerheap.windows.window_functions import ReduceFunction as ReduceFunction
from timerheap.windows.window_functions import WindowFunction as WindowFunction

if not typing.TYPE_CHECKING:  # whose checkers take the imports above for it
    __all__ = [name for name, value in list(globals().items()) if name[0] != "_" and not _ismodule(value)]
