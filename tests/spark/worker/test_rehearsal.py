"""`open` runs on the driver first, so that an invalid state raises before the query starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap.interval_join import IntervalJoin, ProcessJoinFunction
from timerheap.windows import ProcessWindowFunction, TumblingEventTimeWindows

pytestmark = pytest.mark.spark

Open = Callable[[Any], Any]
EVENTS: list[str] = []
TIMED = {"event_time": "at", "watermark": WatermarkStrategy.for_monotonous_timestamps()}
BAD_KEY = "array<int>"
ROW = "struct<k string, at timestamp>"


class Declares:
    """Calls a function of the test in `open`."""

    def __init__(self, act: Open) -> None:
        self.act = act

    def open(self, runtime_context: Any) -> None:
        self.opened = self.act(runtime_context)


class Rows(Declares, KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass


class Columns(Declares, BatchProcessFunction):
    def process_batch(self, batch: Any, ctx: Any) -> None:
        pass


class Two(Declares, KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None:
        pass

    def process_element2(self, value: Any, ctx: Any) -> None:
        pass


class Windows(Declares, ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield from ()


class Pairs(Declares, ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> None:
        pass


def by_process(function: type) -> Callable[[DataFrame, Open], DataFrame]:
    return lambda df, act: timerheap.spark.process(df, "k", function(act), "k string", **TIMED)


def by_two(df: DataFrame, act: Open) -> DataFrame:
    return timerheap.spark.process_two(df, df, "k", Two(act), "k string", **TIMED)


def by_join(df: DataFrame, act: Open) -> DataFrame:
    join = IntervalJoin(0, 5, Pairs(act), left_type=ROW, right_type=ROW)
    return timerheap.spark.process_two(df, df, "k", join, "k string", **TIMED)


def by_windows(df: DataFrame, act: Open) -> DataFrame:
    return timerheap.spark.window_operator(
        df, "k", TumblingEventTimeWindows.of(5), Windows(act), "n bigint", **TIMED
    )


ENTRIES = {
    "rows": by_process(Rows),
    "columns": by_process(Columns),
    "two inputs": by_two,
    "interval join": by_join,
    "windows": by_windows,
}


def lasting(runtime_context: Any) -> None:
    ValueStateDescriptor("last", Types.LONG()).enable_time_to_live(object())


def twice(runtime_context: Any) -> None:
    runtime_context.get_state(ValueStateDescriptor("last", "bigint"))
    runtime_context.get_list_state(ListStateDescriptor("last", "bigint"))


def value(type_: object) -> Open:
    return lambda runtime_context: runtime_context.get_state(ValueStateDescriptor("last", type_))


BAD: list[tuple[Open, type[Exception], str]] = [
    (lasting, TypeError, "ttl_config of state 'last' must be a StateTtlConfig"),
    (value(int), TypeError, "state 'last': the type must be one of"),
    (value("long long"), ValueError, "state 'last': the type must be one that"),
    (lambda rc: rc.get_list_state("last"), TypeError, "must be a ListStateDescriptor, got 'last'"),
    (
        lambda rc: rc.get_map_state(MapStateDescriptor("m", BAD_KEY, "int")),
        ValueError,
        "keys must be hashable",
    ),
    (lambda rc: rc.get_reducing_state(None), TypeError, "must be a ReducingStateDescriptor, got None"),
    (twice, ValueError, "state 'last' is already in use as a value state"),
    (lambda rc: 1 / 0, ZeroDivisionError, "division by zero"),
]


@pytest.fixture(scope="module", params=["batch", "stream"])
def df(request: pytest.FixtureRequest, spark: SparkSession) -> DataFrame:
    rows = spark.range(4) if request.param == "batch" else spark.readStream.format("rate").load()
    return rows.selectExpr("'a' k", "now() at")


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_invalid_state_raises_before_the_query_starts(entry: str, df: DataFrame) -> None:
    ENTRIES[entry](df, lambda rc: rc.get_state(ValueStateDescriptor("last", "bigint")))
    for act, error, message in BAD:
        with pytest.raises(error, match=message) as caught:
            ENTRIES[entry](df, act)
        assert "on the driver" in caught.value.__notes__[-1]


def test_the_function_of_the_user_is_not_changed(df: DataFrame) -> None:
    function = Rows(lambda rc: rc.get_state(ValueStateDescriptor("last", "bigint")))
    timerheap.spark.process(df, "k", function, "k string")
    assert not hasattr(function, "opened")


class Logged(Rows):
    """Records its calls in a list of this module, which its copy shares."""

    def open(self, runtime_context: Any) -> None:
        self.log("open")
        super().open(runtime_context)

    def close(self) -> None:
        self.log("close")

    def log(self, event: str) -> None:
        import sys

        sys.modules[__name__].EVENTS.append(event)  # type: ignore[attr-defined]


@pytest.mark.promises(
    "PyFlink",
    "different",
    "Function.open",
    "Function.close",
    note="they run in every task of every micro-batch, and once on the driver on a copy",
)
def test_an_opened_copy_is_closed(df: DataFrame) -> None:
    EVENTS.clear()
    timerheap.spark.process(df, "k", Logged(lambda rc: None), "k string")
    assert EVENTS == ["open", "close"]


def test_open_can_skip_what_exists_only_on_workers(spark: SparkSession) -> None:
    """As the note suggests, `open` checks for a task, and the driver has none."""

    class OnWorkers(KeyedProcessFunction):
        def open(self, runtime_context: Any) -> None:
            if TaskContext.get() is not None:
                self.connection = "made"

        def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str]]:
            yield (self.connection,)

    df = spark.range(1)
    result = timerheap.spark.process(df, "id", OnWorkers(), "found string", max_parallelism=1)
    assert result.collect() == [("made",)]
