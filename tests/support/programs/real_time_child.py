"""Queries in real-time mode in a process of their own, since their settings belong to the application.

Its argument is a folder. Prints a JSON object a line: what each part of the test has seen.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from local_spark import start_spark
from processes import kill, python_workers
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.errors import UnsupportedError
from timerheap.types import Types

EPOCH = "2 seconds"
SCHEMA = "key string, at long, text string"
RESULT = "key string, paused long, rows long"
LONG = OutputTag("long", Types.STRING())
COUNT = ValueStateDescriptor("count", Types.LONG())
SHORT, LASTING = (ValueStateDescriptor(name, Types.LONG()) for name in ("short", "lasting"))
SHORT.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(50)).build())
LASTING.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
Found = set[tuple[Any, ...]]


class Source:
    """Streams in the JVM of the same rows, each for one query, whose rows stay for its later runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark.sparkContext._jvm
        self._streams: list[Any] = []
        self.sent: list[tuple[str, int, str]] = []

    def rows(self) -> DataFrame:
        """Return the rows for one query, in two partitions; call it before rows are sent."""
        streams = self._jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
        text = self._jvm.org.apache.spark.sql.Encoders.STRING()
        self._streams.append(streams.apply(self._spark._jsparkSession, 2, text))
        values = DataFrame(self._streams[-1].toDF(), self._spark)
        return values.select(F.from_json("value", SCHEMA).alias("row")).select("row.*")

    def send(self, partition: int, *rows: tuple[str, int, str]) -> None:
        """Add rows to a partition."""
        data = self._jvm.java.util.ArrayList()
        for key, at, text in rows:
            data.add(json.dumps({"key": key, "at": at, "text": text}))
        for stream in self._streams:
            stream.addData(partition, self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(data))
        self.sent += rows


def place() -> tuple[int, int]:
    """Return the epoch and the partition of this task."""
    task: Any = TaskContext.get()
    return int(task.getLocalProperty("streaming.sql.batchId")), task.partitionId()


class Pauses(KeyedProcessFunction):
    """Yields each pause of a second after a row of a key, and writes it down.

    Fails where it is told to, once the task of the other partition has ended its epoch and saved its state.
    """

    def __init__(self, file: Path, state: Path | None = None) -> None:
        self.file, self.state = file, state

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if self.state is not None and self.file.with_suffix(".fail").exists():
            append(self.file.with_suffix(".broken"), (*place(), value.text))
            if value.text == "fail":
                epoch, partition = place()
                while not list(self.state.glob(f"{1 - partition:05}/{epoch}-*[0-9]")):
                    time.sleep(0.01)
                raise RuntimeError("told to fail")
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1000, name="pause")
        if len(value.text) > 10:
            yield LONG, value.text

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        result = ctx.get_current_key(), timestamp, self.count.value()
        append(self.file, result)
        yield result


class Refuses(Pauses):
    """The same, and raises an exception for a long text."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from super().process_element(value, ctx)
        if len(value.text) > 10:
            raise ValueError(value.text)


class PausesInColumns(BatchProcessFunction):
    """The same in columns."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        self.count.update_many(ctx.ids, pc.add(self.count.values(ctx.ids).fill_null(0), 1))
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 1000, name="pause")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.ids).column("key")
        columns = [keys, pa.array(due.timestamps), self.count.values(due.ids)]
        yield pa.record_batch(columns, names=["key", "paused", "rows"])


class Echoes(KeyedProcessFunction):
    """Yields each row, and 100 ms after the last one of a key which of its states still has a value."""

    def open(self, runtime_context: Any) -> None:
        self.short, self.lasting = runtime_context.get_state(SHORT), runtime_context.get_state(LASTING)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.short.update(10)
        self.lasting.update(1)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 100, name="after")
        yield value.key, value.at, 0

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), -1, (self.short.value() or 0) + (self.lasting.value() or 0)


