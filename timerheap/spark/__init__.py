"""Timers, watermarks and windows inside Spark queries; of the public packages, only this needs pyspark.

Its names are imported when they are used: a Python worker, which needs few of them, starts sooner.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if not all(map(find_spec, ("pandas", "pyarrow", "pyspark"))):
    raise ImportError('timerheap.spark needs PySpark, pandas and PyArrow: pip install "timerheap[spark]"')

if TYPE_CHECKING:
    from timerheap._java import ensure_java
    from timerheap.spark._asof.join_asof import join_asof, unmatched_rows
    from timerheap.spark._async_map import async_map
    from timerheap.spark._available_now import run_available_now, start
    from timerheap.spark._plan.arguments import EventTime, RightInput
    from timerheap.spark._plan.outputs import late_rows, side_output, with_side_outputs
    from timerheap.spark._plan.progress import Progress, progress, with_name
    from timerheap.spark._process.drop_duplicates import drop_duplicates
    from timerheap.spark._process.process import process, process_broadcast, process_two
    from timerheap.spark._processors.transform_with_state import (
        transform_with_state,
        transform_with_state_in_pandas,
    )
    from timerheap.spark._prometheus import PrometheusMetrics
    from timerheap.spark._real_time.start import run_real_time, start_real_time
    from timerheap.spark._settings import settings
    from timerheap.spark._sql.sql import sql
    from timerheap.spark._state.checkpoint_reader import CheckpointState, read_checkpoint
    from timerheap.spark._state.initial_state import InitialState
    from timerheap.spark._stateful_timers import GroupStateTimers, ProcessorTimers
    from timerheap.spark._windows.spark_aggregates import udaf
    from timerheap.spark._windows.window_operator import WindowedBy, window_operator
    from timerheap.spark._windows.windows import GroupedWindows, Windows, cumulate, hop, session, tumble

__all__ = [
    "CheckpointState",
    "EventTime",
    "GroupStateTimers",
    "GroupedWindows",
    "InitialState",
    "ProcessorTimers",
    "Progress",
    "PrometheusMetrics",
    "RightInput",
    "WindowedBy",
    "Windows",
    "async_map",
    "cumulate",
    "drop_duplicates",
    "ensure_java",
    "hop",
    "join_asof",
    "late_rows",
    "process",
    "process_broadcast",
    "process_two",
    "progress",
    "read_checkpoint",
    "run_available_now",
    "run_real_time",
    "session",
    "settings",
    "side_output",
    "sql",
    "start",
    "start_real_time",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "tumble",
    "udaf",
    "unmatched_rows",
    "window_operator",
    "with_name",
    "with_side_outputs",
]

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
    "spark._sql.sql": "sql",
    "spark._stateful_timers": "GroupStateTimers ProcessorTimers",
    "spark._windows.window_operator": "WindowedBy window_operator",
    "spark._windows.windows": "GroupedWindows Windows cumulate hop session tumble",
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(f"timerheap.{home}"), name)
            return value
    raise AttributeError(f"module 'timerheap.spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
