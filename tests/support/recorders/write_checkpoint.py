"""Write a checkpoint of a query with timers, rows that wait and states, for `write_release.py`."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from local_spark import start_spark
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from streams import read_stream, run, sink, write_batches

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64()), ("word", pa.string())])
BEFORE, AFTER = 3, 2  # micro-batches in the checkpoint, and those that come after the restart
PLACE = "/somewhere"  # where the kept checkpoint says that it stands
OUTPUT = "k string, at bigint, rows bigint, words string, last bigint"


def batch(number: int) -> list[dict[str, Any]]:
    """Rows of a micro-batch, somewhat out of order; all keys are silent for a while now and then."""
    rows = [
        {"k": f"k{(number * 7 + i * i) % 11}", "at": number * 1000 + (i * 379) % 1000, "word": f"w{i % 5}"}
        for i in range(40)
    ]
    return [row for row in rows if (int(row["k"][1:]) + number) % 4]


class Everything(KeyedProcessFunction):
    """Value, list and map state, and a timer, with a name or without, that later rows move."""

    def open(self, runtime_context: Any) -> None:
        self.due = runtime_context.get_state(ValueStateDescriptor("due", Types.LONG()))
        self.words = runtime_context.get_list_state(ListStateDescriptor("words", Types.STRING()))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        if self.due.value() is not None and self.due.value() % 2 == 0:
            timers.delete_event_time_timer(self.due.value())
        timers.delete_event_time_timer(name="odd")
        self.due.update(ctx.timestamp() + 250)
        if self.due.value() % 2:
            timers.register_event_time_timer(self.due.value(), name="odd")
        else:
            timers.register_event_time_timer(self.due.value())
        self.words.add(value.word)
        self.last[value.word] = ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        words = list(self.words.get())
        yield ctx.get_current_key(), timestamp, len(words), " ".join(words), max(self.last.values())
        self.words.clear()
        self.last.remove(words[0])  # the others stay, and keep the key alive
        self.due.clear()


def query(df: DataFrame, **more: Any) -> DataFrame:
    """The query that wrote the checkpoint; a restart from it must plan the same."""
    return timerheap.spark.process(
        df,
        "k",
        Everything(),
        OUTPUT,
        "at",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(500),
        max_parallelism=3,
        **more,
    )


def move(checkpoint: Path, was: str, now: str) -> None:
    """Replace the path of a checkpoint and its input in its logs."""
    for log in [*checkpoint.glob("sources/*/[0-9]*"), *checkpoint.glob("state/*/_metadata/v2/[0-9]*")]:
        log.write_text(log.read_text().replace(was, now))


def main(target: Path) -> None:
    """Write it into a folder, with what comes after it in ``after.jsonl``."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with tempfile.TemporaryDirectory() as scratch:
        spark = start_spark(scratch, cores=1)
        spark.conf.set("spark.sql.shuffle.partitions", 1)
        work = Path(scratch)
        write_batches(work / "in", [batch(n) for n in range(BEFORE)], SCHEMA)
        run(query(read_stream(spark, work / "in")), work)
        shutil.copytree(work / "checkpoint", target, ignore=shutil.ignore_patterns(".*.crc"))
        move(target, str(work), PLACE)
        before = sink(spark, work)
        write_batches(work / "in", [batch(n) for n in range(BEFORE, BEFORE + AFTER)], SCHEMA)
        run(query(read_stream(spark, work / "in")), work)
        after = [row for row in sink(spark, work) if row not in before]
        (target / "after.jsonl").write_text("".join(json.dumps(row) + "\n" for row in after))
        spark.stop()
