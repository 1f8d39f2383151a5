"""What a query in Flink's SQL means: tables, windows, projections, aggregates, ranks, joins.

The parser makes these nodes of text, and the planner makes DataFrames of them. `bounds` are the columns that
have a bound of the window, and which bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from timerheap.spark._columns import SIDES, WINDOW_COLUMNS
from timerheap.spark._patterns import Measure, Pattern
from timerheap.spark._patterns.conditions import Term
from timerheap.spark._sql.over_columns import Frame, RowCall
from timerheap.spark._sql.ranking import Order

LEFT, RIGHT = SIDES

PROCTIME = "PROCTIME()"
"""Name of the processing time in each table."""

Items: TypeAlias = tuple[tuple[str, str], ...]
"""Columns of a SELECT: expressions in Spark's SQL, and names; ``("*", "*")`` stands for all columns."""


@dataclass(frozen=True)
class Call:
    """An aggregate: the function's name in Spark, and its argument and FILTER in Spark's SQL."""

    function: str
    argument: str | None
    condition: str | None


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
    """The rows of a table, each with the row of another one that held at its time; see `Joined`."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    how: str  # "inner" or "left"
    keys: tuple[tuple[str, str, bool], ...]
    time: str
    right_time: str  # "": what is known of the right table says it
    exact: bool
    condition: str | None  # on the two rows; without it there is no match
    bounds: ClassVar[dict[str, str]] = {}


@dataclass(frozen=True)
class Matched:
    """The matches of a pattern in the rows of a table: MATCH_RECOGNIZE; see `_patterns.match_rows`."""

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
    bounds: ClassVar[dict[str, str]] = {}


Node: TypeAlias = Table | Windowing | Selected | Aggregated | Ranked | Joined | Over | AsOf | Matched
