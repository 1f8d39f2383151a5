"""Spark's Python workers import the installed wheel even if they start in the source directory."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import timerheap

pytestmark = pytest.mark.spark


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import timerheap._native._heap

    for _ in batches:
        yield pa.record_batch([[timerheap.__file__, timerheap._native._heap.__file__]], names=["file"])


def test_workers_import_from_site_packages(spark: SparkSession) -> None:
    tree = Path(__file__).resolve().parents[2]
    if any(e and Path(e).resolve() == tree for e in os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        pytest.skip("PYTHONPATH names the source tree, so it is the tree that is wanted")
    found = {row.file for row in spark.range(1).mapInArrow(where, "file string").collect()}
    assert timerheap.__file__ in found
    site_packages = Path(sysconfig.get_path("platlib")).resolve()
    assert all(site_packages in Path(file).resolve().parents for file in found), found
