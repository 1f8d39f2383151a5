"""The side outputs of a function on Spark, as DataFrames."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from timerheap.output_tag import OutputTag
from timerheap.spark._plan.arguments import data_frame, quoted
from timerheap.spark._plan.side_tags import outputs_of
from timerheap.spark._worker.side_buffer import SIDE_OUTPUT

__all__ = ["side_output", "with_side_outputs"]


def side_output(df: DataFrame, tag: OutputTag) -> DataFrame:
    """Return what a function has sent to a side output.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `process`, `process_two` or `window_operator`, or of `with_side_outputs`.
    tag : OutputTag

    Returns
    -------
    pyspark.sql.DataFrame
        The fields of the tag's type as columns, or one column ``value`` if it is not that of a row.

    Raises
    ------
    TypeError, ValueError
        If the function has no such side output.

    Notes
    -----
    PyFlink: ``DataStream.get_side_output``. A DataFrame is a plan: a result and a side output that are
    written by two queries run the function twice, each with its own state. `with_side_outputs` has all
    outputs for one query.

    Examples
    --------
    ::

        LATE = OutputTag("late", Types.ROW_NAMED(["user", "at"], [Types.STRING(), Types.LONG()]))

        class Visits(KeyedProcessFunction):
            def process_element(self, value, ctx):
                if ctx.timestamp() <= ctx.timer_service().current_watermark():
                    yield LATE, (value.user, value.at)
                else:
                    yield value.user, value.at

        visits = timerheap.spark.process(df, "user", Visits(), "user string, at long", "at", ...)
        late = timerheap.spark.side_output(visits, LATE)
    """
    outputs = outputs_of(data_frame("df", df))
    if not isinstance(tag, OutputTag):
        raise TypeError(f"tag must be an OutputTag, got {tag!r}")
    tags = outputs.schema[SIDE_OUTPUT].dataType
    assert isinstance(tags, StructType)
    if tag.tag_id not in tags.names:
        raise ValueError(f"tag must be one of the function's side outputs, {tags.names}, got {tag.tag_id!r}")
    value = quoted(SIDE_OUTPUT).getField(tag.tag_id)
    values = outputs.where(value.isNotNull()).select(value.alias("value"))
    return values.select("value.*") if isinstance(tags[tag.tag_id].dataType, StructType) else values


def with_side_outputs(df: DataFrame) -> DataFrame:
    """Return the results of a function and its side outputs in one DataFrame, for one query.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `process`, `process_two` or `window_operator`.

    Returns
    -------
    pyspark.sql.DataFrame
        The results, in which the column ``side_output`` is null, and the values of side outputs, in which it
        is a struct with one field for each tag and all other columns are null.

    Examples
    --------
    ::

        def write(batch, batch_id):
            batch.where("side_output is null").drop("side_output").write.parquet(...)
            timerheap.spark.side_output(batch, LATE).write.parquet(...)

        timerheap.spark.with_side_outputs(visits).writeStream.foreachBatch(write).start()
    """
    return outputs_of(data_frame("df", df))
