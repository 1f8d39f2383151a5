"""Session windows compared with sessions in plain Python, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.tvf import SessionWindowAggregate, WindowResults
from timerheap.tvf.aggregates import Sum
from timerheap.tvf.distinct import CountDistinct

GAP = 10
Session = tuple[int, int, list[int]]  # start, end, values


@dataclass
class Sessions:
    watermark: int = MIN_WATERMARK
    late: int = 0
    of_key: dict[int, list[Session]] = field(default_factory=dict)

    def add(self, key: int, timestamp: int, value: int) -> int:
        """Return how late the row is, or 0."""
        start, end, values = timestamp, timestamp + GAP, [value]
        others = []
        for session in self.of_key.get(key, []):
            if session[0] <= end and start <= session[1]:
                start, end, values = min(start, session[0]), max(end, session[1]), values + session[2]
            else:
                others.append(session)
        if end - 1 <= self.watermark:
            self.late += 1
            return self.watermark + 1 - (end - 1)
        self.of_key[key] = [*others, (start, end, values)]
        return 0

    def advance(self, watermark: int) -> dict[tuple[int, int, int], list[int]]:
        self.watermark = max(watermark, self.watermark)
        fired = {}
        for key, sessions in self.of_key.items():
            over = [session for session in sessions if session[1] - 1 <= self.watermark]
            self.of_key[key] = [session for session in sessions if session not in over]
            fired |= {(key, start, end): [sum(values), len(set(values))] for start, end, values in over}
        return fired


def shown(fired: WindowResults) -> dict[tuple[int, int, int], list[int]]:
    windows = zip(
        fired.key_ids.tolist(), fired.window_starts.tolist(), fired.window_ends.tolist(), strict=True
    )
    return dict(zip(windows, map(list, zip(*(c.tolist() for c in fired.results), strict=True)), strict=True))


def operator() -> SessionWindowAggregate:
    return SessionWindowAggregate(GAP, [Sum("v", np.int64), CountDistinct("v", np.int64)])


TIMES = st.integers(-60, 120)
ROWS = st.lists(st.tuples(st.integers(0, 2), TIMES, st.integers(-3, 3)), max_size=8)


@settings(max_examples=300)
@given(
    steps=st.lists(
        st.tuples(ROWS, st.one_of(st.none(), TIMES), st.sampled_from(["", "restored", "with timers"])),
        max_size=6,
    )
)
def test_sessions_equal_the_model(steps: list[tuple[list[tuple[int, int, int]], int | None, str]]) -> None:
    model, sessions = Sessions(), operator()
    kept: dict[tuple[int, int, int], list[int]] = {}  # collected from the changes
    for rows, watermark, restored in [*steps, ([], MAX_WATERMARK, "")]:
        late_by = {at: by for at, row in enumerate(rows) if (by := model.add(*row))}
        keys, timestamps, values = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        late = sessions.add(keys, timestamps, {"v": values})
        assert dict(zip(late.rows.tolist(), late.late_by.tolist(), strict=True)) == late_by
        open_ones = shown(sessions.open_windows())
        assert {key[1:] for key in open_ones} == {s[:2] for of_key in model.of_key.values() for s in of_key}
        if watermark is not None:
            assert shown(sessions.advance_watermark(watermark)) == model.advance(watermark)
        changed, gone = sessions.changes()
        restored_part = operator()
        restored_part.restore(changed, MIN_WATERMARK)
        dropped = {*changed.key_ids.tolist(), *gone.tolist()}
        kept = {window: results for window, results in kept.items() if window[0] not in dropped}
        kept |= shown(restored_part.open_windows())
        assert kept == shown(sessions.open_windows())
        if restored:
            before, timer = sessions, sessions.next_timer()
            sessions = operator()
            timers = before.timers if restored == "with timers" else None
            sessions.restore(before.snapshot()[::-1], before.watermark, timers)
            sessions.late_rows = before.late_rows
            assert sessions.next_timer() == timer
        assert sessions.late_rows == model.late
    assert len(sessions) == 0
    assert sessions.next_timer() is None


def test_a_row_merges_only_the_sessions_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = operator()
    sessions.add(np.arange(100), np.arange(100), {"v": np.ones(100, np.int64)})
    merged, merge = [], sessions.aggregation.merge_accumulators

    def counted(groups: Any, accumulators: Any) -> Any:
        merged.append(len(groups.order))
        return merge(groups, accumulators)

    monkeypatch.setattr(sessions.aggregation, "merge_accumulators", counted)
    sessions.add([7, 1000], [8, 8], {"v": [1, 1]})
    assert merged == [3]
    assert len(sessions) == 101
    state = sessions.snapshot()
    assert state.key_ids.tolist() == [*range(100), 1000]
    assert state[[7, 100]].starts.tolist() == [7, 8]


def test_invalid_input_raises_and_changes_nothing() -> None:
    sessions = operator()
    with pytest.raises(ValueError, match="gap must be more than 0 ms"):
        SessionWindowAggregate(0, [])
    with pytest.raises(KeyError, match="v"):
        sessions.add([1], [1], {})
    with pytest.raises(OverflowError, match="a session's end must fit into int64, got"):
        sessions.add([1], [2**63 - 5], {"v": [1]})
    assert len(sessions) == 0
