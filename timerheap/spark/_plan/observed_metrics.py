"""The metrics of tasks, merged by Spark and observed by the query, beside the results of the operator."""

from __future__ import annotations

import json
from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from timerheap.spark._columns import HAS_WATERMARK, METRICS, RESULTS
from timerheap.spark._compat import (
    logical_plan,
    nullable,
    of_plan,
    on_connect,
    with_plan_id,
)

METRIC_MAP = "metrics"  # among the observed ones
_NO_DATAFRAME = -1  # the id of no DataFrame
_VALUES = {"distributions": "struct<count: bigint, sum: bigint, min: bigint, max: bigint>"}  # others: bigint
_MERGES: dict[str, Callable[[Column, Column], Column]] = {
    "sum": F.try_add,
    "min": F.least,
    "max": F.greatest,
    "counters": F.try_add,
    "distributions": lambda a, b: F.struct(
        F.try_add(a["count"], b["count"]).alias("count"),
        *(_MERGES[name](a[name], b[name]).alias(name) for name in ("sum", "min", "max")),
    ),
}
"""What makes one value of two, for each object in the metrics of a task."""


def output_type(result: StructType, has_watermark: bool, flat: bool = False) -> StructType:
    """Return the type of what the operator of a stream returns: results, or arrays of them, and metrics."""
    if flat:  # with a row of metrics, in which they are null
        fields = nullable(result).fields
    else:
        fields = [StructField(RESULTS, ArrayType(result, containsNull=False))]
    return StructType([*fields, StructField(METRICS, StringType(), metadata={HAS_WATERMARK: has_watermark})])


def with_metrics(output: DataFrame, operator: str, has_own: bool = False) -> DataFrame:
    """Return the results in the output of an operator, and observe its metrics under its name."""
    # They are a map, "metrics". If its function `has_own`, these are two more, "counters" and
    # "distributions".
    own = [_merged(kind).alias(kind) for kind in ("counters", "distributions") if has_own]
    metrics = _merged("sum", "min", "max").alias(METRIC_MAP)
    return _results(_repeatable(output.observe(operator, metrics, *own)))


def _merged(*kinds: str) -> Column:
    """Return the aggregate of objects in the metrics of tasks: one map."""
    # Spark generates code for the aggregates of other functions anew in each task, 0.3 ms of CPU for each of
    # 20 numbers. It does not for collect_list, and merges on the driver what that has collected.
    type_ = ", ".join(f"{kind} map<string, {_VALUES.get(kind, 'bigint')}>" for kind in kinds)

    def merged(kind: str, so_far: Column, one: Column) -> Column:
        return F.map_zip_with(
            so_far[kind],
            one[kind],
            lambda _, a, b: F.when(a.isNull(), b).when(b.isNull(), a).otherwise(_MERGES[kind](a, b)),
        ).alias(kind)

    return F.reduce(
        F.transform(F.collect_list(METRICS), lambda text: F.from_json(text, type_)),
        F.from_json(F.lit(json.dumps({kind: {} for kind in kinds})), type_),
        lambda so_far, one: F.struct(*(merged(kind, so_far, one) for kind in kinds)),
        lambda maps: F.map_concat(*(maps[kind] for kind in kinds)),
    )


def _results(output: DataFrame) -> DataFrame:
    if output.columns == [RESULTS, METRICS]:
        return output.select(F.inline(RESULTS))
    return output.where(F.col(METRICS).isNull()).drop(METRICS)


def _repeatable(observed: DataFrame) -> DataFrame:
    """Return a DataFrame of ``observe()`` that may stand twice in a query."""
    # Spark refuses two metrics of one name, as in the union of the results of two operators, unless they
    # belong to one DataFrame. The progress then has the metrics of one of them: users give them names.
    if on_connect(observed.sparkSession):
        return with_plan_id(observed, _NO_DATAFRAME)
    node = logical_plan(observed)
    node = node.copy(node.name(), node.metrics(), node.child(), _NO_DATAFRAME)
    return of_plan(observed.sparkSession, node)
