"""Takes the metrics of the tasks out of the results, into the progress of the query."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from timerheap.spark._compat import analyzed_plan, on_connect
from timerheap.spark._plan.arguments import quoted
from timerheap.spark._worker.task_metrics import METRICS, TASK_METRICS

__all__ = ["OBSERVED", "observed", "with_metrics"]

OBSERVED = "timerheap"
"""Name of the metrics of a query's first operator; those of operators behind it are numbered from 2."""

_DATAFRAME = -1  # the id of no DataFrame
_PARSED = ", ".join(f"{metric.name} bigint" for metric in TASK_METRICS)


def with_metrics(result: StructType) -> StructType:
    """Return the type of the operator's output: results, and the column of metrics, all nullable."""
    nullable = result._as_nullable()
    return StructType([*nullable.fields, StructField(METRICS, StringType())])


def observed(output: DataFrame, df: DataFrame) -> DataFrame:
    """Return the results among the output of an operator, whose input is `df`, and observe its metrics.

    On Spark Connect nothing is observed: two operators of one name could not be told apart there.
    """
    results = [quoted(name) for name in output.columns if name != METRICS]
    if on_connect(df.sparkSession):
        return output.where(F.col(METRICS).isNull()).select(*results)
    # Each expression costs each micro-batch, also one of few rows: so the text is parsed in one of them.
    parsed = output.select(*results, F.from_csv(METRICS, _PARSED).alias(METRICS))
    combined = [getattr(F, m.combine)(f"{METRICS}.{m.name}").alias(m.name) for m in TASK_METRICS]
    metrics = parsed.observe(_name(df), *combined)
    return _repeatable(metrics).where(F.col(METRICS).isNull()).select(*results)


def _name(df: DataFrame) -> str:
    """Return a name that no operator before this one has."""
    plan = analyzed_plan(df)
    numbers = [int(number or 1) for number in re.findall(rf"CollectMetrics {OBSERVED}(?:_(\d+))?,", plan)]
    return f"{OBSERVED}_{max(numbers) + 1}" if numbers else OBSERVED


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
