"""The columns of a result that identify its window."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

__all__ = ["EARLY", "GROUPING_SET", "WINDOW_COLUMNS", "WINDOW_TIME", "columns_of_window"]

WINDOW_COLUMNS = ["window_start", "window_end", "window_time"]
"""Names of the columns with the start, the end and the last ms of the window."""

EARLY = "early"
"""Name of the column that is true in an early result, before the window has ended."""

WINDOW_TIME = "timerheap.window_time"
"""Metadata key of a column of window times; windows with the same time are emitted in one micro-batch."""

GROUPING_SET = "number of the grouping set"
"""Name of the column with the number of a group's grouping set."""


def columns_of_window(window: str) -> list[Column]:
    """Return the columns `WINDOW_COLUMNS` of a Spark window, a struct of start and end."""
    end = F.col(f"{window}.end")
    columns = F.col(f"{window}.start"), end, end - F.expr("INTERVAL 1 MILLISECOND")
    return [column.alias(name) for column, name in zip(columns, WINDOW_COLUMNS, strict=True)]
