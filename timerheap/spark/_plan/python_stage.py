"""Stages of Python between Spark's nodes: functions over the record batches of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Called once for each partition, with its record batches."""


def map_batches(df: DataFrame, stage: Stage, result: T.StructType | str) -> DataFrame:
    """Return what a stage makes of the rows of `df`, whose columns may have any names."""
    # mapInArrow takes no dots in the names of its input, so Spark passes numbered columns.
    names = df.columns
    numbered = df.toDF(*(f"c{i}" for i in range(len(names))))
    return numbered.mapInArrow(
        lambda batches: stage(batch.rename_columns(names) for batch in batches), result
    )
