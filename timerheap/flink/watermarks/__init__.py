"""Flink's watermark machinery: valve, combiner, multiplexer, output and operator."""

from timerheap.flink.watermarks.broadcasting import BroadcastingOutput
from timerheap.flink.watermarks.multiplexer import WatermarkOutputMultiplexer
from timerheap.flink.watermarks.timestamps_operator import TimeCharacteristic, TimestampsAndWatermarksOperator
from timerheap.watermarks.combine import IndexedCombinedWatermarkStatus
from timerheap.watermarks.explanation import ChannelExplanation, Explanation
from timerheap.watermarks.valve import ChannelState, StatusWatermarkValve, ValveState

__all__ = [
    "BroadcastingOutput",
    "ChannelExplanation",
    "ChannelState",
    "Explanation",
    "IndexedCombinedWatermarkStatus",
    "StatusWatermarkValve",
    "TimeCharacteristic",
    "TimestampsAndWatermarksOperator",
    "ValveState",
    "WatermarkOutputMultiplexer",
]
