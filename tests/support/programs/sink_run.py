"""Runs the queries of sink_child.py to their ends, and starts them again when they are killed."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from kill_driver import Child

__all__ = ["SinkRun"]

PROGRAM = Path(__file__).with_name("sink_child.py")
PATIENCE = 300  # seconds without a sign of life


class SinkRun:
    """A driver that is started again whenever it is killed.

    Parameters
    ----------
    work : pathlib.Path
    spec : dict
        See sink_child.py.

    Attributes
    ----------
    kills, starts : int
    failures : list of str
        What it has told when it failed by itself.
    """

    def __init__(self, work: Path, spec: dict[str, Any]) -> None:
        self._work, self._spec = work, spec
        self.kills, self.starts = 0, 0
        self.failures: list[str] = []

    def finish(self, planned: list[str], by_chance: int, draw: random.Random) -> None:
        """Run to the end, with all planned kills and then some at any moment."""
        while True:
            left = [name for name in planned if not (self._work / "kills" / name).exists()]
            child = Child(self._work, self._spec, PROGRAM)
            self.starts += 1
            try:
                is_next = not left and by_chance > 0
                ended = self._until_its_end(child, draw.uniform(0, 4) if is_next else None)
            finally:
                child.end()
            if not ended:
                by_chance -= 1
                self.kills += 1
                continue
            after = [name for name in left if not (self._work / "kills" / name).exists()]
            if len(after) < len(left):
                self.kills += 1
            elif failure := child.failure():
                self.failures.append(failure)
                assert len(self.failures) < 3, failure[-20_000:]
            else:
                assert not after, f"never came to {after}"
                return

    def _until_its_end(self, child: Child, seconds: float | None) -> bool:
        """Wait for the end, at most so many seconds after it could begin; return whether it came."""
        heard, due = time.monotonic(), float("inf")
        while (told := child.listen(0.05)) != "end" and child.process.poll() is None:
            now = time.monotonic()
            if told is not None:
                heard = now
                if told == "up" and seconds is not None:
                    due = now + 3 + seconds
            if now > due:
                return False
            assert now < heard + PATIENCE, child.log
        child.process.wait()
        return True