def append(file: Path, result: Any) -> None:
    with file.open("ab", buffering=0) as out:
        out.write(json.dumps(result).encode() + b"\n")


def lines(file: Path) -> list[tuple[Any, ...]]:
    """Return what has been written so far, without a line that is being written."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    return [tuple(json.loads(line)) for line in whole.splitlines()]


STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness("1 second")


def pauses(
    rows: DataFrame,
    function: Any,
    real_time: bool = True,
    initial_state: Any = None,
    event_time: Any = "at",
    watermark: Any = STRATEGY,
    errors: Any = "raise",
) -> DataFrame:
    return timerheap.spark.process(
        timerheap.spark.in_real_time(rows) if real_time else rows,
        key="key",
        function=function,
        output_schema=RESULT,
        event_time=event_time,
        watermark=watermark,
        late="emit",
        side_outputs=[LONG],
        errors=errors,
        initial_state=initial_state,
    )


def wait(condition: Callable[[], bool], query: StreamingQuery, patience: float = 120) -> None:
    """Wait for a condition."""
    began = time.monotonic()
    while not condition():
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > began + patience:
            raise TimeoutError(f"{condition} is not met: {query.status}, {query.recentProgress[-1:]}")
        time.sleep(0.01)


class Child:
    """The parts of the test, each a query over the same rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = timerheap.spark.settings(real_time=True)
        settings["spark.sql.streaming.realTimeMode.minBatchDuration"] = "1000"
        for name in ("spark.default.parallelism", "spark.sql.leafNodeDefaultParallelism"):
            settings[name] = "1"  # else a batch beside the queries takes all cores
        self.spark = start_spark(folder / "spark", cores=100, settings=settings)
        self.source = Source(self.spark)
        self.queries: dict[str, StreamingQuery] = {}

    def tell(self, **seen: Any) -> None:
        print(json.dumps(seen), flush=True)

    def writer(self, name: str, result: DataFrame, sink: str) -> Any:
        writer = result.writeStream.outputMode("update")
        writer = writer.option("checkpointLocation", str(self.folder / "prüfung 检查点" / name))
        return writer.format(sink).queryName(name)

    def start(self, name: str, result: DataFrame) -> None:
        """Start a query, whose results are in the table of its name."""
        writer = self.writer(name, result, "memory")
        self.queries[name] = timerheap.spark.start_real_time(writer, epoch=EPOCH)

    def found(self, name: str) -> Found:
        return {tuple(row) for row in self.spark.table(name).collect()}

    def wait_for_rows(self, name: str, rows: int) -> None:
        """Wait until a query has read this many rows, so that rows sent afterwards cannot overtake them."""
        query = self.queries[name]
        wait(lambda: sum(one.numInputRows for one in query.recentProgress) >= rows, query)

    def expect(self, name: str, wanted: Found) -> None:
        """Wait until a query has given these results, and no others."""
        wait(lambda: self.found(name) >= wanted, self.queries[name])
        self.tell(**{name: sorted(self.found(name)), f"{name} wanted": sorted(wanted)})

    def refusals(self, result: DataFrame) -> None:
        """Tell how a query is refused that does more between operators, or is started otherwise."""
        rows = result.selectExpr("key", "explode(array(paused)) AS at", "'' AS text")
        try:
            pauses(rows, Pauses(self.folder / "more"))
        except UnsupportedError as error:
            self.tell(more=str(error))
        writer = self.writer("other", result, "noop").trigger(realTime=EPOCH)
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            self.tell(**{"not by start_real_time": str(error)})

    def run(self) -> None:
        """Run all parts."""
        source, spark, file = self.source, self.spark, self.folder / "rows"
        state = self.folder / "prüfung 检查点/rows/timerheap"
        result = pauses(source.rows(), Pauses(file, state))
        self.refusals(result)
        self.start("columns", pauses(source.rows(), PausesInColumns()))
        sides = pauses(source.rows(), Pauses(self.folder / "sides"))
        self.start("sides", timerheap.spark.side_output(sides, LONG))
        letters = pauses(source.rows(), Refuses(self.folder / "letters"), errors="emit")
        self.start("letters", timerheap.spark.dead_letters(letters).select("input.text", "error"))
        lates = pauses(source.rows(), Pauses(self.folder / "lates"))
        self.start("lates", timerheap.spark.late_rows(lates).select("key", "at", "text"))
        idle = pauses(source.rows(), PausesInColumns(), watermark=STRATEGY.with_idleness("1 second"))
        self.start("idle", idle)
        by_key = timerheap.spark.EventTime("at", channel="key")
        self.start("channels", pauses(source.rows(), PausesInColumns(), event_time=by_key))
        echoed = timerheap.spark.in_real_time(source.rows())
        clock = timerheap.spark.process(echoed, "key", Echoes(), RESULT, processing_time=True)
        self.start("clock", clock)
        rows = self.writer("rows", result.withColumn("file", F.lit(str(file.with_suffix(".sink")))), "noop")
        rows = rows.foreach(lambda row: append(Path(row.file), row[:3]))
        query = timerheap.spark.start_real_time(rows, epoch=EPOCH)

        source.send(0, ("a", 1000, ""), ("b", 1500, ""), ("a", 9000, ""))
        wait(lambda: {row[0] for row in self.found("clock")} >= {"a", "b"}, query)
        early = self.found("columns")  # the other partition has had no row, so it holds the watermark
        self.expect("idle", {("a", 2000, 1), ("b", 2500, 1)})  # it is idle
        self.queries["idle"].stop()
        self.wait_for_rows("channels", 3)
        source.send(1, ("c", 1200, ""), ("c", 9000, ""))
        wait(lambda: len(lines(file)) >= 3, query)
        self.wait_for_rows("channels", 5)
        held = self.found("channels")  # by "b"
        self.tell(
            **{
                "before the other partition": sorted(early),
                "first": sorted(lines(file)),
                "held": sorted(held),
            }
        )

        ended = len(query.recentProgress)
        wait(lambda: len(query.recentProgress) >= ended + 2, query)  # two epochs have ended
        told = timerheap.spark.progress(query)
        observed = [one.observedMetrics["timerheap"].metrics for one in query.recentProgress]
        fired = [metrics["fired_timers"] for metrics in observed]
        self.tell(progress=vars(told), fired=sum(fired))
        source.send(0, ("a", 10_500, ""), ("d", 11_000, "more than ten letters"), ("a", 20_000, ""))
        source.send(1, ("c", 20_000, ""))
        wait(lambda: len(lines(file)) >= 6, query)
        file.with_suffix(".fail").touch()
        source.send(0, *((key, 21_000, "") for key in "abde"))
        source.send(1, ("c", 21_000, "fail"), ("c", 30_000, ""))
        source.send(0, ("a", 30_000, ""))
        try:
            query.awaitTermination(120)
        except StreamingQueryException as error:
            self.tell(failed="told to fail" in str(error))
        file.with_suffix(".fail").unlink()
        broken = lines(file.with_suffix(".broken"))
        (epoch, partition) = next(one[:2] for one in broken if one[2] == "fail")
        self.tell(
            **{
                "rows of the twin": [one[:2] for one in broken].count((epoch, 1 - partition)),
                "saved in the broken epoch": [bool(list(state.glob(f"{n:05}/{epoch}-*"))) for n in (0, 1)],
                "failed in partition": partition,
            }
        )

        source.send(0, ("e", 31_000, ""), ("a", 50_000, ""))
        source.send(1, ("c", 50_000, ""))
        wanted = {tuple(row) for row in pauses(self.batch(), Pauses(self.folder / "batch"), False).collect()}
        wanted = {row for row in wanted if row[1] < 49_000}
        query = timerheap.spark.start_real_time(rows, epoch=EPOCH)
        wait(lambda: set(lines(file)) >= wanted, query)
        wait(lambda: set(lines(self.folder / "lates")) >= wanted, self.queries["lates"])
        source.send(1, ("a", 5_000, "late"))  # behind the watermark of all, since it comes alone
        self.expect("columns", wanted)
        self.expect("sides", {("more than ten letters",)})
        self.expect("letters", {("more than ten letters", "ValueError: more than ten letters")})
        self.expect("lates", {("a", 5000, "late")})
        echoes = {(key, at, 0) for key, at, _ in source.sent} | {(key, -1, 1) for key, _, _ in source.sent}
        self.expect("clock", echoes)
        wait(lambda: set(lines(file.with_suffix(".sink"))) >= wanted, query)
        commits = self.folder / "prüfung 检查点/rows/commits"
        ended = len(list(commits.glob("[0-9]*")))
        wait(lambda: len(list(commits.glob("[0-9]*"))) > ended, query)  # the epoch that had the last of them
        query.stop()
        found = lines(file.with_suffix(".sink"))
        self.tell(rows=sorted(set(found)), times=len(found), **{"rows wanted": sorted(wanted)})
        source.send(0, *((key, 50_000, "") for key in "bde"))  # each key is a channel, and held the watermark
        self.expect("channels", wanted)
        for name in self.queries:
            self.queries[name].stop()
        self.there_and_back()
        self.from_tables()
        self.rows_that_wait()
        spark.stop()

    def there_and_back(self) -> None:
        """Tell the state of the first query, go on in micro-batches, and again in real-time mode."""
        state = timerheap.spark.read_checkpoint(self.spark, str(self.folder / "prüfung 检查点/rows"))
        counts = sorted((row.key, row.value) for row in state.state("count").collect())
        timers = sorted((row.key, row.epoch_ms, row.name) for row in state.timers().collect())
        inside = state.watermarks().agg(F.max("query_watermark").cast("double") * 1000).collect()[0][0]
        self.tell(counts=counts, timers=timers, watermark=inside)

        files, checkpoint = self.folder / "files", str(self.folder / "micro-batches")
        files.mkdir()
        (files / "1.json").write_text(
            '{"key": "a", "at": 52000, "text": ""}\n{"key": "f", "at": 59000, "text": ""}'
        )
        rows = self.spark.readStream.schema(SCHEMA).json(str(files))
        between = Pauses(self.folder / "between")
        old = self.folder / "prüfung 检查点"
        result = timerheap.spark.continue_from(
            self.spark,
            old / "rows",
            checkpoint,
            lambda: pauses(rows, between, real_time=False),
            sources=[None],
        )
        writer = result.writeStream.option("checkpointLocation", checkpoint).format("noop")
        writer.trigger(availableNow=True).start().awaitTermination()

        source, after = Source(self.spark), Pauses(self.folder / "after")
        result = timerheap.spark.continue_from(
            self.spark, checkpoint, old / "back", lambda: pauses(source.rows(), after), sources=[None]
        )
        sink = self.folder / "back.sink"  # the one in memory does not go on
        back = self.writer("back", result.withColumn("file", F.lit(str(sink))), "noop")
        query = timerheap.spark.start_real_time(
            back.foreach(lambda row: append(Path(row.file), row[:3])), epoch=EPOCH
        )
        wait(lambda: bool(query.recentProgress), query)  # the stream in memory begins with the first epoch
        source.send(1, ("g", 70_000, ""))  # the other partition holds the watermark
        wait(lambda: sum(one.numInputRows for one in query.recentProgress) == 1, query)
        source.send(0, ("f", 59_500, ""), ("a", 70_000, ""))
        wanted = {("f", 60_500, 2)}
        wait(lambda: {*lines(sink)} >= wanted, query)
        self.tell(back=sorted({*lines(sink)}), **{"back wanted": sorted(wanted)})
        self.tell(between=sorted(lines(self.folder / "between")))
        query.stop()

    def from_tables(self) -> None:
        """Go on from the tables of the first query, with one count mended and one key more."""
        state = timerheap.spark.read_checkpoint(self.spark, str(self.folder / "prüfung 检查点/rows"))
        counts = state.state("count").drop("key_group").where("key <> 'a'")
        mended = self.spark.createDataFrame([("a", 100), ("h", 7)], counts.schema)
        timer = self.spark.createDataFrame(
            [("h", 60_000, "event_time", "pause")],
            "key string, epoch_ms bigint, time_domain string, name string",
        )
        start = timerheap.spark.InitialState(
            states={"count": counts.union(mended)},
            timers=timer,
            buffered_rows=state.buffered_rows(),
            watermarks=state.watermarks(),
        )
        source, tabled = Source(self.spark), Pauses(self.folder / "tabled")
        result = timerheap.spark.start_from(self.spark, start, lambda: pauses(source.rows(), tabled))
        self.start("tabled", result)
        source.send(0, ("a", 70_000, ""))
        source.send(1, ("g", 70_000, ""))
        self.expect("tabled", {("a", 51_000, 101), ("c", 51_000, 6), ("h", 60_000, 7)})
        self.queries["tabled"].stop()

    def rows_that_wait(self) -> None:
        """Send rows, which wait for others, while epochs end, a query is stopped, and workers are killed."""
        source, sink = Source(self.spark), self.folder / "waiting.sink"
        result = pauses(source.rows(), Pauses(self.folder / "waiting"))
        writer = self.writer("waiting", result.withColumn("file", F.lit(str(sink))), "noop")
        writer = writer.foreach(lambda row: append(Path(row.file), row[:3]))
        jvm: Any = self.spark.sparkContext._gateway

        def start() -> StreamingQuery:
            return timerheap.spark.start_real_time(writer, epoch=EPOCH, linger="300 milliseconds")

        query = start()
        for n in range(60):
            for partition in (0, 1):  # each key has a row in every fifth of these
                rows = [(f"{partition} {n % 5} {key}", n * 300 + key, "") for key in range(100)]
                source.send(partition, *rows)
            if n == 20:
                wait(lambda running=query: bool(running.recentProgress), query)
                query.stop()
                query = start()
            elif n == 40:
                count = len(lines(sink))
                wait(lambda count=count: len(lines(sink)) > count, query)
                for worker in python_workers(jvm.proc.pid):
                    kill(worker)
                try:
                    query.awaitTermination(120)
                except StreamingQueryException:
                    query = start()
            time.sleep(0.05)
        for partition in (0, 1):
            source.send(partition, (f"{partition} 0 0", 100_000, ""))
        batch = pauses(self.spark.createDataFrame(source.sent, SCHEMA), Pauses(self.folder / "all"), False)
        wanted = {tuple(row) for row in batch.collect() if row["paused"] < 99_000}
        wait(lambda: {*lines(sink)} >= wanted, query)
        ended = len(query.recentProgress)
        wait(lambda: len(query.recentProgress) > ended + 1, query)  # whatever comes behind them
        query.stop()
        found = {*lines(sink)}
        self.tell(**{"rows that wait": len(found), "missing": sorted(wanted - found)[:10]})
        self.tell(wrong=sorted(found - wanted)[:10], wanted=len(wanted))

    def batch(self) -> DataFrame:
        """The rows that were not late, as a batch."""
        rows = [row for row in self.source.sent if row[2] != "late"]
        return self.spark.createDataFrame(rows, SCHEMA)


if __name__ == "__main__":
    try:
        Child(Path(sys.argv[1])).run()
    except BaseException:
        print(traceback.format_exc(), flush=True)  # what workers say meanwhile is long
        raise
