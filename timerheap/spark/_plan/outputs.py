"""Side outputs and late rows: the tags of a function, and the DataFrame of each."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import LATE_BY, LATE_ROWS, OUTPUTS, SIDE_OUTPUT
from timerheap.spark._compat import nullable
from timerheap.spark._query import Query
from timerheap.types import arrow_type


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
        raise ArgumentValueError(
            f"output_schema must not have a column {SIDE_OUTPUT!r} in a query with side outputs or late "
            "rows; rename it"
        )
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise ArgumentValueError(
            f'side_outputs must not have the id {LATE_ROWS!r} with late="emit"; rename it'
        )
    return StructType([*nullable(query.result).fields, StructField(SIDE_OUTPUT, StructType(fields))])


def late_type(row: StructType) -> StructType:
    """Return the type of late rows with `LATE_BY`."""
    if LATE_BY in map(str.lower, row.names):
        raise ArgumentValueError(
            f'df must not have a column {LATE_BY!r} with late="emit", which adds it; rename it'
        )
    return StructType([*nullable(row).fields, StructField(LATE_BY, LongType())])


def results_of(outputs: DataFrame) -> DataFrame:
    """Return the results without the side outputs, which `outputs_of` finds behind them."""
    return outputs.alias(OUTPUTS).where(F.col(SIDE_OUTPUT).isNull()).drop(SIDE_OUTPUT)
