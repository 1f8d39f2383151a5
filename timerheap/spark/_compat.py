"""What differs between the versions of PySpark that timerheap runs on, and on Spark Connect."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa
from pyspark import __version__
from pyspark.sql import Column, DataFrame, Row, SparkSession, conversion
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas import types
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StructField,
    StructType,
    TimestampType,
    UserDefinedType,
)

from timerheap._moments import local_time, micros_of
from timerheap.spark._arrow import map_type

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


def _if_known(function: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """Return those of the options that are arguments of a function."""
    known = signature(function).parameters
    return {name: value for name, value in options.items() if name in known}


_UTC = _if_known(types.to_arrow_schema, timezone="UTC")  # before 4.2 timestamps are in UTC without it
_LARGE_RESULTS = tuple(map(int, __version__.split(".")[:2])) >= (4, 3)
_TUPLES = _if_known(ArrowTableToRowsConversion.convert, return_as_tuples=True)  # 4.0: Rows, also tuples


def to_arrow_schema(schema: StructType, *, large: bool = False) -> pa.Schema:
    """Return the Arrow schema of a type, with timestamps in UTC, and text and bytes of large types or not."""
    return types.to_arrow_schema(schema, **_UTC, prefers_large_types=large)


def in_types_of_spark(results: pa.Table, type_: StructType, packed: pa.Table) -> pa.Table:
    """Return results in the Arrow types that Spark expects of ``applyInArrow`` with the input `packed`."""
    large = pa.types.is_large_binary(packed.schema.field("blob").type)  # spark...arrow.useLargeVarTypes
    return results.cast(to_arrow_schema(type_, large=large and _LARGE_RESULTS))


def to_arrow_type(type_: DataType) -> pa.DataType:
    """Return the Arrow type of a type, with timestamps in UTC."""
    return types.to_arrow_type(type_, **_UTC)


class _Moment(UserDefinedType):
    """A timestamp in local time; PySpark's own conversions lose its ``fold``."""

    @classmethod
    def sqlType(cls) -> DataType:
        return LongType()

    def serialize(self, obj: Any) -> Any:
        return micros_of(obj)

    def deserialize(self, datum: Any) -> Any:
        return local_time(datum)


def with_moments(type_: DataType) -> Any:
    """Return a type that converts timestamps from and to numbers, and keeps their ``fold``."""
    if isinstance(type_, TimestampType):
        return _Moment()
    if isinstance(type_, ArrayType):
        return ArrayType(with_moments(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(with_moments(type_.keyType), with_moments(type_.valueType))
    if isinstance(type_, StructType):
        return StructType([StructField(field.name, with_moments(field.dataType)) for field in type_])
    return type_


def _number(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if getattr(type_, "tz", None) else type_


def _with_numbers(table: pa.Table, type_: StructType) -> tuple[pa.Table, Any]:
    columns, types = [], []
    for field, column in zip(type_, table.columns, strict=True):
        number, own = map_type(column.type, _number), '"type":"udt"' not in field.json()
        columns.append(column.cast(number) if own and number != column.type else column)
        types.append(StructField(field.name, with_moments(field.dataType)) if own else field)
    return pa.Table.from_arrays(columns, names=type_.names), StructType(types)


def to_tuples(table: pa.Table, type_: StructType) -> list[tuple[Any, ...]]:
    """Return the rows of a table as Python values, in tuples."""
    return ArrowTableToRowsConversion.convert(*_with_numbers(table, type_), **_TUPLES)


def to_rows(table: pa.Table, type_: StructType) -> list[Row]:
    """Return the rows of a table as PySpark does."""
    rows: Any = ArrowTableToRowsConversion.convert(*_with_numbers(table, type_))
    return cast(list[Row], rows)


def to_frame(batch: pa.RecordBatch, zone: str) -> pd.DataFrame:
    """Return the DataFrame that a pandas function receives for a batch; its columns are numbered."""
    import pandas as pd  # not where rows are packed

    if hasattr(conversion, "ArrowBatchTransformer"):
        series: Any = conversion.ArrowBatchTransformer.to_pandas(batch, timezone=zone)
    else:
        convert = _serializer(zone).arrow_to_pandas
        number = _if_known(convert, idx=0)  # in 4.1, for types that it is not told
        series = [convert(column, **number) for column in batch.columns]
    frame: pd.DataFrame = pd.concat(series, axis=1)
    return frame


def to_record_batch(
    frame: pd.DataFrame,
    type_: StructType,
    zone: str,
    *,
    safe: bool = False,
    ints_to_decimals: bool = False,
    by_name: bool = True,
    infer: bool = True,
) -> pa.RecordBatch:
    """Return what Spark makes of a DataFrame that a pandas function returns.

    Values that are not of their column's type are cast from the one type that Arrow infers for all of them,
    or are an error without `infer`.
    """
    if hasattr(conversion, "PandasToArrowConversion"):
        batch = conversion.PandasToArrowConversion.convert(
            [frame],
            StructType([StructField("_0", type_)]),
            timezone=zone,
            safecheck=safe,
            arrow_cast=infer,
            assign_cols_by_name=by_name,
            int_to_decimal_coercion_enabled=ints_to_decimals,
        )
        columns = batch.column(0).flatten()
    else:
        serializer = _serializer(zone, safe, ints_to_decimals, by_name, infer)
        columns = serializer._create_struct_array(frame, to_arrow_type(type_)).flatten()
    return pa.RecordBatch.from_arrays(columns, names=type_.names)


def on_connect(spark: SparkSession) -> bool:
    """Return whether a session is of Spark Connect, which has neither a JVM nor a SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def refuse_connect(spark: SparkSession, what: str) -> None:
    """Raise an error if a session is of Spark Connect, where `what` is not supported."""
    if on_connect(spark):
        raise NotImplementedError(
            f"{what} is not supported on Spark Connect, which has no access to the JVM; use a "
            "classic session: SparkSession.builder.master(...)"
        )


def with_columns(df: DataFrame, columns: dict[str, Column]) -> DataFrame:
    """Add columns, or none, which Spark Connect refuses."""
    return df.withColumns(columns) if columns else df


def analyzed_plan(df: DataFrame) -> str:
    """Return the text of the analyzed plan of a DataFrame."""
    if on_connect(df.sparkSession):
        return str(cast(Any, df)._explain_string(extended=True))
    return cast(str, df._jdf.queryExecution().analyzed().toString())


def of_plan(spark: SparkSession, plan: Any) -> DataFrame:
    """Return the DataFrame of a logical plan of the JVM."""
    of_rows = cast(Any, spark._jvm).org.apache.spark.sql.classic.Dataset.ofRows
    return DataFrame(of_rows(spark._jsparkSession, plan), spark)


def _serializer(
    zone: str, safe: bool = False, ints_to_decimals: bool = False, by_name: bool = True, infer: bool = True
) -> Any:
    """Return what converted the frames of a pandas function before 4.2."""
    from pyspark.sql.pandas import serializers

    make = cast(Any, serializers).ArrowStreamPandasUDFSerializer
    coercion = _if_known(make, int_to_decimal_coercion_enabled=ints_to_decimals)
    return make(zone, safe, by_name, arrow_cast=infer, **coercion)
