"""`explain_watermark`: shows which channel holds back the watermark of a query."""

from __future__ import annotations

from os import PathLike

from pyspark.sql import SparkSession

from timerheap.flink import Explanation
from timerheap.spark._plan.checkpoint_state import survey_of
from timerheap.spark._plan.checkpoint_watermarks import explanations

__all__ = ["explain_watermark"]


def explain_watermark(
    spark: SparkSession, checkpoint: str | PathLike[str], operator_id: int | None = None
) -> list[Explanation]:
    """Return which channel holds back the watermark of a query, as of its last finished micro-batch.

    `read_checkpoint` has the same in a DataFrame, with readable times, in ``.watermarks()``.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    checkpoint : str or path
        Checkpoint location of the query, which may be running.
    operator_id : int, optional
        Number of the stateful operator in the query. It may be left out if only one is timerheap's.

    Returns
    -------
    list of timerheap.flink.Explanation
        One per input: one for `process`, two for `process_two`; empty before the first row.

    Raises
    ------
    TypeError, ValueError
        If there is no such checkpoint or operator, or no micro-batch has finished.
    """
    _, _, survey = survey_of(spark, checkpoint, operator_id)
    return explanations(survey.clock()) if survey.manifests else []
