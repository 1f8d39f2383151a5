"""Rows of planes, and ways to look at the checkpoint of a query that has read them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession

from timerheap.__main__ import main

SCHEMA = pa.schema([("plane", pa.string()), ("value", pa.int32()), ("at", pa.int64())])
DELAY, LATER, END = 500, 3000, (1 << 63) - 1
BATCHES = [
    [
        {"plane": f"N{(n + i * i) % 7}" if i % 6 else None, "value": i % 2, "at": n * 1000 + i * 379 % 1000}
        for i in range(30)
    ]
    for n in range(6)
]


def rows_until(batch: int) -> tuple[list[dict[str, Any]], int]:
    """All rows up to a micro-batch in the order in which the function gets them, and the watermark then."""
    rows = sorted((row for rows in BATCHES[: batch + 1] for row in rows), key=lambda row: row["at"])
    return rows, max(row["at"] for row in rows) - DELAY - 1


def instant(millis: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(millis / 1000, datetime.UTC)


def records(df: DataFrame) -> list[dict[str, Any]]:
    """The rows by way of Arrow, so that times do not depend on the machine's zone."""
    return df.toArrow().to_pylist()


def inspected(monkeypatch: pytest.MonkeyPatch, spark: SparkSession, *arguments: object) -> Result:
    @contextmanager
    def lent(_: str, __: Path, settings: Mapping[str, Any]) -> Iterator[SparkSession]:
        changed = {name: value for name, value in settings.items() if spark.conf.isModifiable(name)}
        with streams.with_settings(spark, changed):
            yield spark

    monkeypatch.setattr("timerheap._inspect.command.local_spark", lent)
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])
