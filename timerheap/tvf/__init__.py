"""The windows of SQL, over columns of rows: what Flink's window table functions (TVF) make (experimental).

Rows, aggregates and results are columns; a key is an int64. An assigner defines the windows, and
`GlobalWindowAggregate` computes them; `SessionWindowAggregate` computes sessions.
"""

from timerheap.tvf.aggregates import aggregate
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.slices import CumulativeSliceAssigner, HoppingSliceAssigner, TumblingSliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate, WindowResults

__all__ = [
    "CumulativeSliceAssigner",
    "GlobalWindowAggregate",
    "HoppingSliceAssigner",
    "SessionWindowAggregate",
    "TumblingSliceAssigner",
    "WindowResults",
    "aggregate",
]
