"""What differs between the versions of PySpark that timerheap runs on, and on Spark Connect.

All uses of PySpark's private attributes are here, and the ways into its JVM.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from io import BufferedReader
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa
from pyspark import SparkConf, SparkContext, __version__
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import Column, DataFrame, GroupedData, Row, SparkSession, conversion
from pyspark.sql import types as T
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas import types
from pyspark.sql.pandas.serializers import ArrowStreamSerializer

from timerheap._moments import local_time, micros_of
from timerheap.errors import ArgumentValueError, UnsupportedError
from timerheap.spark._arrow import map_type

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_VERSION = tuple(map(int, __version__.split(".")[:2]))
_LARGE_RESULTS = _VERSION >= (4, 3)

# What Spark sets for the worker of a function that runs in its driver.
_SET_IN_DRIVER = ["SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"]
_SET_IN_DRIVER += ["SPARK_PYTHON_RUNTIME"] if _VERSION >= (4, 2) else []


def _if_known(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return those of the options that are arguments of a function."""
    known = signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


_UTC = _if_known(types.to_arrow_schema, timezone="UTC")  # before 4.2 timestamps are in UTC without it
_TUPLES = _if_known(ArrowTableToRowsConversion.convert, return_as_tuples=True)  # 4.0: Rows, also tuples


def to_arrow_schema(schema: T.StructType, *, large: bool = False) -> pa.Schema:
    """Return the Arrow schema of a type, with timestamps in UTC, and text and bytes of large types or not."""
    return types.to_arrow_schema(schema, **_UTC, prefers_large_types=large)


def in_types_of_spark(results: pa.Table, type_: T.StructType, packed: pa.Table) -> pa.Table:
    """Return results in the Arrow types that Spark expects of ``applyInArrow`` with the input `packed`."""
    large = pa.types.is_large_binary(packed.schema.field("blob").type)  # spark...arrow.useLargeVarTypes
    return results.cast(to_arrow_schema(type_, large=large and _LARGE_RESULTS))


def to_arrow_type(type_: T.DataType) -> pa.DataType:
    """Return the Arrow type of a type, with timestamps in UTC."""
    return types.to_arrow_type(type_, **_UTC)


