"""What a stateful processor does otherwise than in Spark, where no other test has a reason to show it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from processor_stage import Stage
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

from timerheap.spark import transform_with_state, transform_with_state_in_pandas
from timerheap.spark._processors.processor_states import DeclaredState
from timerheap.spark._processors.state_codec import StructCodec

ROWS = T.StructType().add("k", T.StringType()).add("n", T.LongType())
LONG = T.StructType().add("n", T.LongType())
INT = T.StructType().add("n", T.IntegerType())


class Sum(StatefulProcessor):
    schema = INT
    ttl: int | None = None

    def init(self, handle: Any) -> None:
        self.sum = handle.getValueState("sum", self.schema, self.ttl)

    def close(self) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = sum(row.n for row in rows) + (self.sum.get() or (0,))[0]
        self.sum.update((total,))
        yield Row(k=key[0], n=total)


class LongSum(Sum):
    schema = LONG


class MoreFields(Sum):
    schema = T.StructType().add("more", T.StringType()).add("n", T.IntegerType())

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = sum(row.n for row in rows) + (self.sum.get() or ("", 0))[1]
        self.sum.update(("more", total))
        yield Row(k=key[0], n=total)


class TextSum(Sum):
    schema = T.StructType().add("n", T.StringType())


class Expiring(Sum):
    ttl = 1000


def stage(processor: type[Sum]) -> Stage:
    declared = DeclaredState("value", (processor.schema,), processor.ttl)
    return Stage(processor, ROWS, ROWS, "ProcessingTime", sum=declared)


@pytest.mark.parametrize("changed", [LongSum, MoreFields])
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "a state whose schema has changed",
    note="types may widen; fields may be added, removed and moved; in Spark only with the Avro encoding",
)
def test_a_schema_changes_without_a_loss(changed: type[Sum]) -> None:
    before, after = stage(Sum), stage(changed)
    assert before.batch([("a", 1)], now=1) == [("a", 1)]
    after.group = before.group
    assert after.batch([("a", 2)], now=2) == [("a", 3)]
    assert after.batch([("a", 3), ("b", 1)], now=3) == [("a", 6), ("b", 1)]


@pytest.mark.parametrize("changed", [TextSum, Expiring])
def test_any_other_change_of_a_schema_is_refused(changed: type[Sum]) -> None:
    before, after = stage(Sum), stage(changed)
    assert before.batch([("a", 1)], now=1) == [("a", 1)]
    after.group = before.group
    with pytest.raises(
        ValueError, match=r"state 'sum' must keep what it holds .* handle.deleteIfExists\('sum'\)"
    ) as caught:
        after.batch([("a", 2)], now=2)
    assert "state_changes" not in str(caught.value), "which a processor has not"
    assert before.batch([("a", 3)], now=2) == [("a", 4)]


class Nested(StatefulProcessor):
    keys = T.StructType().add("ids", T.ArrayType(T.IntegerType()))

    def init(self, handle: Any) -> None:
        handle.getMapState("map", self.keys, LONG)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        return iter(())


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "the keys of a map state",
    note="must have fields of atomic types; in Spark, fields of any type",
)
def test_the_fields_of_a_map_s_keys_must_be_atomic() -> None:
    stage = Stage(Nested, ROWS, ROWS, map=DeclaredState("map", (Nested.keys, LONG), None))
    with pytest.raises(ValueError, match=r"state 'map': the fields of a map's keys must be of atomic types"):
        stage.batch([("a", 1)])


def plan(spark: SparkSession, processor: StatefulProcessor) -> None:
    df = spark.createDataFrame([], ROWS)
    transform_with_state(df, "k", processor, ROWS, "Append", "None")


@pytest.mark.spark
@pytest.mark.parametrize("type_", [T.DayTimeIntervalType(), T.NullType(), T.VariantType()])
@pytest.mark.promises(
    "StatefulProcessor",
    "refused",
    "states of type interval, void or variant",
    note="keep a bigint of microseconds instead of an interval, and JSON text instead of a variant",
)
def test_a_state_must_have_types_that_can_be_kept(spark: SparkSession, type_: T.DataType) -> None:
    class Keeping(Sum):
        schema = T.StructType().add("x", T.ArrayType(type_))

    with pytest.raises(
        ValueError, match=r"must have types that timerheap can keep, got .*; use another type"
    ):
        plan(spark, Keeping())


@pytest.mark.spark
@pytest.mark.parametrize(
    "schema",
    [
        "n long, n string",
        T.StructType().add("x", T.ArrayType(T.StructType().add("n", "long").add("n", "long"))),
        T.StructType().add("x", T.MapType(T.StringType(), T.StructType().add("n", "long").add("n", "long"))),
    ],
)
@pytest.mark.promises(
    "StatefulProcessor",
    "refused",
    "states with two fields of one name",
    note="rename one of them; Spark matches them by position",
)
def test_the_fields_of_a_state_must_have_unique_names(spark: SparkSession, schema: Any) -> None:
    processor = Sum()
    processor.schema = schema
    with pytest.raises(
        ValueError, match=r"the schema of state 'sum' must have unique field names, got 'n' more than once"
    ):
        plan(spark, processor)


class Count(Sum):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(n=len(list(rows)))


@pytest.mark.spark
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "NaN in a key",
    note="is one key; in Spark, a batch DataFrame has a call for each row, since NaN is not equal to NaN",
)
def test_the_rows_of_nan_are_those_of_one_key(spark: SparkSession) -> None:
    df = spark.createDataFrame([(float("nan"),)] * 2, "k double")
    assert transform_with_state(df, "k", Count(), "n int", "Append", "None").collect() == [Row(n=2)]


@pytest.mark.parametrize("value", [b"x", datetime.date(2026, 1, 2), ("a", 1)])
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "bytes, dates and tuples in a state of strings",
    note="raise a TypeError; in Spark they become Java's text of the object",
)
def test_an_object_of_java_in_a_state_of_strings_raises(value: Any) -> None:
    codec = StructCodec(T.StructType().add("s", T.StringType()))
    with pytest.raises(TypeError, match="a state of type string must get a string"):
        codec.encode((value,))


class Keys(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            yield pd.DataFrame({"shown": [f"{key[0]!r} {frame['k'].dtype}"]})


@pytest.mark.spark
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "grouping columns of integers with nulls, in pandas",
    note="stay exact in the key and in the frames of keys that are not null; in Spark a null in the rows "
    "makes them floats, so that 2**53 + 1 is rounded",
)
def test_a_null_key_does_not_round_the_others(spark: SparkSession) -> None:
    df = spark.createDataFrame([(None,), (2**53 + 1,)], "k long").coalesce(1)
    result = transform_with_state_in_pandas(df, "k", Keys(), "shown string", "append", "None")
    shown = {row.shown for row in result.collect()}
    assert any(each.startswith(f"{2**53 + 1} ") for each in shown), shown
