"""What a query in Flink's SQL means: tables, windows, projections, aggregates, ranks, joins.

The parser makes these nodes of text, and the planner makes DataFrames of them. `bounds` are the columns that
have a bound of the window, and which bound. The results of `Grouped`, `Distinct`, `TopRows`, `JoinedRows` and
`Combined` change as rows come, and so may the rows of a table: they are a changelog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from timerheap.spark._columns import SIDES, WINDOW_COLUMNS
from timerheap.spark._order_by import Order
from timerheap.spark._patterns import Measure, Pattern
from timerheap.spark._patterns.conditions import Term
from timerheap.spark._sql.over_calls import Frame, RowCall

LEFT, RIGHT = SIDES

COLUMN = re.compile(r"\w+|`[^`]*`")
"""The text of a column, with or without quotes."""

PROCTIME = "PROCTIME()"
"""Name of the processing time in each table."""

Items: TypeAlias = tuple[tuple[str, str], ...]
"""Columns of a SELECT: expressions in Spark's SQL, and names; ``("*", "*")`` stands for all columns."""


@dataclass(frozen=True)
class Call:
    """An aggregate: the function's name in Spark, and its argument, FILTER and order in Spark's SQL.

    by: of what the value is wanted where this is least, or greatest
    others: the further arguments of a user's function
    distinct: whether a function that keeps all values counts each once
    parameter: the separator of LISTAGG, or the fraction of PERCENTILE
    """

    function: str
    argument: str | None
    condition: str | None
    by: str | None = None
    others: tuple[str, ...] = ()
    distinct: bool = False
    parameter: str | float | None = None


@dataclass(frozen=True)
class Table:
    """The rows of a table or view that meet a condition; they have no windows, and `time` orders them."""

    table: tuple[str, ...]
    where: str | None = None
    time: str = ""
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Windowing:
    """A window table function: the rows of a table, each in all of its windows."""

    function: str  # the name of the function that makes them, in lower case
    table: tuple[str, ...]
    time: str
    lengths: dict[str, int]  # arguments of the function, ms
    partition: tuple[str, ...] = ()
    names: tuple[str, ...] = tuple(WINDOW_COLUMNS)  # of the columns with the bounds

    @property
    def bounds(self) -> dict[str, str]:
        return dict(zip(self.names, WINDOW_COLUMNS, strict=True))


@dataclass(frozen=True)
class Selected:
    """A projection of the rows that meet a condition."""

    source: Node
    where: str | None
    columns: Items
    bounds: dict[str, str]


@dataclass(frozen=True)
class Aggregated:
    """Aggregates of each window and key."""

    source: Node
    where: str | None
    keys: tuple[str, ...]  # of GROUP BY, without those of the window
    sets: tuple[tuple[str, ...], ...]  # the keys of each grouping set
    calls: dict[str, Call]  # by the names that `having` and `columns` use
    having: str | None
    columns: Items
    bounds: dict[str, str]
    computed: Items = ()  # the keys that are expressions


@dataclass(frozen=True)
class Ranked:
    """The first rows of each window and key, with their rank."""

    source: Node
    function: str  # "row_number", "rank" or "dense_rank"
    name: str
    keys: tuple[str, ...]  # of PARTITION BY, without those of the window
    order: tuple[Order, ...]
    limit: int = 0  # 0: not known yet
    otherwise: Node | None = None  # the SELECT that numbers all rows instead, if there can be one

    @property
    def bounds(self) -> dict[str, str]:
        return self.source.bounds


@dataclass(frozen=True)
class Joined:
    """Pairs of rows of the same window.

    Expressions refer to the two rows as structs of the names `LEFT` and `RIGHT`; the result of a semi-join or
    an anti-join has the columns of the left side.
    """

    left: Node
    right: Node
    how: str  # "inner", "left", "right", "full", "semi" or "anti"
    keys: tuple[tuple[str, str, bool], ...]  # expressions of the two sides, and whether null equals null
    condition: str | None
    null_aware: bool = False  # whether a condition that is null excludes a row of an anti-join, as in NOT IN

    @property
    def bounds(self) -> dict[str, str]:
        if self.how in ("semi", "anti"):
            return self.left.bounds
        sides = {LEFT: self.left.bounds, RIGHT: self.right.bounds}
        return {f"{side}.{name}": which for side, found in sides.items() for name, which in found.items()}


