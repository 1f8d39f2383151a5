"""A stored checkpoint stays readable by every version with the same format, so upgrades keep the state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from streams import configured, read_stream, rows, run, write_batches
from write_checkpoint import AFTER, BEFORE, PLACE, SCHEMA, batch, move, query

pytestmark = pytest.mark.spark

KEPT = Path(__file__).parents[1] / "data" / "checkpoint"


def reference() -> list[tuple[object, ...]]:
    """Compute the expected output after the restart from the rows alone."""
    every = sorted((row for n in range(BEFORE + AFTER) for row in batch(n)), key=lambda row: row["at"])
    watermark = [max(row["at"] for n in range(b) for row in batch(n)) - 501 for b in (BEFORE, BEFORE + AFTER)]
    found = []
    for key in sorted({row["k"] for row in every}):
        mine = [row for row in every if row["k"] == key and row["at"] <= watermark[1]]
        words: list[str] = []
        last: dict[str, int] = {}
        for row, after in zip(mine, [*mine[1:], None], strict=True):
            words.append(row["word"])
            last[row["word"]] = row["at"]
            due = row["at"] + 250
            if due < (after["at"] if after else watermark[1] + 1):
                if due > watermark[0]:
                    found.append((key, due, len(words), " ".join(words), max(last.values())))
                last.pop(words[0], None)
                words = []
    return sorted(found, key=repr)


def test_a_query_continues_from_a_stored_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "checkpoint")
    wanted = sorted((tuple(json.loads(line)) for line in (KEPT / "after.jsonl").open()), key=repr)
    assert wanted == reference(), "what was recorded is right"
    write_batches(tmp_path / "in", [batch(n) for n in range(BEFORE + AFTER)], SCHEMA)
    move(tmp_path / "checkpoint", PLACE, str(tmp_path))
    with configured(spark, shuffle_partitions=1):
        run(query(read_stream(spark, tmp_path / "in")), tmp_path)
    files = map(str, (tmp_path / "sink").glob("*.parquet"))  # the sink's own log begins in the middle
    assert rows(spark.read.parquet(*files)) == wanted
