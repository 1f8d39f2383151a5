"""An operator gets a second input, or loses one, while rows wait in it for the watermark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap import KeyedCoProcessFunction, KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import (
    EventTime,
    RightInput,
    continue_from,
    process,
    process_two,
    read_checkpoint,
    run_available_now,
)

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20), pytest.mark.usefixtures("one_partition")]

RESULT = "k string, v long, n long"
ONE = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("v", pa.int64())])
TWO = pa.schema([("who", pa.string()), ("time", pa.timestamp("us", "UTC")), ("w", pa.int64())])
BEFORE = [
    ("a", 1_000_000, 1),
    ("b", 4_000_003, 3),
    ("b", 4_000_001, 2),
    ("a", 5_000_000, 4),
    ("b", 5_000_000, 5),
]
AFTER = [("a", 4_500_000, 6), ("b", 9_000_000, 7), ("c", 9_000_000, 8)]
"""Keys, event times in microseconds, of which one ms has several, and values; 3 seconds of them wait."""
WAITING = 4


class Count:
    """Tells the value of each row with its number among the rows of its key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def next(self, value: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), value, self.count.value()


class OfOne(Count, KeyedProcessFunction):
    def __init__(self, column: str = "v") -> None:
        self.column = column

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield from self.next(value[self.column], ctx)


