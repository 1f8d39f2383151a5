"""Plans window joins: the rows of both sides by window and key, or the aggregates of both at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._aggregates.spark_aggregates import UserAggregate
from timerheap.spark._columns import (
    AHEAD,
    COUNT,
    ENDS,
    GROUPING_SET,
    INPUT,
    KEPT,
    KEY,
    SIDES,
    WINDOW,
    computed_name,
    shown_name,
)
from timerheap.spark._compat import with_columns
from timerheap.spark._plan.build import kept_only
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sql.nodes import Aggregated, Joined, Windowing
from timerheap.spark._sql.plan.aggregate_plan import (
    expanded,
    filtered,
    select_list,
    window_plan,
)
from timerheap.spark._sql.plan.called_aggregates import Functions, aggregate_of_call
from timerheap.spark._sql.plan.join_pairs import joined_pairs
from timerheap.spark._sql.plan.processed import processed
from timerheap.spark._sql.plan.relations import (
    MARKS,
    PlanOf,
    Relation,
    hidden_columns,
    unique_names,
    visible_columns,
)
from timerheap.spark._sql.plan.timed_tables import Tables, TimedTable
from timerheap.spark._sql.run.grouped_sides_runner import GROUPED, GroupedSides


def window_joined(node: Joined, tables: Tables, relation: PlanOf) -> Relation:
    """Return the pairs of rows of the same window."""
    found = _aggregated_sides(node, tables) or _rows_of_sides(node, relation)
    both, keys = found.df, _key_names(node)
    fields = [both.schema[name] for name in WINDOW]
    for name, one in zip(GROUPED, SIDES, strict=True):
        fields.append(T.StructField(name, T.ArrayType(both.schema[one].dataType)))
    differing = [name for name, (*_, null_safe) in zip(keys, node.keys, strict=True) if not null_safe]
    work = GroupedSides(differing, node.how)
    names = [*WINDOW, *SIDES]
    grouped = processed(work, both, keys, names, fields, found.tables, ended=found.ended)
    return replace(grouped, df=joined_pairs(grouped.df, node))


def _key_names(node: Joined) -> list[str]:
    return [f"{KEY}{at}" for at in range(len(node.keys))]


def _keys_of_side(node: Joined, number: int) -> dict[str, str]:
    """Return the expressions of one side that are the keys, by the names of the columns they become."""
    texts = [texts[number] for *texts, _ in node.keys]
    return dict(zip(_key_names(node), texts, strict=True))


# Rows of both sides, each computed by itself.


def _rows_of_sides(node: Joined, relation: PlanOf) -> Relation:
    """Return the rows of both sides of a join, each computed by itself."""
    sides = [relation(node.left), relation(node.right)]
    tables = {_name_and_time(table): table for side in sides for table in side.tables}
    ended = len(tables) == 1 and all(side.ended for side in sides)
    streaming = sides[0].df.isStreaming
    if streaming != sides[1].df.isStreaming:
        raise ArgumentValueError(
            "query: a JOIN must be of two streams or of two batches, got one of each; read both tables "
            "as streams, or join the result with the batch in Spark"
        )
    if streaming and not ended and (len(tables) > 2 or any(time is None for _, time in tables)):
        raise ArgumentValueError(
            "query: a window join of more than two streams, or of processing time, is not supported; "
            "write the result of the first join to a table, and join that"
        )
    inputs = {which: _input(number) for number, which in enumerate(tables)} if len(tables) == 2 else {}
    rows = []
    for number, side in enumerate(sides):
        marks = [inputs[which] for which in [_name_and_time(side.tables[0])] if which in inputs]
        rows.append(_rows_of_side(side, SIDES[number], _keys_of_side(node, number), marks))
    if streaming and not ended:  # also event times without results advance the watermark
        seen = [_name_and_time(side.tables[0]) for side in sides if not side.ended]
        for which, table in tables.items():
            if which not in seen:
                rows.append(_times_of(table, [inputs[which]] if inputs else []))
    both = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)
    marks_of_others = {KEPT: True, AHEAD: False}  # in rows of a side that has no such mark
    filled = {
        mark: F.coalesce(quoted(mark), F.lit(value))
        for mark, value in marks_of_others.items()
        if mark in both.columns
    }
    return Relation(with_columns(both, filled), tuple(tables.values()), ended)


def _rows_of_side(side: Relation, name: str, keys: dict[str, str], marks: Sequence[Column]) -> DataFrame:
    """Return the rows of a side as structs, with the columns of the join's `keys` and with `marks`."""
    df = side.timed
    by = {key: kept_only(df, F.expr(text)) for key, text in keys.items()}
    df = unique_names(df.withColumns({**by, ENDS: side.ends}))
    content = F.struct(*map(quoted, visible_columns(df))).alias(name)
    return df.select(content, *map(quoted, (*keys, *hidden_columns(df))), *marks)


