"""Dead letters: what is left is what a run has in which the bad rows and timers do nothing."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from faulty import SIDE, Broadcast, Columns, Rows, TwoInputs, is_bad

from timerheap.testing import ProcessTester

SCHEMA = "key string, at bigint, seed bigint"
STATES = ["long", "double", "flag", "text", "row", "list", "map", "most", "sum"]
STATES += ["short value", "short list", "short map"]


def rows_of(choice: random.Random, n: int, start: int) -> list[tuple[str, int, int]]:
    return [
        (
            "abcdefgh"[min(choice.randrange(8), choice.randrange(8))],
            start + choice.randrange(30),
            choice.getrandbits(30),
        )
        for _ in range(n)
    ]


def drive(function: Any, seed: int, order: str, *, errors: str = "emit") -> tuple[list[Any], ProcessTester]:
    """Push random rows, advance, and go on from snapshots; return all that can be seen."""
    choice = random.Random(seed)
    options: dict[str, Any] = {"order": order, "errors": errors, "side_outputs": [SIDE]}
    if isinstance(function, Broadcast):
        options["rules_schema"] = "name string, n bigint"
    tester = ProcessTester(function, "key", SCHEMA, "key string, n bigint", "at", **options)
    columns = isinstance(function, Columns)
    names = ["count", "text", "list"] if columns else STATES
    seen: list[Any] = []
    for step in range(14):
        seen.append(tester.push(rows_of(choice, choice.randrange(25), 10 * step)))
        if isinstance(function, TwoInputs):
            seen.append(tester.push_right(rows_of(choice, choice.randrange(25), 10 * step)))
        if isinstance(function, Broadcast):
            rules = [(f"r{k}", choice.getrandbits(20)) for k in range(choice.randrange(6))]
            seen.append(tester.push_rules(rules))
            seen.append(tester.broadcast_state("rules"))
        if choice.random() < 0.6:
            seen.append(tester.advance_watermark(10 * step))
        seen += [tester.state(name) for name in names]
        seen.append(tester.timers())
        seen.append(tester.side_output(SIDE))
        if choice.random() < 0.3:
            tester.restore(tester.snapshot())
    seen.append(tester.finish())
    seen += [tester.state(name) for name in names]
    return seen, tester


@pytest.mark.in_turn
@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [Rows, TwoInputs, Broadcast])
def test_what_is_left_is_as_if_the_bad_ones_did_nothing(kind: Any, seed: int, order: str) -> None:
    expected, _ = drive(kind(raises=False), seed, order)
    found, tester = drive(kind(raises=True), seed, order)
    assert found == expected
    calls = Counter(letter.call for letter in tester.dead_letters())
    assert calls["on_timer"]
    assert sum(calls.values()) > 10


@pytest.mark.in_turn
@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("seed", range(6))
def test_columns(seed: int, order: str) -> None:
    # In order of arrival a key has many rows in a call, and what deletes do depends on where it is cut.
    expected, _ = drive(Columns(raises=False, deletes=order == "event_time"), seed, order)
    found, tester = drive(Columns(raises=True, deletes=order == "event_time"), seed, order)
    seeds = [letter.input.seed for letter in tester.dead_letters() if letter.input is not None]
    assert all(map(is_bad, seeds))
    if order == "event_time":
        assert [sorted(map(str, each)) for each in found] == [sorted(map(str, each)) for each in expected]
        return
    # A call that raises is cut, so that a key has more calls, each with a result.
    assert [e for e in found if isinstance(e, dict)] == [e for e in expected if isinstance(e, dict)]
