"""Flink's operators, which run functions without Spark, with state in memory, as inside a service."""

from timerheap.flink.elements import StreamRecord, Watermark
from timerheap.flink.operators.co_process import KeyedCoProcessOperator
from timerheap.flink.operators.keyed import StreamElement
from timerheap.flink.operators.memory_state import MemoryRuntimeContext
from timerheap.flink.operators.process import KeyedProcessOperator

__all__ = [
    "KeyedCoProcessOperator",
    "KeyedProcessOperator",
    "MemoryRuntimeContext",
    "StreamElement",
    "StreamRecord",
    "Watermark",
]
