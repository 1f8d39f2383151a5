"""Compare five rules over one exchange of rows with one rule, in CPU time, as a batch and as a stream.

$ python bench/rules.py [--rows N] [--batches N] [--rounds N] [--json FILE]

The rows are readings of 5,000 sensors. Each rule also runs alone, with `timerheap.spark.process`; "one" is
the mean of these. The rules are those that alert: each has a state or a timer, and few results.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from figures import write_json
from flights import spark_session
from pyspark.sql import DataFrame, SparkSession
from three_ways import SETTINGS, Taken, in_turn, median
from usage import cpu, jvm_of

import timerheap.spark
from timerheap import BatchProcessFunction, KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import Rule

SENSORS, START, HOUR = 5_000, 1_767_225_600_000, 3_600_000
SCHEMA = "sensor string, at timestamp, degrees double"


class Spikes(KeyedProcessFunction):
    """A reading far above the one before."""

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any] | None:
        last = self.last.value()
        self.last.update(value.degrees)
        if last is not None and value.degrees > last + 99.9:
            return iter([(value.sensor, value.degrees)])
        return None


class Silence(KeyedProcessFunction):
    """No reading for an hour."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + HOUR, name="silence")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


class TooWarm(KeyedProcessFunction):
    """Ten warm readings one after the other."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any] | None:
        if value.degrees < 80:
            if self.count.value():
                self.count.clear()
            return None
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return iter([(value.sensor, count)]) if count == 10 else None


class Records(BatchProcessFunction):
    """A reading above all before it, by columns."""

    def open(self, ctx: Any) -> None:
        self.highest = ctx.get_state(ValueStateDescriptor("highest", Types.DOUBLE()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        highest = self.highest.values(ctx.ids).fill_null(-1.0)
        above = pc.greater(batch.column("degrees"), highest)
        at = above.to_numpy(zero_copy_only=False).nonzero()[0]
        if len(at):
            found = batch.take(pa.array(at))
            self.highest.update_many(ctx.ids[at], found.column("degrees"))
            yield found.select(["sensor", "degrees"])


class Frozen(KeyedProcessFunction):
    """The same reading twice."""

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", Types.DOUBLE()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any] | None:
        last, now = self.last.value(), value.degrees
        if last == now:
            return iter([(value.sensor, now)])
        self.last.update(now)
        return None


RULES = {
    "spikes": Rule(Spikes(), "sensor string, degrees double"),
    "silence": Rule(Silence(), "sensor string, at bigint"),
    "warm": Rule(TooWarm(), "sensor string, count bigint"),
    "records": Rule(Records(), "sensor string, degrees double"),
    "frozen": Rule(Frozen(), "sensor string, degrees double"),
}
OPTIONS: dict[str, Any] = {"event_time": "at", "watermark": "1 second"}


def alone(rule: str) -> Callable[[DataFrame], DataFrame]:
    one = RULES[rule]
    return lambda df: timerheap.spark.process(df, "sensor", one.function, one.output_schema, **OPTIONS)


VARIANTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    **{rule: alone(rule) for rule in RULES},
    "five": lambda df: timerheap.spark.process_all(df, "sensor", RULES, **OPTIONS),
}


def write(folder: Path, rows: int, batches: int) -> None:
    """Write the readings of each micro-batch, an hour, a little out of order."""
    draw, sensors = np.random.default_rng(7), np.array([f"S{number:04}" for number in range(SENSORS)], object)
    folder.mkdir()
    for number in range(batches):
        n = rows // batches
        times = np.sort(draw.integers(0, HOUR, n)) + START + number * HOUR + draw.integers(0, 500, n)
        columns = {
            "sensor": sensors[draw.integers(0, SENSORS, n)],
            "at": pa.array(times * 1000).cast(pa.timestamp("us", "UTC")),
            "degrees": np.round(draw.random(n) * 100, 2),
        }
        file = folder / f"{number:03}.parquet"
        pq.write_table(pa.table(columns), file)
        os.utime(file, (number, number))


def batch(spark: SparkSession, data: Path, rounds: int) -> dict[str, Taken]:
    """Return what each variant takes for all rows as a batch DataFrame, written to nowhere."""
    rows = spark.read.schema(SCHEMA).parquet(str(data))

    def of(variant: Callable[[DataFrame], DataFrame]) -> Callable[[], object]:
        return lambda: variant(rows).write.format("noop").mode("overwrite").save()

    return in_turn({name: (of(variant), jvm_of(spark)) for name, variant in VARIANTS.items()}, rounds)


def stream(spark: SparkSession, data: Path, work: Path, rounds: int) -> dict[str, Taken]:
    """Return what each variant takes for all micro-batches of a stream, from its start to its end."""
    jvm = jvm_of(spark)
    taken: dict[str, list[Taken]] = {name: [] for name in VARIANTS}
    for number in range(rounds + 1):
        for name, variant in VARIANTS.items():
            rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
            writer = variant(rows).writeStream.format("noop").trigger(availableNow=True)
            before = cpu(jvm)
            query = writer.option("checkpointLocation", str(work / f"{name}-{number}")).start()
            query.awaitTermination()
            used = cpu(jvm).since(before)
            seconds = sum(one.durationMs["triggerExecution"] for one in query.recentProgress) / 1000
            taken[name].append({"seconds": seconds, "jvm": used.jvm, "python": used.python})
    return {name: median(each[1:]) for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=4, help="micro-batches of the stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write(root / "data", options.rows, options.batches)
        with spark_session(root / "spark.log", SETTINGS) as spark:
            print(f"{'':8}{'':10}{'CPU s':>8}{'JVM s':>8}{'Python s':>10}")
            for kind, measured in (
                ("batch", lambda: batch(spark, root / "data", options.rounds)),
                ("stream", lambda: stream(spark, root / "data", root, options.rounds)),
            ):
                found: dict[str, Any] = measured()
                each = {name: one["jvm"] + one["python"] for name, one in found.items()}
                for name, one in found.items():
                    print(f"{kind:8}{name:10}{each[name]:8.2f}{one['jvm']:8.2f}{one['python']:10.2f}")
                one = statistics.mean(each[rule] for rule in RULES)
                print(f"{kind:8}five / one: {each['five'] / one:.2f}, one: {one:.2f} s", flush=True)
                figures[kind] = {**found, "ratio": each["five"] / one}
    write_json(options, figures)


if __name__ == "__main__":
    main()
