"""Plans UNNEST, LATERAL and VALUES, which Spark computes."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import computed_name
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sql.nodes import Exploded, Listed

_PLACE, _VALUE = computed_name(1, "place"), computed_name(1, "value")


def exploded_rows(node: Exploded, df: DataFrame) -> DataFrame:
    """Return each row with every one of its values; weights of changes stay."""
    if node.ordinality is None:
        return df.select("*", _named_values(df, F.expr(node.text), node))
    values, element = F.expr(node.text), T.DataType()
    type_ = df.select(values).schema[0].dataType
    if isinstance(type_, T.MapType):
        values, element = F.map_entries(values), T.StructType()
    elif isinstance(type_, T.ArrayType):
        element = type_.elementType
    else:
        raise ArgumentValueError(
            f"query: UNNEST({node.text}) must be of an array or a map, got {type_.simpleString()}; "
            "write UNNEST(ARRAY[x])"
        )
    names = df.columns
    explode = F.posexplode_outer if node.outer else F.posexplode
    df = df.select("*", explode(values).alias(_PLACE, _VALUE))
    fields = [quoted(_VALUE)]
    if isinstance(element, T.StructType):
        inner = df.schema[_VALUE].dataType
        assert isinstance(inner, T.StructType)
        fields = [quoted(_VALUE)[name].alias(name) for name in inner.names]
    elif not node.columns:
        fields = [quoted(_VALUE).alias("col")]
    if node.columns:
        if len(node.columns) != len(fields):
            _refuse_names(node, len(fields))
        fields = [column.alias(name) for column, name in zip(fields, node.columns, strict=True)]
    place = [(quoted(_PLACE) + 1).alias(node.ordinality)] if node.ordinality else []
    return df.select(*map(quoted, names), *fields, *place)


def _named_values(df: DataFrame, made: Column, node: Exploded) -> Column:
    """Return what a function makes with the names that the query gives to its columns."""
    count = len(df.select(made).columns)
    if not node.columns:
        return made
    if count != len(node.columns):
        _refuse_names(node, count)
    return made.alias(*node.columns)


def _refuse_names(node: Exploded, count: int) -> None:
    raise ArgumentValueError(
        f"query: {node.text} must have a name for each of its {count} columns, got {list(node.columns)}; "
        "write AS T(a, b)"
    )


def listed_rows(node: Listed, spark: SparkSession) -> DataFrame:
    """Return the rows that a query lists."""
    df = spark.sql(f"SELECT * FROM {node.text}")
    if node.columns and len(node.columns) != len(df.columns):
        raise ArgumentValueError(
            f"query: {node.text} must have a name for each of its {len(df.columns)} columns, got "
            f"{list(node.columns)}; write AS T(a, b)"
        )
    return df.toDF(*node.columns) if node.columns else df
