"""The columns of a result that say which window it is of."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["EARLY", "GROUPING_SET", "WINDOW_COLUMNS", "WINDOW_TIME", "bounds"]

WINDOW_COLUMNS = ["window_start", "window_end", "window_time"]
"""Names of the columns."""

EARLY = "early"
"""Name of the column that is true where the window goes on."""

WINDOW_TIME = "timerheap.window_time"
"""Says in a column's metadata that it is the time of windows: those of one time come in one micro-batch."""

GROUPING_SET = "number of the grouping set"
"""Name of the column that tells the groups of one grouping set from those of another."""


def bounds(window: str) -> list[Column]:
    """Give the columns out of one of Spark's windows: a struct of start and end."""
    end = F.col(f"{window}.end")
    columns = F.col(f"{window}.start"), end, end - F.expr("INTERVAL 1 MILLISECOND")
    return [column.alias(name) for column, name in zip(columns, WINDOW_COLUMNS, strict=True)]
