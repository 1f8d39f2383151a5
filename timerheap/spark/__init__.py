"""Timers, watermarks and windows inside Spark queries; of the public packages, only this needs pyspark.

Its names are imported when they are used: a Python worker, which needs few of them, starts sooner.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if not all(map(find_spec, ("pandas", "pyarrow", "pyspark"))):
    raise ImportError('timerheap.spark needs PySpark, pandas and PyArrow: pip install "timerheap[spark]"')

if TYPE_CHECKING:
    from timerheap._java import ensure_java as ensure_java
    from timerheap.spark._asof.join_asof import join_asof as join_asof
    from timerheap.spark._asof.join_asof import unmatched_rows as unmatched_rows
    from timerheap.spark._async_map import async_map as async_map
    from timerheap.spark._available_now import run_available_now as run_available_now
    from timerheap.spark._available_now import start as start
    from timerheap.spark._plan.arguments import EventTime as EventTime
    from timerheap.spark._plan.arguments import RightInput as RightInput
    from timerheap.spark._plan.outputs import late_rows as late_rows
    from timerheap.spark._plan.outputs import side_output as side_output
    from timerheap.spark._plan.outputs import with_side_outputs as with_side_outputs
    from timerheap.spark._plan.progress import Progress as Progress
    from timerheap.spark._plan.progress import progress as progress
    from timerheap.spark._plan.progress import with_name as with_name
    from timerheap.spark._process.drop_duplicates import drop_duplicates as drop_duplicates
    from timerheap.spark._process.process import process as process
    from timerheap.spark._process.process import process_broadcast as process_broadcast
    from timerheap.spark._process.process import process_two as process_two
    from timerheap.spark._processors.transform_with_state import transform_with_state as transform_with_state
    from timerheap.spark._processors.transform_with_state import (
        transform_with_state_in_pandas as transform_with_state_in_pandas,
    )
    from timerheap.spark._prometheus import PrometheusMetrics as PrometheusMetrics
    from timerheap.spark._real_time.start import run_real_time as run_real_time
    from timerheap.spark._real_time.start import start_real_time as start_real_time
    from timerheap.spark._settings import settings as settings
    from timerheap.spark._sql.sql import sql as sql
    from timerheap.spark._sql.sql import timed_out_matches as timed_out_matches
    from timerheap.spark._state.checkpoint_reader import CheckpointState as CheckpointState
    from timerheap.spark._state.checkpoint_reader import read_checkpoint as read_checkpoint
    from timerheap.spark._state.initial_state import InitialState as InitialState
    from timerheap.spark._stateful_timers import GroupStateTimers as GroupStateTimers
    from timerheap.spark._stateful_timers import ProcessorTimers as ProcessorTimers
    from timerheap.spark._windows.spark_aggregates import udaf as udaf
    from timerheap.spark._windows.window_operator import WindowedBy as WindowedBy
    from timerheap.spark._windows.window_operator import window_operator as window_operator
    from timerheap.spark._windows.windows import GroupedWindows as GroupedWindows
    from timerheap.spark._windows.windows import Windows as Windows
    from timerheap.spark._windows.windows import cumulate as cumulate
    from timerheap.spark._windows.windows import hop as hop
    from timerheap.spark._windows.windows import session as session
    from timerheap.spark._windows.windows import tumble as tumble

_HOMES = {
    "spark._asof.join_asof": "join_asof unmatched_rows",
    "spark._async_map": "async_map",
    "spark._available_now": "run_available_now start",
    "_java": "ensure_java",
    "spark._windows.spark_aggregates": "udaf",
    "spark._state.checkpoint_reader": "CheckpointState read_checkpoint",
    "spark._state.initial_state": "InitialState",
    "spark._plan.arguments": "EventTime RightInput",
    "spark._plan.outputs": "late_rows side_output with_side_outputs",
    "spark._plan.progress": "Progress progress with_name",
    "spark._process.drop_duplicates": "drop_duplicates",
    "spark._process.process": "process process_broadcast process_two",
    "spark._processors.transform_with_state": "transform_with_state transform_with_state_in_pandas",
    "spark._prometheus": "PrometheusMetrics",
    "spark._real_time.start": "run_real_time start_real_time",
    "spark._settings": "settings",
    "spark._sql.sql": "sql timed_out_matches",
    "spark._stateful_timers": "GroupStateTimers ProcessorTimers",
    "spark._windows.window_operator": "WindowedBy window_operator",
    "spark._windows.windows": "GroupedWindows Windows cumulate hop session tumble",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"timerheap.{home}"), name)
            return value
    raise AttributeError(f"module 'timerheap.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
