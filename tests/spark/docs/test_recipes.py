"""Recipes give on a stream what their pages show for a batch DataFrame, also when the stream falls silent."""

from __future__ import annotations

import random
import re
from datetime import datetime, timedelta
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


def test_what_was_known_then_is_what_a_search_finds(spark: SparkSession, tmp_path: Path) -> None:
    known_then = names_of("known-then.md")["known_then"]
    draw, begin = random.Random(5), datetime(2026, 1, 1)
    moments = draw.sample(range(10 * 24 * 60), 120)  # no two are known at one time
    scores = [
        (f"u{number % 3}", begin.date() + timedelta(minute // 1_440 - draw.randrange(4)), number, minute)
        for number, minute in enumerate(moments)
    ]
    payments = [(n, f"u{n % 4}", minute) for n, minute in enumerate(draw.sample(range(11 * 1_440), 80))]

    def score_then(user: str, minute: int) -> int | None:
        known = [(day, at, score) for owner, day, score, at in scores if owner == user and at <= minute]
        return max(known)[2] if known else None

    wanted = sorted((n, score_then(user, minute)) for n, user, minute in payments)
    assert len({score for _, score in wanted}) > 30
    at = {minute: begin + timedelta(minutes=minute) for minute in range(20 * 1_440)}
    ends = (
        [("end", begin.date(), -1, 15 * 1_440)],
        [(-1, "end", 15 * 1_440)],
    )  # with which the watermark passes
    tables = {
        "payments": (
            "id int, user string, at timestamp",
            [(*row[:2], at[row[2]]) for row in payments + ends[1]],
        ),
        "scores": (
            "user string, day date, score int, known_at timestamp",
            [(*row[:3], at[row[3]]) for row in scores + ends[0]],
        ),
    }
    read, whole = [], []
    for name, (schema, rows) in tables.items():
        whole.append(spark.createDataFrame(rows, schema))
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            spark.createDataFrame(part, schema).coalesce(1).write.mode("append").parquet(f"{tmp_path}/{name}")
        read.append(spark.readStream.schema(schema).parquet(f"{tmp_path}/{name}"))
    found = known_then(*whole).where("id >= 0").select("id", "score")
    assert sorted(map(tuple, found.collect())) == wanted
    answered = streams.batches(known_then(*read).select("id", "score"), tmp_path)
    assert sorted(row for rows in answered for row in rows if row[0] >= 0) == wanted
