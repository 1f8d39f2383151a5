"""`explain_watermark`: shows which channel holds back the watermark of a query."""

from __future__ import annotations

from os import PathLike

from pyspark.sql import SparkSession

from timerheap.flink import Explanation
from timerheap.spark._group.chunks import CLOCK, read_chunk
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
    data source. Costs one Spark job, independently of the size of the state.
    """
    reader = spark.read.format("statestore").option("operatorId", operator_id)
    chunks = reader.option("stateVarName", "chunks").load(str(checkpoint))
    clocks = chunks.where(f"user_map_key.kind = {CLOCK}").select("user_map_value.data")
    row = clocks.first()
    if row is None:
        return []
    batch = read_chunk(CLOCK, bytes(row[0]))
    inputs = 1 + max(number or 0 for number in batch.column("input").to_pylist())
    clock = WatermarkState((WatermarkStrategy.no_watermarks(),) * inputs, (None,) * inputs)
    clock.replay(batch)
    return clock.explain()
