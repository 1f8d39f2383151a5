"""Functions run without Spark: Flink's operators over one timer service, with state in memory.

To unit-test a function, to replay what a stream did, or to serve a service of one's own.
"""

from timerheap.flink.elements import StreamRecord, Watermark
from timerheap.flink.operators.co_process import KeyedCoProcessOperator
from timerheap.flink.operators.keyed import StreamElement
from timerheap.flink.operators.process import KeyedProcessOperator
from timerheap.flink.operators.state import MemoryRuntimeContext

__all__ = [
    "KeyedCoProcessOperator",
    "KeyedProcessOperator",
    "MemoryRuntimeContext",
    "StreamElement",
    "StreamRecord",
    "Watermark",
]
