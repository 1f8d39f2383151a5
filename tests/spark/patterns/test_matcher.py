"""The matcher of MATCH_RECOGNIZE against the standard's definition, on random patterns and rows."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from match_model import Condition, Model, SkipError, Taken, random_term, text_of

from timerheap.spark._patterns import Matcher, Register, Rules, compiled

NAMES = "ABC"
CASES = int(os.environ.get("TIMERHEAP_MATCH_CASES", "1500"))


def of(taken: Taken, name: str) -> list[int]:
    return [row for row, variable, _ in taken if variable == name]


def matches(
    rules: Rules, columns: list[Any], times: Sequence[int], bits: Sequence[int]
) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return the matches, found row by row and in all rows at a time, which are the same."""
    found = []
    n, arrays = len(bits), (np.array(times, np.int64), np.array(bits, np.int64))
    for ends in (range(1, n + 1), [n]):
        one, begin = Matcher(rules, columns), 0
        for end in ends:
            one.run(begin, end, *arrays, 0)
            begin = end
        one.finish()
        taken = list(zip(one.rows, one.taken, strict=True))
        begins = [0, *one.ends][:-1]
        each = zip(one.starts, begins, one.ends, strict=True)
        found.append([(start, taken[low:high]) for start, low, high in each])
    assert found[0] == found[1]
    return found[0]


def case(rng: random.Random) -> None:
    """Compare one random case."""
    term = random_term(rng, NAMES, anchors=rng.random() < 0.2)
    if not any(name in text_of(term).replace("PERMUTE", "") for name in NAMES):
        with pytest.raises(ValueError, match="must have a variable"):
            compiled(text_of(term))
        return
    pattern = compiled(text_of(term))
    n = rng.randint(0, 9)
    often = rng.choice([0.5, 0.7, 0.9, 1])
    times = sorted(rng.choices(range(12), k=n))
    values = [rng.choice([None, 1, 2, 3]) for _ in range(n)]
    can = {name: [rng.random() < often for _ in range(n)] for name in NAMES}
    of_model: dict[str, Condition] = {
        name: lambda taken, name=name: can[name][taken[-1][0]] for name in NAMES
    }
    index = {name.upper(): at for at, name in enumerate(pattern.variables)}
    conditions: list[Any] = [None] * len(index)
    registers: list[Register] = []
    columns = [values]
    depends = rng.choice([*index, None, None])
    other = rng.choice([*index])
    kind = rng.choice(["last", "first", "sum"])
    if depends is not None:
        registers = [Register(frozenset([index[other]]), kind, 0 if kind == "sum" else None, 2)]

        def more(columns: Sequence[Any], row: int, registers: Sequence[Any]) -> bool | None:
            (found,) = registers
            if kind == "sum":
                return None if found is None else found < 5
            here = columns[0][row]
            that = columns[0][found[1]] if len(found) > 1 else None
            return None if here is None or that is None else here >= that

        def also(taken: Taken) -> bool | None:
            rows = of(taken, other)
            if kind == "sum":
                some = [values[row] for row in rows if values[row] is not None]
                return sum(some) < 5 if some else None
            here, that = values[taken[-1][0]], None
            if len(rows) > 1:
                that = values[rows[1] if kind == "first" else rows[-2]]
            return None if here is None or that is None else here >= that

        conditions[index[depends]] = more
        of_model[depends] = lambda taken: can[depends][taken[-1][0]] and also(taken)
    within = rng.choice([None, None, 3, 6])
    modes = ["past last row", "past last row", "to next row", "to first", "to last"]
    mode, target = rng.choice(modes), rng.choice([*index])
    skip = (mode, target) if mode in modes[3:] else (mode,)
    model = Model(of_model, times, within, skip)
    wanted: Any
    try:
        wanted = [
            (start, [(row, 2 * index[name] + hidden) for row, name, hidden in taken])
            for start, taken in model.matches(term)
        ]
    except SkipError:
        wanted = None
    rules = Rules(pattern, tuple(conditions), tuple(registers), within, mode, frozenset([index[target]]))
    bits = [sum(can[name][row] << at for name, at in index.items()) for row in range(n)]
    shown = f"{pattern.text} {within} {skip} {times} {values} {can} {depends} {other} {kind}"
    if wanted is None:
        with pytest.raises(ValueError, match="AFTER MATCH SKIP"):
            matches(rules, columns, times, bits)
    else:
        assert matches(rules, columns, times, bits) == wanted, shown


