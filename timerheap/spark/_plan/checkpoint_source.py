"""Finds the state of timerheap's operators in a checkpoint, by way of Spark's state data source."""

from __future__ import annotations

import json
from os import PathLike, fspath
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from timerheap._arguments import integer

__all__ = ["StoredOperator", "chunks_of", "find_operators", "path_of"]

_STATE = "chunks"  # the state variable of `timerheap.spark._worker.spark_store`


class StoredOperator(NamedTuple):
    """An operator of timerheap in a checkpoint.

    Parameters
    ----------
    number : int
        Its operator id.
    first_batch, last_batch : int
        The finished micro-batches whose state the checkpoint has.
    """

    number: int
    first_batch: int
    last_batch: int


def path_of(checkpoint: object) -> str:
    """Return the path of a checkpoint, checked to be a str or a path."""
    if not isinstance(checkpoint, (str, PathLike)):
        raise TypeError(f"checkpoint must be a str or a path, got {checkpoint!r}")
    return str(fspath(checkpoint))


def find_operators(spark: SparkSession, path: str) -> list[StoredOperator]:
    """Return the operators of timerheap in a checkpoint; raise ValueError if there are none."""
    try:
        found = spark.read.format("state-metadata").load(path).collect()
    except (PySparkException, Py4JJavaError) as e:
        raise _not_ours(path, f"which cannot be read: {first_line(e)}") from e
    if not found:
        raise _not_ours(path, _why_empty(spark, path))
    operators = [
        StoredOperator(int(row.operatorId), int(row.minBatchId), int(row.maxBatchId))
        for row in found
        if row.operatorName.startswith("transformWithState") and _has_chunks(row.operatorProperties)
    ]
    if not operators:
        names = ", ".join(sorted(f"{row.operatorId}: {row.operatorName}" for row in found))
        raise _not_ours(path, f"which has only other operators ({names})")
    if max(operator.last_batch for operator in operators) < 0:
        raise ValueError(
            f"checkpoint must have a finished micro-batch, got {path!r}, which has none; read it later"
        )
    return operators


def _has_chunks(properties: str) -> bool:
    names = [variable["stateName"] for variable in json.loads(properties).get("stateVariables", [])]
    return [name for name in names if not name.startswith("$")] == [_STATE]  # "$": Spark's own timers


def _why_empty(spark: SparkSession, path: str) -> str:
    """Return why a path has no stateful operators, by its files, wherever they are."""
    gateway: Any = spark._jvm
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    folder = gateway.org.apache.hadoop.fs.Path(path)
    files = folder.getFileSystem(configuration)
    if not files.exists(folder):
        return "which does not exist"
    if not files.exists(gateway.org.apache.hadoop.fs.Path(folder, "offsets")):
        return "which is not a checkpoint: it has no offsets"
    return "which has no stateful operator"


def _not_ours(path: str, why: str) -> ValueError:
    return ValueError(
        f"checkpoint must be the checkpoint location of a streaming query with timerheap, got {path!r}, {why}"
    )


def chunks_of(spark: SparkSession, path: str, operator: StoredOperator, batch_id: int | None) -> DataFrame:
    """Return the chunks of an operator after a micro-batch: label, kind, id and text.

    Raises
    ------
    TypeError, ValueError
        If the checkpoint does not have the state after this micro-batch.
    """
    _, first, last = operator
    batch = last if batch_id is None else integer("batch_id", batch_id)
    if not first <= batch <= last:
        raise ValueError(
            f"batch_id must be from {first} to {last}, the finished micro-batches whose state the checkpoint "
            f"has, got {batch}"
        )
    reader = spark.read.format("statestore").option("operatorId", operator.number)
    try:
        state = reader.option("batchId", batch).option("stateVarName", _STATE).load(path)
        return state.select("key.label", "user_map_key.kind", "user_map_key.id", "user_map_value.text")
    except (PySparkException, Py4JJavaError) as e:
        raise ValueError(
            f"checkpoint must be where its query has written it, since Spark keeps absolute paths in it, got "
            f"{path!r}, whose operator {operator.number} cannot be read: {first_line(e)}"
        ) from e


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark's or of the JVM."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return text.strip().partition("\n")[0]
