"""Finds the matches of a pattern in the rows of one key, in the standard's order of preference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from timerheap.spark._patterns.pattern import ACCEPT, Pattern

MOST_THREADS = 50_000
"""How many partial matches of one key there can be; with more of them the pattern is refused."""

Cell = tuple[Any, int, int]
"""The last row of a partial match: the cell of the row before it or None, the row, what it is taken as."""

Registers = tuple[Any, ...]
Condition = Callable[[Sequence[Any], int, Registers], bool | None]
"""Of columns by row, the row, and the registers with the row: whether the row can be taken."""

NONE: Any = object()
"""Stands for a match where none is complete yet."""


@dataclass(frozen=True)
class Register:
    """What conditions need to know of a partial match: some of its rows, or an aggregate of them.

    variables: the numbers of the variables whose rows count; None for all
    kind: "first", "last", or the name of an aggregate
    column: the column that is aggregated, None for rows
    size: how many of the first or last rows
    """

    variables: frozenset[int] | None
    kind: str
    column: int | None
    size: int = 1

    def add(self, value: Any, columns: Sequence[Any], row: int) -> Any:
        """Return the register with one more row."""
        if self.kind == "last":
            return (row, *value[: self.size - 1])
        if self.kind == "first":
            return value if len(value) >= self.size else (*value, row)
        added = 1 if self.column is None else columns[self.column][row]
        return value if added is None else accumulated(self.kind, value, added)

    @property
    def empty(self) -> Any:
        return () if self.kind in ("first", "last") else EMPTY[self.kind]


EMPTY: dict[str, Any] = {"count": 0, "sum": None, "min": None, "max": None, "avg": None}
"""The aggregates, and their accumulators without a value."""


def accumulated(kind: str, value: Any, added: Any) -> Any:
    """Return an accumulator with one more value, which is not null."""
    if kind == "count":
        return value + 1
    if kind == "avg":
        return (float(added), 1) if value is None else (value[0] + float(added), value[1] + 1)
    if value is None:
        return added
    if kind == "sum":
        return value + added
    larger = added > value or added != added  # NaN is the largest number, as in Spark
    return added if larger == (kind == "max") else value


def result(kind: str, value: Any) -> Any:
    """Return what an accumulator stands for."""
    return value[0] / value[1] if kind == "avg" and value is not None else value


@dataclass(frozen=True)
class Rules:
    """How a pattern is matched.

    conditions: for each variable what its condition asks of a partial match, None if bits of rows say it
    within: the ms that a match is shorter than; None for no limit
    skip: "past last row", "to next row", "to first" or "to last"
    target: the numbers of the variables that `skip` goes to
    """

    pattern: Pattern
    conditions: tuple[Condition | None, ...]
    registers: tuple[Register, ...]
    within: int | None
    skip: str
    target: frozenset[int] = frozenset()
    merges: bool = field(
        init=False
    )  # whether partial matches in the same place are one, whatever their start
    begins: int = field(init=False)  # the bits of rows where a match can start; -1: any row

    def __post_init__(self) -> None:
        object.__setattr__(self, "merges", self.skip == "past last row" and self.within is None)
        starts, takes = {*self.pattern.starts, *self.pattern.first_starts}, self.pattern.takes
        bits = [-1 if pc == ACCEPT or takes[pc] < 0 else 1 << (takes[pc] >> 1) for pc in starts]
        object.__setattr__(self, "begins", reduce(or_, bits, 0))

    def taken(self, registers: Registers, columns: Sequence[Any], row: int, variable: int) -> Registers:
        """Return the registers of a partial match with one more row."""
        return tuple(
            one.add(value, columns, row) if one.variables is None or variable in one.variables else value
            for one, value in zip(self.registers, registers, strict=True)
        )


@dataclass(slots=True)
class Attempt:
    """The partial matches that start at one row, the preferred first.

    threads: the number of the next instruction, the last cell and the registers of each
    best: the last cell of the match that is complete and preferred to all that were dropped; None if it is
        empty
    """

    start: int
    time: int
    threads: list[tuple[int, Cell | None, Registers]]
    best: Any = NONE

    @property
    def complete(self) -> bool:
        return self.best is not NONE


Match = tuple[int, list[tuple[int, int]]]
"""The row where a match starts, and its rows, with what they are taken as; there are none if it is empty."""


class Matcher:
    """The partial matches of one key.

    A row is looked at once for each of them. Those that would take the same rows from here on are one, the
    preferred one: same instruction, same registers, and same start if that matters.
    """

    def __init__(self, rules: Rules, columns: Sequence[Any], attempts: list[Attempt] | None = None) -> None:
        self._rules, self._columns = rules, columns
        self.attempts = attempts or []
        self._pattern = rules.pattern
        self._nothing = tuple(one.empty for one in rules.registers)

    def add(self, row: int, time: int, bits: int, first: bool) -> list[Match]:
        """Add the next row, and return the matches that are decided.

        bits: which variables the row can be, as far as that depends on the row
        first: whether it is the first one of the partition
        """
        found = self.expire(time) if self._rules.within is not None else []
        attempts, left, count = self.attempts, list[Attempt](), 0
        if bits & self._rules.begins or self._rules.begins < 0:
            starts = self._pattern.first_starts if first else self._pattern.starts
            new = Attempt(row, time, [], None if ACCEPT in starts else NONE)
            new.threads += [(pc, None, self._nothing) for pc in starts if pc != ACCEPT]
            attempts.append(new)
        merges, seen = self._rules.merges, set[Any]()
        for attempt in attempts:
            if not merges:
                seen = set()
            taken = self._step(attempt, row, bits, seen)
            if attempt.threads or attempt.complete:
                left.append(attempt)
                count += len(attempt.threads)
            if taken and self._rules.skip == "past last row":
                break  # a match from an earlier row has this one
        if count > MOST_THREADS:
            raise ValueError(
                f"query: PATTERN ({self._pattern.text}) must have at most {MOST_THREADS:,} partial matches "
                f"of one key, got {count:,}; make its conditions exclude each other, or add WITHIN"
            )
        self.attempts = left
        return found + self._decided() if not left or not left[0].threads else found

    def _step(self, attempt: Attempt, row: int, bits: int, seen: set[Any]) -> bool:
        """Add a row to the partial matches of one start, and return whether one is complete with it."""
        takes, after, rules = self._pattern.takes, self._pattern.after, self._rules
        threads: list[tuple[int, Cell | None, Registers]] = []
        old, attempt.threads = attempt.threads, threads
        for pc, cell, registers in old:
            variable = takes[pc] >> 1
            if variable < 0 or not bits >> variable & 1:
                continue
            if registers:
                registers = rules.taken(registers, self._columns, row, variable)
            condition = rules.conditions[variable]
            if condition is not None and not condition(self._columns, row, registers):
                continue
            here = (cell, row, takes[pc])
            for follower in after[pc]:
                if follower == ACCEPT:
                    attempt.best = here
                    return True
                place = (follower, registers) if registers else follower
                if place not in seen:
                    seen.add(place)
                    threads.append((follower, here, registers))
        return False

    def expire(self, time: int) -> list[Match]:
        """Drop partial matches that a row of this time or later would make too long; return matches."""
        within = self._rules.within
        if within is None or not self.attempts or time - self.attempts[0].time < within:
            return []
        for attempt in self.attempts:
            if time - attempt.time < within:
                break
            attempt.threads = []
        return self._decided()

    def finish(self) -> list[Match]:
        """End the partition; return the last matches."""
        for attempt in self.attempts:
            ends = (cell for pc, cell, _ in attempt.threads if self._pattern.at_end[pc])
            attempt.best, attempt.threads = next(ends, attempt.best), []
        return self._decided()

    def _decided(self) -> list[Match]:
        found: list[Match] = []
        while self.attempts and not self.attempts[0].threads:
            attempt = self.attempts.pop(0)
            if attempt.complete:
                rows, cell = [], attempt.best
                while cell is not None:
                    cell, row, taken = cell
                    rows.append((row, taken))
                rows.reverse()
                found.append((attempt.start, rows))
                resume = self._resume(attempt.start, rows)
                self.attempts = [one for one in self.attempts if one.start >= resume]
        return found

    def _resume(self, start: int, rows: list[tuple[int, int]]) -> int:
        """Return the first row where the next match can start."""
        skip = self._rules.skip
        if not rows or skip == "to next row":
            return start + 1
        if skip == "past last row":
            return rows[-1][0] + 1
        targets = [row for row, taken in rows if taken >> 1 in self._rules.target]
        names = " or ".join(self._pattern.variables[one] for one in sorted(self._rules.target))
        shown = f"query: AFTER MATCH SKIP {skip.upper()} {names}"
        if not targets:
            raise ValueError(f"{shown} must have a row to go to, got a match without a row of {names}")
        to = targets[0 if skip == "to first" else -1]
        if to == start:
            raise ValueError(f"{shown} must go forward, got the first row of the match, which has no end")
        return to
