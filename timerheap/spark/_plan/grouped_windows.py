"""A DataFrame cut into windows, grouped and aggregated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NoReturn

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap.spark._plan.aggregates import UserAggregate, resolve_aggregate
from timerheap.spark._plan.arguments import key_columns, quoted
from timerheap.spark._plan.columns import ColumnOrName, Columns
from timerheap.spark._plan.window_plan import WindowPlan
from timerheap.spark._plan.window_source import Source

__all__ = ["GroupedWindows", "Windows"]


@dataclass(frozen=True)
class Windows:
    """A DataFrame cut into windows, to be grouped."""

    source: Source

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"windows have no {name!r}; group them, also without a key, and aggregate: "
            f".groupBy('key').agg({_example(name)})"
        )

    def groupBy(self, *keys: ColumnOrName) -> GroupedWindows:
        """Group by columns of atomic types and the window, or without columns by the window alone.

        Null is a group of its own, as in SQL.
        """
        if not keys:
            return GroupedWindows(self.source)
        columns = Columns("df", self.source.df)
        names = columns.many("keys", keys)
        return GroupedWindows(replace(self.source, df=columns.df), key_columns(columns.df, "keys", names))


@dataclass(frozen=True)
class GroupedWindows:
    """A DataFrame cut into windows and grouped, to be aggregated."""

    source: Source
    keys: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"grouped windows have no {name!r}; aggregate them: .agg({_example(name)})")

    def count(self) -> DataFrame:
        """Count the rows of each key and window, in a column ``count``; the rest is as in `agg`."""
        return self.agg(F.count("*").alias("count"))

    def agg(self, *aggregates: Column | UserAggregate | dict[str, str]) -> DataFrame:
        """Compute aggregates of each key and window.

        Parameters
        ----------
        *aggregates : pyspark.sql.Column or result of `timerheap.spark.aggregate`
            Spark's ``count``, ``sum``, ``avg``, ``min``, ``max``, ``var_samp``, ``var_pop``, ``stddev``,
            ``stddev_pop``, ``count_distinct`` of one column and ``approx_count_distinct``, with or without an
            alias. Or, as in Spark, one dict from columns to names of these functions.

        Returns
        -------
        pyspark.sql.DataFrame
            The keys, ``window_start``, ``window_end`` (exclusive), ``window_time`` (the window's last ms)
            and the aggregates; then ``early`` with the option `emit_every`, ``late_by`` and ``late_row``
            with ``late="emit"``.
        """
        return self._plan(aggregates).result()

    def explain(self, *aggregates: Column | UserAggregate | dict[str, str]) -> None:
        """Print how `agg` computes these aggregates: which stage runs where, and which rows are late."""
        print(self._plan(aggregates))

    def _plan(self, aggregates: tuple[Column | UserAggregate | dict[str, str], ...]) -> WindowPlan:
        if len(aggregates) == 1 and isinstance(aggregates[0], dict):
            aggregates = tuple(
                F.count("*") if (column, name) == ("*", "count") else F.call_function(name, quoted(column))
                for column, name in aggregates[0].items()
            )
        if not aggregates:
            raise ValueError(
                "aggregates must be one or more, got none; pass one such as F.count('*').alias('rows')"
            )
        df = self.source.df
        return WindowPlan(
            self.source, self.keys, [resolve_aggregate(df, one, at) for at, one in enumerate(aggregates)]
        )


def _example(name: str) -> str:
    """Return the aggregate that a method of Spark's grouped DataFrames would compute."""
    known = {"mean": "avg", "avg": "avg", "sum": "sum", "min": "min", "max": "max"}
    return f"F.{known[name]}('column')" if name in known else "F.count('*').alias('rows')"
