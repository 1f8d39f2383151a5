"""The PATTERN of MATCH_RECOGNIZE: its text, read and compiled to a program of prioritized branches."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate, combinations, permutations
from typing import Any, NoReturn

from timerheap.errors import ArgumentValueError

ACCEPT = -1
"""In what follows an instruction: the match is complete, and what would come later is not preferred."""

_TOKEN = re.compile(
    r"\s+|--[^\n]*|/\*.*?\*/|(\{-|-\}|[A-Za-z_]\w*|`[^`]+`|\"[^\"]+\"|\d+|[(){}|*+?^$,])", re.S
)
_MOST = 10_000  # instructions, and repetitions
_DEEPEST = 100  # parentheses in parentheses
_MOST_WALKED = 200_000  # instructions between each row and the next ones, of all rows: half a second
_SHOWN = 200  # characters of a pattern in an error
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_MOST_COMPARED = 100  # instructions, with each other

Term = tuple[Any, ...]
"""A pattern as a tree: ("var", name), ("seq", ...), ("alt", ...), ("rep", term, least, most, greedy) ..."""


def _reached(follow: Mapping[int, set[int]], first: int) -> set[int]:
    """Return what follows on a node of a graph, itself included."""
    found, places = {first}, [first]
    while places:
        new = follow[places.pop()] - found
        found |= new
        places += new
    return found


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern.

    An instruction of number pc takes one row as a variable; which ones may follow it, the preferred first, is
    known beforehand, so that a matcher has only to look at conditions.

    text: as the query has it
    variables: the names of the variables, as the pattern has them first
    takes: for each instruction the number of its variable, twice, plus one if the row is not shown;
        -1 for ``$``, which takes no row but waits for the end of the partition
    after: for each instruction those that may follow it, up to `ACCEPT`
    starts, first_starts: those that begin a match, at any row and at the first one of a partition
    at_end: for each ``$``, whether the match is complete if the partition ends there
    grows: whether a match can have any number of rows
    anchored: whether there is ``^`` or ``$``
    """

    text: str
    variables: tuple[str, ...]
    takes: tuple[int, ...]
    after: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    first_starts: tuple[int, ...]
    at_end: tuple[bool, ...]
    grows: bool
    anchored: bool

    @property
    def shown(self) -> str:
        """The text for errors, of a long one its beginning."""
        return shortened(self.text)

    def doubling(self, free: Collection[int], group: Collection[int]) -> tuple[str, str] | None:
        """Return two variables of which a loop takes each row as either, and `group` has one; None if none.

        If sums over the group are compared, the partial matches of a key double with each such row.

        free: the variables that any row can be taken as
        """
        variables = [taken >> 1 for taken in self.takes]
        open_ = {at for at, taken in enumerate(self.takes) if taken >= 0 and variables[at] in free}
        if len(open_) > _MOST_COMPARED:
            return None
        follow = {at: open_.intersection(self.after[at]) for at in open_}
        for start in sorted(open_):
            back = [at for at in sorted(follow[start]) if start in _reached(follow, at)]
            for one, other in combinations((variables[at] for at in back), 2):
                if (one in group) != (other in group):
                    return self.variables[one], self.variables[other]
        return None

    @property
    def earliest(self) -> list[int]:
        """For each variable the number of rows that a match has at least before a row that is taken as it."""
        found = [len(self.takes)] * len(self.variables)
        places = deque((at, 0) for at in {*self.starts, *self.first_starts} - {ACCEPT})
        seen = set[int]()
        while places:  # the nearest first, as $ takes no row
            at, rows = places.popleft()
            if at in seen:
                continue
            seen.add(at)
            taken = self.takes[at]
            if taken >= 0:
                found[taken >> 1] = min(found[taken >> 1], rows)
            for follower in self.after[at]:
                if follower != ACCEPT:
                    (places.append if taken >= 0 else places.appendleft)((follower, rows + (taken >= 0)))
        return found

    def number(self, name: str) -> int | None:
        """Return the number of a variable, in any case of its letters; None if there is none."""
        found = [at for at, one in enumerate(self.variables) if one.lower() == name.lower()]
        return found[0] if found else None


