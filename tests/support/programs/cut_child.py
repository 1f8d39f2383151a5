"""The victim of cuts: a query from Kafka with channels, timers and state, and a model of what it finds.

Its argument is a JSON file: `work`, `checkpoint`, `broker`, `topic`, `rows` of a micro-batch, `seconds` of
the trigger, `settings` of Spark, `kafka`, further options of the source, `stall`, the folder of a `Stall`,
and `gate`, a file with the number of micro-batches that may run. It begins where its checkpoint ends, and
ends with the topic.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Producer
from kill_child import writer
from local_spark import start_spark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

__all__ = ["PARTITIONS", "Reading", "Stall", "expected", "produce", "readings", "start"]

BEGIN = 1_700_000_000_000
SPAN = 1_000  # event time of a micro-batch, ms
GAP = 2_500  # without a row, after which a key is silent
DELAY = 400
LAGS = (0, 0, 4)  # by partition, how many micro-batches it is behind
PARTITIONS = len(LAGS)


class Reading(NamedTuple):
    """A row: no two have the same time or number."""

    k: str
    at: int
    n: int
    word: str


def readings(seed: int, batches: int, rows: int, keys: int) -> list[list[Reading]]:
    """Return the readings of each partition: `rows` for each micro-batch, out of order but not late."""
    draw = random.Random(seed)
    found: list[list[Reading]] = []
    for partition, lag in enumerate(LAGS):
        found.append([])
        for batch in range(batches):
            for place in draw.sample(range(SPAN // PARTITIONS), rows):
                key = int(draw.triangular(0, keys, batch * keys / batches))
                at = BEGIN + (batch - lag) * SPAN + place * PARTITIONS + partition
                number = PARTITIONS * len(found[partition]) + partition
                found[partition].append(Reading(f"k{key}", at, number, f"w{draw.randrange(9)}"))
    return found


def produce(broker: str, topic: str, found: list[list[Reading]]) -> None:
    """Write all readings to the topic."""
    producer = Producer({"bootstrap.servers": broker})
    for partition, rows in enumerate(found):
        for row in rows:
            producer.produce(topic, json.dumps(row._asdict()), partition=partition)
            producer.poll(0)
    assert producer.flush(60) == 0


def expected(found: list[list[Reading]]) -> list[list[str]]:
    """Return what the query must find, computed key by key from all readings."""
    watermark = min(max(row.at for row in rows) for rows in found) - DELAY - 1
    by_key: dict[str, list[Reading]] = {}
    for row in sorted((row for rows in found for row in rows), key=lambda row: row.at):
        by_key.setdefault(row.k, []).append(row)
    alerts: list[list[str]] = []
    for key, rows in by_key.items():
        seen: list[int] = []
        words: Counter[str] = Counter()
        for count, row in enumerate(rows, 1):
            seen.append(row.n)
            words[row.word] += 1
            due = row.at + GAP
            if (count == len(rows) or rows[count].at > due) and due <= watermark:
                alerts.append([key, str(due), what(count, seen, words.items())])
                seen.clear()
                if count % 3:
                    words.clear()
    return sorted(alerts)


def what(count: int, seen: Any, words: Any) -> str:
    return repr((count, list(seen), sorted(words)))


class Stall:
    """Holds a task back in its function. If it is given up in the meantime, it then is a zombie.

    Parameters
    ----------
    folder : pathlib.Path
        The first task that finds ``wanted`` there renames it to ``taken.<attempt>.<address>`` and waits for
        ``release``; ``committed.<attempt>`` says that its state store has committed.
    """

    _PATIENCE = 600.0  # seconds

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self._asked: int | None = None

    def __call__(self) -> None:
        task = TaskContext.get()
        attempt = task.taskAttemptId() if task else None
        if attempt in (None, self._asked):
            return
        self._asked = attempt
        folder = Path(self.folder)
        try:
            (folder / "wanted").rename(folder / f"taken.{attempt}.{os.environ['SPARK_LOCAL_IP']}")
        except FileNotFoundError:
            return
        until = time.monotonic() + self._PATIENCE
        while not (folder / "release").exists() and time.monotonic() < until:
            time.sleep(0.05)

    def behind(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass rows on, for mapInArrow behind a query: it gets to its end after the commit."""
        yield from batches
        task, folder = TaskContext.get(), Path(self.folder)
        assert task is not None
        attempt = task.taskAttemptId()
        if any(folder.glob(f"taken.{attempt}.*")):
            with suppress(FileNotFoundError):
                (folder / f"committed.{attempt}").touch()


class Silent(KeyedProcessFunction):
    """A timer that moves, a value, a list and a map."""

    def __init__(self, stall: Stall | None) -> None:
        self.stall = stall

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.words = runtime_context.get_map_state(MapStateDescriptor("words", Types.STRING(), Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self.stall is not None:
            self.stall()
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP, name="silent")
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(value.n)
        self.words.put(value.word, (self.words.get(value.word) or 0) + 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        count = self.count.value()
        yield ctx.get_current_key(), timestamp, what(count, self.seen, self.words.items())
        self.seen.clear()
        if count % 3:  # else the map stays
            self.words.clear()


def start(spark: SparkSession, spec: dict[str, Any]) -> StreamingQuery:
    """Start the query in any session; without `seconds` it ends with what the topic has."""
    work, stall = Path(spec["work"]), Stall(spec["stall"]) if spec.get("stall") else None
    source = {"kafka.bootstrap.servers": spec["broker"], "subscribe": spec["topic"]}
    source |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": spec["rows"], **spec.get("kafka", {})}
    messages = spark.readStream.format("kafka").options(**source).load()
    reading = F.from_json(messages["value"].cast("string"), "k string, at long, n long, word string")
    result = timerheap.spark.process(
        messages.select("partition", reading.alias("reading")).select("partition", "reading.*"),
        "k",
        Silent(stall),
        "k string, at bigint, what string",
        timerheap.spark.EventTime("at", channel="partition"),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=12,
    )
    if stall is not None:
        result = result.mapInArrow(stall.behind, result.schema)
    out = result.writeStream.option("checkpointLocation", spec["checkpoint"])
    if seconds := spec.get("seconds"):
        out = out.trigger(processingTime=f"{seconds} seconds")
    else:
        out = out.trigger(availableNow=True)
    write = writer(work / "out", "rows")
    if gate := spec.get("gate"):
        write = gated(write, Path(gate))
    return out.foreachBatch(write).start()


def gated(write: Callable[[DataFrame, int], None], gate: Path) -> Callable[[DataFrame, int], None]:
    """Return a function for foreachBatch that waits until the gate lets the micro-batch pass."""

    def wait_and_write(df: DataFrame, batch: int) -> None:
        while batch >= int(gate.read_text()):
            time.sleep(0.05)
        write(df, batch)

    return wait_and_write


def main(spec: dict[str, Any]) -> None:
    spark = start_spark(Path(spec["work"]) / "spark", settings=spec["settings"])
    print("up", spark.sparkContext._gateway.proc.pid, flush=True)
    query = start(spark, spec)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
