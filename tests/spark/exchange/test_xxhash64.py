"""Compares timerheap's xxhash64 with Spark's."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from timerheap.spark._exchange.codec import hashes_of
from timerheap.spark._plan.build import hashed_when_packed
from timerheap.testing.inputs import spark_xxhash64

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UTC = datetime.UTC
TEXTS = ["", "a", "N14228", "sn\N{SNOWMAN}w", "\U0001f600", "\0", "x" * 31, "x" * 32, "y" * 1000, None]
WHOLE = [0, 1, -1, 42, None]
VALUES = {
    "boolean": [True, False, None],
    "tinyint": [*WHOLE, -128, 127],
    "smallint": [*WHOLE, -(2**15), 2**15 - 1],
    "int": [*WHOLE, -(2**31), 2**31 - 1],
    "bigint": [*WHOLE, 2**31, -(2**31) - 1, -(2**63), 2**63 - 1],
    "float": [0.0, -0.0, 1.5, 0.1, math.inf, -math.inf, math.nan, 1.4e-45, None],
    "double": [0.0, -0.0, 1.5, 0.1, math.inf, -math.inf, math.nan, 5e-324, None],
    "string": TEXTS,
    "binary": [None if text is None else text.encode() for text in TEXTS],
    "date": [datetime.date(1970, 1, 1), datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None],
    "timestamp": [
        datetime.datetime(1970, 1, 1, tzinfo=UTC),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime.datetime(2013, 7, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=-4))),
        None,
    ],
    "timestamp_ntz": [datetime.datetime(1970, 1, 1), datetime.datetime(2013, 7, 1, 12, 0, 0, 1), None],
    "decimal(10,2)": [Decimal("0"), Decimal("-1.5"), Decimal("99999999.99"), None],
    "decimal(18,0)": [Decimal(10**18 - 1), Decimal(1 - 10**18), None],
    "decimal(19,3)": [Decimal(10**15), Decimal("-0.128"), Decimal("0.128"), Decimal("-0.129"), None],
    "decimal(38,0)": [Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0), Decimal(-128), None],
    "interval day to second": [datetime.timedelta(days=-1, microseconds=1), None],
}


def test_hashes_of_every_type_equal_those_of_spark(spark: SparkSession) -> None:
    types = list(VALUES)
    names = [f"v{i}" for i, _ in enumerate(types)]
    # enough rows that each value appears, and beside changing others
    rows = [row for row, _ in zip(zip(*map(cycle, VALUES.values()), strict=False), range(30), strict=False)]
    schema = ", ".join(f"{name} {spark_type}" for name, spark_type in zip(names, types, strict=True))
    df = spark.createDataFrame(rows, schema)
    hashed = df.select(*names, F.xxhash64(*names), *map(F.xxhash64, names)).toArrow().combine_chunks()
    columns = [column.combine_chunks() for column in hashed.columns]
    values, (together, *alone) = columns[: len(names)], columns[len(names) :]
    for spark_type, column, hash_ in zip(types, values, alone, strict=True):
        assert spark_xxhash64([column]).tolist() == hash_.to_pylist(), spark_type
    assert spark_xxhash64(values).tolist() == together.to_pylist()


def test_all_nans_have_the_hash_of_one() -> None:
    bits = np.array([0xFFF8000000000001, 0x7FF8000000000123, 0x7FF8000000000000], np.uint64)
    assert len({*spark_xxhash64([pa.array(bits.view(np.float64))]).tolist()}) == 1


def test_hashes_in_the_pack_stage_equal_those_of_spark(spark: SparkSession) -> None:
    hashed = 0
    for spark_type, values in VALUES.items():
        df = spark.createDataFrame([(value,) for value in values], f"v {spark_type}").select(
            "v", F.xxhash64("v")
        )
        if hashed_when_packed([df.schema["v"].dataType]):
            rows = df.toArrow()
            assert hashes_of(rows.column(0).combine_chunks()).tolist() == rows.column(1).to_pylist()
            hashed += 1
    assert hashed == 6


def test_different_rows_can_have_the_same_hash(spark: SparkSession) -> None:
    hashes = spark.sql("SELECT xxhash64(null, 'a'), xxhash64('a', null)").first()
    columns = pa.array([None, "a"], pa.string()), pa.array(["a", None], pa.string())
    assert spark_xxhash64([*columns]).tolist() == list(hashes)
    assert hashes[0] == hashes[1]
