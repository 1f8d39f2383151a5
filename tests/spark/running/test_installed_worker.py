"""Spark's Python workers import the installed wheel, and keep what they import out of garbage collections."""

from __future__ import annotations

import gc
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timerheap
from timerheap.spark._exchange.packer import Packer

pytestmark = pytest.mark.spark


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import timerheap._native._core

    for _ in batches:
        yield pa.record_batch([[timerheap.__file__, timerheap._native._core.__file__]], names=["file"])


def test_workers_import_from_site_packages(spark: SparkSession) -> None:
    tree = Path(__file__).resolve().parents[3]
    if any(e and Path(e).resolve() == tree for e in os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        pytest.skip("PYTHONPATH names the source tree, so it is the tree that is wanted")
    found = {row.file for row in spark.range(1).mapInArrow(where, "file string").collect()}
    assert timerheap.__file__ in found
    site_packages = Path(sysconfig.get_path("platlib")).resolve()
    assert all(site_packages in Path(file).resolve().parents for file in found), found


def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    packer = Packer(key="id", event_time=None, max_parallelism=None)
    counts = []
    for _ in range(2):
        list(packer(iter(())))
        counts.append(gc.get_freeze_count())
    list(batches)
    yield pa.record_batch([counts], names=["frozen"])


def test_the_first_task_of_a_worker_exempts_its_modules_from_garbage_collections(spark: SparkSession) -> None:
    first, second = (
        row.frozen for row in spark.range(1).repartition(1).mapInArrow(frozen, "frozen long").collect()
    )
    assert first == second > 10_000
    assert gc.get_freeze_count() == 0  # not in this process