class OfTwo(Count, KeyedCoProcessFunction):
    """Rows of `ONE` on the left, and on the right by default those of `TWO`."""

    def __init__(self, left: str = "v", right: str = "w") -> None:
        self.left, self.right = left, right

    def process_element1(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield from self.next(value[self.left], ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield from self.next(-value[self.right], ctx)


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: (row[0], row[2]))


class Work:
    """Rows in folders, and queries over them into one sink."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, path

    def add(self, folder: str, rows: list[tuple[str, int, int]], schema: pa.Schema = ONE) -> None:
        batch = [dict(zip(schema.names, row, strict=True)) for row in rows]
        streams.write_batches(self.path / folder, [batch], schema)

    def read(self, folder: str) -> DataFrame:
        return streams.read_stream(self.spark, self.path / folder)

    def run(self, result: DataFrame, name: str) -> list[tuple[Any, ...]]:
        """Return what a query with this checkpoint writes, by key and number."""
        found: list[tuple[Any, ...]] = []
        writer = result.writeStream.option("checkpointLocation", str(self.path / name))
        run_available_now(writer.foreachBatch(lambda df, _: found.extend(tuple(row) for row in df.collect())))
        return in_order(found)

    def go_on(self, query: Callable[[], DataFrame], **options: Any) -> list[tuple[Any, ...]]:
        result = continue_from(self.spark, self.path / "old", self.path / "new", query, **options)
        return self.run(result, "new")


@pytest.fixture
def work(spark: SparkSession, tmp_path: Path) -> Work:
    return Work(spark, tmp_path)


TIMED: dict[str, Any] = {"watermark": "3 seconds", "name": "counts"}


def one(df: DataFrame, event_time: Any = "at", key: Any = "k") -> DataFrame:
    return process(df, key, OfOne(), RESULT, event_time, **TIMED)


def other(df: DataFrame) -> RightInput:
    return RightInput(df, key="who", event_time="time")


def two(left: DataFrame, right: DataFrame) -> DataFrame:
    return process_two(left, other(right), "k", OfTwo(), RESULT, "at", **TIMED)


def turned(left: DataFrame, right: DataFrame) -> DataFrame:
    return process_two(
        right,
        RightInput(left, key="k", event_time="at", watermark="3 seconds"),
        "who",
        OfTwo("w", "v"),
        RESULT,
        "time",
        **TIMED,
    )


def computed(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return a query whose key, time and order are expressions, which are columns of numbers and names."""
    time = EventTime(F.col("at") + F.expr("interval 0 seconds"), tie_break=-F.col("v"))
    of_right = EventTime(F.col("time") + F.expr("interval 0 seconds"), tie_break=-F.col("w"))
    of_two = RightInput(right, key=F.lower("who"), event_time=of_right)
    return process_two(left, of_two, F.lower("k"), OfTwo(), RESULT, time, **TIMED)


def computed_one(df: DataFrame) -> DataFrame:
    time = EventTime(F.col("at") + F.expr("interval 0 seconds"), tie_break=-F.col("v"))
    return one(df, time, F.lower("k"))


ADDED: dict[
    str, tuple[Callable[[DataFrame], DataFrame], Callable[[DataFrame, DataFrame], DataFrame], int]
] = {
    "right": (one, two, 1),
    "left": (one, turned, -1),
    "right, with expressions": (computed_one, computed, 1),
}


@pytest.mark.parametrize("change", ADDED)
def test_rows_that_wait_are_those_of_the_input_that_was_there(work: Work, change: str) -> None:
    before, after, sign = ADDED[change]
    work.add("in", BEFORE)
    written = work.run(before(work.read("in")), "old")
    assert read_checkpoint(work.spark, work.path / "old").buffered_rows().count() == WAITING
    work.add("in", AFTER)
    work.add("other", [("b", 4_000_002, 20), ("c", 20_000_000, 21)], TWO)
    sources = [0, None] if sign > 0 else [None, 0]
    found = work.go_on(lambda: after(work.read("in"), work.read("other")), sources=sources)
    wanted = work.run(after(work.read("in"), work.read("other")), "undisturbed")
    assert len(found) >= WAITING
    assert in_order([*((k, sign * v, n) for k, v, n in written), *found]) == wanted


def test_rows_that_wait_fit_neither_input(work: Work) -> None:
    work.add("in", BEFORE)
    work.run(one(work.read("in")), "old")
    work.add("other", [("b", 4_000_002, 20)], TWO)
    with pytest.raises(
        ValueError, match=r"left or right must have the columns of .* got left without 'v'; go on"
    ):
        work.go_on(
            lambda: two(work.read("in").select("k", "at", F.lit(1).alias("w")), work.read("other")),
            sources=[0, None],
        )
    assert not (work.path / "new").exists()


def test_an_input_goes_with_the_rows_of_it_that_wait(work: Work) -> None:
    """They are named, and given up by the word of the user; without any, nothing needs to be said."""
    work.add("in", BEFORE)
    work.add("other", [("b", 500_000, 20), ("a", 4_400_000, 21), ("c", 4_400_000, 22)], TWO)
    written = work.run(two(work.read("in"), work.read("other")), "old")
    assert len(written) == 2
    work.add("in", AFTER)

    def left() -> DataFrame:
        return one(work.read("in"))

    with pytest.raises(
        ValueError,
        match=r"2 of input 'right' of operator 'counts' wait .*; pass forget=\['counts.right'\] to",
    ):
        work.go_on(left, sources=[0])
    with pytest.raises(
        ValueError, match=r"forget must have inputs that are gone, got 'counts\.right', and the q"
    ):
        work.go_on(lambda: two(work.read("in"), work.read("other")), forget=["counts.right"])
    with pytest.raises(
        ValueError, match=r"df must have the columns of input 'right' .* got one without 'time'"
    ):
        work.go_on(left, sources=[0], forget=["counts.left"])
    assert not (work.path / "new").exists()
    found = work.go_on(left, sources=[0], forget=["counts.right"])
    work.add("in", [("z", 99_000_000, 9)])
    found += work.run(left(), "new")
    of_a, of_b = [("a", 6, 2), ("a", 4, 3)], [("b", 2, 2), ("b", 3, 3), ("b", 5, 4), ("b", 7, 5)]
    assert in_order(found) == [*of_a, *of_b, ("c", 8, 1)]


def test_the_left_input_goes(work: Work) -> None:
    work.add("in", BEFORE)
    work.add("other", [("b", 4_000_002, 20), ("c", 9_000_000, 21)], TWO)
    work.run(two(work.read("in"), work.read("other")), "old")
    work.add("other", [("d", 99_000_000, 22)], TWO)

    def right() -> DataFrame:
        return process(work.read("other"), "who", OfOne("w"), RESULT, "time", **TIMED)

    with pytest.raises(
        ValueError, match=r"columns of input 'left' .* without 'at'; .* forget=\['counts.left'\] to"
    ):
        work.go_on(right, sources=[1], forget=["counts.right"])
    with pytest.raises(ValueError, match=r"forget must have names of operators .* got 'counts\.middle'"):
        work.go_on(right, sources=[1], forget=["counts.left", "counts.middle"])
    found = work.go_on(right, sources=[1], forget=["counts.left"])
    assert found == [("b", 20, 1), ("c", 21, 1)]
