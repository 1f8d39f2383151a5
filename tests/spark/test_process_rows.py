"""KeyedProcessFunction on Spark: whole outputs, equal to those of a plain-Python reference."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import Row, SparkSession
from reference import Reference

import timerheap.spark
from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

pytestmark = pytest.mark.spark

DELAY = 60
SCHEMA = pa.schema(
    [("city", pa.string()), ("line", pa.int32()), ("at", pa.int64()), ("op", pa.int32()), ("arg", pa.int64())]
)
OUTPUT = "kind string, city string, line int, at bigint, watermark bigint, n bigint, seen string"


class Anything(KeyedProcessFunction):
    """Does with timers and state whatever a row's op says; what it yields tells all it can see."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", Types.STRING()))
        self.book = runtime_context.get_map_state(MapStateDescriptor("book", Types.LONG(), Types.INT()))

    def process_element(self, value: Row, ctx: Any) -> Any:
        timers, now = ctx.timer_service(), ctx.timestamp()
        assert value.city == ctx.get_current_key()[0]
        if value.op < 4:
            self._register(timers, now + value.arg)
        elif value.op < 6 and not self.book.is_empty():
            self._delete(timers, min(self.book))  # and 5 moves it
            if value.op == 5:
                self._register(timers, now + value.arg)
        elif value.op == 6:
            self._register(timers, now - value.arg)
        elif value.op == 7:
            self.log.add_all([f"at {now}", value.city])
        elif value.op == 8:
            self.log.update(list(self.log)[1:])
        elif value.op == 9:
            for state in (self.count, self.log):
                state.clear()
        yield self._report("row", ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        timers = ctx.timer_service()
        assert ctx.timestamp() == timestamp
        yield self._report("timer", ctx)
        asked = self.book.get(timestamp)
        self.book.remove(timestamp)
        if timestamp % 3 == 0:
            self._register(timers, timestamp + 2)  # often due already: a cascade
        if timestamp % 5 == 0 and asked == 1:
            timers.register_event_time_timer(timestamp)  # once more, at once
            self.book[timestamp] = 2
        if timestamp % 7 == 0 and not self.book.is_empty():
            self._delete(timers, max(self.book))
        if timestamp % 11 == 0:
            for state in (self.count, self.log, self.book):  # the book forgets timers that still fire
                state.clear()
        yield {"kind": "fired", "at": timestamp, "city": ctx.get_current_key()[0]}

    def _register(self, timers: Any, timestamp: int) -> None:
        timers.register_event_time_timer(timestamp)
        self.book[timestamp] = (self.book[timestamp] or 0) + 1

    def _delete(self, timers: Any, timestamp: int) -> None:
        timers.delete_event_time_timer(timestamp)
        del self.book[timestamp]

    def _report(self, kind: str, ctx: Any) -> tuple[Any, ...]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        seen = f"{list(self.log)} {sorted(self.book.items())}"
        return kind, *ctx.get_current_key(), ctx.timestamp(), ctx.timer_service().current_watermark(), n, seen


def changed(row: Row, **fields: Any) -> Row:
    return Row(**{**row.asDict(), **fields})


def make_rows(seed: int, count: int, ties: bool = False) -> list[Row]:
    """Rows in event-time order; no key has two at one time, but those of the city 'ties'."""
    draw = random.Random(seed)
    keys = [(city, line) for city in ("Oslo", "Zürich", "") for line in (-1, 7, 2**31 - 1)]
    rows = []
    for at in sorted(draw.sample(range(1_000, 1_000 + 4 * count), count)):
        city, line = draw.choice(keys)
        rows.append(Row(city=city, line=line, at=at, op=draw.randrange(10), arg=draw.randrange(90)))
        if ties and at % 4 == 0:
            rows += [changed(rows[-1], city="ties", op=op) for op in (0, 7, 8)]
    return rows


def delayed(seed: int, rows: list[Row]) -> list[Row]:
    """The same rows, up to DELAY out of order."""
    draw = random.Random(seed)
    return sorted(rows, key=lambda row: row.at + draw.randrange(DELAY))


def cut(rows: list[Row], batches: int) -> list[list[Row]]:
    size = -(-len(rows) // batches)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def write(folder: Path, batches: list[list[Row]]) -> Path:
    streams.write_batches(folder, [[row.asDict() for row in batch] for batch in batches], SCHEMA)
    return folder


def process(in_order: bool, max_parallelism: int = 4) -> streams.Transform:
    return lambda df: timerheap.spark.process(
        df,
        key=["city", "line"],
        function=Anything(),
        output_schema=OUTPUT,
        event_time="at",
        in_order=in_order,
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=max_parallelism,
    )


def expected(batches: list[list[Row]], in_order: bool, ends: bool = False) -> list[tuple[Any, ...]]:
    names = [field.split()[0] for field in OUTPUT.split(", ")]
    output = Reference(Anything(), ["city", "line"], "at", DELAY, in_order).run(batches, ends)
    whole = [row if isinstance(row, tuple) else tuple(map(row.get, names)) for row in output]
    assert {row[0] for row in whole} == {"row", "timer", "fired"}
    return sorted(whole, key=repr)


def test_rows_as_they_come(spark: SparkSession, tmp_path: Path) -> None:
    batches = cut(delayed(1, make_rows(1, 600)), 8)
    yielded = streams.stream(spark, process(in_order=False), write(tmp_path / "input", batches), tmp_path)
    assert yielded == expected(batches, in_order=False)


@pytest.mark.parametrize("in_order", [False, True])
def test_a_batch_dataframe_ends_in_the_last_watermark(
    in_order: bool, spark: SparkSession, tmp_path: Path
) -> None:
    batches = [delayed(2, make_rows(2, 600))]
    df = spark.read.parquet(str(write(tmp_path / "input", batches)))
    assert streams.rows(process(in_order)(df)) == expected(batches, in_order, ends=True)


def test_in_order_is_a_matter_of_the_data_alone(spark: SparkSession, tmp_path: Path) -> None:
    data = make_rows(3, 400, ties=True)
    variants = {}
    for files, files_a_batch, partitions, max_parallelism in [(1, 1, 4, 4), (9, 3, 2, 5), (20, 1, 1, 2)]:
        work = tmp_path / str(files)
        folder = write(work / "input", cut(delayed(files, data), files))
        with streams.configured(spark, shuffle_partitions=partitions):
            df = streams.read_stream(spark, folder, files_a_batch)
            if files_a_batch > 1:
                df = df.repartition(3)
            progress = streams.run(process(True, max_parallelism)(df), work)
        assert len([batch for batch in progress if batch.numInputRows]) == files // files_a_batch
        variants[files] = streams.sink(spark, work)

    assert variants[1] == variants[9] == variants[20]
    without_ties = [row for row in variants[1] if row[1] != "ties"]
    assert without_ties == [row for row in expected([data], in_order=True) if row[1] != "ties"]
    assert len(without_ties) < len(variants[1])


def test_rows_behind_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """As they come they are handed over, and their timers fire at once; in order they are dropped."""
    batches = cut(delayed(4, make_rows(4, 200)), 4)
    batches[2] += [changed(row, op=0) for row in batches[0][::10]]
    folder = write(tmp_path / "input", batches)
    for in_order in (False, True):
        yielded = streams.stream(spark, process(in_order), folder, tmp_path / str(in_order))
        assert yielded == expected(batches, in_order)
        seen = [row[3] for row in yielded if row[0] == "row"]
        assert (len(seen) == len(set(seen))) is in_order
