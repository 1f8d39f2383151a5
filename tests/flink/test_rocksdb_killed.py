"""Kills a process repeatedly while it uses its queue: acknowledged changes are neither lost nor duplicated.

The environment variable TIMERHEAP_KILLS sets the number of kills; 50 take two minutes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

from timerheap.flink import InternalTimer, RocksDBTimerQueue

KILLS = int(os.environ.get("TIMERHEAP_KILLS", "6"))

# Performs each call that it reads, and then acknowledges it with a line of the numbers affected.
WORKER = """
import sys
from timerheap.flink import RocksDBTimerQueue

queue = RocksDBTimerQueue(sys.argv[1], namespace_serializer="void")
print("open", flush=True)
for line in sys.stdin:
    call, *numbers = line.split()
    timers = [(int(number), int(number) % 100, None) for number in numbers]
    if call == "add":
        queue.add(timers[0])
    elif call == "remove":
        queue.remove(timers[0])
    elif call == "add_many":
        queue.add_many(timers)
    elif call == "poll":
        timer = queue.poll()
        numbers = [] if timer is None else [timer.timestamp]
    print("done", *numbers, flush=True)
"""


def calls(random: random.Random, held: set[int]) -> str:
    """Choose a call; few timers are added twice, and many are removed."""
    number = random.randrange(1 << 20)
    match random.randrange(12):
        case 0:
            return (
                f"add_many {' '.join(str(random.randrange(1 << 20)) for _ in range(random.randrange(3_000)))}"
            )
        case 1 | 2 | 3:
            return "poll"
        case 4 | 5 | 6:
            return f"remove {random.choice(sorted(held)[:50] or [number])}"
        case _:
            return f"add {number}"


def apply(call: str, held: set[int]) -> tuple[set[int], list[int] | None]:
    """Return the timers after a call, and the numbers that the call acknowledges."""
    name, *words = call.split()
    numbers = list(map(int, words))
    match name:
        case "add" | "add_many":
            return held | set(numbers), numbers
        case "remove":
            return held - set(numbers), numbers
        case _:
            polled = sorted(held)[:1]
            return held - set(polled), polled


def work_until_killed(path: Any, random: random.Random, held: set[int]) -> list[set[int]]:
    """Return the possible sets of timers: those acknowledged, without or with the call in progress."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    possible = [held]
    try:
        assert worker.stdout.readline() == "open\n"
        end = time.monotonic() + random.uniform(0, 0.5)
        while time.monotonic() < end:
            call = calls(random, held)
            worker.stdin.write(call + "\n")
            worker.stdin.flush()
            after, did = apply(call, held)
            possible = [held, after]
            if random.random() < 0.001 or time.monotonic() > end:
                time.sleep(random.uniform(0, 0.005))  # so that the kill interrupts the call
                break
            assert worker.stdout.readline().split() == ["done", *map(str, did or [])]
            held, possible = after, [after]
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.stdin.close()
        worker.stdout.close()
        worker.wait()
    return possible


def test_acknowledged_changes_survive_every_kill_exactly_once(tmp_path: Any) -> None:
    seed = int(os.environ.get("TIMERHEAP_SEED", random.randrange(1 << 32)))
    print("TIMERHEAP_SEED", seed)
    chance = random.Random(seed)
    held: set[int] = set()
    for _ in range(KILLS):
        possible = work_until_killed(tmp_path / "timers", chance, held)
        with RocksDBTimerQueue(tmp_path / "timers", namespace_serializer="void") as queue:
            found = list(queue)
            assert len(queue) == len(found)
        held = {timer.timestamp for timer in found}
        assert sorted(found) == [InternalTimer(number, number % 100, None) for number in sorted(held)]
        assert held in possible