class _Moment(T.UserDefinedType):
    """A timestamp in local time; PySpark's own conversions lose its ``fold``."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.LongType()

    def serialize(self, obj: Any) -> Any:
        return micros_of(obj)

    def deserialize(self, datum: Any) -> Any:
        return local_time(datum)


def with_moments(type_: T.DataType) -> Any:
    """Return a type that converts timestamps from and to numbers, and keeps their ``fold``."""
    if isinstance(type_, T.TimestampType):
        return _Moment()
    if isinstance(type_, T.ArrayType):
        return T.ArrayType(with_moments(type_.elementType))
    if isinstance(type_, T.MapType):
        return T.MapType(with_moments(type_.keyType), with_moments(type_.valueType))
    if isinstance(type_, T.StructType):
        return T.StructType([T.StructField(field.name, with_moments(field.dataType)) for field in type_])
    return type_


def _number_type(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if getattr(type_, "tz", None) else type_


def _with_numbers(table: pa.Table, type_: T.StructType) -> tuple[pa.Table, Any]:
    columns, types = [], []
    for field, column in zip(type_, table.columns, strict=True):
        number, own = map_type(column.type, _number_type), '"type":"udt"' not in field.json()
        columns.append(column.cast(number) if own and number != column.type else column)
        types.append(T.StructField(field.name, with_moments(field.dataType)) if own else field)
    return pa.Table.from_arrays(columns, names=type_.names), T.StructType(types)


def to_tuples(table: pa.Table, type_: T.StructType) -> list[tuple[Any, ...]]:
    """Return the rows of a table as Python values, in tuples."""
    return ArrowTableToRowsConversion.convert(*_with_numbers(table, type_), **_TUPLES)


def to_rows(table: pa.Table, type_: T.StructType) -> list[Row]:
    """Return the rows of a table as PySpark does."""
    return ArrowTableToRowsConversion.convert(*_with_numbers(table, type_))


def to_frame(batch: pa.RecordBatch, zone: str) -> pd.DataFrame:
    """Return the DataFrame that a pandas function receives for a batch; its columns are numbered."""
    import pandas as pd  # not where rows are packed

    if hasattr(conversion, "ArrowBatchTransformer"):
        series: Any = conversion.ArrowBatchTransformer.to_pandas(batch, timezone=zone)
    else:
        convert = _frame_serializer(zone).arrow_to_pandas
        number = _if_known(convert, idx=0)  # in 4.1, for types that it is not told
        series = [convert(column, **number) for column in batch.columns]
    frame: pd.DataFrame = pd.concat(series, axis=1)
    return frame


def to_record_batch(
    frame: pd.DataFrame,
    type_: T.StructType,
    zone: str,
    *,
    safe: bool = False,
    ints_to_decimals: bool = False,
    by_name: bool = True,
    infer: bool = True,
) -> pa.RecordBatch:
    """Return what Spark makes of a DataFrame that a pandas function returns."""
    # Values that are not of their column's type are cast from the one type that Arrow infers for all of them,
    # or are an error without `infer`.
    if hasattr(conversion, "PandasToArrowConversion"):
        batch = conversion.PandasToArrowConversion.convert(
            [frame],
            T.StructType([T.StructField("_0", type_)]),
            timezone=zone,
            safecheck=safe,
            arrow_cast=infer,
            assign_cols_by_name=by_name,
            int_to_decimal_coercion_enabled=ints_to_decimals,
        )
        columns = batch.column(0).flatten()
    else:
        serializer = _frame_serializer(zone, safe, ints_to_decimals, by_name, infer)
        columns = serializer._create_struct_array(frame, to_arrow_type(type_)).flatten()
    return pa.RecordBatch.from_arrays(columns, names=type_.names)


def _frame_serializer(
    zone: str, safe: bool = False, ints_to_decimals: bool = False, by_name: bool = True, infer: bool = True
) -> Any:
    """Return what converted the frames of a pandas function before 4.2."""
    from pyspark.sql.pandas import serializers

    make = cast(Any, serializers).ArrowStreamPandasUDFSerializer
    coercion = _if_known(make, int_to_decimal_coercion_enabled=ints_to_decimals)
    return make(zone, safe, by_name, arrow_cast=infer, **coercion)


def on_connect(spark: object) -> bool:
    """Return whether a session, or what it has made, is of Spark Connect: without a JVM or SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: SparkSession, what: str) -> None:
    """Raise an error if a session is of Spark Connect, where `what` is not supported."""
    if on_connect(spark):
        raise UnsupportedError(
            f"{what} is not supported on Spark Connect, which has no access to the JVM; use a "
            "classic session: SparkSession.builder.master(...)"
        )


def with_columns(df: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Add columns, or none, which Spark Connect refuses."""
    return df.withColumns(columns) if columns else df


def nullable(rows: T.StructType) -> T.StructType:
    """Return a type whose fields may all be null, at every depth."""
    return rows._as_nullable()


def jvm(spark: SparkSession) -> Any:
    """Return the view of the JVM of a session, whose attributes are Java's packages."""
    return spark._jvm


def hadoop_path(spark: SparkSession, *parts: Any) -> Any:
    """Return a path of Hadoop's, made of a text, or of a folder and a name."""
    return jvm(spark).org.apache.hadoop.fs.Path(*parts)


def hadoop_files(spark: SparkSession, path: Any) -> Any:
    """Return the file system of a path of Hadoop's."""
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())


