"""Compare timerheap with heapq, sortedcontainers and Flink, which take turns in one run.

$ python bench/compare.py [--sizes N ...] [--rounds N] [--json FILE] [--plots FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from figures import write_json
from operations import MEMORY, OPERATIONS, YARDSTICKS, Operation, copies_of, random, timers
from peers.flink import Flink, find_jdk
from plot import draw
from report import Group, table

WARM_UP = 15  # rounds at 1e5, for Java's JIT compiler


def flink_ns(flink: Flink, n: int, operation: Operation) -> float:
    """Return nanoseconds per timer."""
    assert operation.flink
    load(flink, n)
    command, argument = operation.flink(n)
    copies = copies_of(n)
    return (flink.ask(command, copies, argument) / copies - flink.clock_ns) / (n * operation.share)


def flink_bytes(flink: Flink, n: int) -> float:
    load(flink, n)
    return flink.ask("bytes", copies_of(n)) / copies_of(n) / n


def load(flink: Flink, n: int) -> None:
    data = timers(random, n)
    flink.load((data.times, data.keys, *data.changes))


def turns(operation: Operation, n: int, rounds: int, flink: Flink | None) -> Group:
    """Return the nanoseconds per timer of every side in every round."""
    calls: dict[str, dict[str, Callable[[], float]]] = {
        kind: {name: partial(side.nanoseconds, n, operation.share) for name, side in sides.items()}
        for kind, sides in (("ours", operation.ours), ("peers", operation.peers))
    }
    if flink and operation.flink:
        calls["peers"]["Flink"] = partial(flink_ns, flink, n, operation)
    found: Group = {kind: {name: [] for name in named} for kind, named in calls.items()}
    for _ in range(rounds):
        for kind, named in calls.items():
            for name, call in named.items():
                found[kind][name].append(call())
    return found


def measure(sizes: list[int], rounds: int, flink: Flink | None) -> Iterator[Group]:
    runs = [(name, n, operation) for n in sizes for name, operation in OPERATIONS.items()]
    for n, operation in YARDSTICKS:
        if n in sizes:
            runs.append((f"{', '.join(operation.ours)} beside {', '.join(operation.peers)}", n, operation))
    for name, n, operation in runs:
        print(f"{n:>10,} {name}", flush=True)
        yield {"operation": name, "n": n, "unit": "ns", **turns(operation, n, rounds, flink)}
    for n in (step * size for size in sizes for step in (1, 2, 5) if step * size <= max(sizes)):
        print(f"{n:>10,} bytes a timer", flush=True)
        held = {name: [call(n)] for name, call in MEMORY.items()}
        if flink:
            held["Flink"] = [flink_bytes(flink, n)]
        ours = {"bytes a timer": held.pop("timerheap")}
        yield {"operation": "bytes a timer", "n": n, "unit": "bytes", "ours": ours, "peers": held}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--plots", type=Path, help="the folder where they are drawn")
    options = parser.parse_args()
    result: dict[str, Any] = {"groups": []}
    jdk = find_jdk()
    if jdk is None:
        print("Flink is left out: there is no JDK (no javac on the path, nor in JAVA_HOME).")
    flink = Flink(Path("build/flink"), jdk) if jdk else None
    with closing(flink) if flink else nullcontext():
        if flink:
            for _ in range(WARM_UP):
                for operation in OPERATIONS.values():
                    flink_ns(flink, 10**5, operation)
        for group in measure(options.sizes, options.rounds, flink):
            result["groups"].append(group)
            write_json(options, result)  # each time: the last may take hours
    if options.plots:
        draw(result["groups"], options.plots)
    print(table(result["groups"]))


if __name__ == "__main__":
    main()
