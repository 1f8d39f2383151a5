"""The tasks that send rows to an operator: how many there are, and what event time all have reached."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from pyarrow import fs

from timerheap.spark._real_time.bursts import Seen, seen_in_both
from timerheap.timer import MIN_WATERMARK


@dataclass(frozen=True)
class PlaceInQuery:
    """Where an operator is in its query.

    before: how many operators are before it
    senders: how many tasks send rows to it, None if they are tasks of the source
    """

    before: int
    senders: int | None


FIRST_OPERATOR = PlaceInQuery(0, None)


class Announced:
    """Holds back event times in the first epoch until each task that sends rows has been heard of.

    Else the first ones would advance the watermark, and the rows of the others would be late.

    tasks: how many there are, None if a file of this path is going to tell; these are all, also those that
        have no event times
    """

    def __init__(self, files: fs.FileSystem, path: str, tasks: int | None) -> None:
        self._files, self._path = files, path
        self._tasks, self._counts_all = tasks, tasks is None
        self._untimed: set[str] = set()  # the tasks without event times that have been heard of
        self.held: list[dict[str, Seen]] = []

    def hear_of(self, untimed: set[str]) -> None:
        """Note tasks without event times."""
        if self._counts_all:
            self._untimed |= untimed

    def released(self, seen: list[dict[str, Seen]]) -> list[dict[str, Seen]]:
        """Return all that has been seen so far of each input, nothing while a task is missing."""
        self.held = self.held or [{} for _ in seen]
        for held, found in zip(self.held, seen, strict=True):
            for name, one in found.items():
                held[name] = seen_in_both(held.get(name), one)
        if self._tasks is None:
            with suppress(OSError), self._files.open_input_stream(self._path) as file:
                self._tasks = int(file.read() or 0) or None
        heard = len(self._untimed.union(*self.held))
        return self.held if self._tasks is not None and heard >= self._tasks else []


class Followed:
    """What the tasks of operators have reached.

    delay: by how many ms the watermark stays behind theirs
    tasks: how many there are; while one has not told of its watermark, there is none
    """

    def __init__(self, delay: int, tasks: int) -> None:
        self._delay, self._tasks = delay, tasks
        self._reached: dict[str, int] = {}

    def limit(self, seen: Mapping[str, Seen]) -> int:
        """Return the watermark, given what tasks have told since the last call."""
        self._reached.update((name, one.newest) for name, one in seen.items())
        if len(self._reached) < self._tasks:
            return MIN_WATERMARK
        return max(min(self._reached.values()) - self._delay, MIN_WATERMARK)