def checkpoint_manager(spark: SparkSession, path: Any) -> Any:
    """Return Spark's manager of checkpoint files, which replaces a file atomically."""
    managers = "org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager$"
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    # Another one than Spark's default may not replace files: on S3A the one for few requests does not.
    conf.unset("spark.sql.streaming.checkpointFileManagerClass")
    return getattr(getattr(jvm(spark), managers), "MODULE$").create(path, conf)


def copy_folder(spark: SparkSession, source: Any, target: Any) -> None:
    """Copy a folder, given paths of Hadoop's, which may be of different file systems."""
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    files = hadoop_files(spark, source), hadoop_files(spark, target)
    jvm(spark).org.apache.hadoop.fs.FileUtil.copy(files[0], source, files[1], target, False, conf)


def without_globs(path: str) -> str:
    """Return a path for Spark's readers of files, which take some characters for patterns."""
    return re.sub(r"([][{}*?\\])", r"\\\1", path)


def state_path(spark: SparkSession, path: str) -> str:
    """Return a path of a checkpoint for Spark's reader of states, which escapes it as a URI once too many."""
    # A local path with a space, for instance, is behind a link in the temporary directory, which is removed
    # when this process ends. Raises ValueError for such a path on another file system.
    found = hadoop_path(spark, path)
    files = hadoop_files(spark, found)
    found = files.makeQualified(found)
    if hadoop_path(spark, found.toUri().toString()).equals(found):
        return path
    if files.getScheme() != "file":
        raise ArgumentValueError(
            f"checkpoint must have a path without characters that a URI escapes, got {path!r}: Spark's "
            "reader of states cannot open it; copy the checkpoint to another path"
        )
    return _link_to(found.toUri().getPath())


@cache
def _link_to(path: str) -> str:
    folder = TemporaryDirectory(prefix="timerheap-")
    link = os.path.join(folder.name, "checkpoint")
    os.symlink(path, link)
    atexit.register(folder.cleanup)
    return link


def environment_of_submit() -> set[str]:
    """Return the names of the settings that spark-submit has read."""
    SparkContext._ensure_initialized()
    return {name for name, _ in SparkConf().getAll()}


def spark_home() -> str:
    """Return the directory of the Spark that PySpark starts."""
    return _find_spark_home()


def has_stopped(spark: SparkSession) -> bool:
    """Return whether the application of a session has been stopped."""
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def weak_function(df: DataFrame) -> Any:
    """Return a weak reference of Java to the function of a DataFrame that ``mapInArrow`` has made."""
    # All plans with the function have this one object.
    return jvm(df.sparkSession).java.lang.ref.WeakReference(analyzed(df).functionExpr().func())


@contextmanager
def variables_of_driver(spark: SparkSession) -> Iterator[None]:
    """Have functions that are made within hold the variables that Spark sets in its driver, still empty.

    Queries over one DataFrame share the map of its function, which Spark fills at their first micro-batches,
    and sends with their tasks. A map that grows while it is written cannot be read (OptionalDataException);
    in one that has all names only values are replaced.
    """
    if on_connect(spark):  # which makes a function for each query
        yield
        return
    environment: dict[str, str] = cast(Any, spark.sparkContext).environment
    missing = [name for name in _SET_IN_DRIVER if name not in environment]
    environment.update(dict.fromkeys(missing, ""))
    try:
        yield
    finally:
        for name in missing:
            del environment[name]


def execution_of(query: Any) -> Any:
    """Return the JVM's execution of a streaming query."""
    return query._jsq.streamingQuery()


def cancel_jobs(spark: SparkSession, group: str, why: str) -> None:
    """Cancel the jobs of a group, such as the run of a streaming query."""
    cast(Any, spark.sparkContext)._jsc.sc().cancelJobGroup(group, why)


def analyzed(df: DataFrame) -> Any:
    """Return the analyzed plan of a DataFrame, a node of the JVM."""
    return df._jdf.queryExecution().analyzed()


