"""Print the figures as a table with ratios and goals.

$ python bench/report.py out/peers.json     # written by compare.py
$ python bench/report.py out/heap.json      # written by pytest-benchmark for test_heap.py

The figures are groups, each for an operation at one n: {"operation", "n", "unit": "ns" or "bytes",
"ours": {method: values}, "peers": {name: values}}, with one value per round, divided by the number of timers.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

Group = dict[str, Any]

PEERS = ["heapq + set", "sortedcontainers", "Flink"]

# How many times faster than a peer ours must be at least. For bytes, and beside any other yardstick: how many
# times its figure ours may be at most.
GOALS: dict[tuple[str, int], dict[str, float]] = {
    ("push_many", 10**6): {"heapq + set": 20, "Flink": 10},
    ("remove_many", 10**6): {"heapq + set": 8, "Flink": 8},
    ("reschedule_many", 10**6): {"heapq + set": 8, "Flink": 10},
    ("push_many that moves", 10**6): {"heapq + set": 8, "Flink": 10},
    ("pop_due, all due", 10**6): {"heapq + set": 80, "Flink": 30},
    ("pop_due, 10 % due", 10**6): {"heapq + set": 30, "Flink": 15},
    ("pop_due, 1 % due", 10**6): {"heapq + set": 30, "Flink": 15},
    ("pop", 10**6): {"heapq + set": 10, "Flink": 2},
    ("push", 10**4): {"heapq + set": 2, "an empty method": 2},
    ("pop", 10**4): {"heapq + set": 4, "an empty method": 2},
    ("reschedule", 10**4): {"heapq + set": 2.5, "an empty method": 2},
    ("remove", 10**4): {"an empty method": 2},
    ("bytes a timer", 10**6): {"heapq + set": 0.28, "Flink": 0.45},
    ("to_bytes", 10**6): {"memcpy": 4},
    ("from_bytes", 10**6): {"push_many": 0.6},
    ("push_many, ten times as many", 10**6): {"push_many": 3},
}
WORST_CASE = 1.5  # compared with "random"

LEGEND = """\
Nanoseconds per timer, or bytes per timer. 12x after the figure of a peer means that timerheap is 12 times
faster. For bytes, and in the last column, it is the figure of timerheap divided by the other figure."""


class Ratio(NamedTuple):
    """The median of timerheap and the median of a peer."""

    method: str
    n: int
    unit: str
    ours: float
    peer: str
    peers: float

    @property
    def faster(self) -> bool:
        """Whether the ratio is a speedup, and not the figure of timerheap divided by that of the peer."""
        return self.unit == "ns" and self.peer in PEERS

    @property
    def value(self) -> float:
        return self.peers / self.ours if self.faster else self.ours / self.peers

    @property
    def goal(self) -> float | None:
        if self.peer == "random":
            return WORST_CASE
        return GOALS.get((self.method, self.n), {}).get(self.peer)

    @property
    def met(self) -> bool:
        return self.goal is None or (self.value >= self.goal if self.faster else self.value <= self.goal)

    def __str__(self) -> str:
        text = f"{amount(self.peers)} {self.value:.{digits(self.value)}f}x"
        if self.goal is None:
            return text
        return f"{text} {'' if self.met else 'not '}{'>=' if self.faster else '<='} {self.goal:g}"


def digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


def amount(value: float) -> str:
    return f"{value:,.{min(1, digits(value))}f}"


def ratios(groups: list[Group]) -> list[list[Ratio]]:
    """Return the ratios of each method of each group to all peers."""
    return [
        [
            Ratio(
                method, group["n"], group["unit"], statistics.median(values), peer, statistics.median(peers)
            )
            for peer, peers in group["peers"].items()
        ]
        for group in groups
        for method, values in group["ours"].items()
    ]


def table(groups: list[Group]) -> str:
    """Return the table, with a line for each method and n."""
    lines = [line for line in ratios(groups) if line]
    found = [ratio for line in lines for ratio in line]
    shown = [peer for peer in PEERS if any(ratio.peer == peer for ratio in found)]
    result = [f"{'':38}{'n':>10}{'timerheap':>11}   {''.join(f'{peer:24}' for peer in shown)}".rstrip()]
    for line in lines:
        cells = {ratio.peer: str(ratio) for ratio in line}
        beside = "".join(f"{peer} {cell}" for peer, cell in cells.items() if peer not in PEERS)
        peers = "".join(f"{cells.get(peer, ''):24}" for peer in shown)
        result.append(
            f"{line[0].method:38}{line[0].n:>10,}{amount(line[0].ours):>11}   {peers}{beside}".rstrip()
        )
    goals = [ratio.met for ratio in found if ratio.goal is not None]
    return "\n".join([*result, "", LEGEND, f"{sum(goals)} of {len(goals)} goals are met."])


def groups_of(report: dict[str, Any]) -> list[Group]:
    """Return the groups in a file of either kind."""
    if "benchmarks" not in report:
        return report["figures"]["groups"]
    groups: dict[tuple[str, int], Group] = {}
    for run in report["benchmarks"]:
        info = run["extra_info"]
        unit = "bytes" if "bytes" in info else "ns"
        value = info["bytes"] if unit == "bytes" else run["stats"]["median"] * 1e9 / info["timers"]
        new = {"operation": info["operation"], "n": info["n"], "unit": unit, "ours": {}, "peers": {}}
        group = groups.setdefault((info["operation"], info["n"]), new)
        group["ours" if info["ours"] else "peers"][info["side"]] = [value]
    return list(groups.values())


if __name__ == "__main__":
    print(table(groups_of(json.loads(Path(sys.argv[1]).read_text()))))
