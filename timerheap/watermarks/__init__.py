"""Watermarks: how far event time has come."""

from timerheap.watermarks.strategy import (
    BoundedOutOfOrdernessWatermarks,
    Duration,
    NoWatermarks,
    WatermarkGenerator,
    WatermarkStrategy,
)

__all__ = [
    "BoundedOutOfOrdernessWatermarks",
    "Duration",
    "NoWatermarks",
    "WatermarkGenerator",
    "WatermarkStrategy",
]
