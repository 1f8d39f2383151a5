"""A slow model of windows in plain Python: it stores every row in each window of the row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1)
MILLISECOND = timedelta(milliseconds=1)

Row = tuple[int, int, Any]  # key, timestamp, value

CHANGES = [
    (zone, int(datetime.fromisoformat(f"{at}:00+00:00").timestamp()) * 1000)
    for zone, at in (
        ("America/New_York", "2026-03-08T07:00"),
        ("America/New_York", "2026-11-01T06:00"),
        ("Europe/Berlin", "2026-03-29T01:00"),
        ("Europe/Berlin", "2026-10-25T01:00"),
        ("Australia/Lord_Howe", "2026-10-03T15:30"),  # by 30 minutes
        ("Australia/Lord_Howe", "2026-04-04T15:00"),
        ("Pacific/Apia", "2011-12-30T10:00"),  # skips a day
        ("Pacific/Kwajalein", "1993-08-21T12:00"),  # likewise
        ("Africa/Casablanca", "2024-03-10T02:00"),  # back for Ramadan
        ("Africa/Casablanca", "2024-04-14T02:00"),
        ("Asia/Kathmandu", "1985-12-31T18:30"),  # by 15 minutes
        ("Pacific/Chatham", "2026-09-26T14:00"),  # at 2:45
        ("Pacific/Chatham", "2026-04-04T14:00"),
        ("America/Sao_Paulo", "2018-11-04T03:00"),  # skips midnight
        ("America/Sao_Paulo", "2018-02-18T02:00"),  # repeats the hour before it
        ("Antarctica/Troll", "2026-03-29T01:00"),  # by two hours
    )
]
"""Zones and when their clocks change, epoch ms."""


def to_local(timestamp: int, zone: str) -> int:
    moment = (EPOCH.replace(tzinfo=UTC) + timestamp * MILLISECOND).astimezone(ZoneInfo(zone))
    return (moment.replace(tzinfo=None) - EPOCH) // MILLISECOND


@lru_cache(100_000)
def passes_at(local: int, zone: str) -> int:
    """Return the last instant with this local time, or the first instant after a gap that skips it."""
    wall = EPOCH + local * MILLISECOND
    late = wall.replace(tzinfo=ZoneInfo(zone), fold=1).astimezone(UTC)
    early = wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)
    if early <= late:
        return (late - EPOCH.replace(tzinfo=UTC)) // MILLISECOND
    # The time is skipped: the two conversions lie on either side of the transition.
    low, high = (((moment - EPOCH.replace(tzinfo=UTC)) // MILLISECOND) for moment in (late, early))
    before = to_local(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if to_local(middle, zone) - before == middle - low else (low, middle)
        before = to_local(low, zone)
    return high


@dataclass
class Model:
    """A model of TUMBLE (step = size), HOP or CUMULATE."""

    kind: str
    size: int
    step: int
    offset: int = 0
    zone: str = "UTC"
    watermark: int = -(2**63)
    late: int = 0
    windows: dict[tuple[int, int, int], list[Row]] = field(default_factory=lambda: defaultdict(list))

    def windows_of(self, timestamp: int) -> Iterator[tuple[int, int]]:
        local = to_local(timestamp, self.zone) - self.offset
        if self.kind == "CUMULATE":
            start = local - local % self.size
            for end in range(start + self.step, start + self.size + 1, self.step):
                if end > local:
                    yield start + self.offset, end + self.offset
        else:
            start = local - local % self.step
            for begin in range(start, start - self.size, -self.step):
                if begin + self.size > local:
                    yield begin + self.offset, begin + self.size + self.offset

    def fired(self, end: int) -> bool:
        return passes_at(end - 1, self.zone) <= self.watermark

    def add(self, row: Row) -> int:
        """Return how late the row is, or 0."""
        key, timestamp, *_ = row
        windows = list(self.windows_of(timestamp))
        open_ones = [window for window in windows if not self.fired(window[1])]
        for start, end in open_ones:
            self.windows[key, start, end].append(row)
        if open_ones:
            return 0
        self.late += 1
        return self.watermark + 1 - max(passes_at(end - 1, self.zone) for _, end in windows)

    def open_windows(self) -> dict[tuple[int, int, int], list[Row]]:
        return dict(self.windows)

    def advance(self, watermark: int) -> dict[tuple[int, int, int], list[Row]]:
        self.watermark = max(watermark, self.watermark)
        fired = {window: rows for window, rows in self.windows.items() if self.fired(window[2])}
        for window in fired:
            del self.windows[window]
        return fired


def value_counts(rows: Iterable[Row]) -> dict[Any, int]:
    """Count the non-null values."""
    counts: dict[Any, int] = defaultdict(int)
    for _, _, value in rows:
        if value is not None:
            counts[value] += 1
    return dict(counts)
