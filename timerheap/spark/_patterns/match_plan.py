"""What MATCH_RECOGNIZE hands to its runner: what to find, to emit, and to remember of rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from timerheap.spark._order_by import Order
from timerheap.spark._patterns.conditions import Term, leaves
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._patterns.pattern import Pattern


@dataclass(frozen=True)
class MatchPlan:
    """What to find and to emit.

    defined: what each variable asks of a row; None for nothing
    keys, shown: the columns of the result before those of the measures
    rows: the columns that a partial match remembers
    mark: tells queries with different patterns and conditions apart
    ahead: how many rows behind a row are read
    lead_within: the ms that they are at most after it; None for no limit
    timed_out: whether partial matches that `within` ends are emitted, and the column `TIMED_OUT`
    time: the column with the time in microseconds; None if times are in ms
    lag_within: the ms that rows which are read are at most before a row; None for no limit
    order: how rows of one key and time follow each other; those that are equal in it are in their order
    """

    pattern: Pattern
    defined: tuple[Term | None, ...]
    within: int | None
    skip: str
    target: frozenset[int]
    measures: tuple[Measure, ...]
    keys: list[str]
    shown: list[str]
    rows: pa.Schema
    all_rows: bool
    shows_empty: bool
    mark: int
    ahead: int = 0
    lead_within: int | None = None
    timed_out: bool = False
    time: str | None = None
    lag_within: int | None = None
    order: tuple[Order, ...] = ()


def rows_before(plan: MatchPlan) -> int:
    """Return how many rows before the first one of a match conditions and measures read.

    What they read inside the match is kept with it.
    """
    earliest = plan.pattern.earliest
    before = [0]
    for number, term in enumerate(plan.defined):
        for leaf in leaves(term) if term is not None else ():
            if leaf[0] == "row":
                before.append(leaf[2] - earliest[number])
            elif leaf[0] == "nav":
                before.append(leaf[5] - _first_of(leaf[1], earliest))
    for one in plan.measures:
        if one.column is not None:
            before.append(one.column[1] - _first_of(one.variables, earliest))
    return max(before)


def _first_of(variables: frozenset[int] | None, earliest: list[int]) -> int:
    return 0 if variables is None else min(earliest[one] for one in variables)