def shortened(text: str) -> str:
    """Return a text, of a long one its beginning."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def invalid(text: str, why: str) -> NoReturn:
    """Raise an error that names the pattern."""
    raise ArgumentValueError(f"query: PATTERN ({shortened(text)}) {why}")


def _too_many_steps(text: str) -> NoReturn:
    invalid(text, f"must have at most {_MOST:,} steps; write smaller numbers of repetitions")


def compiled(text: str) -> Pattern:
    """Return the program of a pattern."""
    return _Compiler(text).program(_Parser(text).whole())


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = deque[str]()
        self._depth = 0
        end = 0
        while end < len(text):
            found = _TOKEN.match(text, end)
            if found is None:
                invalid(text, f"must have variables, quantifiers and ( ) |, got {text[end]!r}")
            self._tokens += filter(None, [found[1]])
            end = found.end()

    def whole(self) -> Term:
        term = self._alternatives()
        if self._tokens:
            invalid(self._text, f"must end, got {self._tokens[0]!r}")
        return term

    def _take(self, *wanted: str) -> str | None:
        return self._tokens.popleft() if self._tokens and self._tokens[0].upper() in wanted else None

    def _number(self) -> int | None:
        if not self._tokens or not self._tokens[0].isdigit():
            return None
        digits = self._tokens.popleft()
        if len(digits.lstrip("0")) > len(str(_MOST)) or int(digits) > _MOST:
            _too_many_steps(self._text)
        return int(digits)

    def _expect(self, *wanted: str) -> str:
        found = self._take(*wanted)
        if found is None:
            shown = repr(self._tokens[0]) if self._tokens else "its end"
            invalid(self._text, f"must have {' or '.join(wanted)}, got {shown}")
        return found

    def _alternatives(self) -> Term:
        self._depth += 1
        if self._depth > _DEEPEST:
            invalid(self._text, f"must have at most {_DEEPEST} parentheses in each other; leave some out")
        terms = [self._sequence()]
        while self._take("|"):
            terms.append(self._sequence())
        self._depth -= 1
        return terms[0] if len(terms) == 1 else ("alt", *terms)

    def _sequence(self) -> Term:
        terms = [self._repeated()]
        while self._tokens and self._tokens[0] not in (")", "|", "-}", ","):
            terms.append(self._repeated())
        return terms[0] if len(terms) == 1 else ("seq", *terms)

    def _repeated(self) -> Term:
        term, bounds = self._primary(), self._bounds()
        if bounds is None:
            return term
        least, most = bounds
        if most is not None and (most < least or not most):
            invalid(self._text, f"must repeat at least once, and no less than it must, got {least} to {most}")
        return ("rep", term, least, most, not self._take("?"))

    def _bounds(self) -> tuple[int, int | None] | None:
        if mark := self._take(*_QUANTIFIERS):
            return _QUANTIFIERS[mark]
        if not self._take("{"):
            return None
        least = self._number()
        if self._expect(*((",", "}") if least is not None else (",",))) == "}":
            return least or 0, least
        most = self._number()
        self._expect("}")
        return least or 0, most

    def _primary(self) -> Term:
        if self._take("("):
            term = ("seq",) if self._tokens and self._tokens[0] == ")" else self._alternatives()
            self._expect(")")
            return term
        if self._take("{-"):
            term = self._alternatives()
            self._expect("-}")
            return ("hidden", term)
        if anchor := self._take("^", "$"):
            return (anchor,)
        if not self._tokens or not re.match(r"[\w`\"]", self._tokens[0]) or self._tokens[0].isdigit():
            self._expect("a variable")
        name = self._tokens.popleft()
        if name.upper() == "PERMUTE" and self._take("("):
            terms = [self._alternatives()]
            while self._take(","):
                terms.append(self._alternatives())
            self._expect(")")
            if len(terms) > 6:
                invalid(self._text, f"must permute at most 6 terms, got {len(terms)}")
            return ("alt", *(("seq", *order) for order in permutations(terms)))
        return ("var", name[1:-1] if name[0] in '`"' else name)


class _Compiler:
    """Instructions: "take" number, "split" targets, "mark" loop, "check" loop out, "^", "$".

    An iteration that takes no row ends its loop, once the least number of iterations is reached: a mark at
    its begin and a check at its end find one.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._names: dict[str, str] = {}
        self._code: list[list[Any]] = []
        self._grows = False
        self._emitted = self._walked = 0

    def program(self, term: Term) -> Pattern:
        self._emit(term, hidden=0)
        self._add("accept")
        code, names = self._code, list(self._names)
        if not names:
            invalid(self._text, "must have a variable")
        waits = [op[0] in ("take", "$") for op in code]
        numbers = [0, *accumulate(waits)]

        def reached(at: int, begins: bool = False, ends: bool = False) -> tuple[int, ...]:
            return tuple(ACCEPT if one == ACCEPT else numbers[one] for one in self._reached(at, begins, ends))

        places = [at for at, wait in enumerate(waits) if wait]
        return Pattern(
            self._text,
            tuple(self._names.values()),
            tuple(code[at][1] if code[at][0] == "take" else -1 for at in places),
            tuple(reached(at + 1) for at in places),
            reached(0),
            reached(0, begins=True),
            tuple(code[at][0] == "$" and ACCEPT in reached(at, ends=True) for at in places),
            self._grows,
            any(op[0] in ("^", "$") for op in code),
        )

    def _add(self, *op: Any) -> list[Any]:
        self._expect_few(len(self._code))
        self._code.append(list(op))
        return self._code[-1]

    def _expect_few(self, steps: int) -> None:
        if steps >= _MOST:
            _too_many_steps(self._text)

    def _emit(self, term: Term, hidden: int) -> None:
        self._emitted += 1  # () is none
        self._expect_few(self._emitted // 10)
        match term:
            case ("var", name):
                self._names.setdefault(name.lower(), name)
                self._add("take", 2 * list(self._names).index(name.lower()) + hidden)
            case ("seq", *terms):
                for one in terms:
                    self._emit(one, hidden)
            case ("hidden", one):
                self._emit(one, hidden=1)
            case ("alt", *terms):
                split, ends = self._add("split", []), []
                for one in terms:
                    split[1].append(len(self._code))
                    self._emit(one, hidden)
                    ends.append(self._add("split", []))
                for end in ends:
                    end[1].append(len(self._code))
            case ("rep", one, least, most, greedy):
                self._repeat(one, hidden, least, most, greedy)
            case _:
                self._add(*term)

    def _repeat(self, term: Term, hidden: int, least: int, most: int | None, greedy: bool) -> None:
        for _ in range(least):
            self._emit(term, hidden)
        self._grows |= most is None
        splits, checks = [], []
        for _ in range(1 if most is None else most - least):
            at = len(self._code)
            splits.append(self._add("split", [at + 1]))
            self._add("mark", at)
            self._emit(term, hidden)
            checks.append(self._add("check", at, None))
            if most is None:
                self._add("split", [at])
        out = len(self._code)
        for split in splits:
            split[1] = [*split[1], out] if greedy else [out, *split[1]]
        for check in checks:
            check[2] = out

    def _reached(self, start: int, begins: bool, ends: bool) -> list[int]:
        """Return what is reached without a row, the preferred first, up to the end of the pattern."""
        found: dict[int, None] = {}
        stack, seen = [(start, frozenset[int]())], set()
        while stack:
            at, marks = stack.pop()
            if (at, marks) in seen:
                continue
            seen.add((at, marks))
            self._walked += 1
            if self._walked > _MOST_WALKED:
                invalid(
                    self._text,
                    "must have fewer ways from one row to the next; write fewer optional terms behind each "
                    "other, such as A{0,1000} for (A?){1000}, and fewer alternatives in a repetition",
                )
            match self._code[at]:
                case ["accept"]:
                    return [*found, ACCEPT]
                case ["split", targets]:
                    stack += [(one, marks) for one in reversed(targets)]
                case ["mark", loop]:
                    stack.append((at + 1, marks | {loop}))
                case ["check", loop, out]:
                    stack.append((out, marks - {loop}) if loop in marks else (at + 1, marks))
                case ["^"] if not begins:
                    pass
                case ["$"] if not ends:
                    found[at] = None
                case ["take", _]:
                    found[at] = None
                case _:
                    stack.append((at + 1, marks))
        return [*found]
