"""Key groups in mapped files that are larger than the memory they may use, without Spark.

Run as root: ``python bench/tight_groups.py [--keys 4e6] [--shares 0.5 2 4] [--json FILE]``. The groups are
driven as the operator drives them (skew.py), and each row moves the timer of its key. A process builds them
and ends, and their files leave the page cache. For each share, a process in a cgroup, whose memory is the
size of the files divided by the share, maps the files and continues: with micro-batches of 10,000 rows of
one hundredth of the keys (hot), then of all keys (cold). With ``--settles``, keys settle before the first of
these, as they do on an executor with so much memory.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cgroups import forget, limited
from figures import write_json
from skew import Group, Sessions, rows_of
from tight import HOT, disk, medians, options

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._live.memory_limit import settling_of
from timerheap.spark._settling.settling_keys import Settling

GROUPS = 8
SOME = 10_000  # of one that is measured
BUILD = 500_000  # rows of a micro-batch that builds


class Mapped(Group):
    """A key group whose memory is a file; a new one, or the one that a process has left in it."""

    settling: Settling | None = None
    released = False

    def __init__(self, path: Path) -> None:
        super().__init__("", Sessions())
        self.path, self.rest = path, path.with_suffix(".rest")
        if path.exists():
            self.store, self.stored = pickle.loads(self.rest.read_bytes())
        else:
            self.group = KeyGroup(self.query.layout, LiveFile.create(str(path)))

    def come_back(self) -> None:
        file = LiveFile.lock(str(self.path))
        assert file is not None
        self.group = KeyGroup(self.query.layout, file, json.loads(file.read_head()))
        file.attached(self.group.settling.runs)

    @property
    def settled(self) -> int:
        settled = self.group.settling.settled
        return 0 if settled is None else len(settled)

    def take(self) -> None:
        """Take the file again, as the next micro-batch does, unless it is taken."""
        file: Any = self.group.memory
        if self.released:
            assert file.relock(str(self.path))
            if runs := self.group.settling.runs:
                file.attached(runs)
        self.released = False

    def release(self) -> None:
        """Write the head of the file and release it, as at the end of a micro-batch."""
        file: Any = self.group.memory
        if Mapped.settling is not None:
            self.group.settling.settle(Mapped.settling)
        assert file.write_head(json.dumps(self.group.head()).encode())
        file.unlock()
        self.released = True

    def leave(self) -> None:
        self.rest.write_bytes(pickle.dumps((self.store, self.stored)))


def used() -> tuple[float, ...]:
    """Return how many faults have read a page from the disk, and how many megabytes were read and written."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt, *disk([os.getpid()])


def batch(groups: list[Mapped], keys: np.ndarray, at: int) -> None:
    """Process a row of each key in its group."""
    for number, group in enumerate(groups):
        mine = keys[keys % GROUPS == number]
        group.take()
        group.batch(rows_of(mine, np.full(len(mine), at)), -1)
        group.release()


def build(paths: list[Path], keys: int) -> None:
    """Build the groups."""
    groups = [Mapped(path) for path in paths]
    for first in range(0, keys, BUILD):
        batch(groups, np.arange(first, min(first + BUILD, keys)), first)
    for group in groups:
        group.leave()


def settle(groups: list[Mapped], at: int) -> int:
    """Run micro-batches without rows until no more keys settle, and return how many have."""
    Mapped.settling = settling_of(GROUPS)
    settled, before = 0, -1
    while settled > before:
        batch(groups, np.arange(0), at)
        before, settled = settled, sum(group.settled for group in groups)
    return settled


def measure(paths: list[Path], keys: int, limit: int, batches: int, settles: bool) -> dict[str, Any]:
    """Return what micro-batches take with so much memory for what is touched from now on."""
    found: dict[str, Any] = {}
    random = np.random.default_rng(limit)  # other keys for each limit: those of before may be in memory
    hot = random.choice(keys, keys // HOT, replace=False)
    groups = [Mapped(path) for path in paths]  # with what the JVM would have
    with limited([os.getpid()], limit):
        for group in groups:
            group.come_back()
        found["settled"] = settle(groups, keys) if settles else 0
        for name in ("hot", "cold"):
            took = []
            for number in range(batches):
                chosen = random.choice(hot if name == "hot" else keys, SOME, replace=False)
                before, cpu, begun = used(), time.process_time(), time.perf_counter()
                batch(groups, chosen, keys + number)
                times = time.perf_counter() - begun, time.process_time() - cpu
                took.append((*times, *np.subtract(used(), before).tolist()))
            found[name] = medians(("seconds", "cpu", "faults", "read MB", "written MB"), took)
        for group in groups:
            group.leave()
    return found


def main() -> None:
    parser = options(__doc__.splitlines()[0])
    parser.add_argument("--settles", action="store_true", help="whether keys settle")
    arguments = parser.parse_args()

    def apart(work: Any, *arguments: Any) -> Any:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(work, *arguments).result()

    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as scratch:
        paths = [Path(scratch, f"{number}") for number in range(GROUPS)]
        apart(build, paths, arguments.keys)
        size = sum(path.stat().st_blocks * 512 for path in paths)
        print(f"{arguments.keys:,} keys, {size / 1e6:,.0f} MB of files", flush=True)
        result: dict[str, Any] = {"keys": arguments.keys, "rows": SOME, "files": size, "limits": []}
        for share in arguments.shares:
            forget(paths)
            limit = int(size / share)
            found = apart(measure, paths, arguments.keys, limit, arguments.batches, arguments.settles)
            after = sum(path.stat().st_blocks * 512 for path in paths)
            result["limits"].append({"share": share, "limit": limit, "files": after, **found})
            for name in ("hot", "cold"):
                shown = {what: value for what, value in found[name].items() if what != "spread"}
                where = f"{limit / 1e6:8,.0f} MB, {after / 1e6:,.0f} of files, {found['settled']:,} settled,"
                print(where, name, shown, flush=True)
    write_json(arguments, result)


if __name__ == "__main__":
    main()
