"""A processor moves from Spark's operator to timerheap's, with its state and its timers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from processors import OUTPUT, SCHEMA, Commands, Style, random_batches
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import TimerValues

from timerheap.spark import InitialState, transform_with_state, transform_with_state_in_pandas

pytestmark = [pytest.mark.spark, pytest.mark.in_turn, pytest.mark.usefixtures("one_partition")]

CENTURY = 4_102_444_800_000  # 2100-01-01, in milliseconds


def shown(batches: list[list[tuple[Any, ...]]]) -> list[list[tuple[Any, ...]]]:
    """What micro-batches with results have yielded, sorted, without the processing time."""
    found = [
        sorted(((k, re.sub(r"^\(-?\d+, ", "(", what)) for k, what in rows), key=repr) for rows in batches
    ]
    return [rows for rows in found if rows]


@pytest.mark.parametrize("style", ["rows", "frames"])
def test_a_moved_processor_goes_on_as_one_that_was_never_moved(
    spark: SparkSession, tmp_path: Path, style: Style
) -> None:
    processor = Commands(style)
    batches = random_batches(seed=1, batches=4)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"

    def unmoved() -> list[list[tuple[Any, ...]]]:
        df = streams.read_stream(spark, theirs / "in").withWatermark("at", "2 seconds")
        grouped = df.groupBy("k")
        theirs_of = grouped.transformWithState if style == "rows" else grouped.transformWithStateInPandas
        return streams.batches(theirs_of(processor, OUTPUT, "Append", "EventTime"), theirs)

    streams.write_batches(theirs / "in", batches[:2], SCHEMA)
    assert shown(unmoved())
    initial = InitialState.from_spark(spark, theirs / "checkpoint")
    assert set(initial.states) == {"value", "list", "map", "gone"}
    streams.write_batches(ours / "in", batches[2:], SCHEMA)
    df = streams.read_stream(spark, ours / "in").withWatermark("at", "2 seconds")
    ours_of = transform_with_state if style == "rows" else transform_with_state_in_pandas
    result = ours_of(df, "k", processor, OUTPUT, "Append", "EventTime", initial_state=initial)
    moved = streams.batches(result, ours)
    streams.write_batches(theirs / "in", batches[2:], SCHEMA)
    found, wanted = shown(moved), shown(unmoved())
    assert any("timer " in what for rows in wanted for _, what in rows)
    assert found == wanted


class Reminder(StatefulProcessor):
    """Remember numbers for an hour and for a moment; remind of them in seconds and in 2100."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.hour, self.moment = (
            (
                handle.getValueState(f"{name}_value", "n bigint", ttl),
                handle.getListState(f"{name}_list", "n bigint", ttl),
                handle.getMapState(f"{name}_map", "k string", "n bigint", ttl),
            )
            for name, ttl in [("hour", 3_600_000), ("moment", 1)]
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        for row in rows:
            kept = []
            for value, items, of in (self.hour, self.moment):
                kept.append(
                    (value.get(), [n for (n,) in items.get()], [(k, n) for (k,), (n,) in of.iterator()])
                )
            if row.n:
                for value, items, of in (self.hour, self.moment):
                    value.update((row.n,))
                    items.put([(row.n,), (row.n + 1,)])
                    of.updateValue(("x",), (row.n,))
                self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1_000)
                self.handle.registerTimer(CENTURY + row.n)
            timers = [t - CENTURY for t in self.handle.listTimers() if t >= CENTURY]
            for n in () if row.n else timers:
                self.handle.deleteTimer(CENTURY + n)
            left = [t for t in self.handle.listTimers() if t >= CENTURY]
            yield Row(k=key[0], what=f"{kept} {timers} {len(left)}")

    def handleExpiredTimer(self, key: Any, timerValues: TimerValues, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], what=f"fired {self.hour[0].get()}")

    def close(self) -> None:
        pass


def test_a_moved_processor_keeps_times_to_live_and_timers_of_the_clock(
    spark: SparkSession, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    keys = ["value", "name", "epoch_ms", "time_domain"]  # as the tables of states and timers have
    schema = pa.schema([*((name, pa.string()) for name in keys), ("n", pa.int64())])

    def rows(*numbers: int | None) -> list[dict[str, Any]]:
        return [dict.fromkeys(keys, k) | {"n": n} for k, n in zip("ab", numbers, strict=True)]

    streams.write_batches(theirs / "in", [rows(7, 8)], schema)
    unmoved = (
        streams.read_stream(spark, theirs / "in")
        .groupBy(*keys)
        .transformWithState(Reminder(), OUTPUT, "Append", "ProcessingTime")
    )
    with streams.configured(spark, streaming_noDataMicroBatches_enabled=False):  # otherwise it never ends
        before = [row for rows in streams.batches(unmoved, theirs) for row in rows]
    streams.write_batches(ours / "in", [rows(None, None)], schema)
    result = transform_with_state(
        streams.read_stream(spark, ours / "in"),
        keys,
        Reminder(),
        OUTPUT,
        "Append",
        "ProcessingTime",
        initial_state=InitialState.from_spark(spark, theirs / "checkpoint"),
    )

    def enough(rows: list[tuple[Any, ...]]) -> bool:
        return sum("fired" in what for _, what in (*before, *rows)) == 2 and len(rows) >= 2

    after = streams.run_until(result, enough, ours)
    gone = (None, [], [])
    assert [row for row in after if "fired" not in row[1]] == [
        ("a", f"{[((7,), [7, 8], [('x', 7)]), gone]} [7] 0"),
        ("b", f"{[((8,), [8, 9], [('x', 8)]), gone]} [8] 0"),
    ]
    assert sorted(row for row in (*before, *after) if "fired" in row[1]) == [
        ("a", "fired (7,)"),
        ("b", "fired (8,)"),
    ]
