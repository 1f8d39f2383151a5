"""Watermarks: how far event time has come."""

from timerheap.watermarks.combine import IndexedCombinedWatermarkStatus
from timerheap.watermarks.explanation import ChannelExplanation, Explanation
from timerheap.watermarks.output import WatermarkOutput, WatermarkStatus
from timerheap.watermarks.strategy import (
    BoundedOutOfOrdernessWatermarks,
    Duration,
    NoWatermarks,
    WatermarkGenerator,
    WatermarkStrategy,
)
from timerheap.watermarks.valve import ChannelState, StatusWatermarkValve, ValveState

__all__ = [
    "BoundedOutOfOrdernessWatermarks",
    "ChannelExplanation",
    "ChannelState",
    "Duration",
    "Explanation",
    "IndexedCombinedWatermarkStatus",
    "NoWatermarks",
    "StatusWatermarkValve",
    "ValveState",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStatus",
    "WatermarkStrategy",
]
