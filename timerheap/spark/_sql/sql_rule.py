"""`SqlRule`: a pattern or functions OVER rows in Flink's SQL as one of the rules of `process_all`."""

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
from timerheap.spark._sql.nodes import Items, Matched, NestedQuery, Node, Over, Selected
from timerheap.spark._sql.over_calls import RowCall
from timerheap.spark._sql.plan.match_columns import expect_bounded, matching, shown_columns
from timerheap.spark._sql.plan.over_plan import OverPlan
from timerheap.spark._sql.plan.pattern_plan import match_items
from timerheap.spark._sql.plan.relations import Relation, rows_where, select_items
from timerheap.spark._sql.sql import parsing


@dataclass(frozen=True)
class SqlRule(RowsRule):
    """A rule in SQL for `process_all`: a query with MATCH_RECOGNIZE, or with functions OVER its rows.

    Parameters
    ----------
    query : str
        As in `sql`: one SELECT from the matches of a pattern, or of functions OVER rows. Any name of a table
        stands for the rows of `process_all`. PARTITION BY has its key, and ORDER BY begins with its event
        time.
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
        SqlRule("SELECT user, ts, ts - LAG(ts) OVER (PARTITION BY user ORDER BY ts) AS after FROM logins")
    """

    query: str
    _: KW_ONLY
    lead_within: int | str | timedelta | None = None
    lag_within: int | str | timedelta | None = None
    unbounded_matches: bool = False

    def _planned(self, source: Input, order: RowOrder) -> RulePlan:
        node, selects = self._meaning(source.df.columns)
        _expect_rows_of(node, source, order)
        if isinstance(node, Over):
            return self._over(node, selects, source)
        return self._pattern(node, selects, source)

    def _pattern(self, node: Matched, selects: Sequence[Selected], source: Input) -> RulePlan:
        expect_bounded(node, source.df, self.unbounded_matches)
        lead_within = self._limit("lead_within", "NEXT", node.ahead > 0)
        lag_within = self._limit("lag_within", "PREV", node.before)
        columns = {name: F.expr(text) for name, text in node.columns.items()}
        names = shown_columns(node, list(source.rows.names))
        ansi = source.df.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"
        rows = source.df.withColumns(columns)
        function, fields = matching(node, rows, names, lead_within, False, lag_within, ansi)
        computed, shown = repr(sorted(node.columns.items())), _Shown(match_items(node, names), selects)
        return RulePlan(BatchWork(function), StructType(fields), columns, None, computed, shown)

    def _over(self, node: Over, selects: Sequence[Selected], source: Input) -> RulePlan:
        if self.unbounded_matches:
            raise ArgumentValueError(
                "unbounded_matches must be False for a rule without MATCH_RECOGNIZE, got True; leave it out"
            )
        leads = any(isinstance(call, RowCall) and call.function == "lead" for call in node.calls.values())
        lead_within = self._limit("lead_within", "LEAD", leads)
        self._limit("lag_within", "PREV of MATCH_RECOGNIZE", False)
        names = list(source.rows.names)
        plan = OverPlan.of(node, source.df, names, source.df, {})
        work = plan.work(names, lead_within)
        emitted = StructType([*(source.df.schema[name] for name in names), *plan.results])
        where = None if node.where is None else F.expr(node.where)
        computed = repr((node.where, sorted(node.calls), [one.by for one in node.order]))  # all are texts
        shown = _Shown(tuple((f"`{name}`", name) for name in emitted.names), selects)
        return RulePlan(work, emitted, plan.rows.computed, where, computed, shown)

    def _meaning(self, columns: list[str]) -> tuple[Matched | Over, list[Selected]]:
        """Return the operator of the query, and the SELECTs around it, from the inside."""
        from timerheap.spark._sql.rewrite.meaning import meaning_of

        tree, into = parsing().only_query(instance("query", self.query, str))
        nested: dict[tuple[str, ...], NestedQuery] = {}
        node: Node = meaning_of(tree, lambda table: columns, {}, nested)
        selects: list[Selected] = []
        while isinstance(node, Selected):
            selects.insert(0, node)
            node = node.source
        of_rows = not nested and getattr(node, "source", None) is None
        if into or not isinstance(node, (Matched, Over)) or not of_rows:
            raise ArgumentValueError(
                "query of a rule must be one SELECT FROM t MATCH_RECOGNIZE (...), or one with functions OVER "
                "rows of t, got another; run that with timerheap.spark.sql(), as a query of its own"
            )
        return node, selects

    def _limit(self, name: str, what: str, used: bool) -> int | None:
        """Return a limit in ms; raise if there is one, although what it limits is not `used`."""
        value = getattr(self, name)
        if value is None:
            return None
        if not used:
            raise ArgumentValueError(f"{name} must be None for a rule without {what}; leave it out")
        return not_negative(name, value)


@dataclass(frozen=True)
class _Shown:
    """Makes the result of a rule of what its operator emits; see `timerheap.spark._rules.rule.Shown`."""

    items: Items
    selects: Sequence[Selected]

    def __call__(self, df: DataFrame, others: Sequence[str]) -> DataFrame:
        kept = [KEPT, *others]
        df = select_items(df, self.items, kept)
        for one in self.selects:
            df = rows_where(Relation(df, (), ended=True), one.where).df
            df = select_items(df, one.columns, kept)
        return df


def _expect_rows_of(node: Matched | Over, source: Input, order: RowOrder) -> None:
    """Raise unless a query has the key, the time and the order of the rows of `process_all`."""
    time = source.event_time
    if time is None or order != "event_time":
        raise ArgumentValueError(
            'order must be "event_time" for a rule in SQL, and event_time its time, got '
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
