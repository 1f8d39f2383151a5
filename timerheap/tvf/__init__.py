"""Flink's window table functions, TUMBLE, HOP, CUMULATE and SESSION, over columns of rows (experimental).

Rows, aggregates and results are columns; a key is an int64. A `SliceAssigner` defines the windows,
and `GlobalWindowAggregate` computes them.

Count departures per airport (1 and 2) over the past hour, every ten minutes, and average the known delays:

>>> import numpy as np
>>> hour = HoppingSliceAssigner(size=3_600_000, slide=600_000, time_zone="America/New_York")
>>> aggregates = [Count(), Avg("delay", np.float64)]
>>> windows = GlobalWindowAggregate(hour, aggregates)
>>> nine = 1_357_048_800_000  # on the first of January 2013
>>> delays = np.ma.masked_array([2.0, 4.0, 0.0], mask=[False, False, True])
>>> late = windows.add([1, 1, 2], [nine, nine + 700_000, nine], {"delay": delays})
>>> fired = windows.advance_watermark(nine + 1_200_000)
>>> departures, mean_delay = (column.tolist() for column in fired.results)
>>> for row in zip(fired.key_ids, fired.window_ends % 86_400_000 // 60_000, departures, mean_delay):
...     print(*row)
1 550 1 2.0
2 550 1 None
1 560 2 3.0
2 560 1 None

Rows may be aggregated by key and slice in another process first: `Aggregation.accumulate` returns what
`GlobalWindowAggregate.merge` takes.
"""

from timerheap.tvf.aggregate import Aggregate
from timerheap.tvf.aggregates import Avg, Count, Max, Min, StddevPop, StddevSamp, Sum, VarPop, VarSamp
from timerheap.tvf.columns import Multisets
from timerheap.tvf.multiset import CountDistinct
from timerheap.tvf.partials import Aggregation, Partials
from timerheap.tvf.python_aggregate import ApproxCountDistinct, PythonAggregate
from timerheap.tvf.session import SessionUnsliceAssigner, SessionWindowAggregate
from timerheap.tvf.slices import (
    CumulativeSliceAssigner,
    HoppingSliceAssigner,
    SliceAssigner,
    TumblingSliceAssigner,
)
from timerheap.tvf.window_aggregate import (
    GlobalWindowAggregate,
    LateRows,
    WindowResults,
)
from timerheap.tvf.zone import TimeZone

__all__ = [
    "Aggregate",
    "Aggregation",
    "ApproxCountDistinct",
    "Avg",
    "Count",
    "CountDistinct",
    "CumulativeSliceAssigner",
    "GlobalWindowAggregate",
    "HoppingSliceAssigner",
    "LateRows",
    "Max",
    "Min",
    "Multisets",
    "Partials",
    "PythonAggregate",
    "SessionUnsliceAssigner",
    "SessionWindowAggregate",
    "SliceAssigner",
    "StddevPop",
    "StddevSamp",
    "Sum",
    "TimeZone",
    "TumblingSliceAssigner",
    "VarPop",
    "VarSamp",
    "WindowResults",
]
