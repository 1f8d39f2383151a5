"""Windows and sessions around changes of clocks, compared with the local times of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvf_model import CHANGES, Model, passes_at, to_local

from timerheap import MAX_WATERMARK
from timerheap.tvf import (
    CumulativeSliceAssigner,
    GlobalWindowAggregate,
    HoppingSliceAssigner,
    SessionWindowAggregate,
    TumblingSliceAssigner,
    WindowResults,
)
from timerheap.tvf.aggregates import Count
from timerheap.tvf.slices import SliceAssigner

MINUTE = 60_000
DELAY = 20 * MINUTE
KINDS: dict[str, tuple[Callable[..., SliceAssigner], list[int]]] = {
    "TUMBLE": (TumblingSliceAssigner, [30]),
    "HOP": (HoppingSliceAssigner, [75, 30]),
    "CUMULATE": (CumulativeSliceAssigner, [1_440, 30]),
}


def times(change: int) -> list[int]:
    return [change + minutes * MINUTE for minutes in range(-180, 181, 5)]


def bounds(fired: WindowResults) -> list[tuple[int, int, int]]:
    counts = fired.results[0].tolist()
    return list(zip(fired.window_starts.tolist(), fired.window_ends.tolist(), counts, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_a_window_has_the_rows_whose_local_times_are_in_it(zone: str, change: int, kind: str) -> None:
    """It fires once, when the clock has shown its last ms for the last time."""
    make, minutes = KINDS[kind]
    size, step = minutes[0] * MINUTE, minutes[-1] * MINUTE
    model = Model(kind, size, step, zone=zone)
    windows: Any = GlobalWindowAggregate(make(*(n * MINUTE for n in minutes), time_zone=zone), [Count()])
    found: list[tuple[int, int, int]] = []
    for at in times(change):
        model.add((7, at, None))
        assert not len(windows.add([7], [at]).rows)
        fired = windows.advance_watermark(at - DELAY)
        wanted = {window: len(rows) for window, rows in model.advance(at - DELAY).items()}
        assert {(7, start, end): n for start, end, n in bounds(fired)} == wanted
        found += bounds(fired)
    found += bounds(windows.advance_watermark(MAX_WATERMARK))
    assert len({window[:2] for window in found}) == len(found)
    local = [to_local(at, zone) for at in times(change)]
    assert all(n == sum(start <= shown < end for shown in local) for start, end, n in found)
    assert sum(n for *_, n in found) == sum(len(list(model.windows_of(at))) for at in times(change))


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_a_session_measures_its_gap_on_the_clock(zone: str, change: int) -> None:
    gap = 25 * MINUTE
    rows = [at for at in times(change) if (at - change) // (5 * MINUTE) % 7 in (0, 1, 2)]
    sessions = SessionWindowAggregate(gap, [Count()], zone)
    sessions.add([7] * len(rows), rows)
    found = bounds(sessions.advance_watermark(MAX_WATERMARK))
    wanted: list[list[int]] = []
    for shown in sorted(to_local(at, zone) for at in rows):
        if wanted and shown <= wanted[-1][1]:
            wanted[-1][1:] = [shown + gap, wanted[-1][2] + 1]
        else:
            wanted.append([shown, shown + gap, 1])
    assert [list(one) for one in found] == wanted
    timers = SessionWindowAggregate(gap, [Count()], zone)
    timers.add([7], [change - MINUTE])
    assert timers.next_timer() == passes_at(to_local(change - MINUTE, zone) + gap - 1, zone)
