"""A slow model of windows that are corrected: after each step, what an up-to-date table of results has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tvf_model import Model, Row, passes_at

MIN, MAX = -(2**63), 2**63 - 1
Window = tuple[Any, int, int]  # key, start, end


@dataclass
class SessionModel:
    """Sessions in UTC; `size` is the gap."""

    kind: str
    size: int
    step: int
    zone: str = "UTC"
    watermark: int = MIN
    windows: dict[Window, list[Row]] = field(default_factory=dict)

    def add(self, row: Row) -> int:
        key, start, *_ = row
        end, rows, touched = start + self.size, [row], []
        for window, others in self.windows.items():
            if window[0] == key and window[1] <= end and start <= window[2]:
                start, end = min(start, window[1]), max(end, window[2])
                rows = others + rows
                touched.append(window)
        if end - 1 <= self.watermark:
            return self.watermark + 1 - (end - 1)
        for window in touched:
            del self.windows[window]
        self.windows[key, start, end] = rows
        return 0

    def advance(self, watermark: int) -> dict[Window, list[Row]]:
        self.watermark = max(watermark, self.watermark)
        fired = {window: rows for window, rows in self.windows.items() if window[2] - 1 <= self.watermark}
        for window in fired:
            del self.windows[window]
        return fired


@dataclass
class Revised:
    """Windows that are kept for `lateness` ms of event time after their ends.

    windows: all rows that count, by window
    early: whether windows that have not ended show what they had at the last step that `shows`
    result: what a window shows of its rows
    table: what is shown now
    """

    windows: Model | SessionModel
    lateness: int
    early: bool
    result: Callable[[list[Row]], Any]
    watermark: int = MIN
    table: dict[Window, Any] = field(default_factory=dict)
    final: dict[Window, Any] = field(default_factory=dict)

    def step(self, rows: Iterable[Row], watermark: int, shows: bool) -> list[int]:
        """Add rows, advance the watermark; return how late each row is, 0 if it counts."""
        late = [self.windows.add(row) for row in rows]
        self.watermark = max(watermark, self.watermark)
        now = {window: self.result(found) for window, found in self.windows.windows.items()}
        if isinstance(self.windows, SessionModel):
            self._sessions(now, shows)
        else:
            for window in now:
                if self._ended(window) or (self.early and shows):
                    self.table[window] = now[window]
        lower = self.watermark if self.watermark in (MIN, MAX) else max(self.watermark - self.lateness, MIN)
        self.final |= {window: self.result(found) for window, found in self.windows.advance(lower).items()}
        return late

    def _sessions(self, now: dict[Window, Any], shows: bool) -> None:
        """Show all sessions of a key as they are once one that has ended, now or before, is another one."""
        shown = {window: value for window, value in self.table.items() if window not in self.final}
        for key in {window[0] for window in [*now, *shown]}:
            old = {window: value for window, value in shown.items() if window[0] == key}
            new = {window: value for window, value in now.items() if window[0] == key}
            if not self.early:
                new = {window: value for window, value in new.items() if self._ended(window)}
            over = [{w: value for w, value in each.items() if self._ended(w)} for each in (old, new)]
            if not self.early or shows or over[0] != over[1]:
                for window in old:
                    del self.table[window]
                self.table |= new

    def _ended(self, window: Window) -> bool:
        return passes_at(window[2] - 1, self.windows.zone) <= self.watermark