@dataclass(frozen=True)
class Grouped:
    """Aggregates of each key of rows without windows."""

    source: Node
    where: str | None
    keys: Items  # of GROUP BY
    sets: tuple[tuple[str, ...], ...]  # the names of the keys of each grouping set
    calls: dict[str, Call]  # by the names that `having` and `columns` use
    having: str | None
    columns: Items
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Distinct:
    """Rows, each once."""

    source: Node
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class TopRows:
    """The first rows of each key by any order, perhaps with their rank."""

    source: Node
    where: str | None
    function: str  # "row_number", "rank" or "dense_rank"
    name: str  # of the rank
    keys: tuple[str, ...]  # expressions of PARTITION BY
    order: tuple[Order, ...]
    before: Items  # the columns before the rank, and behind it
    behind: Items
    limit: int = 0  # 0: not known yet
    numbered: bool = True  # whether the result has the rank
    otherwise: Node | None = None  # the same SELECT of a table that only grows, if its time may be the order
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class JoinedRows:
    """Pairs of rows of two sides without windows.

    The left side has columns, or if it is a join of this kind with `sides`, structs of rows. Expressions of
    both rows refer to structs of the names `sides`.
    """

    left: Node
    right: Node
    sides: tuple[str, ...]  # the names of the tables in the result; of a chain of joins, those before it, too
    how: str  # "inner", "left", "right", "full", "semi" or "anti"
    keys: tuple[tuple[str, str, bool], ...]  # expressions of the two sides, and whether null equals null
    condition: str | None
    filters: tuple[str | None, str | None] = (None, None)  # which rows of a side can match at all
    needs: tuple[tuple[str, ...] | None, ...] = (None, None)  # the columns of each table, None for all
    compared: tuple[tuple[str, str], ...] = ()  # by NOT IN: expressions of the two sides
    not_in: str | None = None  # whether they are equal, or it is not known whether they are
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class IntervalJoined:
    """Pairs of rows of two sides whose times are near each other: an interval join.

    rows: the join without the conditions that say how near
    names: of the tables, or of nested queries
    times: the columns of the two sides
    bounds_ms: by how many ms the right time is behind the left one, at least and at most
    otherwise: the join of all rows, if the times are not those of sides that only grow
    """

    rows: JoinedRows
    names: tuple[str, str]
    times: tuple[str, str]
    bounds_ms: tuple[int, int]
    otherwise: JoinedRows
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class United:
    """The rows of several queries: UNION ALL."""

    sources: tuple[Node, ...]
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Combined:
    """The rows that two queries have, or one of them alone: INTERSECT and EXCEPT."""

    left: Node
    right: Node
    function: str  # "intersect" or "except"
    repeated: bool  # whether ALL
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Either:
    """What a query means if a table only grows and is ordered by its time, and what otherwise."""

    table: Table
    by_time: Node
    changing: Node
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Over:
    """The rows of a table, each with functions of the rows of its key up to it, or behind it."""

    table: tuple[str, ...]
    where: str | None
    keys: tuple[str, ...]
    time: str
    order: tuple[Order, ...]  # of rows of one time
    calls: dict[str, RowCall | tuple[Call, Frame]]  # by the names of the columns
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class AsOf:
    """The rows of one side, each with the row of the other that held at its time; see `Joined`.

    names: of the tables, or of nested queries
    right_time: "" if what is known of the right table says it
    candidates: which right rows may be the match, in their own columns
    match: which of them is the match of a left row, on the two rows: the newest that meets this; None: any
    condition: on the two rows, once the match is known; without it there is none
    ages: columns of the right side that a match is not farther behind the left time than so many ms
    """

    left: Node
    right: Node
    names: tuple[str, str]
    how: str  # "inner" or "left"
    keys: tuple[tuple[str, str, bool], ...]
    time: str
    right_time: str
    exact: bool
    candidates: str | None
    match: str | None
    condition: str | None
    ages: tuple[tuple[str, int], ...]
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Matched:
    """The matches of a pattern in the rows of a table: MATCH_RECOGNIZE; see `_patterns.match_runner`."""

    table: tuple[str, ...]
    where: str | None
    time: str
    ties: tuple[str, ...]  # the columns that order rows of one time
    keys: tuple[str, ...]
    pattern: Pattern
    defined: tuple[Term | None, ...]
    within: int | None
    skip: str
    target: frozenset[int]
    columns: dict[str, str]  # what is computed of each row, in Spark's SQL
    measures: tuple[Measure, ...]
    items: Items  # what is computed of the measures
    all_rows: bool
    shows_empty: bool
    ahead: int  # how many rows behind a row NEXT looks
    before: bool  # whether there is PREV
    order: tuple[Order, ...] = ()  # how they do it
    source: Node | None = None  # the query whose rows are matched, if they are not those of the table
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Exploded:
    """Rows, each with every value of an array, a map, or what a function makes of it.

    text: the array or the map, or the call of the function
    columns: the names of the new columns, by default those that Spark gives
    outer: whether a row without values stays
    ordinality: the name of the column with the number of the value, "" for none; None of a function
    """

    source: Node
    text: str
    columns: tuple[str, ...]
    outer: bool
    ordinality: str | None
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Listed:
    """Rows that are in the query itself: of VALUES, or of a function that returns rows."""

    text: str
    columns: tuple[str, ...]
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class TableArgument:
    """A table that a function is called with, and the columns of PARTITION BY, none without it."""

    table: tuple[str, ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class CalledOnTables:
    """What a process function makes of the rows of one table, or of two: a process table function.

    function: its name in lower case
    times: the columns of ``on_time``
    positional, named: the scalar arguments, in Spark's SQL
    columns: of the result
    """

    function: str
    tables: tuple[TableArgument, ...]
    times: tuple[str, ...]
    positional: tuple[str, ...]
    named: tuple[tuple[str, str], ...]
    uid: str | None
    columns: tuple[str, ...]
    bounds: ClassVar[dict[str, str]] = {}


Node: TypeAlias = (
    Table
    | Windowing
    | Selected
    | Aggregated
    | Ranked
    | Joined
    | Grouped
    | Distinct
    | TopRows
    | JoinedRows
    | IntervalJoined
    | United
    | Combined
    | Either
    | Over
    | AsOf
    | Matched
    | Exploded
    | Listed
    | CalledOnTables
)


@dataclass(frozen=True)
class NestedQuery:
    """A query whose result is a table of the query around it.

    name: by which `watermark` knows it, "" for none
    """

    name: str
    node: Node


def plain_table(node: Node) -> Table | None:
    """Return the table that a query projects and filters, None if it does more."""
    while isinstance(node, Selected):
        node = node.source
    return node if isinstance(node, Table) else None


def time_of_rows(node: Node, name: str) -> Table | None:
    """Return the table, ordered by its time, whose rows a query has with `name` as their time."""
    while isinstance(node, Exploded):
        node = node.source
    if isinstance(node, Selected):
        inner = column_of_table(replace(node, source=Table(())), name)
        return None if inner is None else time_of_rows(node.source, inner)
    return Table(node.table, time=name) if isinstance(node, Table) else None


def column_of_table(node: Node, name: str) -> str | None:
    """Return the column of a table that a plain query of it calls `name`, None if it computes that."""
    while isinstance(node, Selected):
        for text, shown in node.columns:
            if shown == name:
                if not COLUMN.fullmatch(text):
                    return None
                name = text.strip("`")
                break
        node = node.source
    return name
