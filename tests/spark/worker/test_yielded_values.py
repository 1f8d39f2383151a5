"""What a function yields comes out as it was at the yield, whatever the function does with it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import timerheap.spark
from timerheap import BatchProcessFunction, KeyedProcessFunction, OutputTag, Types
from timerheap.testing import ProcessTester

SIDE = OutputTag("side", Types.LIST(Types.LONG()))
MAP = OutputTag("map", Types.MAP(Types.STRING(), Types.LIST(Types.LONG())))
ROWS = OutputTag("rows", Types.ROW_NAMED(["n"], [Types.LONG()]))
GROWING = [list(range(1, n + 1)) for n in range(1, 5)]


class Growing(KeyedProcessFunction):
    """Keeps one list, one dict and one array of bytes, and adds to them after each yield."""

    def open(self, runtime_context: Any) -> None:
        self.list: list[int] = []
        self.dict: dict[str, list[int]] = {"n": self.list}
        self.bytes = bytearray()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        for n in range(1, 5):
            self.list.append(n)
            self.bytes.append(n)
            ctx.output(SIDE, self.list)
            yield MAP, self.dict
            yield self.form(value.k)

    def form(self, key: str) -> Any:
        return key, self.list, self.dict, (len(self.list), self.list), self.bytes


class AsDict(Growing):
    def form(self, key: str) -> Any:
        return dict(zip("klmsb", super().form(key), strict=True))


class AsRow(Growing):
    def form(self, key: str) -> Any:
        return Row(k=key, l=self.list, m=self.dict, s=Row(n=len(self.list), l=self.list), b=self.bytes)


class AsOneList(Growing):
    """Changes one record."""

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        self.record: list[Any] = []

    def form(self, key: str) -> Any:
        self.record[:] = super().form(key)
        return self.record


RESULT = "k string, l array<long>, m map<string, array<long>>, s struct<n: long, l: array<long>>, b binary"


@pytest.mark.parametrize("function", [Growing, AsDict, AsRow, AsOneList])
def test_rows_and_side_outputs(function: type[Growing]) -> None:
    tester = ProcessTester(function(), "k", "k string", RESULT, side_outputs=[SIDE, MAP])
    found = tester.push([("a",)])
    assert [row.l for row in found] == GROWING
    assert [row.m for row in found] == [{"n": each} for each in GROWING]
    assert [(row.s.n, row.s.l) for row in found] == [(len(each), each) for each in GROWING]
    assert [list(row.b) for row in found] == GROWING
    assert tester.side_output(SIDE) == GROWING
    assert tester.side_output(MAP) == [{"n": each} for each in GROWING]


class Reused(BatchProcessFunction):
    """Yields batches over one NumPy buffer."""

    def open(self, runtime_context: Any) -> None:
        self.buffer = np.zeros(2, np.int64)

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[Any]:
        for n in range(1, 4):
            self.buffer[:] = n
            yield pa.record_batch({"n": pa.array(self.buffer)})
            yield pa.table({"n": pa.array(self.buffer)})
            yield ROWS, pa.record_batch({"n": pa.array(self.buffer)})


def test_record_batches_over_a_buffer_that_is_used_again() -> None:
    tester = ProcessTester(Reused(), "k", "k string", "n long", side_outputs=[ROWS])
    assert [row.n for row in tester.push([("a",)])] == [1] * 4 + [2] * 4 + [3] * 4
    assert [row.n for row in tester.side_output(ROWS)] == [1, 1, 2, 2, 3, 3]


class Frames(StatefulProcessor):
    """Yields one DataFrame, which it changes."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.DataFrame({"k": key[0], "n": [0], "x": pd.array([0], "Int64"), "l": [[]]})
        for n in range(1, 6):
            frame.loc[0, "n"] = n
            frame.loc[0, "x"] = n
            frame.loc[0, "l"].append(n)
            yield frame


class Rows(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        seen: list[int] = []
        for n in range(1, 6):
            seen.append(n)
            yield Row(k=key[0], n=n, x=n, l=seen)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("processor", "ours", "sparks"),
    [
        (Rows, timerheap.spark.transform_with_state, "transformWithState"),
        (Frames, timerheap.spark.transform_with_state_in_pandas, "transformWithStateInPandas"),
    ],
)
def test_processors_do_the_same_as_in_spark(
    spark: SparkSession, processor: type[StatefulProcessor], ours: Callable[..., Any], sparks: str
) -> None:
    schema = "k string, n long, x long, l array<long>"
    grouped = spark.createDataFrame([("a",)], "k string").groupBy("k")
    result = ours(
        grouped, processor=processor(), output_schema=schema, output_mode="append", time_mode="None"
    )
    found = [tuple(row) for row in result.collect()]
    assert found == [("a", n, n, list(range(1, n + 1))) for n in range(1, 6)]
    result = getattr(grouped, sparks)(processor(), schema, "append", "None")
    assert found == [tuple(row) for row in result.collect()]


async def answers(row: Row) -> list[list[Any]]:
    answer = [row.k, KEPT]
    KEPT.append(len(KEPT))
    return [answer]


KEPT: list[int] = []


@pytest.mark.spark
def test_results_of_asynchronous_calls(spark: SparkSession) -> None:
    df = spark.createDataFrame([(n,) for n in range(4)], "k long").coalesce(1)
    result = timerheap.spark.async_map(df, answers, "k long, l array<long>", capacity=1, timeout=60_000)
    assert sorted(len(row.l) for row in result.collect()) == [1, 2, 3, 4]
