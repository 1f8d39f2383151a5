"""Side outputs and late rows of an operator, each as a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from timerheap._arguments import instance
from timerheap.errors import ArgumentValueError
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import ASIDE, LATE_ROWS, LETTERS, OUTPUTS, SIDE_OUTPUT
from timerheap.spark._compat import analyzed, nodes_on_connect, of_plan, on_connect
from timerheap.spark._flows import in_flows
from timerheap.spark._plan.named_columns import data_frame, quoted

_PASSING_EVERYWHERE = {"Project", "Filter", "SubqueryAlias"}
_PASSING = _PASSING_EVERYWHERE | {"EventTimeWatermark", "View"}
_PASSING_ON_CONNECT = _PASSING_EVERYWHERE | {"WithColumns", "WithColumnsRenamed", "Drop", "ToDF"}
_WANTED = (
    "df must be what a function of timerheap.spark returned, perhaps after where(), select(), withColumn() "
    "or alias()"
)


def outputs_of(df: DataFrame) -> DataFrame:
    """Return the DataFrame that has the side outputs of `df` in the column `SIDE_OUTPUT`."""
    if SIDE_OUTPUT in df.columns:
        return df
    return _outputs_on_connect(df) if on_connect(df.sparkSession) else _outputs(df)


def _outputs(df: DataFrame) -> DataFrame:
    node = analyzed(df)
    while node.nodeName() in _PASSING:
        if node.nodeName() == "SubqueryAlias" and node.alias() == OUTPUTS:
            return of_plan(df.sparkSession, node.child())
        node = node.children().head()
    raise ArgumentValueError(_refusal(df, node.nodeName()))


def _outputs_on_connect(df: DataFrame) -> DataFrame:
    for kind, alias, below in nodes_on_connect(df):
        if kind not in _PASSING_ON_CONNECT or below is None:
            break
        if alias == OUTPUTS:
            return below
    raise ArgumentValueError(_refusal(df, kind))


def _refusal(df: DataFrame, node: str) -> str:
    return (
        f"{_WANTED}, got {df!r}, which comes from {node}; the operator must have side outputs, "
        'late="emit" or errors="emit", and its results must not be combined or aggregated before'
    )


@in_flows
def late_rows(df: DataFrame) -> DataFrame:
    """Return the late rows of an operator that has ``late="emit"``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `process`, `process_two`, `window_operator`, `tumble` and so on, `sql`, or
        `with_side_outputs`, also after ``where()``, ``select()``, ``withColumn()`` or ``alias()``.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of the operator's input (of two inputs, the structs ``left`` and ``right``, one of which
        is null), and ``late_by``: by how many ms the watermark's delay would have had to be longer.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If the operator does not have ``late="emit"``, or `df` combines or aggregates results.

    Notes
    -----
    As for `side_output`, two queries run the operator twice; `with_side_outputs` has late rows for one query.

    Examples
    --------
    ::

        counts = timerheap.spark.process(df, "user", Counts(), schema, "at", late="emit", ...)
        late = timerheap.spark.late_rows(counts)
    """
    outputs = outputs_of(data_frame("df", df))
    if LATE_ROWS not in _tags(outputs).names:
        raise ArgumentValueError(f'df must be the result of an operator with late="emit", got {df!r}')
    return _field(outputs, LATE_ROWS).select("value.*").alias(ASIDE)  # behind the operator's watermark


def dead_letters(df: DataFrame) -> DataFrame:
    """Return the rows and timers for which a function raised an exception, with ``errors="emit"``.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `process`, `process_two`, `process_broadcast`, `process_all` or `async_map`, or of
        `with_side_outputs`, also after ``where()``, ``select()``, ``withColumn()`` or ``alias()``.

    Returns
    -------
    pyspark.sql.DataFrame
        - ``rule``: the name of the rule, in the result of `process_all` alone
        - ``key``: a struct of the key columns
        - ``call``: the method, such as "process_element" or "on_timer"
        - ``timestamp``: the time of the row or timer in epoch ms; null for a row without event time
        - ``timer``: the name of the timer, if it has one
        - ``input``: the row, a struct of the columns of the operator's input (of two inputs, of the structs
          ``left`` and ``right``, one of which is null); null for a timer
        - ``broadcast``: the row that goes to all keys, in the result of `process_broadcast` alone
        - ``error``, ``trace``: the exception with its message, and where it was raised

        Of `async_map` there are ``input``, ``error`` and ``trace``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If the operator does not have ``errors="emit"``, or `df` combines or aggregates results.

    Notes
    -----
    As for `side_output`, two queries run the operator twice; `with_side_outputs` has dead letters for one
    query.

    Examples
    --------
    ::

        counts = timerheap.spark.process(df, "user", Counts(), schema, "at", errors="emit", ...)
        letters = timerheap.spark.dead_letters(counts)
        again = letters.where("call = 'process_element'").select("input.*")
    """
    outputs = outputs_of(data_frame("df", df))
    if LETTERS not in _tags(outputs).names:
        raise ArgumentValueError(f'df must be the result of an operator with errors="emit", got {df!r}')
    return _field(outputs, LETTERS).select("value.*")


def _tags(outputs: DataFrame) -> StructType:
    tags = outputs.schema[SIDE_OUTPUT].dataType
    return tags if isinstance(tags, StructType) else StructType()


def _field(outputs: DataFrame, name: str) -> DataFrame:
    """Return the values of a side output in a column ``value``."""
    value = quoted(SIDE_OUTPUT).getField(name)
    return outputs.where(value.isNotNull()).select(value.alias("value"))


@in_flows
def side_output(df: DataFrame, tag: OutputTag) -> DataFrame:
    """Return what a function has sent to a side output.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of `process`, `process_two` or `window_operator`, or of `with_side_outputs`. It may
        be used after ``where()``, ``select()``, ``withColumn()`` or ``alias()``, which do not change side
        outputs.
    tag : OutputTag

    Returns
    -------
    pyspark.sql.DataFrame
        The fields of the tag's type as columns, or one column ``value`` if it is not that of a row.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If the function has no such side output, or `df` combines or aggregates results.

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
    instance("tag", tag, OutputTag)
    tags = _tags(outputs)
    if tag.tag_id not in tags.names:
        raise ArgumentValueError(
            f"tag must be one of the function's side outputs, {tags.names}, got {tag.tag_id!r}"
        )
    values = _field(outputs, tag.tag_id)
    return values.select("value.*") if isinstance(tags[tag.tag_id].dataType, StructType) else values


@in_flows
def with_side_outputs(df: DataFrame) -> DataFrame:
    """Return results, side outputs and late rows of an operator in one DataFrame, for one query.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The result of an operator, as for `side_output` and `late_rows`.

    Returns
    -------
    pyspark.sql.DataFrame
        The results, in which the column ``side_output`` is null, and the values of side outputs, in which it
        is a struct with one field for each tag, ``late_rows`` and ``dead_letters``, and all other columns are
        null.

    Examples
    --------
    ::

        def write(batch, batch_id):
            batch.persist()  # each write would run the operator again
            batch.where("side_output is null").drop("side_output").write.parquet(...)
            timerheap.spark.side_output(batch, LATE).write.parquet(...)
            batch.unpersist()

        timerheap.spark.with_side_outputs(visits).writeStream.foreachBatch(write).start()
    """
    return outputs_of(data_frame("df", df))
