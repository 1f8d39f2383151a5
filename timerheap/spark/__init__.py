"""Timers, watermarks and windows inside Spark queries: the only package here that imports pyspark."""

from timerheap.spark.adapters import GroupTimers, ProcessorTimers
from timerheap.spark.process import process

__all__ = ["GroupTimers", "ProcessorTimers", "process"]
