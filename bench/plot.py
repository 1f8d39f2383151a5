"""Plot the figures.

$ python bench/plot.py out/peers.json bench/plots     # draws the plots in the README
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from report import PEERS, Group

OPERATIONS = {
    "push": "push",
    "remove": "remove",
    "reschedule": "reschedule",
    "move a key's timer": "push that moves (KeyTimerHeap)",
    "pop": "pop",
    "pop all that is due": "pop_due, all due",
    "pop 10 %": "pop_due, 10 % due",
    "pop 1 %": "pop_due, 1 % due",
}
OURS = "#0072b2"
COLOURS = dict(zip(PEERS, ("#d55e00", "#cc79a7", "#009e73"), strict=True))
BULK, SINGLE, HELD = "timerheap, many at once", "timerheap, one call each", "timerheap"


def label(method: str, unit: str) -> str:
    return HELD if unit == "bytes" else BULK if "_" in method else SINGLE


def lines(groups: list[Group], operation: str) -> dict[str, dict[int, float]]:
    """Return the medians by n for each line of a plot."""
    found: dict[str, dict[int, float]] = {}
    for group in groups:
        if group["operation"] == operation:
            ours = {label(method, group["unit"]): values for method, values in group["ours"].items()}
            for name, values in (ours | group["peers"]).items():
                found.setdefault(name, {})[group["n"]] = statistics.median(values)
    return found


def plot(axes: Axes, groups: list[Group], operation: str) -> None:
    for name, medians in lines(groups, operation).items():
        x = sorted(medians)
        style = {
            "color": COLOURS.get(name, OURS),
            "linewidth": 1.2 if name in COLOURS else 2,
            "markersize": 3,
        }
        axes.plot(x, [medians[n] for n in x], "o--" if name == SINGLE else "o-", label=name, **style)
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("timers")


def save(figure: Figure, axes: list[Axes], file: Path) -> None:
    labels: dict[str, Any] = {}
    for one in axes:
        labels |= {name: line for line, name in zip(*one.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=len(labels), frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None})


def draw(groups: list[Group], folder: Path) -> None:
    """Draw time and memory, each to a file."""
    with matplotlib.rc_context({"svg.hashsalt": "timerheap", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(12, 6), layout="constrained")
        panels = figure.subplots(2, 4, sharex=True, sharey=True)
        for axes, (operation, title) in zip(panels.flat, OPERATIONS.items(), strict=True):
            axes.set_yscale("log")
            plot(axes, groups, operation)
            axes.set_title(title, fontsize=10)
            axes.label_outer()
        for axes in panels[:, 0]:
            axes.set_ylabel("ns a timer")
        save(figure, list(panels.flat), folder / "time.svg")

        figure = Figure(figsize=(6, 3.4), layout="constrained")
        axes = figure.subplots()
        plot(axes, groups, "bytes a timer")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bytes a timer")
        save(figure, [axes], folder / "memory.svg")


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["figures"]["groups"], Path(sys.argv[2]))
