"""Recipes give on a stream what their pages show for a batch DataFrame, also when the stream falls silent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import streams
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RECIPES = Path(__file__).resolve().parents[3] / "docs/recipes"


def names_of(page: str) -> dict[str, Any]:
    """Run the first page and a recipe, whose streams are silent after a second; return their names."""
    names: dict[str, Any] = {"__name__": "__main__"}  # so that its classes travel to workers by value
    for file in ("index.md", page):
        text = (RECIPES / file).read_text(encoding="utf-8")
        code = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        exec(code.replace('after="1 minute"', 'after="1 second"'), names)
    return names


@pytest.mark.parametrize(
    ("page", "recipe", "inputs"),
    [
        ("abandoned-carts.md", "abandoned", ["visits"]),
        ("unmatched-rows.md", "match", ["orders", "payments"]),
    ],
)
def test_a_silent_stream_gives_the_results_of_a_batch(
    spark: SparkSession, tmp_path: Path, page: str, recipe: str, inputs: list[str]
) -> None:
    names = names_of(page)
    wanted = streams.rows(names[recipe](*(names[name] for name in inputs)))
    read = []
    for name in inputs:
        names[name].coalesce(1).write.parquet(str(tmp_path / name))
        read.append(spark.readStream.schema(names[name].schema).parquet(str(tmp_path / name)))
    found = streams.run_until(names[recipe](*read), lambda rows: len(rows) >= len(wanted), tmp_path)
    assert found == wanted
