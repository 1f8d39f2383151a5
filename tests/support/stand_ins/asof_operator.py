"""The as-of join of one key group, called without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import pyarrow as pa
from asof_cases import DELAY, LEFT, RIGHT, Options, Row, millis
from chunk_store import GroupStore
from pyspark.sql import SparkSession

from timerheap.spark import join_asof
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import INPUT
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch


class Operator:
    """One key group of a query, and what its join emits."""

    def __init__(self, spark: SparkSession, options: Options, **more: Any) -> None:
        tables = [spark.createDataFrame(pa.Table.from_pylist([], schema)) for schema in (LEFT, RIGHT)]
        caught: list[Query] = []
        with patch("timerheap.spark._asof.newest_plan.build", lambda query, df: caught.append(query)):
            given: dict[str, Any] = {"watermark": DELAY, "late": "emit", "unmatched": "emit", **more}
            join_asof(*tables, ["case", "k"], "at", **given, **options.arguments())
        (self.query,) = caught
        self.group = KeyGroup(self.query.layout)
        self._store, self._stored = GroupStore(), Stored(Manifest(1))
        self.found: list[Row] = []

    def reload(self) -> None:
        """Save the group, and continue from what the store then has."""
        self.group.forget_dead_keys(always=True)
        self._stored.save(self._store, self.group, b"")
        self.group, self._stored = loaded_group(self._store, self._store.read_manifest(), self.query.layout)

    def run(self, left: Sequence[Row], right: Sequence[Row], watermark: int) -> None:
        """Take the rows of a micro-batch, and advance the watermark."""
        query, output = self.query, ResultBuffer(*self.query.outputs)
        records, both = list[Row](), [*((0, row) for row in left), *((1, row) for row in right)]
        for number, row in both:
            carriers = query.work.columns[number]
            values = {carriers.get(name, query.work.deleted): value for name, value in row.items()}
            records.append(values | {INPUT: number})
        rows = pa.RecordBatch.from_pylist(
            [{name: value for name, value in record.items() if name} for record in records], query.schema
        )
        hashes = [crc32(repr((row["case"], row["k"])).encode()) for _, row in both]
        times = np.array([millis(row) for _, row in both], np.int64)
        keyed = KeyedRows(rows, np.array(hashes, np.int64), times)
        run_key_group(
            MicroBatch(query, query.work.runner(query, None), None, output), self.group, keyed, watermark
        )
        self.found += output.table().to_pylist()
