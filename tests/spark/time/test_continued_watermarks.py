"""A query that starts from another one has its watermark, which may then be made of something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, Row, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark import EventTime, read_checkpoint
from timerheap.spark._exchange.observed_times import merged
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._observed import OBSERVED
from timerheap.watermarks.generators import BoundedOutOfOrdernessWatermarks
from timerheap.watermarks.strategy import following

DELAY = 5
STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(DELAY)
IDLE = STRATEGY.with_idleness(30)


def observed(*rows: tuple[int, str | None, int | None]) -> pa.Table:
    return merged([pa.table([[i], [name], [t], [1]], schema=OBSERVED) for i, name, t in rows])


def ended(
    *rows: tuple[int, str | None, int | None],
    columns: tuple[str | None, ...] = (None,),
    strategy: WatermarkStrategy = STRATEGY,
    now: int | None = None,
) -> bytes:
    """Return the state of a query after some rows."""
    state = WatermarkState((strategy,) * len(columns), columns)
    state.observe(observed(*rows), now, "old", at=1_000)
    return state.to_bytes()


def continued(
    data: bytes, columns: tuple[str | None, ...] = (None,), strategy: WatermarkStrategy = STRATEGY
) -> WatermarkState:
    """Return the state of a query that goes on there, as its first micro-batch loads it."""
    strategies = (strategy,) * len(columns)
    state = WatermarkState.continued(data, strategies, columns)
    loaded = WatermarkState.from_bytes(state.to_bytes(), strategies, columns)
    loaded.follow(state.watermark)
    return loaded


@pytest.mark.parametrize("new", [0, 1])
def test_a_new_input_holds_the_watermark_until_it_has_rows(new: int) -> None:
    data = ended((0, "JFK", 100), (0, "LGA", 200), columns=("airport",))
    columns: list[str | None] = ["airport"]
    columns.insert(new, None)
    old = 1 - new
    state = continued(data, tuple(columns))
    assert state.watermark == 94
    assert state.observe(observed((old, "JFK", 500)), None, "new") == 94
    assert state.observe(observed((new, None, 50)), None, "new") == 94, "it never falls"
    assert state.observe(observed((new, None, 300)), None, "new") == 194, "LGA is a channel still"
    assert state.observe(observed((old, "LGA", 400)), None, "new") == 294
    assert not state.notices


def test_without_an_input_the_watermark_rises_with_the_first_micro_batch() -> None:
    data = ended((0, "JFK", 100), (0, "LGA", 200), (1, "B6", 50), columns=("airport", "carrier"))
    for column, name, watermark in (("airport", "JFK", 94), ("carrier", "B6", 44)):
        state = WatermarkState.continued(data, (STRATEGY,), (column,))
        assert state.watermark == 44, "so that the micro-batch sees what is due"
        assert state.observe(observed(), None, "new") == watermark
        assert state.observe(observed((0, name, 300)), None, "new") == (194 if name == "JFK" else 294)


def test_an_input_that_may_be_either_of_two_begins_anew() -> None:
    state = continued(ended((0, None, 500), (1, None, 100), columns=(None, None)))
    assert state.observe(observed(), None, "new") == 94
    assert state.observe(observed((0, None, 150)), None, "new") == 144, "where it was the second of the two"


@pytest.mark.parametrize(("before", "after"), [(None, "airport"), ("carrier", "airport"), ("airport", None)])
def test_other_channels_begin_at_the_old_watermark(before: str | None, after: str | None) -> None:
    state = continued(ended((0, before, 100), columns=(before,)), (after,))
    assert state.observe(observed(), None, "new") == 94
    names = [None] if after is None else ["JFK", "LGA"]
    assert state.observe(observed(*((0, name, 80) for name in names)), None, "new") == 94
    assert state.observe(observed(*((0, name, 300) for name in names[1:])), None, "new") == 94
    assert state.observe(observed((0, names[0], 200)), None, "new") == 194
    assert not state.notices


@pytest.mark.parametrize("clocked", [False, True])
def test_idleness_may_be_added(clocked: bool) -> None:
    """What has been silent before the new query begins is idle after the timeout in it."""
    now = 1_000 if clocked else None
    data = ended((0, "a", 100), (0, "b", 50), columns=("channel",), now=now)
    state = continued(data, ("channel",), IDLE)
    assert state.observe(observed((0, "a", 200)), 9_000, "new") == 44
    assert state.observe(observed((0, "a", 210)), 9_030, "new") == 44
    assert state.observe(observed((0, "a", 220)), 9_031, "new") == 214


def test_idleness_may_be_taken_away() -> None:
    old = WatermarkState((IDLE,), ("channel",))
    old.observe(observed((0, "a", 100), (0, "b", 50)), 1_000, "old")
    assert old.observe(observed((0, "a", 100)), 1_031, "old") == 94
    state = continued(old.to_bytes(), ("channel",))
    assert state.next_change() is None
    assert state.observe(observed((0, "a", 200)), None, "new") == 194, "b has not come back"
    assert state.observe(observed((0, "b", 210), (0, "a", 300)), None, "new") == 204


def test_the_clock_may_come_and_go() -> None:
    clock = STRATEGY.with_wall_clock(after=1_000, lag=100)
    state = continued(ended((0, None, 100)), strategy=clock)
    assert state.observe(observed(), 5_000, "new") == 94
    assert state.observe(observed(), 6_000, "new") == 5_900
    state = continued(state.to_bytes())
    assert state.observe(observed((0, None, 5_000)), None, "newest") == 5_900
    assert state.observe(observed((0, None, 7_000)), None, "newest") == 6_994


@pytest.mark.parametrize(
    ("strategy", "watermark"),
    [
        (WatermarkStrategy.for_bounded_out_of_orderness(0), 199),
        (WatermarkStrategy.for_bounded_out_of_orderness(150), 94),
        (WatermarkStrategy.for_generator(lambda: BoundedOutOfOrdernessWatermarks(20)), 179),
        (WatermarkStrategy.no_watermarks(), 94),
    ],
    ids=["less", "more", "a generator", "none"],
)
def test_the_delay_may_be_another(strategy: WatermarkStrategy, watermark: int) -> None:
    state = continued(ended((0, None, 100)), strategy=strategy)
    assert state.observe(observed((0, None, 110)), None, "new") == max(94, 110 - 200 + watermark)
    assert state.observe(observed((0, None, 200)), None, "new") == watermark


def test_a_query_may_begin_to_follow_others_and_end_it() -> None:
    follows = WatermarkState.continued(ended((0, None, 100)), (following(0),), ("followed",))
    assert follows.observe(observed(), None, "new", limit=50) == 94
    assert follows.observe(observed(), None, "new", limit=200) == 200
    state = continued(follows.to_bytes())
    assert state.observe(observed((0, None, 150)), None, "newest") == 200
    assert state.observe(observed((0, None, 300)), None, "newest") == 294


# ---- On Spark

SCHEMA = pa.schema([("k", pa.string()), ("shop", pa.string()), ("at", pa.int64())])


class Echo(KeyedProcessFunction):
    def process_element(self, value: Row, ctx: Any) -> Any:
        yield value.k, value.at


def echoed(
    spark: SparkSession,
    folder: Path,
    *batches: list[tuple[str, int]],
    channel: str | None = None,
    **options: Any,
) -> DataFrame:
    """Echo rows, whose key is that of their shop, by event time."""
    rows = [[{"k": shop, "shop": shop, "at": at} for shop, at in batch] for batch in batches]
    streams.write_batches(folder, rows, SCHEMA)
    known = {"watermark": 10, "max_parallelism": 3} | options
    df = streams.read_stream(spark, folder)
    return timerheap.spark.process(
        df, "k", Echo(), "k string, at long", EventTime("at", channel=channel), **known
    )


@pytest.mark.in_turn
@pytest.mark.spark
@pytest.mark.usefixtures("one_partition")
def test_channels_are_added(spark: SparkSession, tmp_path: Path) -> None:
    old = echoed(spark, tmp_path / "old", [("a", 100), ("b", 200)], [("a", 300)])
    assert streams.batches(old, tmp_path / "1") == [[("a", 100)], [("b", 200)]]
    new = echoed(
        spark,
        tmp_path / "new",
        [("a", 900), ("b", 350), ("b", 280)],
        [("b", 500), ("b", 400)],
        channel="shop",
        initial_state=read_checkpoint(spark, tmp_path / "1" / "checkpoint"),
    )
    assert list(map(sorted, streams.batches(new, tmp_path / "2"))) == [[("a", 300)], [("b", 350), ("b", 400)]]


@pytest.mark.spark
@pytest.mark.usefixtures("one_partition")
def test_a_clock_is_added(spark: SparkSession, tmp_path: Path) -> None:
    old = echoed(spark, tmp_path / "old", [("a", 100), ("b", 100)], [("a", 300)], channel="shop")
    assert streams.batches(old, tmp_path / "1") == [[], []]
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(10).with_idleness("1 second")
    new = echoed(
        spark,
        tmp_path / "new",
        [("a", 400)],
        channel="shop",
        watermark=strategy,
        initial_state=read_checkpoint(spark, tmp_path / "1" / "checkpoint"),
    )
    found = streams.run_until(new, lambda found: len(found) >= 3, tmp_path / "2")
    assert found == [("a", 100), ("a", 300), ("b", 100)]


def test_a_repeated_micro_batch_belongs_to_the_run_before() -> None:
    strategy = STRATEGY.with_wall_clock(after=100, lag=10)

    def after(data: bytes, now: int, run: str | None) -> tuple[int, bytes]:
        state = (
            WatermarkState.from_bytes(data, (strategy,), (None,))
            if data
            else WatermarkState((strategy,), (None,))
        )
        rows = [] if data else [(0, None, 50)]
        return state.observe(observed(*rows), now, run), state.to_bytes()

    _, first = after(b"", 1_000, "one")
    quiet, _ = after(first, 1_200, "one")
    assert quiet == 1_190
    again, repeated = after(first, 1_200, "repeated")
    assert again == quiet, "as in the attempt before"
    later, begun = after(repeated, 9_000, "two")
    assert later == quiet, "the time between the runs does not count"
    assert after(begun, 9_150, "two")[0] == 9_140
    assert after(repeated, 9_000, "repeated")[0] == later, "the first of a run, repeated"
    planned, of_planned = after(first, 1_200, "repeated 7")
    assert planned < quiet, "a run begins with it, however often"
    assert after(of_planned, 9_000, "two")[0] == planned
