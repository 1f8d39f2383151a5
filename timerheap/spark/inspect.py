"""`explain_watermark`: shows which channel holds back the watermark of a query."""

from __future__ import annotations

from os import PathLike

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from timerheap._native._heap import from_text
from timerheap.flink import Explanation
from timerheap.spark._group.checkpoint import read_clock
from timerheap.spark._group.clock_bytes import decode_clock
from timerheap.spark._group.manifest import MANIFEST, Manifest
from timerheap.spark._group.watermark import WatermarkState
from timerheap.watermarks import WatermarkStrategy

__all__ = ["explain_watermark"]


def explain_watermark(
    spark: SparkSession, checkpoint: str | PathLike[str], operator_id: int = 0
) -> list[Explanation]:
    """Return which channel holds back the watermark of a query, as of its last finished micro-batch.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    checkpoint : str or path
        Checkpoint location of the query, which may be running.
    operator_id : int, default 0
        Number of the stateful operator in the query; `process` and `process_two` are one operator each.

    Returns
    -------
    list of timerheap.flink.Explanation
        One per input: one for `process`, two for `process_two`; empty before the first row.

    Notes
    -----
    Reads the watermark state of one key group, which is the same in all key groups, through Spark's state
    data source. Costs one Spark job, or two with many channels, independently of the size of
    the state.
    """
    reader = spark.read.format("statestore").option("operatorId", operator_id)
    state = reader.option("stateVarName", "chunks").load(str(checkpoint))
    chunks = state.select("key.label", "user_map_key.kind", "user_map_key.id", "user_map_value.text")
    row = chunks.where(F.col("kind") == MANIFEST).select("label", "text").first()
    if row is None:
        return []
    label, text = row

    def read(kind: int, id_: int) -> bytes | None:
        found = chunks.where(f"label = {label} and kind = {kind} and id = {id_}").select("text").first()
        return None if found is None else from_text(found[0])

    clock = read_clock(Manifest.from_bytes(from_text(text)), read)
    inputs = len(decode_clock(clock).inputs)
    none = WatermarkStrategy.no_watermarks()
    return WatermarkState.from_bytes(clock, (none,) * inputs, (None,) * inputs).explain()
