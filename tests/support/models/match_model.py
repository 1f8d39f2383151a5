"""Row pattern matching as the standard defines it: of all matches in order of preference, the first.

ISO/IEC 9075-2 and TR 19075-5, without any optimisation: a pattern is a tree, and a generator yields what it
can take from a row on, the preferred first. Conditions see the rows taken so far, theirs last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from typing import Any

Taken = tuple[tuple[int, str, bool], ...]  # a row, its variable, and whether it is hidden
Condition = Callable[[Taken], bool | None]


class SkipError(Exception):
    """AFTER MATCH SKIP has no row to go to, or does not go forward."""


class Model:
    """One pattern with its conditions, and the times of the rows."""

    def __init__(
        self,
        conditions: dict[str, Condition],
        times: Sequence[int],
        within: int | None,
        skip: tuple[str, ...],
    ) -> None:
        self.conditions, self.times, self.within, self.skip = conditions, times, within, skip
        self.timed_out: list[tuple[int, Taken]] = []
        self._lost: Taken = ()  # the first partial match that time ends, of one start

    def takes(self, term: Any, at: int, taken: Taken, hidden: bool = False) -> Iterator[tuple[int, Taken]]:
        """Yield the next row, and the rows taken, of each match of a term from row `at` on."""
        match term:
            case str():
                after = (*taken, (at, term, hidden))
                if at == len(self.times) or not self._short(after):
                    self._lost = self._lost or taken
                elif self.conditions.get(term, lambda _: True)(after):
                    yield at + 1, after
            case ("seq", *terms):
                if not terms:
                    yield at, taken
                else:
                    for there, then in self.takes(terms[0], at, taken, hidden):
                        yield from self.takes(("seq", *terms[1:]), there, then, hidden)
            case ("alt", *terms):
                for one in terms:
                    yield from self.takes(one, at, taken, hidden)
            case ("permute", *terms):
                for order in permutations(terms):
                    yield from self.takes(("seq", *order), at, taken, hidden)
            case ("hidden", one):
                yield from self.takes(one, at, taken, hidden=True)
            case ("^",):
                if at == 0:
                    yield at, taken
            case ("$",):
                if at == len(self.times):
                    yield at, taken
            case ("rep", one, least, most, greedy):
                yield from self._repeated(one, least, most, greedy, at, taken, hidden)

    def _repeated(
        self, one: Any, least: int, most: int | None, greedy: bool, at: int, taken: Taken, hidden: bool
    ) -> Iterator[tuple[int, Taken]]:
        if most == 0:
            yield at, taken
            return
        if least <= 0 and not greedy:
            yield at, taken
        for there, then in self.takes(one, at, taken, hidden):
            if there == at and least <= 0:  # an iteration that is not needed and takes no row is the last
                yield there, then
            else:
                fewer = None if most is None else most - 1
                yield from self._repeated(one, least - 1, fewer, greedy, there, then, hidden)
        if least <= 0 and greedy:
            yield at, taken

    def _short(self, taken: Taken) -> bool:
        return self.within is None or self.times[taken[-1][0]] - self.times[taken[0][0]] < self.within

    def matches(self, term: Any) -> list[tuple[int, Taken]]:
        """Return the start and the rows of all matches; `timed_out` then has those that time has ended."""
        found, start = [], 0
        while start < len(self.times):
            self._lost = ()
            first = next(self.takes(term, start, ()), None)
            if first is None:
                self.timed_out += [(start, self._lost)] if self._lost else []
                start += 1
                continue
            found.append((start, first[1]))
            start = self._resume(start, first[1])
        return found

    def _resume(self, start: int, taken: Taken) -> int:
        if not taken or self.skip[0] == "to next row":
            return start + 1
        if self.skip[0] == "past last row":
            return taken[-1][0] + 1
        targets = [row for row, variable, _ in taken if variable == self.skip[1]]
        if not targets or (to := targets[0 if self.skip[0] == "to first" else -1]) == start:
            raise SkipError
        return to


def random_term(rng: random.Random, names: str, depth: int = 3, anchors: bool = False) -> Any:
    """Return a random pattern; `anchors`: whether it may have ^ and $."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        if anchors and rng.random() < 0.1:
            return (rng.choice("^$"),)
        return ("seq",) if rng.random() < 0.06 else rng.choice(names)
    some = [random_term(rng, names, depth - 1, anchors) for _ in range(rng.choice([1, 2, 2, 3]))]
    if kind < 0.5:
        return ("seq", *some)
    if kind < 0.65:
        return ("alt", *some)
    if kind < 0.7:
        return ("permute", *some)
    if kind < 0.74:
        return ("hidden", some[0])
    least = rng.choice([0, 0, 0, 1, 1, 2])
    most = rng.choice([None, None, max(1, least), least + 1, least + 2])
    return ("rep", some[0], least, most, rng.random() < 0.65)


def text_of(term: Any) -> str:
    """Write a pattern."""
    match term:
        case str():
            return term
        case ("seq", *terms):
            return f"({' '.join(map(text_of, terms))})"
        case ("alt", *terms):
            return f"({' | '.join(map(text_of, terms))})"
        case ("permute", *terms):
            return f"PERMUTE({', '.join(map(text_of, terms))})"
        case ("hidden", one):
            return f"{{- {text_of(one)} -}}"
        case ("rep", one, least, most, greedy):
            marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
            mark = marks.get((least, most)) or f"{{{least},{'' if most is None else most}}}"
            return f"({text_of(one)}){mark}{'' if greedy else '?'}"
    return str(term[0])
