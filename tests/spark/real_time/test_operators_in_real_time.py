"""Functions beside `process` give the results of a batch in real-time mode, also after kills."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from children import told

import timerheap.spark

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(pyspark.__version__ < "4.3", reason="Python can ask for it from PySpark 4.3 on"),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "names",
    [
        ("session", "hop", "over", "two"),
        ("patterns", "distinct", "asof", "two"),
        ("rules", "operator", "interval", "broadcast"),
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


@pytest.mark.parametrize("df", [None, "rows"])
def test_something_else_than_a_data_frame_is_an_error(df: object) -> None:
    with pytest.raises(TypeError, match=r"df must be a pyspark\.sql\.DataFrame"):
        timerheap.spark.in_real_time(df)
