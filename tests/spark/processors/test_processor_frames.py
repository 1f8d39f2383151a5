"""The rows of a stateful processor as DataFrames, and their timestamps, without Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
from processor_stage import Stage
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from timerheap.spark._compat import to_record_batch
from timerheap.spark._processors import processor_records as processor_frames
from timerheap.spark._processors.processor_records import FrameSettings, frame_columns, sliced

RESULT = T.StructType().add("k", T.StringType()).add("what", T.StringType())


class Frames(StatefulProcessor):
    """Yields the dtypes of its frames."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            assert list(frame.index) == list(range(len(frame)))
            what = " ".join(map(str, frame.dtypes[1:]))
            yield pd.DataFrame({"what": [f"{len(frame)} {what}"], "k": [key[0]]})

    def close(self) -> None:
        pass


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "ints beside nulls in a DataFrame",
    note="are floats if the column has a null in the partition; in Spark, if it has one in the Arrow batch",
)
def test_frames_have_the_dtypes_that_spark_makes_of_python_values() -> None:
    rows = T.StructType().add("k", "string").add("i", "integer").add("f", "float").add("b", "boolean")
    stage = Stage(Frames, rows, RESULT, style="frames")
    found = stage.batch([("a", 1, 1.5, True), ("b", 2, 2.5, None), *[("c", 3, 3.5, False)] * 5])
    assert found == [
        ("a", "1 int64 float64 bool"),
        ("b", "1 int64 float64 object"),
        ("c", "3 int64 float64 bool"),
        ("c", "2 int64 float64 bool"),
    ]
    found = stage.batch([("a", 1, 1.5, True), ("b", None, 2.5, True)])
    assert found == [("a", "1 float64 float64 bool"), ("b", "1 float64 float64 bool")]


@pytest.mark.parametrize(("nbytes", "sizes"), [(1, [1] * 6), (1 << 20, [1, 5]), (10_000, [1, 3, 2])])
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "DataFrames under maxBytesPerBatch",
    note="are split by the mean size of all rows of the partition; in Spark, of the task's rows so far",
)
def test_a_frame_is_full_at_so_many_bytes(nbytes: int, sizes: list[int]) -> None:
    rows = T.StructType().add("k", "string").add("s", "string")
    stage = Stage(Frames, rows, RESULT, style="frames", frames=FrameSettings(100, nbytes))
    found = stage.batch([(key, "s" * 4_000) for key in "abbbbb"])
    assert [int(what.split()[0]) for _, what in found] == sizes


class Objects(StatefulProcessor):
    """Yields a frame for each value of its rows' expressions, in a column of objects."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for expression in frame["e"]:
                yield pd.DataFrame({"x": pd.Series([eval(expression)], dtype=object)})

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("type_", "expressions", "found"),
    [
        (T.IntegerType(), ["1", "'2'", "None", "3"], [1, 2, None, 3]),
        (T.LongType(), ["2**53 + 1", "2.0", "None"], [2**53 + 1, 2, None]),
        (T.BooleanType(), ["True", "'false'"], [True, False]),
        (T.ArrayType(T.IntegerType()), ["[1]", "['2']", "[3.0]"], [[1], [2], [3]]),
        (T.StructType().add("p", "integer"), ["{'p': 1}", "{'p': '2'}"], [{"p": 1}, {"p": 2}]),
    ],
)
def test_each_frame_is_converted_by_itself(type_: Any, expressions: list[str], found: list[Any]) -> None:
    rows = T.StructType().add("k", "string").add("e", "string")
    stage = Stage(Objects, rows, T.StructType().add("x", type_), style="frames")
    assert [x for (x,) in stage.batch([("a", e) for e in expressions])] == found


def test_frames_that_need_no_inference_are_converted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(frame: pd.DataFrame, *types: Any, **options: Any) -> Any:
        made.append(len(frame))
        return to_record_batch(frame, *types, **options)

    monkeypatch.setattr(processor_frames, "to_record_batch", counted)
    rows = T.StructType().add("k", "string").add("e", "string")
    stage = Stage(Objects, rows, T.StructType().add("x", "string"), style="frames")
    assert stage.batch([("a", "'b'"), ("b", "None"), ("b", "'c'")]) == [("b",), (None,), ("c",)]
    assert made == [3]


class Hours(StatefulProcessor):
    """Yields the hours of the timestamps that it receives."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for one in rows:
            if isinstance(one, Row):
                yield Row(k=key[0], what=f"{one.at.hour} {one.at.utcoffset()}")
            else:
                yield pd.DataFrame({"k": key, "what": [str(at.hour) for at in one["at"]]})

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("style", "what"), [("rows", "10 1:00:00"), ("frames", "10")])
def test_timestamps_are_in_the_time_zone_of_the_session(style: Any, what: str) -> None:
    rows = T.StructType().add("k", "string").add("at", "timestamp")
    stage = Stage(Hours, rows, RESULT, style=style, zone="Europe/Berlin")
    assert stage.batch([("a", datetime(2020, 1, 1, 9, tzinfo=UTC))]) == [("a", what)]


def test_slices_of_a_frame_are_those_of_iloc() -> None:
    frame = pd.DataFrame(
        {
            "i": np.arange(6),
            "s": list("abcdef"),
            "t": pd.date_range("2020", periods=6),
            "f": np.linspace(0, 1, 6),
            "j": np.arange(6)[::-1],
        }
    )
    for start, stop in [(0, 6), (2, 5), (3, 3), (5, 6)]:
        part = sliced(frame, start, stop)
        pdt.assert_frame_equal(part, frame.iloc[start:stop].reset_index(drop=True))
    for number, column in enumerate(frame_columns(frame)):
        assert pd.Series(column).equals(frame.iloc[:, number])
    part = sliced(frame, 2, 4)
    part["i"] = -1
    part.loc[0, "f"] = 7.0
    part["j"] = "x"
    del part["s"]
    assert frame["i"].tolist() == [0, 1, 2, 3, 4, 5]
    pdt.assert_frame_equal(sliced(frame, 0, 2), frame.iloc[:2])
