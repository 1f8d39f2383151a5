"""Watermarks: how far event time has come."""

from timerheap.watermarks.combine import IndexedCombinedWatermarkStatus
from timerheap.watermarks.explanation import ChannelExplanation, Explanation
from timerheap.watermarks.generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    IdlenessTimer,
    NoWatermarks,
    WatermarkGenerator,
    WatermarksWithIdleness,
    WatermarksWithMaxAhead,
)
from timerheap.watermarks.multiplexer import WatermarkOutputMultiplexer
from timerheap.watermarks.operator import TimeCharacteristic, TimestampsAndWatermarksOperator
from timerheap.watermarks.output import BroadcastingOutput, Output, WatermarkOutput, WatermarkStatus
from timerheap.watermarks.strategy import (
    Duration,
    RecordTimestampAssigner,
    Time,
    TimestampAssigner,
    WatermarkStrategy,
)
from timerheap.watermarks.valve import ChannelState, StatusWatermarkValve, ValveState

__all__ = [
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "BroadcastingOutput",
    "ChannelExplanation",
    "ChannelState",
    "Duration",
    "Explanation",
    "IdlenessTimer",
    "IndexedCombinedWatermarkStatus",
    "NoWatermarks",
    "Output",
    "RecordTimestampAssigner",
    "StatusWatermarkValve",
    "Time",
    "TimeCharacteristic",
    "TimestampAssigner",
    "TimestampsAndWatermarksOperator",
    "ValveState",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkOutputMultiplexer",
    "WatermarkStatus",
    "WatermarkStrategy",
    "WatermarksWithIdleness",
    "WatermarksWithMaxAhead",
]
