"""What the benchmarks of state larger than memory share: their options, and what they report."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["HOT", "disk", "medians", "options"]

HOT = 100  # one key in so many is hot


def options(about: str) -> argparse.ArgumentParser:
    """Return a parser of the options that all have."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--keys", type=lambda n: int(float(n)), default=4_000_000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 2, 4], help="1/n of the files fits")
    parser.add_argument("--batches", type=int, default=5, help="of each kind")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser


def disk(processes: Iterable[int]) -> tuple[float, float]:
    """Return how many megabytes processes have read from the disk, and written."""
    read = written = 0
    for process in processes:
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{process}/io").read_text()
            fields = dict(line.split(": ") for line in text.splitlines())
            read, written = read + int(fields["read_bytes"]), written + int(fields["write_bytes"])
    return read / 1e6, written / 1e6


def medians(names: Sequence[str], took: list[tuple[float, ...]]) -> dict[str, Any]:
    """Return the medians of what micro-batches took, with the first and the spread of the seconds."""
    found: dict[str, Any] = dict(zip(names, map(statistics.median, zip(*took, strict=True)), strict=True))
    seconds = [one[0] for one in took]
    return found | {"first": seconds[0], "spread": [min(seconds), max(seconds)]}
