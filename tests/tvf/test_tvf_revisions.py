"""Windows that are corrected, beside a slow model, after each step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from revision_model import MAX, MIN, Revised, SessionModel
from tvf_model import CHANGES, Model, Row

from timerheap.tvf import (
    CumulativeSliceAssigner,
    GlobalWindowAggregate,
    HoppingSliceAssigner,
    SessionWindowAggregate,
    TumblingSliceAssigner,
)
from timerheap.tvf.aggregates import Count, Max, Sum, Variance
from timerheap.tvf.distinct import CountDistinct
from timerheap.tvf.revisions import SessionRevisions, SliceRevisions
from timerheap.tvf.window_aggregate import WindowResults

WINDOWS = {
    "TUMBLE": (10, 10),
    "HOP": (30, 10),
    "HOP of thirds": (25, 10),
    "CUMULATE": (40, 10),
    "SESSION": (10, 10),
}
AGGREGATES = [
    Count(),
    Sum("v", np.int64),
    Max("v", np.int64),
    CountDistinct("v", np.int64),
    Sum("f", np.float64),
    Variance("var_pop", "f"),
]


def result(rows: list[Row]) -> list[Any]:
    """The aggregates that have one right answer."""
    values = [row[2] for row in rows]
    return [len(rows), sum(values), max(values), len(set(values))]


class Corrected:
    """The operator of a kind of windows, which goes through its snapshots now and then."""

    def __init__(self, kind: str, zone: str, lateness: int, early: bool) -> None:
        self.kind, self.zone, self.lateness, self.early = kind, zone, lateness, early
        self.windows, self.unshown = self.operator(), self.operator() if early else None
        self.table: dict[tuple[int, int, int], list[Any]] = {}
        self.watermark = MIN

    def operator(self) -> Any:
        size, step = WINDOWS[self.kind]
        kinds: dict[str, Any] = {
            "TUMBLE": lambda: TumblingSliceAssigner(size, time_zone=self.zone),
            "CUMULATE": lambda: CumulativeSliceAssigner(size, step, time_zone=self.zone),
        }
        if self.kind == "SESSION":
            return SessionWindowAggregate(size, AGGREGATES, self.zone)
        assigner = kinds.get(self.kind, lambda: HoppingSliceAssigner(size, step, time_zone=self.zone))()
        return GlobalWindowAggregate(assigner, AGGREGATES, folds=False)

    def reload(self) -> None:
        """Continue from what a checkpoint would have."""
        windows, unshown = self.operator(), self.operator() if self.early else None
        windows.restore(self.windows.snapshot(), self.windows.watermark)
        if unshown is not None:
            unshown.restore(self.unshown.snapshot(), MIN)
        self.windows, self.unshown = windows, unshown

    def step(self, rows: list[Row], watermark: int, shows: bool) -> int:
        """Add rows, and apply what comes; return the number of late rows."""
        kind = SessionRevisions if self.kind == "SESSION" else SliceRevisions
        revisions = kind(self.windows, self.unshown, self.lateness)
        values = {"v": [row[2] for row in rows], "f": [row[2] * 0.1 for row in rows]}
        fresh, late = revisions.timely([row[0] for row in rows], [row[1] for row in rows], values)
        watermark = max(watermark, self.watermark)
        seen: Counter[tuple[int, int, int]] = Counter()
        for before, after in revisions.revise(fresh, self.watermark, watermark, shows):
            old, new = shown(before), shown(after)
            for window, values in old.items():
                assert self.table.pop(window) == values  # to the last bit
            assert not self.table.keys() & new.keys()
            self.table |= new
            seen.update(old.keys() | new.keys())
        assert not seen or max(seen.values()) == 1
        self.watermark = watermark
        return len(late.rows)


def shown(results: WindowResults) -> dict[tuple[int, int, int], list[Any]]:
    columns = (results.key_ids, results.window_starts, results.window_ends)
    windows = zip(*(column.tolist() for column in columns), strict=True)
    values = map(list, zip(*(column.tolist() for column in results.results), strict=True))
    return dict(zip(windows, values, strict=True))


def modelled(kind: str, zone: str, lateness: int, early: bool) -> Revised:
    size, step = WINDOWS[kind]
    if kind == "SESSION":
        return Revised(SessionModel(kind, size, step), lateness, early, result)
    return Revised(Model(kind.split()[0], size, step, 0, zone), lateness, early, result)


def steps(seed: int, kind: str, base: int) -> Iterable[tuple[list[Row], int, bool]]:
    source = random.Random(f"{seed} {kind}")
    time = base
    for _ in range(source.randint(3, 25)):
        time += source.choice([0, 1, 5, 20, 20, 70])
        times = [
            max(time - source.choice([0, 2, 10, 30, 80, 200]), 0)
            for _ in range(source.choice([0, 1, 2, 6, 20]))
        ]
        rows = [(source.randint(0, 3), at, source.randint(-5, 5)) for at in times]
        yield rows, time - 10, source.random() < 0.4
    yield [], MAX, False


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", WINDOWS)
def test_the_table_is_that_of_the_model_after_each_step(kind: str, early: bool) -> None:
    """60 cases of rows that come late, and saves between them; what was shown goes as it was."""
    for seed in range(60):
        lateness = (0, 15, 50, 1000)[seed % 4]
        model, operator = modelled(kind, "UTC", lateness, early), Corrected(kind, "UTC", lateness, early)
        for rows, watermark, shows in steps(seed, kind, 1000):
            late = model.step(rows, watermark, shows)
            assert operator.step(rows, watermark, shows) == np.count_nonzero(late)
            assert {window: values[:4] for window, values in operator.table.items()} == model.table
            if seed % 3 == 0:
                operator.reload()
        assert not len(operator.windows.snapshot())
        assert operator.unshown is None or not len(operator.unshown.snapshot())


@pytest.mark.parametrize("kind", ["TUMBLE", "HOP", "CUMULATE"])
def test_clocks_change(kind: str) -> None:
    for number, (zone, at) in enumerate(CHANGES):
        early = number % 2 == 0
        model, operator = modelled(kind, zone, 30, early), Corrected(kind, zone, 30, early)
        for rows, watermark, shows in steps(number, kind, at - 150):
            late = model.step(rows, watermark, shows)
            assert operator.step(rows, watermark, shows) == np.count_nonzero(late)
            assert {window: values[:4] for window, values in operator.table.items()} == model.table


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", WINDOWS)
def test_state_is_flat(kind: str, early: bool) -> None:
    """Over 200 steps with late rows, the accumulators and the timers are as many as after 50."""
    operator, sizes = Corrected(kind, "UTC", 50, early), []
    for number in range(200):
        time = 1000 + 10 * number
        rows = [(key, time - back, key) for key in range(3) for back in (0, 5, 30, 45)]
        operator.step(rows, time, number % 4 == 0)
        parts = [operator.windows, *([operator.unshown] if early else [])]
        sizes.append(sum(len(part.snapshot()) + len(part.timers) for part in parts))
    assert max(sizes[150:]) <= max(sizes[50:100])
