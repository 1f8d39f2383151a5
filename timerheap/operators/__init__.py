"""Functions run without Spark: Flink's operators over one timer service, with state in memory.

To unit-test a function, to replay what a stream did, or to serve a service of one's own.
"""

from timerheap.elements import StreamRecord, Watermark
from timerheap.operators.co_process import KeyedCoProcessOperator
from timerheap.operators.keyed import StreamElement
from timerheap.operators.process import KeyedProcessOperator
from timerheap.operators.state import MemoryRuntimeContext

__all__ = [
    "KeyedCoProcessOperator",
    "KeyedProcessOperator",
    "MemoryRuntimeContext",
    "StreamElement",
    "StreamRecord",
    "Watermark",
]
