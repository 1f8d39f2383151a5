"""A function that does anything with timers and state, the rows that make it, and what comes out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import streams
from pyspark.sql import DataFrame, Row
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

DELAY = 60
OUTPUT = "kind string, key string, at bigint, watermark bigint, n bigint, seen string"
KEYS = [{"city": city, "line": line} for city in ("Zürich", None, "") for line in (-1, None, 2**31 - 1)]


class Anything(KeyedProcessFunction):
    """Does with timers and state whatever a row's op says; what it yields tells all it can see."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", Types.STRING()))
        self.book = runtime_context.get_map_state(MapStateDescriptor("book", Types.LONG(), Types.INT()))

    def process_element(self, value: Row, ctx: Any) -> Any:
        timers, now = ctx.timer_service(), ctx.timestamp()
        if value.op < 4:
            self._register(timers, now + value.arg)
        elif value.op < 6 and not self.book.is_empty():
            self._delete(timers, min(self.book))  # and 5 moves it
            if value.op == 5:
                self._register(timers, now + value.arg)
        elif value.op == 6:
            self._register(timers, now - value.arg)
        elif value.op == 7:
            self.log.add_all([f"at {now}", str(value[0])])
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
        yield {"kind": "fired", "at": timestamp, "key": str(ctx.get_current_key())}

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
        watermark = ctx.timer_service().current_watermark()
        return kind, str(ctx.get_current_key()), ctx.timestamp(), watermark, n, seen


def changed(row: Row, **fields: Any) -> Row:
    return Row(**{**row.asDict(), **fields})


def make_rows(seed: int, count: int, keys: Sequence[dict[str, Any]] = KEYS, ties: str = "") -> list[Row]:
    """Rows in event-time order; no key has two at one time, but those of the city `ties`."""
    draw = random.Random(seed)
    rows = []
    for at in sorted(draw.sample(range(1_000, 1_000 + 4 * count), count)):
        rows.append(Row(**draw.choice(keys), at=at, op=draw.randrange(10), arg=draw.randrange(90)))
        if ties and at % 4 == 0:
            rows += [changed(rows[-1], city=ties, op=op) for op in (0, 7, 8)]
    return rows


def delayed(seed: int, rows: Sequence[Row]) -> list[Row]:
    """The same rows, up to DELAY out of order."""
    draw = random.Random(seed)
    return sorted(rows, key=lambda row: row.at + draw.randrange(DELAY))


def cut(rows: list[Row], batches: int) -> list[list[Row]]:
    size = -(-len(rows) // batches)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def write(folder: Path, batches: Sequence[Sequence[Row]]) -> Path:
    """Add a file for each batch; gives the folder."""
    names = batches[0][0].__fields__
    schema = pa.schema([(name, pa.string() if name == "city" else pa.int64()) for name in names])
    streams.write_batches(folder, [[row.asDict() for row in batch] for batch in batches], schema)
    return folder


def process(
    df: DataFrame,
    order: str,
    function: KeyedProcessFunction | None = None,
    max_parallelism: int | None = 4,
    **options: Any,
) -> DataFrame:
    """Run `Anything` on rows of `write`; the key is whatever comes before "at"."""
    return timerheap.spark.process(
        df,
        key=df.columns[: df.columns.index("at")],
        function=function or Anything(),
        output_schema=OUTPUT,
        event_time="at",
        order=order,
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        max_parallelism=max_parallelism,
        **options,
    )


def expected(batches: Sequence[Sequence[Row]], order: str, ends: bool = False) -> list[tuple[Any, ...]]:
    """What `process` must yield, sorted."""
    names = [field.split()[0] for field in OUTPUT.split(", ")]
    key = batches[0][0].__fields__[: batches[0][0].__fields__.index("at")]
    output = Reference(Anything(), key, "at", DELAY, order).run(batches, ends)
    whole = [row if isinstance(row, tuple) else tuple(map(row.get, names)) for row in output]
    assert {row[0] for row in whole} == {"row", "timer", "fired"}
    return sorted(whole, key=repr)
