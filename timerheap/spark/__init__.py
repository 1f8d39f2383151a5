"""Timers, watermarks and windows inside Spark queries; of the public packages, only this needs pyspark."""

try:
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
except ImportError as error:
    raise ImportError(
        'timerheap.spark needs PySpark, pandas and PyArrow: pip install "timerheap[spark]"'
    ) from error

from timerheap.spark._async_map import async_map
from timerheap.spark._named import named
from timerheap.spark._plan.aggregates import aggregate
from timerheap.spark._plan.checkpoint_state import CheckpointState, read_checkpoint
from timerheap.spark._process import process
from timerheap.spark._process_broadcast import process_broadcast
from timerheap.spark._process_two import process_two
from timerheap.spark._progress import Progress, progress
from timerheap.spark._side_outputs import side_output, with_side_outputs
from timerheap.spark._sql import sql
from timerheap.spark._transform_with_state import transform_with_state, transform_with_state_in_pandas
from timerheap.spark._window_operator import window_operator
from timerheap.spark.group_timers import GroupTimers
from timerheap.spark.inspect import explain_watermark
from timerheap.spark.processor_timers import ProcessorTimers
from timerheap.spark.windows import cumulate, hop, session, tumble

__all__ = [
    "CheckpointState",
    "GroupTimers",
    "ProcessorTimers",
    "Progress",
    "aggregate",
    "async_map",
    "cumulate",
    "explain_watermark",
    "hop",
    "named",
    "process",
    "process_broadcast",
    "process_two",
    "progress",
    "read_checkpoint",
    "session",
    "side_output",
    "sql",
    "transform_with_state",
    "transform_with_state_in_pandas",
    "tumble",
    "window_operator",
    "with_side_outputs",
]
