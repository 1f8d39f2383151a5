"""A local Spark whose workers would have a Python without timerheap is told so before it fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None: ...


def plan(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, python: Path | str) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    timerheap.spark.process(spark.sql("SELECT 1 AS k"), "k", Nothing(), "k int")


def script(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_without_timerheap_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = script(tmp_path, "echo \"ModuleNotFoundError: No module named 'timerheap'\" >&2; exit 1")
    with pytest.raises(ValueError, match="PYSPARK_PYTHON must be a Python that has timerheap") as wrong:
        plan(spark, monkeypatch, other)
    assert f"got '{other}', with which Spark starts its workers (ModuleNotFoundError: No" in str(wrong.value)
    assert f"set PYSPARK_PYTHON={sys.executable}, before the program starts" in str(wrong.value)
    with pytest.raises(ValueError, match="No such file or directory"):
        plan(spark, monkeypatch, tmp_path / "none")


def test_a_python_that_has_it_is_no_trouble(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(spark, monkeypatch, sys.executable)
    plan(spark, monkeypatch, os.path.join(os.path.dirname(sys.executable), "python3"))
    plan(spark, monkeypatch, script(tmp_path, f'exec {sys.executable} "$@"'))
