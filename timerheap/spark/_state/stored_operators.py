"""The operators of timerheap in a checkpoint: which there are, and whether their state can be read."""

from __future__ import annotations

import json
import re
from os import PathLike, fspath
from typing import NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from timerheap._arguments import integer
from timerheap.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointError,
    DamagedCheckpointError,
    ForeignCheckpointError,
)
from timerheap.spark._compat import hadoop_files, hadoop_path, state_path
from timerheap.spark._state import epoch_store

FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_UNIQUE = re.compile(r"\d+_.+\.(zip|changelog)")  # files of version 2, unlike those of other attempts
_STATE = "chunks"  # the state variable of `timerheap.spark._worker.spark_store`


class StoredOperator(NamedTuple):
    """An operator of timerheap in a checkpoint."""

    number: int  # its operator id
    partitions: int
    first_batch: int  # the finished micro-batches whose state the checkpoint has are from this one
    last_batch: int


def path_of(checkpoint: object) -> str:
    if not isinstance(checkpoint, (str, PathLike)):
        raise ArgumentTypeError(f"checkpoint must be a str or a path, got {checkpoint!r}")
    return str(fspath(checkpoint))


def find_operators(spark: SparkSession, path: str) -> list[StoredOperator]:
    """Return the operators of timerheap in a checkpoint; raise CheckpointError if there are none."""
    if in_real_time := _operators_in_real_time(spark, path):  # Spark keeps no state there
        return _finished(path, in_real_time)
    try:
        found = spark.read.format("state-metadata").load(path).collect()
    except (PySparkException, Py4JJavaError) as e:
        raise not_ours(path, f"which cannot be read: {first_line(e)}") from e
    if not found:
        raise not_ours(path, _why_empty(spark, path))
    operators = [
        StoredOperator(*map(int, (row.operatorId, row.numPartitions, row.minBatchId, row.maxBatchId)))
        for row in found
        if _is_ours(row)
    ]
    if not operators:
        names = ", ".join(sorted(f"{row.operatorId}: {row.operatorName}" for row in found))
        raise not_ours(path, f"which has only other operators ({names})")
    return _finished(path, operators)


def _operators_in_real_time(spark: SparkSession, path: str) -> list[StoredOperator]:
    found: list[StoredOperator] = []
    while partitions := epoch_store.partitions_of(spark, path, len(found)):
        epoch = epoch_store.last_epoch(spark, path)
        found.append(StoredOperator(len(found), partitions, epoch, epoch))
    return found


def operators_of_spark(spark: SparkSession, path: str) -> list[str]:
    """Return the names of the stateful operators in a checkpoint that are Spark's own."""
    if epoch_store.partitions_of(spark, path):
        return []
    found = spark.read.format("state-metadata").load(path).collect()
    return sorted({row.operatorName for row in found if not _is_ours(row)})


def _finished(path: str, operators: list[StoredOperator]) -> list[StoredOperator]:
    """Return the operators of a checkpoint that has a finished micro-batch."""
    if max(operator.last_batch for operator in operators) < 0:
        raise CheckpointError(
            f"checkpoint must have a finished micro-batch, got {path!r}, which has none; read it later"
        )
    return operators


def _is_ours(row: Row) -> bool:
    """Return whether an operator in Spark's list of them is timerheap's."""
    if not row.operatorName.startswith("transformWithState"):
        return False
    variables = json.loads(row.operatorProperties).get("stateVariables", [])
    names = [variable["stateName"] for variable in variables]
    return [name for name in names if not name.startswith("$")] == [_STATE]  # "$": Spark's own timers


def _why_empty(spark: SparkSession, path: str) -> str:
    """Return why a path has no stateful operators, by its files, wherever they are."""
    folder = hadoop_path(spark, path)
    files = hadoop_files(spark, folder)
    if not files.exists(folder):
        return "which does not exist"
    if not files.exists(hadoop_path(spark, folder, "offsets")):
        return "which is not a checkpoint: it has no offsets"
    return "which has no stateful operator"


def not_ours(path: str, why: str) -> ForeignCheckpointError:
    return ForeignCheckpointError(
        f"checkpoint must be the checkpoint location of a streaming query with timerheap, got {path!r}, {why}"
    )


def chunks_of(spark: SparkSession, path: str, operator: StoredOperator, batch_id: int | None) -> DataFrame:
    """Return the chunks of an operator after a micro-batch that the checkpoint must have; see `Survey`."""
    number, partitions, first, last = operator
    batch = last if batch_id is None else integer("batch_id", batch_id)
    if not first <= batch <= last:
        raise ArgumentValueError(
            f"batch_id must be from {first} to {last}, the finished micro-batches whose state the checkpoint "
            f"has, got {batch}"
        )
    if epoch_store.partitions_of(spark, path):
        return epoch_store.chunks_of_epoch(spark, path, number, partitions, batch)
    expect_readable(spark, path, number, partitions)
    reader = spark.read.format("statestore").option("operatorId", number)
    try:
        reader = reader.option("batchId", batch).option("stateVarName", _STATE)
        state = reader.load(state_path(spark, path))
        return state.select("key.label", "user_map_key.kind", "user_map_key.id", "user_map_value.text")
    except (PySparkException, Py4JJavaError) as e:
        raise CheckpointError(
            f"checkpoint must be where its query has written it, since Spark keeps absolute paths in it, got "
            f"{path!r}, whose operator {operator.number} cannot be read: {first_line(e)}"
        ) from e


def expect_readable(spark: SparkSession, path: str, operator: int, partitions: int) -> None:
    """Raise an error if Spark's reader would leave out a partition of an operator, or could not read it."""
    folder = hadoop_path(spark, f"{path}/state/{operator}")
    files = hadoop_files(spark, folder)
    found = {status.getPath().getName(): status.getPath() for status in files.listStatus(folder)}
    missing = [str(number) for number in range(partitions) if str(number) not in found]
    if missing:
        raise DamagedCheckpointError(
            f"checkpoint must have the state of all {partitions} partitions, got {path!r}, whose operator "
            f"{operator} lacks {', '.join(missing)}; put back a whole copy of it"
        )
    names = (status.getPath().getName() for status in files.listStatus(found["0"]))
    if spark.conf.get(FORMAT_VERSION) == "1" and any(map(_UNIQUE.fullmatch, names)):
        raise ArgumentValueError(
            f"{FORMAT_VERSION} must be 2, as in the query that has written {path!r}, got 1; set it before: "
            f'spark.conf.set("{FORMAT_VERSION}", 2)'
        )


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark or the JVM, of a Python worker that of its error."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    lines = text.strip().splitlines() or [""]
    return lines[-1] if "from the Python worker" in lines[0] else lines[0]
