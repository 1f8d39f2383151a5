"""Rows, measures and state of MATCH_RECOGNIZE against the standard's definition, in any micro-batches."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from match_model import SkipError
from match_random import INT, Case
from match_stream import MatchStream

from timerheap.spark._patterns import MatchPlan, Measure, compiled
from timerheap.timer import MAX_WATERMARK

CASES = int(os.environ.get("TIMERHEAP_MATCH_CASES", "300"))


@pytest.mark.promises(
    "Flink SQL",
    "different",
    "MATCH_RECOGNIZE, order of preference",
    note="the standard's, also where conditions of variables overlap",
)
@pytest.mark.promises(
    "Flink SQL", "different", "MATCH_RECOGNIZE, empty match", note="gives a row, as in the standard"
)
@pytest.mark.parametrize("part", range(4))
def test_measures_and_micro_batches_are_as_the_standard_says(part: int) -> None:
    for number in range(part, CASES, 4):
        rng = random.Random(number)
        try:
            case = Case(rng)
        except ValueError:  # a pattern without a variable
            continue
        try:
            wanted = case.wanted()
        except SkipError:
            with pytest.raises(ValueError, match="AFTER MATCH SKIP"):
                case.found([MAX_WATERMARK])
            continue
        cuts = sorted(rng.sample(range(17), rng.randint(0, 6)))
        shown = number, case.pattern.text, case.__dict__
        assert case.found([MAX_WATERMARK]) == wanted, shown
        assert case.found([*cuts, MAX_WATERMARK]) == wanted, (cuts, shown)


def test_time_ends_a_match_although_no_row_comes_and_the_state_has_no_column_of_a_condition() -> None:
    below = "lt", ("row", "w", 0), ("row", "v", 1)
    count, kept = Measure("n", INT, "count"), pa.schema([("v", INT)])
    plan = MatchPlan(
        compiled("A B+"),
        (None, below),
        4,
        "past last row",
        frozenset(),
        (count,),
        ["k"],
        [],
        kept,
        False,
        True,
        7,
    )
    rows = pa.record_batch({"v": pa.array([9, 9], INT), "w": pa.array([1, 1], INT)})
    stream = MatchStream(plan)
    assert stream.micro_batch(rows, [1, 1], [1, 2], 2) == []
    assert stream.micro_batch(rows[:0], [], [], 10) == [{"k": 1, "n": 2}]


V1, V2 = ("row", "v", 1), ("row", "v", 2)
HIGHER = "gt", ("row", "v", 0), V1


@pytest.mark.parametrize(
    ("pattern", "defined", "measure", "lag_within", "kept"),
    [
        ("A B", {"B": HIGHER}, None, None, 0),
        ("A+ B", {"B": HIGHER}, None, None, 0),
        ("A B C", {"C": ("gt", ("row", "v", 0), V2)}, None, None, 0),
        ("A B", {"B": ("eq", ("nav", frozenset([0]), "last", 0, "v", 0), V1)}, ("v", 1), None, 0),
        ("A? B", {"B": HIGHER}, None, None, 1),
        ("A? B", {"B": HIGHER}, None, 3, 0),
        ("A B", {"A": ("gt", V1, V2)}, None, None, 2),
        ("A B", {"A": ("gt", V1, V2)}, None, 3, 0),
        ("A B", {}, ("v", 1), 3, 0),
        ("A B C", {"C": ("gt", ("row", "v", 0), ("nav", frozenset([1]), "last", 0, "v", 3))}, None, None, 2),
    ],
)
def test_only_rows_that_a_later_match_reads_are_kept(
    pattern: str, defined: dict[str, Any], measure: Any, lag_within: int | None, kept: int
) -> None:
    """Each key has four rows of value 1 and 2, and then no more."""
    program = compiled(pattern)
    last = Measure("n", INT, "last", frozenset([1]), 0, measure or ("v", 0))
    plan = MatchPlan(
        program, tuple(map(defined.get, program.variables)), 4, "past last row", frozenset(), (last,),
        ["k"], [], pa.schema([("v", INT)]), False, True, 7, lag_within=lag_within,
    )  # fmt: skip
    stream, rows = MatchStream(plan), pa.record_batch({"v": pa.array([1, 2] * 20, INT)})
    for number in range(8):
        ids = [10 * number + one for one in range(10) for _ in range(4)]
        times = [10 * number + one for _ in range(10) for one in range(4)]
        stream.micro_batch(rows, ids, times, 10 * number + 5)
    stream.micro_batch(rows[:0], [], [], 100)
    assert [len(stream.kept[key]["rows"]) if key in stream.kept else 0 for key in range(80)] == [kept] * 80
    assert not stream.timers


@pytest.fixture
def collected() -> Iterator[list[str]]:
    """Return what the collector of garbage has done since."""
    done: list[str] = []

    def called(phase: str, info: dict[str, int]) -> None:
        done.append(phase)

    gc.callbacks.append(called)
    yield done
    gc.callbacks.remove(called)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_of_garbage_does_not_visit_partial_matches(enabled: bool, collected: list[str]) -> None:
    n = 4_000
    plan = MatchPlan(
        compiled("A+ B"), (None, ("row", "b", 0)), 10_000, "past last row", frozenset(),
        (Measure("n", INT, "count"),), ["k"], [], pa.schema([("b", pa.bool_())]), False, True, 7,
    )  # fmt: skip
    rows = pa.record_batch({"b": pa.array([False] * n)})
    (gc.enable if enabled else gc.disable)()
    try:
        collected.clear()
        assert MatchStream(plan).micro_batch(rows, [1] * n, range(n), 20_000) == []
        assert gc.isenabled() == enabled
        assert len(collected) < 10  # of eight million objects that it makes
    finally:
        gc.enable()