def test_random_patterns_match_as_the_standard_says() -> None:
    for number in range(CASES):
        case(random.Random(number))


def rules_of(text: str, skip: str = "past last row", within: int | None = None) -> Rules:
    pattern = compiled(text)
    return Rules(pattern, (None,) * len(pattern.variables), (), within, skip)


@pytest.mark.parametrize(
    ("skip", "within"), [("past last row", None), ("past last row", 10**9), ("to next row", None)]
)
def test_a_pattern_of_many_ways_has_bounded_work(skip: str, within: int | None) -> None:
    n = 2000 if skip == "past last row" and within is None else 400  # the others keep every start
    assert matches(rules_of("A* A* A* B", skip, within), [], range(n), [1] * n) == []


def test_a_long_match_is_found() -> None:
    n = 20_000
    bits = [1, *[2] * (n - 2), 4]
    ((start, rows),) = matches(rules_of("A B* C"), [], range(n), bits)
    assert (start, len(rows)) == (0, n)


@pytest.mark.parametrize(("skip", "within"), [("past last row", 10**9), ("to last", None)])
def test_a_long_match_is_found_of_which_each_row_could_begin_one(skip: str, within: int | None) -> None:
    n = 20_000
    rules = replace(rules_of("A+ B", skip, within), target=frozenset([1]))
    ((start, rows),) = matches(rules, [], range(n), [*[1] * (n - 1), 2])
    assert (start, len(rows)) == (0, n)


def test_a_pattern_with_too_many_partial_matches_is_named() -> None:
    pattern = compiled("(A | B)* C")
    sums = (Register(frozenset([0]), "sum", 0),)
    rules = Rules(
        pattern, (None, None, lambda columns, row, known: known[0] == 1), sums, None, "past last row"
    )
    powers = [[2**at for at in range(40)]]
    with pytest.raises(ValueError, match=r"\(A \| B\)\* C\) must have at most 50,000 partial matches"):
        matches(rules, powers, range(40), [3] * 40)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A B )", "must end, got '\\)'"),
        ("(A", "must have \\), got its end"),
        ("A | | B", "must have a variable, got '|'"),
        ("A % B", "got '%'"),
        ("A{0,0}", "must repeat at least once"),
        ("A{3,1}", "no less than it must, got 3 to 1"),
        ("A{}", "must have ,, got '}'"),
        ("", "must have a variable, got its end"),
        ("()", "must have a variable"),
        ("PERMUTE(A, B, C, D, E, F, G)", "at most 6 terms, got 7"),
        ("A{100000}", "at most 10,000 steps"),
        pytest.param(f"A{{{'9' * 5000}}}", "at most 10,000 steps", id="many digits"),
        ("A ((){9999}){9999}", "at most 10,000 steps"),
        pytest.param("(A?){1200}", "must have fewer ways from one row to the next", id="optional terms"),
        pytest.param(f"({'A | B | ' * 1500} C)*", "must have fewer ways from one row", id="alternatives"),
        pytest.param("(" * 400 + "A" + ")" * 400, "at most 100 parentheses in each other", id="parentheses"),
        pytest.param("{-" * 400 + "A" + "-}" * 400, "at most 100 parentheses", id="hidden terms"),
        pytest.param("PERMUTE(" * 400 + "A" + ")" * 400, "at most 100 parentheses", id="permutations"),
    ],
)
def test_what_is_no_pattern_is_refused(text: str, message: str) -> None:
    begin = time.process_time()
    with pytest.raises(ValueError, match=rf"query: PATTERN \(.*{message.replace('|', '.')}") as error:
        compiled(text)
    assert time.process_time() - begin < 10  # it took up to a minute
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("text", ["((A?)?){150}", " | ".join("ABC" * 1000), "(" * 99 + "A" + ")" * 99])
def test_patterns_near_the_bounds_are_read(text: str) -> None:
    assert compiled(text).variables[0] == "A"
