"""Windows as SQL has them, TUMBLE, HOP and CUMULATE, over columns of rows: Flink's window table functions.

Rows, aggregates and results are columns; a key is an int64. `SliceAssigner` says how windows lie in time,
`LocalWindowAggregate` puts rows together before they are sent, `GlobalWindowAggregate` computes the windows.
"""

from timerheap.tvf.aggregate import Aggregate
from timerheap.tvf.aggregates import Avg, Count, Max, Min, Sum
from timerheap.tvf.columns import Multisets
from timerheap.tvf.global_ import GlobalWindowAggregate
from timerheap.tvf.local import LocalWindowAggregate
from timerheap.tvf.multiset import CountDistinct, MaxWithRetract, MinWithRetract
from timerheap.tvf.partials import Aggregation, Partials
from timerheap.tvf.python_aggregate import AggregateFunction, PythonAggregate
from timerheap.tvf.results import LateRows, WindowResults
from timerheap.tvf.session import SessionWindowAggregate
from timerheap.tvf.sketch import ApproxCountDistinct
from timerheap.tvf.slices import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
    WindowedSliceAssigner,
)
from timerheap.tvf.variance import StddevPop, StddevSamp, VarPop, VarSamp
from timerheap.tvf.zone import LocalClock

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "Aggregation",
    "ApproxCountDistinct",
    "Avg",
    "Count",
    "CountDistinct",
    "CumulativeSliceAssigner",
    "GlobalWindowAggregate",
    "HoppingSliceAssigner",
    "LateRows",
    "LocalClock",
    "LocalWindowAggregate",
    "Max",
    "MaxWithRetract",
    "Min",
    "MinWithRetract",
    "Multisets",
    "Partials",
    "PythonAggregate",
    "SessionWindowAggregate",
    "SliceAssigner",
    "StddevPop",
    "StddevSamp",
    "Sum",
    "TumblingSliceAssigner",
    "VarPop",
    "VarSamp",
    "WindowResults",
    "WindowedSliceAssigner",
]
