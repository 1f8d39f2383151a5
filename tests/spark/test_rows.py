"""Rows with values outside the range of Python raise; works without a Spark session."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from timerheap.spark._worker.rows import row_source

YEAR_10000 = 253_402_300_800_000_000  # microseconds
TYPE = StructType(
    [StructField("k", StringType()), StructField("n", LongType()), StructField("at", TimestampNTZType())]
)
OUTSIDE = "must be in the years 1 to 9999, the range of Python's datetime, got "


def table(*micros: int) -> pa.Table:
    at = pa.array(micros, pa.timestamp("us"))
    return pa.table({"k": [f"k{i}" for i in range(len(micros))], "n": pa.array(range(len(micros))), "at": at})


def test_timestamps_in_the_range_of_python_become_rows() -> None:
    rows = row_source(table(0, YEAR_10000 - 1), TYPE, ["k"]).tolist()
    assert [(row.k, row.n, row.at.year) for row in rows] == [("k0", 0, 1970), ("k1", 1, 9999)]
    assert row_source(table(0), TYPE, ["k", "n"]).keys() == [("k0", 0)]


@pytest.mark.parametrize(
    ("micros", "shown"),
    [(YEAR_10000, "10000-01-01T00"), (-YEAR_10000, "-6060-01-02T00"), (2**63 - 1, "294247-01-10T04")],
)
def test_a_timestamp_outside_the_range_of_python_raises_with_column_and_key(micros: int, shown: str) -> None:
    with pytest.raises(ValueError, match=rf"column 'at' {OUTSIDE}\+?{shown}.* for key 'k1', 1; filter such"):
        row_source(table(0, micros, micros), TYPE, ["k", "n"])
    with pytest.raises(ValueError, match=rf"column 'at' {OUTSIDE}\+?{shown}.* for key \+?{shown}"):
        row_source(table(micros), TYPE, ["at"])


def test_timestamps_in_structs_and_dates_are_checked_too() -> None:
    inner = pa.StructArray.from_arrays(
        [pa.array([YEAR_10000], pa.timestamp("us", "UTC")), pa.array([0], pa.int32()).cast(pa.date32())],
        ["at", "day"],
    )
    type_ = StructType([StructField("at", TimestampType()), StructField("day", DateType())])
    side = "__timerheap_left"  # of process_two: no name of the user's
    with pytest.raises(ValueError, match=f"^column 'at' {OUTSIDE}"):
        row_source(pa.table({side: inner}), StructType([StructField(side, type_)]))
    days = pa.table({"day": pa.array([3_000_000], pa.int32()).cast(pa.date32())})
    with pytest.raises(ValueError, match=f"^column 'day' {OUTSIDE}.*10183-09-21; filter such rows out"):
        row_source(days, StructType([type_["day"]]))