def _times_of(table: TimedTable, marks: Sequence[Column]) -> DataFrame:
    """Return the rows of a table that only advance the watermark."""
    df = table.rows
    known = [quoted(name) for name in df.columns if name in MARKS]
    return df.select(*known, *marks, F.lit(False).alias(KEPT))


def _name_and_time(table: TimedTable) -> tuple[str, str | None]:
    return table.name, table.source.event_time


def _input(number: int) -> Column:
    return F.lit(number).cast("tinyint").alias(INPUT)


# Aggregates of both sides at once.


@dataclass(frozen=True)
class Side:
    """One side of a join of two aggregations: a grouping set of the one aggregation that computes both.

    number: of the side, and so of the grouping set
    node: what the side selects
    keys, calls: the names of its keys and aggregates in the common aggregation, by those in the query
    """

    number: int
    node: Aggregated
    keys: dict[str, str]
    calls: dict[str, str]

    @classmethod
    def of(cls, number: int, node: Aggregated) -> Side:
        keys = {name: computed_name(number, name) for name in node.keys}
        calls = {name: computed_name(2 + number, shown_name(name)) for name in node.calls}
        return cls(number, node, keys, calls)

    @property
    def met(self) -> Column:
        """Whether a row of the table is one of this side."""
        return F.expr(self.node.where or "true")

    @property
    def chosen(self) -> Column:
        """Whether a row of the common aggregation is one of this side."""
        return quoted(GROUPING_SET) == self.number

    @property
    def grouped(self) -> dict[str, tuple[str, list[int]]]:
        """The keys of the common aggregation that only this side has; see `expanded`."""
        return {there: (name, [self.number]) for name, there in self.keys.items()}

    def aggregates(self, df: DataFrame, functions: Functions) -> list[Column | UserAggregate]:
        """Return the aggregates of the rows of this side."""
        return [
            aggregate_of_call(call, self.calls[name], df, functions, self.chosen)
            for name, call in self.node.calls.items()
        ]

    def content(self, result: DataFrame, keys: dict[str, Column]) -> DataFrame:
        """Return the rows of the common aggregation with this side as a struct, and with the join's `keys`.

        In rows of the other side both are null; what the other side has of a key stays.
        """
        own = {**self.keys, **self.calls}
        others = [name for name in result.columns if name not in (*own.values(), *WINDOW)]
        result = result.withColumnsRenamed({there: name for name, there in own.items()})
        result = select_list(result, self.node, others, self.chosen)
        by = {name: F.when(self.chosen, key) for name, key in keys.items()}
        known = {name: F.coalesce(quoted(name), key) for name, key in by.items() if name in others}
        result = unique_names(with_columns(result, {**by, **known}))
        fields = F.struct(*map(quoted, result.columns[: len(self.node.columns)]))
        struct = F.when(self.chosen, fields).alias(SIDES[self.number])
        return result.select(struct, *map(quoted, dict.fromkeys([*others, *keys, *WINDOW])))


def _aggregated_sides(node: Joined, tables: Tables) -> Relation | None:
    """Return the rows of both sides of a join if they are aggregates of the same windows, else None.

    One operator computes both, as it does with two grouping sets, so Spark reads the table once. A row is in
    the sets of the sides whose WHERE it meets.
    """
    windows = _common_windows(node)
    if windows is None or (table := tables.cut(windows)).source.event_time is None:
        return None
    sides = [
        Side.of(number, one)
        for number, one in enumerate((node.left, node.right))
        if isinstance(one, Aggregated)
    ]
    by = sides[0].grouped | sides[1].grouped
    df = expanded(table.source.df, _sets_of_row(*sides), by)
    source = filtered(replace(table.source, df=df), quoted(GROUPING_SET).isNotNull())
    calls = [call for side in sides for call in side.aggregates(df, tables.functions)]
    result = window_plan(source, [*by, GROUPING_SET], calls).result()
    names = [name for side in sides for name in side.calls.values()] or [COUNT]
    result = result.toDF(*by, GROUPING_SET, *WINDOW, *names)
    for side in sides:
        keys = {key: F.expr(text) for key, text in _keys_of_side(node, side.number).items()}
        result = side.content(result, keys)
    found = Relation(result, (table,), ended=True)
    return replace(found, df=result.withColumn(ENDS, found.ends))


def _common_windows(node: Joined) -> Windowing | None:
    """Return the windows that both sides of a join aggregate, each in one grouping set; None for others."""
    left, right = node.left, node.right
    if not isinstance(left, Aggregated) or not isinstance(right, Aggregated):
        return None
    if left.sets[1:] or right.sets[1:] or left.computed or right.computed or left.source != right.source:
        return None
    return left.source if isinstance(left.source, Windowing) else None


def _sets_of_row(left: Side, right: Side) -> Column:
    """Return the grouping sets of a row: an array of the numbers of the sides that it is of, or of null."""
    both, neither = F.array(F.lit(0), F.lit(1)), F.array(F.lit(None).cast("int"))
    numbers = F.when(left.met & right.met, both)
    return numbers.when(left.met, F.array(F.lit(0))).when(right.met, F.array(F.lit(1))).otherwise(neither)
