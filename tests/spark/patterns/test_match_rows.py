"""Rows, measures and state of MATCH_RECOGNIZE against the standard's definition, in any micro-batches."""

from __future__ import annotations

import os
import random

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
