"""The sides of a join in time: the rows of a table or a nested query, their time and its watermark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN, KEPT, added_name
from timerheap.spark._plan.build import kept_only
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sql.nodes import Node, Table, column_of_table, plain_table
from timerheap.spark._sql.plan.timed_tables import Tables, behind, time_of_versions
from timerheap.watermarks import WatermarkStrategy

RowsOfSide = Callable[[Node, str | None], DataFrame]
"""Returns the rows of a side, of a stream perhaps with `KEPT`.

A text says which rows of its table only end a version; then `ENDED` does.
"""

CLOCK = behind(0).with_wall_clock(after=1, lag=0)
"""The watermark of rows whose time is that of their micro-batch; a quiet side is not waited for."""


@dataclass(frozen=True)
class TimedSide:
    """The rows of one side, perhaps with `KEPT` and `ENDED`, their time and its watermark."""

    df: DataFrame
    time: str
    strategy: WatermarkStrategy | None

    @property
    def names(self) -> list[str]:
        return [name for name in self.df.columns if not name.startswith(HIDDEN)]

    def with_column(self, name: str, text: str) -> TimedSide:
        """Return the rows with what is computed of those that are kept."""
        return replace(self, df=self.df.withColumn(name, kept_only(self.df, F.expr(text))))

    def where(self, condition: Column) -> TimedSide:
        """Return the rows that meet a condition; the others of a stream only advance the watermark."""
        df = self.df
        if not df.isStreaming:
            return replace(self, df=df.where(condition))
        kept = F.coalesce(kept_only(df, condition), F.lit(False))
        return replace(self, df=df.withColumn(KEPT, kept))

    def named(self, names: Mapping[str, str]) -> tuple[DataFrame, str | None]:
        """Return the columns of `names` by their new names, and the name that `KEPT` then has."""
        df = self.df
        if KEPT in df.columns:
            df = df.where(quoted(KEPT) | quoted(self.time).isNotNull())
            names = {**names, KEPT: added_name("kept", names.values())}
        return df.select(*(quoted(name).alias(there) for name, there in names.items())), names.get(KEPT)


def timed_side(
    node: Node,
    name: str,
    time: str | None,
    tables: Tables,
    rows: RowsOfSide,
    deleted: str | None = None,
    otherwise: str = "",
) -> TimedSide:
    """Return the rows of a side; without a `time` the watermark of its table says it, or it is `otherwise`.

    name: that of the table or of the nested query, by which `watermark` knows it
    """
    df, table = rows(node, deleted), plain_table(node)
    known, path = tables.watermark, tuple(name.split("."))
    if isinstance(node, Table):
        path = node.table
    elif table is not None and not (isinstance(known, Mapping) and name in known):
        base = None if time is None else column_of_table(node, time)
        if base is not None:  # the watermark is that of the table
            _, strategy = _time_of_side(tables.frame(table.table), Table(table.table, time=base), tables)
            return TimedSide(df, str(time), strategy)
    if time is None:
        time = time_of_versions(df, path, known) or otherwise
        if time not in df.columns:
            raise ArgumentValueError(
                f"query: FOR SYSTEM_TIME does not say which column of {name} is its time, and none is "
                f"called {time}; say which of {df.columns} in the watermark: "
                f"{{{name!r}: \"since - INTERVAL '5' SECOND\"}}"
            )
    found, strategy = _time_of_side(df, Table(path, time=time), tables)
    return TimedSide(df, found, strategy)


def has_time(node: Node, name: str, time: str, df: DataFrame | None, tables: Tables) -> bool:
    """Return whether a side only grows, and a column is its event time, as a rowtime attribute in Flink.

    df: the results of a nested query, None for a side that projects and filters a table
    """
    table = plain_table(node)
    if df is not None or table is None:
        assert df is not None
        return tables.has_time(df, (name,), time)
    base = column_of_table(node, time)
    return base is not None and tables.has_time(tables.frame(table.table), table.table, base)


def _time_of_side(df: DataFrame, table: Table, tables: Tables) -> tuple[str, WatermarkStrategy | None]:
    found, strategy = tables.time_of(df, table)
    return (table.time, CLOCK) if found is None else (found, strategy)


def take_clock(node: Node, time: str, tables: Tables) -> bool:
    """Return whether a side is joined by its processing time, which its rows then have as a column."""
    table = plain_table(node)
    base = None if table is None else column_of_table(node, time)
    if table is None or base is None or not tables.is_clock(table.table, base):
        return False
    tables.add_clock(table.table, base)
    return True
