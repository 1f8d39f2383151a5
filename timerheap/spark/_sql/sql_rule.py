"""`SqlRule`: a pattern in Flink's SQL as one of the rules of `process_all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from timerheap._arguments import instance, not_negative
from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import KEPT, shown_name
from timerheap.spark._functions.batch_runner import BatchWork
from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._plan.inputs import Input
from timerheap.spark._rules.rule import RowsRule, RulePlan
from timerheap.spark._sql.nodes import Matched, Node, Selected
from timerheap.spark._sql.plan.match_columns import expect_bounded, matching, shown_columns
from timerheap.spark._sql.plan.pattern_plan import match_items
from timerheap.spark._sql.plan.relations import Relation, rows_where, select_items
from timerheap.spark._sql.sql import parsing


@dataclass(frozen=True)
class SqlRule(RowsRule):
    """A pattern for `process_all`: a query with MATCH_RECOGNIZE over its rows.

    Parameters
    ----------
    query : str
        As in `sql`: one SELECT from the matches of a pattern. Any name of a table stands for the rows of
        `process_all`. PARTITION BY has its key, and ORDER BY begins with its event time.
    lead_within, lag_within, unbounded_matches : optional
        As in `sql`.

    Examples
    --------
    ::

        SqlRule(
            '''
            SELECT * FROM logins MATCH_RECOGNIZE (
                PARTITION BY user ORDER BY ts
                MEASURES S.ts AS success
                PATTERN (F{3,} S) WITHIN INTERVAL '10' MINUTE
                DEFINE F AS NOT ok, S AS ok
            )
            '''
        )
    """

    query: str
    _: KW_ONLY
    lead_within: int | str | timedelta | None = None
    lag_within: int | str | timedelta | None = None
    unbounded_matches: bool = False

    def _planned(self, source: Input, order: RowOrder) -> RulePlan:
        node, selects = self._meaning(source.df.columns)
        _expect_rows_of(node, source, order)
        expect_bounded(node, source.df, self.unbounded_matches)
        lead_within, lag_within = self._limits(node)
        computed = source.df.withColumns({name: F.expr(text) for name, text in node.columns.items()})
        names = shown_columns(node, list(source.rows.names))
        ansi = source.df.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
        function, fields = matching(node, computed, names, lead_within, False, lag_within, ansi)

        def shown(df: DataFrame, others: Sequence[str]) -> DataFrame:
            kept = [KEPT, *others]
            df = select_items(df, match_items(node, names), kept)
            for one in selects:
                df = rows_where(Relation(df, (), ended=True), one.where).df
                df = select_items(df, one.columns, kept)
            return df

        return RulePlan(BatchWork(function), StructType(fields), node.columns, shown)

    def _meaning(self, columns: list[str]) -> tuple[Matched, list[Selected]]:
        """Return the pattern of the query, and the SELECTs around it, from the inside."""
        from timerheap.spark._sql.rewrite.meaning import meaning_of

        tree, into = parsing().only_query(instance("query", self.query, str))
        node: Node = meaning_of(tree, lambda table: columns, {})
        selects: list[Selected] = []
        while isinstance(node, Selected):
            selects.insert(0, node)
            node = node.source
        if into or not isinstance(node, Matched) or node.source is not None or node.where is not None:
            raise ArgumentValueError(
                "query of a rule must be one SELECT FROM t MATCH_RECOGNIZE (...) over the rows as they are, "
                "got another; run that with timerheap.spark.sql(), as a query of its own"
            )
        return node, selects

    def _limits(self, node: Matched) -> tuple[int | None, int | None]:
        """Return `lead_within` and `lag_within` in ms."""
        limits = []
        for name, value, used, what in (
            ("lead_within", self.lead_within, node.ahead > 0, "NEXT"),
            ("lag_within", self.lag_within, node.before, "PREV"),
        ):
            if value is not None and not used:
                raise ArgumentValueError(f"{name} must be None for a pattern without {what}; leave it out")
            limits.append(None if value is None else not_negative(name, value))
        return limits[0], limits[1]


def _expect_rows_of(node: Matched, source: Input, order: RowOrder) -> None:
    """Raise unless a pattern has the key, the time and the order of the rows of `process_all`."""
    time = source.event_time
    if time is None or order != "event_time":
        raise ArgumentValueError(
            'order must be "event_time" for a rule with MATCH_RECOGNIZE, and event_time its time, got '
            f"{order!r} and {time!r}"
        )
    key = [*map(shown_name, source.key)]
    if list(node.keys) != key:
        raise ArgumentValueError(
            f"query of a rule must have PARTITION BY {', '.join(key)}, the key of process_all(), got "
            f"{', '.join(node.keys) or 'none'}; run it with timerheap.spark.sql(), as a query of its own"
        )
    if node.time != time:
        raise ArgumentValueError(
            f"query of a rule must have ORDER BY {shown_name(time)}, the event_time of process_all(), got "
            f"{node.time}; run it with timerheap.spark.sql(), as a query of its own"
        )
