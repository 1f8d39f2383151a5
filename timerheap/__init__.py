"""Flink's timers, watermarks and windows for PySpark, on a native heap."""

from timerheap._heap import KeyTimerHeap, TimerHeap
from timerheap.timer import Timer, TimerBatch

__all__ = ["KeyTimerHeap", "Timer", "TimerBatch", "TimerHeap"]
