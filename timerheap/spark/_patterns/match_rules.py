"""The rules by which a pattern is matched, and what its conditions remember of a match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from timerheap.errors import ArgumentValueError
from timerheap.spark._patterns.folds import Fold
from timerheap.spark._patterns.pattern import Pattern
from timerheap.spark._patterns.spark_numbers import computed

MOST_THREADS = 50_000
"""How many partial matches of one key there can be; with more of them the pattern is refused."""

Registers = tuple[Any, ...]
Condition = Callable[[Sequence[Any], int, Registers], bool | None]
"""Of columns by row, the row, and the registers with the row: whether the row can be taken."""


@dataclass(frozen=True)
class Register:
    """What conditions need to know of a partial match: some of its rows, or an aggregate of them.

    variables: the numbers of the variables whose rows count; None for all
    kind: "first", "last", the name of an aggregate, or one of the user, which needs all of its rows
    column: the column that is aggregated, None for rows
    size: how many of the first or last rows
    """

    variables: frozenset[int] | None
    kind: str | Fold
    column: int | None
    size: int = 1

    def add(self, value: Any, columns: Sequence[Any], row: int) -> Any:
        """Return an aggregate with one more row."""
        if isinstance(self.kind, Fold):
            return *value, row
        added = 1 if self.column is None else columns[self.column][row]
        return value if added is None else accumulated(self.kind, value, added)

    @property
    def empty(self) -> Any:
        return () if isinstance(self.kind, Fold) or self.kind in ("first", "last") else EMPTY[self.kind]


EMPTY: dict[str, Any] = {"count": 0, "sum": None, "min": None, "max": None, "avg": None}
"""The aggregates, and their accumulators without a value."""


def accumulated(kind: str, value: Any, added: Any) -> Any:
    """Return an accumulator with one more value, which is not null."""
    if kind == "count":
        return value + 1
    if kind == "avg":
        added = added if isinstance(added, Decimal) else float(added)
        return (added, 1) if value is None else (computed("add", value[0], added), value[1] + 1)
    if value is None:
        return added
    if kind == "sum":
        return computed("add", value, added)
    larger = added > value or added != added  # NaN is the largest number, as in Spark
    return added if larger == (kind == "max") else value


def result(kind: str, value: Any) -> Any:
    """Return what an accumulator stands for."""
    return computed("div", *value) if kind == "avg" and value is not None else value


@dataclass(frozen=True)
class Rules:
    """How a pattern is matched.

    conditions: for each variable what its condition asks of a partial match, None if bits of rows say it
    within: the ms that a match is shorter than; None for no limit
    skip: "past last row", "to next row", "to first" or "to last"
    target: the numbers of the variables that `skip` goes to
    timed_out: whether partial matches that `within` ends are wanted
    """

    pattern: Pattern
    conditions: tuple[Condition | None, ...]
    registers: tuple[Register, ...]
    within: int | None
    skip: str
    target: frozenset[int] = frozenset()
    timed_out: bool = False
    most: int = MOST_THREADS

    @property
    def merges(self) -> bool:
        """Whether partial matches in the same place are one, whatever their start."""
        return self.skip == "past last row" and self.within is None

    def resume(self, start: int, rows: list[int], taken: list[int]) -> int:
        """Return the first row where the next match can start, unless it is behind the last one."""
        if not rows or self.skip == "to next row":
            return start + 1
        targets = [row for row, taken in zip(rows, taken, strict=True) if taken >> 1 in self.target]
        names = " or ".join(self.pattern.variables[one] for one in sorted(self.target))
        shown = f"query: AFTER MATCH SKIP {self.skip.upper()} {names}"
        if not targets:
            raise ArgumentValueError(
                f"{shown} must have a row to go to, got a match without a row of {names}"
            )
        to = targets[0 if self.skip == "to first" else -1]
        if to == start:
            raise ArgumentValueError(
                f"{shown} must go forward, got the first row of the match, which has no end"
            )
        return to

    def too_many(self, count: int) -> NoReturn:
        """Raise an error that names the pattern."""
        raise ArgumentValueError(
            f"query: PATTERN ({self.pattern.shown}) must have at most {self.most:,} partial matches "
            f"of one key, got {count:,}; make its conditions exclude each other, or add WITHIN"
        )
