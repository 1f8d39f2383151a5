"""Takes the metrics of the tasks out of the results, into the progress of the query."""

from __future__ import annotations

import re
from typing import Any, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from timerheap.spark._plan.arguments import quoted
from timerheap.spark._worker.task_metrics import METRICS, TASK_METRICS

__all__ = ["OBSERVED", "observed", "with_metrics"]

OBSERVED = "timerheap"
"""Name of the metrics of a query's first operator; those of operators behind it are numbered from 2."""

_DATAFRAME = -1  # the id of no DataFrame


def with_metrics(result: StructType) -> StructType:
    """Return the type of the operator's output: results, and the column of metrics, all nullable."""
    nullable = result._as_nullable()
    return StructType([*nullable.fields, StructField(METRICS, StringType())])


def observed(output: DataFrame, df: DataFrame) -> DataFrame:
    """Return the results among the output of an operator, whose input is `df`, and observe its metrics."""
    results = [quoted(name) for name in output.columns if name != METRICS]
    # Spark allows the time of the micro-batch in rows, but not in metrics.
    now = F.unix_millis(F.current_timestamp()).cast("string")
    values = F.split(F.concat_ws(",", METRICS, now), ",")
    split = output.select(*results, F.when(F.col(METRICS).isNotNull(), values).alias(METRICS))
    metrics = split.observe(_name(df), *_metrics())
    return _repeatable(metrics).where(F.col(METRICS).isNull()).select(*results)


def _name(df: DataFrame) -> str:
    """Return a name that no operator before this one has."""
    plan = df._jdf.queryExecution().analyzed().toString()
    numbers = [int(number or 1) for number in re.findall(rf"CollectMetrics {OBSERVED}(?:_(\d+))?,", plan)]
    return f"{OBSERVED}_{max(numbers) + 1}" if numbers else OBSERVED


def _metrics() -> list[Column]:
    """Return the columns of the observed metrics, which are null where nothing is known."""

    def combined_by(combine: str, place: int) -> Column:
        return cast(Column, getattr(F, combine)(F.get(METRICS, F.lit(place)).try_cast("bigint")))

    combined = {m.name: combined_by(m.combine, place) for place, m in enumerate(TASK_METRICS)}
    complete = combined.pop("groups") == combined.pop("max_parallelism")
    for metric in TASK_METRICS:
        if metric.of_all:
            combined[metric.name] = F.when(complete, combined[metric.name])
    watermark = combined["watermark"]
    combined["event_time_lag"] = combined["newest_event_time"] - watermark
    combined["clock_lag"] = combined_by("max", len(TASK_METRICS)) - watermark
    return [column.alias(name) for name, column in combined.items()]


def _repeatable(observed: DataFrame) -> DataFrame:
    """Return a DataFrame of ``observe()`` that may stand twice in a query.

    Spark refuses two metrics of one name, as in the union of the results of two operators, unless they belong
    to one DataFrame. The progress then has the metrics of one of them.
    """
    spark = observed.sparkSession
    node = observed._jdf.logicalPlan()
    node = node.copy(node.name(), node.metrics(), node.child(), _DATAFRAME)
    jvm: Any = spark._jvm
    of_rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows
    return DataFrame(of_rows(spark._jsparkSession, node), spark)
