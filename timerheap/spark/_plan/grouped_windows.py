"""A DataFrame cut into windows, grouped and aggregated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame

from timerheap.spark._plan.aggregates import UserAggregate, resolve_aggregate
from timerheap.spark._plan.arguments import key_columns
from timerheap.spark._plan.columns import ColumnOrName, Columns
from timerheap.spark._plan.window_plan import WindowPlan
from timerheap.spark._plan.window_source import Source

__all__ = ["GroupedWindows", "Windows"]


@dataclass(frozen=True)
class Windows:
    """A DataFrame cut into windows, to be grouped."""

    source: Source

    def group_by(self, *keys: ColumnOrName) -> GroupedWindows:
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

    def agg(self, *aggregates: Column | UserAggregate) -> DataFrame:
        """Compute aggregates of each key and window.

        Parameters
        ----------
        *aggregates : pyspark.sql.Column or result of `timerheap.spark.aggregate`
            Spark's ``count``, ``sum``, ``avg``, ``min``, ``max``, ``var_samp``, ``var_pop``, ``stddev``,
            ``stddev_pop``, ``count_distinct`` of one column and ``approx_count_distinct``, with or without an
            alias.

        Returns
        -------
        pyspark.sql.DataFrame
            The keys, ``window_start``, ``window_end`` (exclusive), ``window_time`` (the window's last ms)
            and the aggregates; then ``early`` with the option `emit_every`, ``late_by`` and ``late_row``
            with ``late="emit"``.
        """
        return self._plan(aggregates).result()

    def explain(self, *aggregates: Column | UserAggregate) -> None:
        """Print how `agg` computes these aggregates: which stage runs where, and which rows are late."""
        print(self._plan(aggregates))

    def _plan(self, aggregates: tuple[Column | UserAggregate, ...]) -> WindowPlan:
        if not aggregates:
            raise ValueError(
                "aggregates must be one or more, got none; pass one such as F.count('*').alias('rows')"
            )
        df = self.source.df
        return WindowPlan(
            self.source, self.keys, [resolve_aggregate(df, one, at) for at, one in enumerate(aggregates)]
        )
