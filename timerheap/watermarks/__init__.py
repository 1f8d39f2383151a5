"""Watermark strategies and generators; watermarks measure the progress of event time."""

from timerheap.watermarks.generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    IdlenessTimer,
    NoWatermarks,
    WatermarkGenerator,
    WatermarksWithIdleness,
    WatermarksWithMaxAhead,
    WatermarksWithWallClock,
)
from timerheap.watermarks.output import Output, WatermarkOutput, WatermarkStatus
from timerheap.watermarks.strategy import RecordTimestampAssigner, TimestampAssigner, WatermarkStrategy

__all__ = [
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "IdlenessTimer",
    "NoWatermarks",
    "Output",
    "RecordTimestampAssigner",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStatus",
    "WatermarkStrategy",
    "WatermarksWithIdleness",
    "WatermarksWithMaxAhead",
    "WatermarksWithWallClock",
]
