"""Flink's traces, line by line, and which share of them a run replays: see tests/flink/conftest.py."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any
from zlib import crc32

from shares import SHARES, chosen_share

OURS = Path(__file__).parents[2] / "flink" / "traces"
DIRECTORY = Path(os.environ.get("TIMERHEAP_TRACES") or OURS)


def share_of_traces() -> int | None:
    """Return the number of this run's share, None for all."""
    if DIRECTORY != OURS and "TIMERHEAP_SHARE" not in os.environ:
        return None
    return chosen_share()


class Traces(list[Any]):
    """The lines of a trace file."""

    def __init__(self, stem: str, lines: Iterable[Any]) -> None:
        super().__init__(lines)
        self.stem = stem
        self.are_ours = DIRECTORY == OURS

    def replay(self, run: Callable[[Any], object], *how: object) -> None:
        """Call a function with each trace; a failure names its line, and how it was replayed."""
        self._replay(run, how, None)

    def replay_share(self, run: Callable[[Any], object], *how: object) -> None:
        """Do the same with this run's share of the traces, which is another one for each way of replaying."""
        self._replay(run, how, share_of_traces())

    def _replay(self, run: Callable[[Any], object], how: tuple[object, ...], share: int | None) -> None:
        turn = crc32(repr(how).encode())
        for line, trace in enumerate(self, 1):
            if share is not None and (line + turn) % SHARES != share:
                continue
            try:
                run(trace)
            except BaseException as e:
                said = [f"{self.stem}.jsonl.gz, line {line}", *map(str, how)]
                if share is not None:
                    said.append(f"TIMERHEAP_SHARE={share}")
                e.add_note(", ".join(said))
                raise


@lru_cache(maxsize=1)
def read_traces(stem: str) -> Traces | None:
    path = DIRECTORY / f"{stem}.jsonl.gz"
    if not path.exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return Traces(stem, map(json.loads, lines))
