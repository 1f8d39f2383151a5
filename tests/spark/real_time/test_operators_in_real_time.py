"""Functions beside `process` give the results of a batch in real-time mode, also after kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from children import told
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import KeyedBroadcastProcessFunction
from timerheap.errors import UnsupportedError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Python can ask for it from PySpark 4.3 on"),
]


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    "names",
    [
        ("session", "hop", "over", "two"),
        ("patterns", "distinct", "asof", "two"),
        ("rules", "operator", "interval", "two"),
        ("upserts", "counted", "tops", "two"),
        ("chain", "chained"),
    ],
    ids=" ".join,
)
def test_results_are_those_of_a_batch(names: tuple[str, ...], tmp_path: Path) -> None:
    seen = told("real_time_features_child.py", tmp_path, *names)
    for name in names:
        assert seen[name] == seen[f"{name} wanted"], seen.get(f"{name} error")
        assert seen[name]
    assert sum(seen[f"{name} starts"] for name in names) > len(names), "some were killed"
    if "chained" in names:
        assert seen["watermarks"] == ["1970-01-01 00:16:38.999000"] * 3, "each follows the one before"


def test_rows_for_every_key_group_are_refused(spark: SparkSession) -> None:
    rows = timerheap.spark.in_real_time(spark.readStream.format("rate").load())
    with pytest.raises(UnsupportedError, match="rows that go to every key group are not supported"):
        timerheap.spark.process_broadcast(rows, rows, "value", Nothing(), "value long")


@pytest.mark.parametrize("df", [None, "rows"])
def test_something_else_than_a_data_frame_is_an_error(df: object) -> None:
    with pytest.raises(TypeError, match=r"df must be a pyspark\.sql\.DataFrame"):
        timerheap.spark.in_real_time(df)


class Nothing(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        """Yield nothing."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        """Keep nothing."""
