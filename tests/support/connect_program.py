"""Runs functions on a session of Spark Connect, whose server it starts, and prints their results as JSON.

A program of its own: a process whose session is of Spark Connect can have no other.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from local_spark import ROCKSDB
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark.java import ensure_java
from timerheap.windows import AggregateFunction, TumblingEventTimeWindows

WATERMARK = WatermarkStrategy.for_bounded_out_of_orderness(1000)
OUTPUT = "k string, at long, n long"
OPTIONS: dict[str, Any] = {"event_time": "at", "watermark": WATERMARK}
AGAIN = OutputTag("again", Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()]))


class Rows(KeyedProcessFunction):
    """Counts the rows of each key, with a timer a second after each."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000)
        yield ctx.get_current_key(), ctx.timestamp(), self.n.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp, -1


class Columns(BatchProcessFunction):
    """Has a timer a second after each row."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.key_hashes, ctx.timestamps + 1000)

    def on_timers(self, due: Any, ctx: Any) -> Iterable[Any]:
        times = pa.array(due.timestamps)
        yield pa.record_batch([ctx.keys(due.key_hashes).column(0), times, times], names=["k", "at", "n"])


class Sides(KeyedCoProcessFunction):
    """Yields the rows of both sides."""

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), value.at, 1

    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield ctx.get_current_key(), value.at, 2


class Repeated(KeyedProcessFunction):
    """Sends the rows of a key to a side output, but for the first."""

    def open(self, runtime_context: Any) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        key = ctx.get_current_key()
        yield (key, ctx.timestamp(), n) if n == 1 else (AGAIN, (key, n))


class Elements(AggregateFunction):
    """Counts the elements of a window."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class Count(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: Any) -> None:
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:
        self.n.update(((self.n.get() or (0,))[0] + len(list(rows)),))
        yield Row(k=key[0], at=0, n=self.n.get()[0])

    def close(self) -> None:
        pass


class Frames(Count):
    """Counts the rows of each key, in pandas."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterable[Any]:
        self.n.update(((self.n.get() or (0,))[0] + sum(map(len, rows)),))
        yield pd.DataFrame({"k": [key[0]], "at": [0], "n": [self.n.get()[0]]})


def start() -> SparkSession:
    ensure_java()
    os.environ["SPARK_TESTING"] = "1"  # the server takes a free port
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session: SparkSession = (
        SparkSession.builder.remote("local[2]")
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.codegen.wholeStage", False)  # few rows; see local_spark.py
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )
    return session


def run(spark: SparkSession, work: Path) -> dict[str, Any]:
    df = spark.createDataFrame([("a", 0), ("b", 5), ("a", 3000)], "k string, at long")
    timed = df.withColumn("at", F.timestamp_millis("at"))
    for rows in ([("a", 0), ("b", 5)], [("a", 3000), ("b", 99_000)]):
        spark.createDataFrame(rows, df.schema).coalesce(1).write.mode("append").parquet(f"{work}/input")
    stream = spark.readStream.schema(df.schema).option("maxFilesPerTrigger", 1).parquet(f"{work}/input")
    process, process_two = timerheap.spark.process, timerheap.spark.process_two
    transform, in_pandas = (
        timerheap.spark.transform_with_state,
        timerheap.spark.transform_with_state_in_pandas,
    )
    repeated = process(df, "k", Repeated(), OUTPUT, **OPTIONS)

    def streamed(result: DataFrame, name: str) -> DataFrame:
        writer = result.writeStream.option("checkpointLocation", f"{work}/{name}/checkpoint")
        writer.trigger(availableNow=True).start(f"{work}/{name}/output", format="parquet").awaitTermination()
        return spark.read.parquet(f"{work}/{name}/output")

    def windows(local: str) -> DataFrame:
        cut = timerheap.spark.tumble(timed, "at", size=2000, watermark=WATERMARK, local=local)
        grouped = cut.group_by("k")
        return grouped.agg(F.count("*").alias("n"), F.max("at").alias("last")).select(
            "k", F.unix_millis("window_start"), "n"
        )

    def operator(df: DataFrame) -> DataFrame:
        result = timerheap.spark.window_operator(
            df,
            "k",
            TumblingEventTimeWindows.of(2000),
            Elements(),
            "n long",
            accumulator_type=Types.LONG(),
            **OPTIONS,
        )
        return result.select("k", F.unix_millis("window_start"), "n")

    results = {
        "rows": lambda: process(df, "k", Rows(), OUTPUT, **OPTIONS),
        "columns": lambda: process(df.groupBy("k"), function=Columns(), output_schema=OUTPUT, **OPTIONS),
        "stream": lambda: streamed(process(stream, "k", Rows(), OUTPUT, **OPTIONS), "stream"),
        "two inputs": lambda: process_two(
            df, df, "k", Sides(), OUTPUT, right_event_time="at", right_watermark=WATERMARK, **OPTIONS
        ),
        "processor": lambda: transform(df, "k", Count(), OUTPUT, "Append", "None"),
        "processor in pandas": lambda: streamed(
            in_pandas(stream, "k", Frames(), OUTPUT, "Append", "None"), "pandas"
        ),
        "results": lambda: repeated,
        "side output": lambda: timerheap.spark.side_output(repeated, AGAIN),
        "groups of results": lambda: process(df, "k", Rows(), OUTPUT, **OPTIONS).groupBy("k").count(),
        "window operator": lambda: operator(df),
        "windows in Arrow": lambda: windows("arrow"),
        "windows in the JVM": lambda: windows("jvm"),
    }
    found: dict[str, Any] = {name: sorted(map(list, make().collect())) for name, make in results.items()}
    query = stream.writeStream.format("noop").option("checkpointLocation", f"{work}/noop").start()
    found["refused"] = [
        refusal(lambda: timerheap.spark.read_checkpoint(spark, f"{work}/stream/checkpoint")),
        refusal(lambda: timerheap.spark.explain_watermark(spark, f"{work}/stream/checkpoint")),
        refusal(lambda: timerheap.spark.progress(query)),
        refusal(lambda: timerheap.spark.named(stream, "rows")),
        refusal(lambda: transform(df, "k", Count(), OUTPUT, "Append", "None", df.groupBy("k"))),
    ]
    query.stop()
    return found


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except NotImplementedError as e:
        return str(e)
    return "accepted"


if __name__ == "__main__":
    work = Path(sys.argv[1])
    (work / "found.json").write_text(json.dumps(run(start(), work)))
    os._exit(0)  # the server is a part of this process, and would be waited for
