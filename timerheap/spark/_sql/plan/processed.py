"""The query of a function over rows: one operator, whose result is a relation again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.functions import BatchProcessFunction
from timerheap.spark._columns import (
    ARRIVAL,
    ENDS,
    FOLLOWED,
    HIDDEN,
    INPUT,
    KEY,
    NO_PARTITION,
    distinct,
    shown_name,
)
from timerheap.spark._functions.batch_runner import BatchWork
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._modes import build
from timerheap.spark._plan.event_time import time_mode
from timerheap.spark._plan.named_columns import key_columns, quoted
from timerheap.spark._query import Late, Query, Reduction
from timerheap.spark._sql.plan.relations import MARKS, Relation, visible_columns, with_late
from timerheap.spark._sql.plan.timed_tables import TimedTable
from timerheap.spark._sql.run.first_rows_runner import LocalFirstRows
from timerheap.spark._sql.run.over_runner import OverWork


def processed(
    work: BatchProcessFunction | OverWork,
    df: DataFrame,
    keys: Sequence[str],
    names: list[str],
    result: list[T.StructField],
    tables: tuple[TimedTable, ...],
    *,
    time: str | None = ENDS,
    ended: bool = False,
    local: Callable[[], LocalFirstRows] | None = None,
    order: RowOrder = "event_time",
    late: Late = "drop",
    ties: tuple[str, ...] = (),
) -> Relation:
    """Return what a function makes of rows, once the watermark has passed their `time`."""
    if time == ENDS and (ended or not df.isStreaming):  # windows are whole: all rows are due at once
        df = df.drop(*MARKS).withColumn(ENDS, F.lit(0).cast("bigint"))
    by = list(keys) or [NO_PARTITION]
    df = df if keys else df.withColumn(NO_PARTITION, F.lit(0))
    used = list(dict.fromkeys([*by, *names, *([] if time is None else [time])]))
    df = df.select(*map(quoted, [*used, *(name for name in df.columns if name in (*MARKS, INPUT))]))
    rows = [df.schema[name] for name in used]
    sources = [table.source for table in tables]
    emits = late == "emit"
    late_columns = visible_columns(sources[0].df) if emits else []
    strategies = tuple(source.strategy for source in sources)
    query = Query(
        work=work if isinstance(work, OverWork) else BatchWork(work),
        key=by if KEY in by[0] else key_columns(df, "PARTITION BY", by),  # of joins: no user's columns
        rows=T.StructType(rows + [T.StructField(name, T.LongType(), False) for name in ARRIVAL if local]),
        result=T.StructType(result),
        event_time=time,
        watermarks=strategies,
        channels=tuple(one.channel if one.strategy._is_own else FOLLOWED for one in sources),
        order="arrival" if time is None else order,
        ties=ties,
        time_mode="None" if ended else time_mode(df, False, *strategies),
        max_parallelism=sources[0].max_parallelism,
        key_names=distinct(shown_name(name) for name in keys if not name.startswith(HIDDEN)),
        reduction=None if local is None else Reduction(local),
        late=late,
        late_row=T.StructType([df.schema[name] for name in late_columns]) if emits else None,
        late_columns=tuple(late_columns),
    )
    result_df = build(query, df, each_batch=ended)
    return Relation(with_late(result_df) if emits else result_df, tables, ended=True)
