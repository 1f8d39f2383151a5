"""Watermark strategies and generators; watermarks measure the progress of event time."""

from timerheap.watermarks.generators import WatermarkGenerator
from timerheap.watermarks.output import Output, WatermarkOutput, WatermarkStatus
from timerheap.watermarks.strategy import TimestampAssigner, WatermarkStrategy

__all__ = [
    "Output",
    "TimestampAssigner",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStatus",
    "WatermarkStrategy",
]
