"""The plans of the queries, as recorded: no side may run a job that is not the one that was looked at.

plans.json has the names of the operators of each query, from the sink down: of Flink without and with
mini-batches, of Spark, and of timerheap, where those that run in Python have the name of the room.
A run adds the plans that are missing, and ``python -m nexmark --record`` writes all anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

FILE = Path(__file__).with_name("plans.json")
# Operators of Flink that keep no state.
WITHOUT_STATE = {"Sink", "Calc", "TableSourceScan", "WatermarkAssigner", "MiniBatchAssigner", "Exchange"}
# Operators of Flink that collect rows of a mini-batch before they look at their state.
MINI_BATCHED = re.compile("Join|(Group|Incremental).*Aggregate|Rank|Deduplicate|ChangelogNormalize")
OF_WINDOWS = re.compile("Window|Temporal|Interval")


class Plans:
    """The recorded plans."""

    def __init__(self, record: bool = False) -> None:
        self._record = record
        self._known = _read()

    def check(self, query: str, side: str, found: list[str]) -> None:
        """Raise an error if a plan is not the recorded one; record it if there is none.

        Raises
        ------
        RuntimeError
            If it differs.
        """
        known = self._known.get(query, {}).get(side)
        if self._record or known is None:
            self._known = _read()
            self._known.setdefault(query, {})[side] = found
            FILE.write_text(
                json.dumps(self._known, indent=None, sort_keys=True).replace("}, ", "},\n ") + "\n"
            )
        elif known != found:
            raise RuntimeError(f"the plan of {query} on {side} must be {known}, got {found}")


def keeps_state(plan: list[str]) -> bool:
    """Whether a plan of Flink has an operator with state."""
    return not WITHOUT_STATE.issuperset(plan)


def collects(plan: list[str]) -> bool:
    """Whether mini-batches can matter to a plan of Flink: those of windows and joins by time do without."""
    return any(MINI_BATCHED.search(name) and not OF_WINDOWS.search(name) for name in plan)


def _read() -> dict[str, dict[str, list[str]]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}  # type: ignore[no-any-return]
