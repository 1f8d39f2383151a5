"""Rows are read like those of Spark, and values outside the range of Python raise; needs no Spark session."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from timerheap import KeyedCoProcessFunction, KeyedProcessFunction
from timerheap._native._core import RowField
from timerheap.spark._python_rows import row_class
from timerheap.testing import ProcessTester

YEAR_10000 = 253_402_300_800_000_000  # microseconds
TYPE = StructType(
    [StructField("k", StringType()), StructField("n", LongType()), StructField("at", TimestampNTZType())]
)
OUTSIDE = "must be in the years 1 to 9999 of local time, the range of Python's datetime, got "


def table(*micros: int) -> pa.Table:
    at = pa.array(micros, pa.timestamp("us"))
    return pa.table({"k": [f"k{i}" for i in range(len(micros))], "n": pa.array(range(len(micros))), "at": at})


class Years(KeyedProcessFunction):
    """Yields the key and the year of each row."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield str(ctx.get_current_key()), value.n, value.at.year


class Sides(KeyedCoProcessFunction):
    """Has two inputs."""

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        pass

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        pass


def pushed(key: list[str], *micros: int) -> list[Row]:
    """Return the results for a table, in which the time of each row is one of `micros`."""
    tester = ProcessTester(Years(), key, TYPE, "key string, n bigint, year int")
    return tester.push(table(*micros))


def test_timestamps_in_the_range_of_python_become_rows() -> None:
    assert pushed(["k"], 0, YEAR_10000 - 1) == [("k0", 0, 1970), ("k1", 1, 9999)]
    assert pushed(["k", "n"], 0) == [("('k0', 0)", 0, 1970)]


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(YEAR_10000, "10000-01-01T00"), (-YEAR_10000, "-6060-01-02T00"), (2**63 - 1, "294247-01-10T04")],
)
def test_a_timestamp_outside_the_range_of_python_raises_with_column_and_key(micros: int, shown: str) -> None:
    with pytest.raises(ValueError, match=rf"column 'at' {OUTSIDE}\+?{shown}.* for key 'k1', 1; filter such"):
        pushed(["k", "n"], 0, micros, micros)
    with pytest.raises(ValueError, match=rf"column 'at' {OUTSIDE}\+?{shown}.* for key \+?{shown}"):
        pushed(["at"], micros)


def test_timestamps_in_structs_and_dates_are_checked_too() -> None:
    at = pa.array([YEAR_10000], pa.timestamp("us", "UTC"))
    days, key = pa.array([3_000_000], pa.int32()).cast(pa.date32()), pa.array(["a"])
    two = ProcessTester(Sides(), "k", "k string, at timestamp", "n bigint", right_schema="k string")
    with pytest.raises(ValueError, match=f"^column 'at' {OUTSIDE}"):
        two.push(pa.table({"k": key, "at": at}))
    inner = pa.StructArray.from_arrays([at], ["at"])
    struct = ProcessTester(Years(), "k", "k string, s struct<at: timestamp>", "n bigint")
    with pytest.raises(ValueError, match=f"^column 's.at' {OUTSIDE}"):
        struct.push(pa.table({"k": key, "s": inner}))
    dates = ProcessTester(Years(), "k", "k string, day date", "n bigint")
    with pytest.raises(
        ValueError, match=f"^column 'day' {OUTSIDE}.*10183-09-21 for key 'a'; filter such rows"
    ):
        dates.push(pa.table({"k": key, "day": days}))


NAMES = ["k", "count", "__x", "k", "of the day"]
VALUES = ("a", 1, 2.5, None, b"z")
ACCESSES: list[Callable[[Row], Any]] = [
    lambda row: row[0],
    lambda row: row[-1],
    lambda row: row[5],
    lambda row: row[2**70],
    lambda row: row[True],
    lambda row: row[np.int64(1)],
    lambda row: row[1:3],
    lambda row: row["k"],
    lambda row: row["count"],
    lambda row: row["of the day"],
    lambda row: row["missing"],
    lambda row: row[None],
    lambda row: row.k,
    lambda row: row.count(1),
    lambda row: row.__x,
    lambda row: getattr(row, "of the day"),
    lambda row: row.missing,
    lambda row: row.__fields__,
    lambda row: setattr(row, "k", 1),
    lambda row: row("b", 2),
    lambda row: "k" in row,
    lambda row: list(row),
    lambda row: (row == VALUES, hash(row), len(row), type(row).__name__, isinstance(row, Row)),
    lambda row: row.asDict(),
    lambda row: copy(row),
    lambda row: pickle.loads(pickle.dumps(row)),
    repr,
]


@pytest.mark.parametrize("access", ACCESSES)
@pytest.mark.parametrize("values", [VALUES, VALUES[:1], ()])
def test_rows_are_read_as_those_of_spark(access: Callable[[Row], Any], values: tuple[Any, ...]) -> None:
    def outcome(class_: type[Row]) -> tuple[Any, ...]:
        row = tuple.__new__(class_, values)
        row.__fields__ = NAMES
        try:
            found = access(row)
        except Exception as e:
            return type(e), repr(e)
        return type(found), found, repr(found)

    assert outcome(row_class(tuple(NAMES))) == outcome(Row)


def test_fields_are_those_of_tuples() -> None:
    with pytest.raises(ValueError, match="place must be 0 or more, got -1"):
        RowField(-1)
    with pytest.raises(TypeError, match="row must be a tuple, got 5"):
        RowField(0).__get__(5, int)  # type: ignore[arg-type]
