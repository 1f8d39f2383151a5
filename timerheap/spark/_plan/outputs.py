"""Side outputs and late rows: the tags of a function, and the DataFrame of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from timerheap._arguments import instance
from timerheap.functions import Function
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import LATE_BY, LATE_ROWS, OUTPUTS, SIDE_OUTPUT
from timerheap.spark._compat import analyzed, nodes_on_connect, nullable, of_plan, on_connect
from timerheap.spark._plan.arguments import data_frame, quoted
from timerheap.spark._query import Query
from timerheap.types import arrow_type

_PASSING_EVERYWHERE = {"Project", "Filter", "SubqueryAlias"}
_PASSING = _PASSING_EVERYWHERE | {"EventTimeWatermark", "View"}
_PASSING_ON_CONNECT = _PASSING_EVERYWHERE | {"WithColumns", "WithColumnsRenamed", "Drop", "ToDF"}
_WANTED = (
    "df must be what a function of timerheap.spark returned, perhaps after where(), select(), withColumn() "
    "or alias()"
)


def side_tags(side_outputs: object, *functions: object) -> tuple[OutputTag, ...]:
    """Return the tags of a query, checked; by default those that its functions refer to."""
    if side_outputs is None:
        seen: set[int] = set()
        tags = list(dict.fromkeys(tag for function in functions for tag in _tags_of(function, seen)))
    elif isinstance(side_outputs, Sequence) and all(isinstance(tag, OutputTag) for tag in side_outputs):
        tags = list(side_outputs)
    else:
        raise TypeError(f"side_outputs must be a list of OutputTag objects, got {side_outputs!r}")
    ids = [tag.tag_id for tag in tags]
    if len(set(ids)) < len(ids):
        raise ValueError(f"side_outputs must have different ids, got {ids}")
    for tag in tags:
        arrow_type(tag.type_info, f"side output {tag.tag_id!r}")
    return tuple(tags)


def _tags_of(function: object, seen: set[int]) -> Iterator[OutputTag]:
    """Yield the tags in attributes of a function, and in globals and closures of its methods."""
    # The functions that it holds are searched, too, also in objects of timerheap, such as an `IntervalJoin`;
    # `seen` has the ids of those that have been.
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _tags_of_code(function)
    attributes = list(getattr(function, "__dict__", {}).values())
    yield from _among(attributes)
    for inner in attributes:
        if isinstance(inner, Function | FunctionType | MethodType) or _is_ours(type(inner)):
            yield from _tags_of(inner, seen)
    for class_ in type(function).__mro__:
        if not _is_ours(class_):
            for member in vars(class_).values():
                yield from _among([member])
                yield from _tags_of_code(member)


def _is_ours(class_: type) -> bool:
    return class_.__module__.partition(".")[0] == "timerheap"


def _tags_of_code(member: object) -> Iterator[OutputTag]:
    plain: Any = getattr(member, "__func__", member)
    code = getattr(plain, "__code__", None)
    if isinstance(code, CodeType):
        names = set(_names(code))
        values = [value for name, value in plain.__globals__.items() if name in names]
        modules = [value for value in values if isinstance(value, ModuleType)]
        yield from _among(values)
        yield from _among(vars(m)[name] for m in modules for name in names & vars(m).keys())
        yield from _among(cell.cell_contents for cell in plain.__closure__ or () if _is_set(cell))


def _among(values: Iterable[Any]) -> Iterator[OutputTag]:
    for value in values:
        if isinstance(value, OutputTag):
            yield value
        elif isinstance(value, dict):
            yield from (tag for tag in value.values() if isinstance(tag, OutputTag))
        elif isinstance(value, list | tuple | set | frozenset):
            yield from (tag for tag in value if isinstance(tag, OutputTag))


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def with_side_column(query: Query) -> StructType:
    """Return the type of the results of a query, with its side outputs beside them if it has any."""
    fields = [
        StructField(
            tag.tag_id, from_arrow_type(arrow_type(tag.type_info, tag.tag_id), prefer_timestamp_ntz=True)
        )
        for tag in query.side_outputs
    ]
    if query.late_row is not None:
        fields.append(StructField(LATE_ROWS, late_type(query.late_row)))
    if not fields:
        return query.result
    if SIDE_OUTPUT in query.result.names:
        raise ValueError(
            f"output_schema must not have a column {SIDE_OUTPUT!r} in a query with side outputs or late "
            "rows; rename it"
        )
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ValueError(f'side_outputs must not have the id {LATE_ROWS!r} with late="emit"; rename it')
    return StructType([*nullable(query.result).fields, StructField(SIDE_OUTPUT, StructType(fields))])


def late_type(row: StructType) -> StructType:
    """Return the type of late rows with `LATE_BY`."""
    if LATE_BY in map(str.lower, row.names):
        raise ValueError(f'df must not have a column {LATE_BY!r} with late="emit", which adds it; rename it')
    return StructType([*nullable(row).fields, StructField(LATE_BY, LongType())])


def results_of(outputs: DataFrame) -> DataFrame:
    """Return the results without the side outputs, which `outputs_of` finds behind them."""
    return outputs.alias(OUTPUTS).where(F.col(SIDE_OUTPUT).isNull()).drop(SIDE_OUTPUT)


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
    raise ValueError(_refusal(df, node.nodeName()))


def _outputs_on_connect(df: DataFrame) -> DataFrame:
    for kind, alias, below in nodes_on_connect(df):
        if kind not in _PASSING_ON_CONNECT or below is None:
            break
        if alias == OUTPUTS:
            return below
    raise ValueError(_refusal(df, kind))


def _refusal(df: DataFrame, node: str) -> str:
    return (
        f"{_WANTED}, got {df!r}, which comes from {node}; the operator must have side outputs or "
        'late="emit", and its results must not be combined or aggregated before'
    )


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
    TypeError, ValueError
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
        raise ValueError(f'df must be the result of an operator with late="emit", got {df!r}')
    return _field(outputs, LATE_ROWS).select("value.*")


def _tags(outputs: DataFrame) -> StructType:
    tags = outputs.schema[SIDE_OUTPUT].dataType
    return tags if isinstance(tags, StructType) else StructType()


def _field(outputs: DataFrame, name: str) -> DataFrame:
    """Return the values of a side output in a column ``value``."""
    value = quoted(SIDE_OUTPUT).getField(name)
    return outputs.where(value.isNotNull()).select(value.alias("value"))


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
    TypeError, ValueError
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
        raise ValueError(f"tag must be one of the function's side outputs, {tags.names}, got {tag.tag_id!r}")
    values = _field(outputs, tag.tag_id)
    return values.select("value.*") if isinstance(tags[tag.tag_id].dataType, StructType) else values


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
        is a struct with one field for each tag, and ``late_rows``, and all other columns are null.

    Examples
    --------
    ::

        def write(batch, batch_id):
            batch.where("side_output is null").drop("side_output").write.parquet(...)
            timerheap.spark.side_output(batch, LATE).write.parquet(...)

        timerheap.spark.with_side_outputs(visits).writeStream.foreachBatch(write).start()
    """
    return outputs_of(data_frame("df", df))
