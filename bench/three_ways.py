"""Measures an operator by itself, as a batch and as a stream, beside others that take turns with it."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import write_json
from flights import spark_session
from pyspark.sql import SparkSession
from usage import cpu

SETTINGS = {"spark.sql.execution.arrow.maxBytesPerBatch": (1 << 31) - 1, "spark.sql.session.timeZone": "UTC"}
Taken = dict[str, Any]
Variants = dict[str, tuple[Callable[[], object], int | None]]
"""Actions, with the process of the JVM if they run in one."""
Write = Callable[[Path, int, int], None]
Batch = Callable[[SparkSession, Path, int], dict[str, Taken]]
Stream = Callable[[SparkSession, Path, Path], dict[str, Taken]]


def spent(action: Callable[[], object], jvm: int | None) -> Taken:
    """Return the seconds and the CPU seconds of an action, in this process if there is no JVM."""
    start, own = time.perf_counter(), time.process_time()
    before = None if jvm is None else cpu(jvm)
    action()
    seconds = time.perf_counter() - start
    if jvm is None or before is None:
        return {"seconds": seconds, "jvm": 0.0, "python": time.process_time() - own}
    used = cpu(jvm).since(before)
    return {"seconds": seconds, "jvm": used.jvm, "python": used.python}


def median(rounds: list[Taken]) -> Taken:
    """Return the medians of each figure, and the smallest and the largest CPU."""
    cpu = [one["jvm"] + one["python"] for one in rounds]
    medians = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return medians | {"spread": [min(cpu), max(cpu)]}


def in_turn(variants: Variants, rounds: int) -> dict[str, Taken]:
    """Return the medians of all rounds but the first."""
    taken: dict[str, list[Taken]] = {name: [] for name in variants}
    for _ in range(rounds + 1):
        for name, (action, process) in variants.items():
            taken[name].append(spent(action, process))
    return {name: median(each[1:]) for name, each in taken.items()}


def compared(about: str, write: Write, operator: Batch, batch: Batch, stream: Stream) -> None:
    """Write rows, measure all three, and print and write the figures; the program's arguments say how many.

    about: the help of the program
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000, help="in a micro-batch, of all inputs")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3, help="of the batch")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, Taken]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write(root / "data", options.events, options.batches)
        with spark_session(root / "spark.log", SETTINGS) as spark:
            every = options.events * options.batches
            print(f"{'':10}{'':16}{'rows/s':>12}{'JVM ns/row':>12}{'Python ns/row':>15}")
            for kind, n, measured in (
                ("operator", every, lambda: operator(spark, root / "data", options.rounds)),
                ("batch", every, lambda: batch(spark, root / "data", options.rounds)),
                ("stream", options.events, lambda: stream(spark, root / "data", root / "stream")),
            ):
                figures[kind] = measured()
                for name, took in figures[kind].items():
                    jvm, python = (took[side] * 1e9 / n for side in ("jvm", "python"))
                    rate = f"{n / took['seconds']:12,.0f}"
                    print(f"{kind:10}{name:16}{rate}{jvm:12,.0f}{python:15,.0f}", flush=True)
    write_json(options, figures)