def children_of(node: Any) -> list[Any]:
    """Return the children of a node of a plan in the JVM."""
    children = node.children()
    return [children.apply(at) for at in range(children.size())]


def patterns_of_plans(spark: SparkSession) -> Any:
    """Return what a node of the JVM can be asked whether it contains: ``CURRENT_LIKE()`` and so on."""
    return jvm(spark).org.apache.spark.sql.catalyst.trees.TreePattern


def analyzed_plan(df: DataFrame) -> str:
    if on_connect(df.sparkSession):
        return str(cast(Any, df)._explain_string(extended=True))
    return cast(str, analyzed(df).toString())


def with_plan_id(df: DataFrame, number: int) -> DataFrame:
    """Set the number of the plan of a Spark Connect DataFrame, and return the DataFrame."""
    cast(Any, df)._plan._root_plan_id = number
    return df


def logical_plan(df: DataFrame) -> Any:
    """Return the plan of a DataFrame, which keeps that it is the DataFrame's."""
    return df._jdf.logicalPlan()


def of_plan(spark: SparkSession, plan: Any) -> DataFrame:
    of_rows = jvm(spark).org.apache.spark.sql.classic.Dataset.ofRows
    return DataFrame(of_rows(spark._jsparkSession, plan), spark)


def nodes_on_connect(df: Any) -> Iterator[tuple[str, str | None, DataFrame | None]]:
    """Yield the nodes of a plan on Spark Connect: kind, alias, and the DataFrame below if there is one."""
    node = df._plan
    while node is not None:
        below = node._child
        yield (
            type(node).__name__,
            getattr(node, "_alias", None),
            None if below is None else type(df)(below, df.sparkSession),
        )
        node = below


def below_on_connect(df: Any) -> tuple[str, str | None, list[DataFrame]]:
    """Return the top of a plan on Spark Connect: its kind, its alias, and the DataFrames below."""
    node = df._plan
    sides = [node._child, getattr(node, "other", None), getattr(node, "right", None)]
    below = [type(df)(side, df.sparkSession) for side in sides if side is not None]
    kind = type(node).__name__
    if kind == "SetOperation":
        kind = str(node.set_op).capitalize()  # such as Union
    return kind, getattr(node, "_alias", None), below


def calls_on_connect(df: Any) -> set[str]:
    """Return the functions that a plan on Spark Connect calls, above what Python has made of groups."""
    found: set[str] = set()

    def visit(message: Any) -> None:
        for field, value in message.ListFields():
            if field.name in ("group_map", "co_group_map", "apply_in_pandas_with_state"):
                continue
            if field.name == "function_name":
                found.add(value.lower())
            elif field.name == "expression" and isinstance(value, str):  # SQL
                found.update(map(str.lower, re.findall(r"(\w+)\s*\(", value)))
            elif field.type == field.TYPE_MESSAGE:
                for each in value if hasattr(value, "append") or hasattr(value, "add") else [value]:
                    visit(each)

    visit(plan_on_connect(df))
    return found


def plan_on_connect(df: Any) -> Any:
    """Return the plan of a DataFrame on Spark Connect, a message."""
    return df._plan.to_proto(df.sparkSession.client).root


def grouping_of(grouped: Any) -> tuple[DataFrame, str, list[Column]] | None:
    """Return the DataFrame, the kind and the columns of a grouped DataFrame, None for anything else."""
    if type(grouped).__module__ == "pyspark.sql.connect.group":  # which needs packages that may be missing
        return grouped._df, grouped._group_type, list(grouped._grouping_cols)
    if not isinstance(grouped, GroupedData):
        return None
    kind = grouped._jgd.toString().rpartition("type: ")[2].rstrip("]").lower()
    expressions = grouped._jgd.groupingExprs()
    to_column = jvm(grouped._df.sparkSession).org.apache.spark.sql.classic.ExpressionUtils.column
    columns = [Column(to_column(expressions.apply(i))) for i in range(expressions.size())]
    return grouped._df, kind, columns


