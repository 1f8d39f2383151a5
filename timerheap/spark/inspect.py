"""`explain_watermark`: what a query's checkpoint knows of its watermark."""

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
    """Tell who holds the watermark of a query back, as of its last finished micro-batch.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    checkpoint : str or path
        The query's checkpoint location; the query may be running.
    operator_id : int, default 0
        Which of the query's stateful operators; `process` and `process_two` are one each.

    Returns
    -------
    list of timerheap.watermarks.Explanation
        One for each input, so one for `process` and two for `process_two`; empty before the first row.

    Notes
    -----
    Reads one key group's clock through Spark's state data source, whatever the size of the state is: all
    key groups have the same clock. Costs a Spark job.
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
