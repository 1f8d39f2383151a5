"""The queue on disk: nanoseconds a timer, one at a time and many, beside the heap; or millions of timers.

    python bench/rocksdb_queue.py                       # 100 000 timers, the calls beside each other
    python bench/rocksdb_queue.py --resident 20000000   # how much memory so many take

Cells are this thread's processor time and, in brackets, the clock's: RocksDB flushes and compacts in threads
of its own, and other processes take the clock's time but not the thread's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import write_json

from timerheap.flink import RocksDBTimerQueue, TimerQueue

Timers = list[tuple[int, int, None]]

# ns per timer of the class of Flink 2.3.0 with Java 17 at 1e5 timers, on a similar machine under load. It has
# no bulk operations: addAll and draining are loops over single ones.
FLINK = {"add": 1126, "remove": 1867, "poll": 1450, "add_many": 1126}


TURNS = [["add", "remove", "poll"], ["add_many"]]  # each on a new queue


def timers_of(seed: int, size: int) -> Timers:
    numbers = random.Random(seed)
    return [(numbers.randrange(1 << 40), numbers.randrange(1 << 60), None) for _ in range(size)]


def drain(queue: Any) -> None:
    while queue.poll() is not None:
        pass


def calls(queue: Any, timers: Timers) -> dict[str, tuple[Callable[[], Any], int]]:
    """Return the calls to measure, with the number of timers of each."""
    half = len(timers) // 2
    return {
        "add": (lambda: [queue.add(timer) for timer in timers], len(timers)),
        "remove": (lambda: [queue.remove(timer) for timer in timers[:half]], half),
        "poll": (lambda: drain(queue), len(timers) - half),
        "add_many": (lambda: queue.add_many(timers), len(timers)),
    }


def measure(new_queue: Callable[[], Any], size: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the nanoseconds per timer of every call in every round, as thread time and wall-clock time."""
    cells: dict[str, list[tuple[float, float]]] = {}
    for seed in range(rounds):
        for turn in TURNS:
            queue = new_queue()
            timers_of_round = timers_of(seed, size)
            for name in turn:
                call, timers = calls(queue, timers_of_round)[name]
                thread, clock = time.thread_time_ns(), time.perf_counter_ns()
                call()
                took = time.thread_time_ns() - thread, time.perf_counter_ns() - clock
                cells.setdefault(name, []).append((took[0] / timers, took[1] / timers))
    return cells


def compare(directory: Path, size: int, rounds: int) -> dict[str, Any]:
    paths = (directory / str(number) for number in itertools.count())

    def on_disk() -> Any:
        return RocksDBTimerQueue(next(paths), key_serializer="long", namespace_serializer="void")

    disk = measure(on_disk, size, rounds)
    heap = measure(TimerQueue, size, rounds)
    print(f"{'ns a timer':12}{'disk':>16}{'heap':>16}{'Flink / disk':>16}")
    report: dict[str, Any] = {}
    for name in disk:
        (ours, clock), (in_memory, heap_clock) = min(disk[name]), min(heap[name])
        ratio = FLINK[name] / ours
        print(f"{name:12}{ours:8.0f} ({clock:5.0f}){in_memory:8.0f} ({heap_clock:5.0f}){ratio:16.2f}")
        report[name] = {"disk_ns": ours, "heap_ns": in_memory, "flink_ns": FLINK[name], "ratio": ratio}
    return report


def memory(field: str) -> int:
    """Return VmRSS or VmHWM of this process, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(field))


def hold(directory: Path, size: int) -> dict[str, Any]:
    batch = 100_000
    with RocksDBTimerQueue(directory / "timers") as queue:
        begin = time.perf_counter()
        for seed in range(size // batch):
            queue.add_many(timers_of(seed, batch))
        added = time.perf_counter()
        files = sum(file.stat().st_size for file in (directory / "timers").iterdir())
        held = len(queue)
        counted = time.perf_counter()
        polled = 0
        last = -(2**63)
        while (timer := queue.poll()) is not None:
            assert last <= timer.timestamp
            last = timer.timestamp
            polled += 1
        ended = time.perf_counter()
    report = {
        "timers": held,
        "polled": polled,
        "add_many_ns": (added - begin) / size * 1e9,
        "count_ns": (counted - added) / size * 1e9,
        "poll_ns": (ended - counted) / size * 1e9,
        "disk_mb": files >> 20,
        "VmHWM_mb": memory("VmHWM"),
    }
    print(json.dumps(report, indent=1))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--timers", type=int, default=100_000, help="how many the calls are measured with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resident", type=int, metavar="TIMERS", help="hold so many instead")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="timerheap-bench-") as name:
        directory = Path(name)
        if arguments.resident:
            report = hold(directory, arguments.resident)
        else:
            report = compare(directory, arguments.timers, arguments.rounds)
    write_json(arguments, report)


if __name__ == "__main__":
    main()