def written_by(writer: Any) -> tuple[DataFrame, str | None]:
    """Return what a writer of a stream writes, and its checkpoint."""
    if not on_connect(writer):
        options = writer._jwrite.getClass().getDeclaredField("extraOptions")
        options.setAccessible(True)
        found = options.get(writer._jwrite).get("checkpointLocation")
        return writer._df, found.get() if found.isDefined() else None
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame

    options = {name.lower(): value for name, value in writer._write_proto.options.items()}
    df: Any = ConnectDataFrame(writer._write_stream._child, writer._session)
    return df, options.get("checkpointlocation")


class SortOrder(NamedTuple):
    """How rows are ordered by a column."""

    column: Column
    descending: bool
    nulls_first: bool


def sort_order(column: Column, spark: SparkSession) -> SortOrder:
    """Return the order that a column of a session says, as ``desc_nulls_last()`` does; else ascending."""
    if on_connect(spark):
        from pyspark.sql.connect.column import Column as ConnectColumn
        from pyspark.sql.connect.expressions import SortOrder as Sorted

        expression = cast(Any, column)._expr
        if not isinstance(expression, Sorted):
            return SortOrder(column, False, True)
        child: Any = ConnectColumn(expression._child)
        return SortOrder(child, not expression._ascending, expression._nullsFirst)
    from pyspark.sql.classic.column import Column as ClassicColumn

    node = cast(Any, column)._jc.node()
    if _java_name(node) != "SortOrder":
        return SortOrder(column, False, True)
    to_column = jvm(spark).org.apache.spark.sql.Column
    descending, nulls_first = (
        _java_name(each).rstrip("$") for each in (node.sortDirection(), node.nullOrdering())
    )
    return SortOrder(
        ClassicColumn(to_column(node.child())), descending == "Descending", nulls_first == "NullsFirst"
    )


class FunctionCall(NamedTuple):
    """A call of a function."""

    column: Column  # without aliases
    name: str
    is_distinct: bool
    arguments: list[Column]
    of_rows: bool  # it has no argument, or the first is "*" or a constant other than null


def function_call(column: Column, spark: SparkSession) -> FunctionCall | None:
    """Return the call of which a column of a session is the result, None if it is no such column."""
    return _of_connect(column) if on_connect(spark) else _of_classic(column, spark)


def _of_classic(column: Any, spark: SparkSession) -> FunctionCall | None:
    from pyspark.sql.classic.column import Column as ClassicColumn

    node = column._jc.node()
    while _java_name(node) == "Alias":
        node = node.child()
    if _java_name(node) != "UnresolvedFunction":
        return None
    given = node.arguments()
    nodes = [given.apply(at) for at in range(given.size())]
    to_column = jvm(spark).org.apache.spark.sql.Column
    return FunctionCall(
        ClassicColumn(to_column(node)),
        node.functionName(),
        node.isDistinct(),
        [ClassicColumn(to_column(one)) for one in nodes],
        not nodes or _is_of_rows(nodes[0]),
    )


def _is_of_rows(node: Any) -> bool:
    name = _java_name(node)
    return name == "UnresolvedStar" or (name == "Literal" and node.value() is not None)


def _java_name(node: Any) -> str:
    return cast(str, node.getClass().getSimpleName())


def _of_connect(column: Any) -> FunctionCall | None:
    from pyspark.sql.connect.column import Column as ConnectColumn
    from pyspark.sql.connect.expressions import (
        ColumnAlias,
        LiteralExpression,
        UnresolvedFunction,
        UnresolvedStar,
    )

    node = column._expr
    while isinstance(node, ColumnAlias):
        node = node._child
    if not isinstance(node, UnresolvedFunction):
        return None
    given = node._args
    return FunctionCall(
        ConnectColumn(node),
        node._name,
        node._is_distinct,
        [ConnectColumn(one) for one in given],
        not given
        or isinstance(given[0], UnresolvedStar)
        or (isinstance(given[0], LiteralExpression) and given[0]._value is not None),
    )


