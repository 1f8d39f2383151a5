"""Collations that compare strings by other than their bytes raise where timerheap compares bytes."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedCoProcessFunction, KeyedProcessFunction, WatermarkStrategy
from timerheap.windows import ProcessWindowFunction, TumblingEventTimeWindows

pytestmark = pytest.mark.spark

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(5)
SAYS = r"must have the collation UTF8_BINARY, got column 'c' with {}; .* F.collate\("


class Nothing(KeyedProcessFunction, KeyedCoProcessFunction, ProcessWindowFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        pass

    process_element1 = process_element2 = process_element

    def process(self, key: Any, context: Any, elements: Any) -> list[Any]:
        return []


@pytest.fixture(params=["UTF8_LCASE", "UNICODE_CI", "UTF8_BINARY_RTRIM"])
def collation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def df(collation: str, spark: SparkSession) -> DataFrame:
    columns = f"'a' collate {collation} c", "'a' collate UTF8_BINARY k", "1L v", "timestamp_millis(id) at"
    return spark.range(1).selectExpr(*columns)


def test_a_key_with_another_collation_raises(df: DataFrame, collation: str) -> None:
    says, spark = SAYS.format(collation), timerheap.spark
    with pytest.raises(ValueError, match=f"^key {says}"):
        spark.process(df, ["k", "c"], Nothing(), "k string")
    for left, right, argument in (("c", "k", "key"), ("k", "c", "right.key")):
        with pytest.raises(ValueError, match=f"^{argument} {says}"):
            spark.process_two(df, spark.RightInput(df, key=right), left, Nothing(), "k string")
    with pytest.raises(ValueError, match=f"^key {says}"):
        spark.window_operator(df, "c", TumblingEventTimeWindows.of(5), Nothing(), "n bigint", "at")
    spark.process(df, "k", Nothing(), "k string")


def test_a_channel_with_another_collation_raises(df: DataFrame, collation: str) -> None:
    says, time = f"channel {SAYS.format(collation)}", timerheap.spark.EventTime("at", channel="c")
    with pytest.raises(ValueError, match=says):
        timerheap.spark.process(df, "k", Nothing(), "k string", time, watermark=STRATEGY)
    with pytest.raises(ValueError, match=says):
        timerheap.spark.tumble(df, time, size=5, watermark=STRATEGY)


def test_grouping_and_comparing_by_another_collation_raise(df: DataFrame, collation: str) -> None:
    for windows in (
        timerheap.spark.tumble(df, "at", size=5, watermark=STRATEGY),
        timerheap.spark.hop(df, "at", slide=5, size=10, watermark=STRATEGY),
        timerheap.spark.cumulate(df, "at", step=5, max_size=10, watermark=STRATEGY),
        timerheap.spark.session(df, "at", 5, watermark=STRATEGY),
    ):
        with pytest.raises(ValueError, match=SAYS.format(collation)):
            windows.groupBy("c")
        grouped = windows.groupBy("k")
        for aggregate in (F.min("c"), F.max(F.struct("v", "c")), F.count_distinct("c")):
            with pytest.raises(
                ValueError, match=f"agg: .* must have the collation UTF8_BINARY, got {collation}"
            ):
                grouped.agg(aggregate)
        grouped.agg(F.count("c"), F.min("v"))
