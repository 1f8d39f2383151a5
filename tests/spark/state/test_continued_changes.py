"""What of an operator may change when its query goes on: its clock, channels, delay, states and function."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.spark import EventTime, IfStored, continue_from, process, read_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]

ROWS = pa.schema([("k", pa.string()), ("at", pa.int64()), ("part", pa.string())])
RESULT = "k string, at bigint, n bigint"
GAP = 4_000
INT = Types.INT()


class Gaps(KeyedProcessFunction):
    """Counts the rows of a key, and tells the number once the key has been silent for a while."""

    def __init__(self, state: str = "n", type_: Any = INT, others: tuple[str, ...] = ()) -> None:
        self.state, self.type, self.others = state, type_, others

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor(self.state, self.type))
        self.more = [runtime_context.get_state(ValueStateDescriptor(n, Types.LONG())) for n in self.others]

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        for state in self.more:
            state.update(7)
        ctx.timer_service().register_event_time_timer(value["at"] + GAP, name="gap")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield ctx.get_current_key(), timestamp, self.count.value()
        self.count.clear()


class GapsInColumns(BatchProcessFunction):
    """The same, vectorized."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("n", INT))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        counts = self.count.values(ctx.ids).fill_null(0)
        self.count.update_many(ctx.ids, pc.add(counts, pa.scalar(1, pa.int32())))
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + GAP, name="gap")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        columns = [ctx.keys(due.ids).column("k"), pa.array(due.timestamps), self.count.values(due.ids)]
        yield pa.record_batch(columns, names=["k", "at", "n"])
        self.count.update_many(due.ids, pa.nulls(len(due.ids), pa.int32()))


def gaps(df: DataFrame, function: Any = None, watermark: Any = "2 seconds", **options: Any) -> DataFrame:
    known = {"event_time": "at", "watermark": watermark, "name": "gaps"} | options
    return process(df, "k", Gaps() if function is None else function, RESULT, **known)


DELAY = WatermarkStrategy.for_bounded_out_of_orderness(2_000)
Query = Callable[[DataFrame], DataFrame]
CHANGES: dict[str, tuple[Query, Query]] = {
    "row by row to vectorized": (gaps, lambda df: gaps(df, GapsInColumns())),
    "vectorized to row by row": (lambda df: gaps(df, GapsInColumns()), gaps),
    "a longer delay": (gaps, lambda df: gaps(df, watermark="9 seconds")),
    "a shorter delay": (lambda df: gaps(df, watermark="9 seconds"), gaps),
    "channels": (gaps, lambda df: gaps(df, event_time=EventTime("at", channel="part"))),
    "no channels any more": (lambda df: gaps(df, event_time=EventTime("at", channel="part")), gaps),
    "a clock": (gaps, lambda df: gaps(df, watermark=DELAY.with_wall_clock("1 day", "1 day"))),
    "idleness": (gaps, lambda df: gaps(df, watermark=DELAY.with_idleness("1 day"))),
    "no clock any more": (lambda df: gaps(df, watermark=DELAY.with_wall_clock("1 day", "1 day")), gaps),
    "on arrival": (lambda df: gaps(df, order="arrival"), lambda df: gaps(df, order="arrival")),
    "a wider state with a new name": (
        lambda df: gaps(df, Gaps("n", INT, ("gone",))),
        lambda df: gaps(df, Gaps("rows", Types.LONG()), state_changes=IfStored({"n": "rows", "gone": None})),
    ),
    "a new state": (gaps, lambda df: gaps(df, Gaps("n", INT, ("more",)))),
    "all at once": (
        lambda df: gaps(df, Gaps("n", INT, ("gone",))),
        lambda df: gaps(
            df,
            Gaps("rows", Types.LONG(), ("more",)),
            state_changes=IfStored({"n": "rows", "gone": None}),
            event_time=EventTime("at", channel="part"),
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(3_000).with_idleness("1 day"),
            max_parallelism=7,
        ),
    ),
}


def rows(batches: int) -> list[list[dict[str, Any]]]:
    draw, at, found = random.Random(3), 0, []
    for _ in range(batches):
        found.append([])
        for _ in range(50):
            at += draw.randrange(400)
            row = {"k": f"k{draw.randrange(7)}", "at": at - draw.randrange(1_900), "part": draw.choice("pq")}
            found[-1].append(row)
    return found


def run(result: DataFrame, checkpoint: Path, sink: Path) -> None:
    writer = result.writeStream.option("checkpointLocation", str(checkpoint)).format("parquet")
    timerheap.spark.run_available_now(writer, str(sink))


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_operator_goes_on(spark: SparkSession, tmp_path: Path, change: str) -> None:
    """No row is late, so what is written in the end depends on the rows alone."""
    before, after = CHANGES[change]

    def read() -> DataFrame:
        return streams.read_stream(spark, tmp_path / "in")

    old, new, sink = tmp_path / "old", tmp_path / "new", tmp_path / "sink"
    batches = rows(5)
    streams.write_batches(tmp_path / "in", batches[:2], ROWS)
    run(before(read()), old, sink)
    watermarks = [read_checkpoint(spark, old).watermarks().collect()[0].query_watermark]
    streams.write_batches(tmp_path / "in", batches[2:4], ROWS)
    for _ in range(2):  # the program is started twice
        run(continue_from(spark, old, new, lambda: after(read())), new, sink)
        watermarks.append(read_checkpoint(spark, new).watermarks().collect()[0].query_watermark)
        streams.write_batches(tmp_path / "in", batches[4:], ROWS)
        batches = batches[:4]
    assert watermarks == sorted(watermarks)
    far = [{"k": "end", "at": 10**7, "part": part} for part in "pq"]
    streams.write_batches(tmp_path / "in", [far], ROWS)
    run(continue_from(spark, old, new, lambda: after(read())), new, sink)
    run(before(read()), tmp_path / "undisturbed", tmp_path / "other sink")
    written, wanted = (
        streams.rows(spark.read.parquet(str(each))) for each in (sink, tmp_path / "other sink")
    )
    assert len(wanted) > 5
    assert written == wanted