def timeout_kind(state: GroupState) -> str:
    """Return the timeout that ``applyInPandasWithState`` was called with."""
    return state._timeout_conf


def type_of_state(state: GroupState) -> T.StructType:
    return state._value_schema


def forget_timeout(state: GroupState) -> None:
    """Have a group without a timeout, which Spark's own methods cannot set."""
    state._timeout_timestamp = state.NO_TIMESTAMP


class TaskInput:
    """The stream of a task of ``mapInArrow`` whose function has this, and reads the stream itself.

    Otherwise PySpark reads it, in a thread of its own. The stream is known after ``mapInArrow`` has given the
    function its batches, none of which are there then.
    """

    stream: BufferedReader

    def __reduce__(self) -> tuple[Callable[[], TaskInput], tuple[()]]:
        return _task_input, ()


def _task_input() -> TaskInput:
    """Return the input of the task whose function is read, the next stream that PySpark begins to load."""
    found, load = TaskInput(), ArrowStreamSerializer.load_stream

    def none(_: ArrowStreamSerializer, stream: BufferedReader) -> Iterator[pa.RecordBatch]:
        ArrowStreamSerializer.load_stream = load  # type: ignore[method-assign]
        found.stream = stream
        return iter(())

    ArrowStreamSerializer.load_stream = none  # type: ignore[method-assign,assignment]
    return found


class StateClient:
    """The calls of a task to Spark's state store.

    This needs three methods that PySpark does not promise to keep: ``set_implicit_key``,
    ``_receive_proto_message`` and ``_deserialize_from_bytes``.
    """

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        try:
            client = cast(Any, handle)._statefulProcessorApiClient
            self.set_key: Callable[[tuple[int]], None] = client.set_implicit_key
            self.receive: Callable[[], tuple[int, str, bytes]] = client._receive_proto_message
            self.parse: Callable[[bytes], tuple[str]] = client._deserialize_from_bytes
        except AttributeError as e:
            raise RuntimeError(
                f"pyspark must have what timerheap needs to call the state store, got pyspark {__version__}, "
                f"where {e}; install pyspark 4.1, 4.2 or 4.3"
            ) from None
        self._client = client

    def answer_with(self, answer: Callable[[], tuple[int, str, bytes]]) -> None:
        """Have all calls take their answers from a function, not from Spark."""
        self._client._receive_proto_message = answer

    @property
    def socket(self) -> object:
        """The connection to Spark."""
        return getattr(self._client, "_client_socket", None)


def sends_files(spark: SparkSession) -> bool:
    """Return whether an application sends files to its workers."""
    context: Any = spark.sparkContext
    names = ("submit.pyFiles", "archives", "files")
    return any([*(context.getConf().get(f"spark.{name}") for name in names), *context._python_includes])


def local_cores(spark: SparkSession) -> int | None:
    """Return how many tasks a local Spark runs at a time; None on a cluster, whose executors come and go."""
    context: Any = spark.sparkContext._jsc
    if not context.isLocal():
        return None
    profile = context.sc().resourceProfileManager().defaultResourceProfile()
    return int(context.sc().maxNumConcurrentTasks(profile))


def name_sink(writer: DataStreamWriter, name: str) -> None:
    """Name the sink of a writer; PySpark has no method for it, Scala and Java do."""
    of_java: Any = writer
    of_java._jwrite.name(name)


def real_time_trigger(writer: DataStreamWriter, epoch: str) -> None:
    """Have a query run in real-time mode, which Python knows from PySpark 4.3 on."""
    trigger: Any = writer.trigger
    try:
        trigger(realTime=epoch)
    except TypeError:
        raise UnsupportedError(f"start_real_time() needs PySpark 4.3 or newer, got {__version__}") from None
