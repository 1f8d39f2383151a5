"""`read_checkpoint`: the state of a query, for another query to start from."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

from timerheap._native._heap import from_text
from timerheap.spark._group.chunks import CLOCK, SLICES, USER_STATE, read_schema
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.manifest import MANIFEST, Manifest
from timerheap.spark._group.query import Query
from timerheap.spark._worker.initial_state import INITIAL, Splitter

__all__ = ["CheckpointState", "read_checkpoint"]


@dataclass(frozen=True)
class CheckpointState:
    """The state of a query as of its last finished micro-batch; `read_checkpoint` returns it.

    Parameters
    ----------
    checkpoint : str
        The checkpoint location of the query.
    values : pyspark.sql.DataFrame
        The chunks of its key groups, with the columns label, kind, id and text.
    max_parallelism : int
        The number of its key groups.
    """

    checkpoint: str
    values: DataFrame
    max_parallelism: int

    def group(self, query: Query) -> KeyGroup:
        """Return a key group of a new query with the keys and states of the checkpoint, but no contents.

        Raises
        ------
        ValueError
            If the new query has other keys, timers or windows.
        """
        group = KeyGroup(query)
        schemas = self.values.where((F.col("id") == 0) & ~F.col("kind").isin(CLOCK, MANIFEST))
        for kind, text in sorted(map(tuple, schemas.select("kind", "text").distinct().collect())):
            name, schema = read_schema(kind, from_text(text))
            if kind == SLICES:
                raise ValueError(
                    "initial_state must be the state of process() or process_two(), got that of "
                    f"{self.checkpoint!r}, which has the windows {name}"
                )
            if kind < USER_STATE or (name not in query.drop_state and name not in group.states):
                group.part(kind, name, schema).replay(pa.RecordBatch.from_pylist([], schema))
        return group.loaded()

    def by_partition(self, query: Query) -> GroupedData:
        """Return the state split by the key groups of a new query, grouped as its packed rows are."""
        splitter = Splitter(query)
        split = self.values.groupBy("label").applyInArrow(lambda values: splitter(values), INITIAL)
        return split.groupBy("label")


def read_checkpoint(
    spark: SparkSession, checkpoint: str | PathLike[str], operator_id: int = 0
) -> CheckpointState:
    """Return the state of another query, for ``process(..., initial_state=...)`` to start from.

    The new query continues where the last finished micro-batch of the other one has ended: with its keys,
    timers, states, waiting rows and watermarks, and with another `max_parallelism` if asked. Its input must
    begin after the rows that the other query has read. The function may have new states, and `drop_state`
    drops states that it no longer has.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    checkpoint : str or path
        Checkpoint location of a query with `process` or `process_two`, which is read when the new query
        runs its first micro-batch.
    operator_id : int, default 0
        Number of the stateful operator in the other query.

    Returns
    -------
    CheckpointState

    Raises
    ------
    TypeError, ValueError
        If there is no such checkpoint, or no state of timerheap in it.
    """
    if not isinstance(spark, SparkSession):
        raise TypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    if not isinstance(checkpoint, (str, PathLike)):
        raise TypeError(f"checkpoint must be a str or a path, got {checkpoint!r}")
    path = fspath(checkpoint)
    if not isinstance(operator_id, int) or isinstance(operator_id, bool):
        raise TypeError(f"operator_id must be an int, got {operator_id!r}")
    reader = spark.read.format("statestore").option("operatorId", operator_id)
    try:
        chunks = reader.option("stateVarName", "chunks").load(path)
        values = chunks.select("key.label", "user_map_key.kind", "user_map_key.id", "user_map_value.text")
        first = values.where(F.col("kind") == MANIFEST).first()
    except PySparkException as e:
        raise ValueError(
            "checkpoint must be the checkpoint location of a query with process() or process_two(), got "
            f"{path!r}, in which operator {operator_id} has no state of timerheap: {e}"
        ) from e
    if first is None:
        raise ValueError(
            f"checkpoint must have a finished micro-batch with rows, got {path!r}, which has no key group"
        )
    return CheckpointState(path, values, Manifest.from_bytes(from_text(first["text"])).max_parallelism)
