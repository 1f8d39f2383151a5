"""Takes the metrics of the tasks out of the results, into the progress of the query."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from timerheap.spark._compat import analyzed_plan, on_connect
from timerheap.spark._worker.result_frames import METRICS, RESULTS
from timerheap.spark._worker.task_metrics import TASK_METRICS

__all__ = ["OBSERVED", "has_namesakes", "observed", "output_type", "renamed"]

OBSERVED = "timerheap"
"""Name of the metrics of a query's first operator; those of operators behind it are numbered from 2."""

_DATAFRAME = -1  # the id of no DataFrame
_PARSED = ", ".join(f"{metric.name} bigint" for metric in TASK_METRICS)
_OWN = "own"  # the metrics of the function, behind the others
_DISTRIBUTION = "struct<count: bigint, sum: bigint, min: bigint, max: bigint>"
_COUNTERS, _DISTRIBUTIONS = "map<string, bigint>", f"map<string, {_DISTRIBUTION}>"


def output_type(result: StructType, flat: bool = False) -> StructType:
    """Return the type of what the operator of a stream returns: results, or arrays of them, and metrics."""
    if flat:  # with a row of metrics, in which they are null
        fields = result._as_nullable().fields
    else:
        fields = [StructField(RESULTS, ArrayType(result, containsNull=False))]
    return StructType([*fields, StructField(METRICS, StringType())])


def observed(output: DataFrame, df: DataFrame, has_own: bool = False) -> DataFrame:
    """Return the results in the output of an operator, whose input is `df`, and observe its metrics.

    If its function has metrics of its own, these are maps beside the others, ``counters`` and
    ``distributions``, since their names may only be known when the query runs. On Spark Connect nothing is
    observed: two operators of one name could not be told apart there.
    """
    if on_connect(df.sparkSession):
        return _results(output)
    # Each expression costs each micro-batch, also one of few rows: so the text is parsed in one of them.
    fields = f"{_PARSED}, {_OWN} string" if has_own else _PARSED
    parsed = output.withColumn(METRICS, F.from_csv(METRICS, fields))
    combined = [getattr(F, m.combine)(f"{METRICS}.{m.name}").alias(m.name) for m in TASK_METRICS]
    if has_own:
        own = F.from_json(
            F.unbase64(f"{METRICS}.{_OWN}").cast("string"),
            f"counters {_COUNTERS}, distributions {_DISTRIBUTIONS}",
        )
        combined.append(_merged(own.getField("counters"), _COUNTERS, F.try_add).alias("counters"))
        distributions = _merged(own.getField("distributions"), _DISTRIBUTIONS, _merged_distribution)
        combined.append(distributions.alias("distributions"))
    metrics = parsed.observe(_name(df), *combined)
    return _results(_repeatable(metrics))


def _results(output: DataFrame) -> DataFrame:
    if output.columns == [RESULTS, METRICS]:
        return output.select(F.inline(RESULTS))
    return output.where(F.col(METRICS).isNull()).drop(METRICS)


def _merged(maps: Column, type_: str, merge: Callable[[Column, Column], Column]) -> Column:
    """Return the aggregate of maps: one map, whose values are those of equal keys, merged."""
    return F.reduce(
        F.collect_list(maps),
        F.from_json(F.lit("{}"), type_),
        lambda so_far, one: F.map_zip_with(
            so_far, one, lambda _, a, b: F.when(a.isNull(), b).when(b.isNull(), a).otherwise(merge(a, b))
        ),
    )


def _merged_distribution(a: Column, b: Column) -> Column:
    merges: dict[str, Any] = {"count": F.try_add, "sum": F.try_add, "min": F.least, "max": F.greatest}
    return F.struct(*(merge(a[name], b[name]).alias(name) for name, merge in merges.items()))


def _name(df: DataFrame) -> str:
    """Return a name that no operator before this one has."""
    plan = analyzed_plan(df)
    numbers = [int(number or 1) for number in re.findall(rf"CollectMetrics {OBSERVED}(?:_(\d+))?,", plan)]
    return f"{OBSERVED}_{max(numbers) + 1}" if numbers else OBSERVED


def renamed(result: DataFrame, name: str) -> DataFrame:
    """Return the result of an operator, whose metrics have this name."""
    plan = result._jdf.queryExecution().analyzed()
    above: list[Any] = []
    node = plan
    while not _is_of_operator(node):
        if node.children().size() != 1:
            raise ValueError(
                "df must be the result of one operator, such as timerheap.spark.process() returns it, got "
                f"{result!r}; call named() before results are combined"
            )
        above.append(node)
        node = node.children().head()
    if name != node.name() and f"CollectMetrics {name}," in plan.toString():
        raise ValueError(f"name must differ from the other metrics of the query, got {name!r}")
    spark = result.sparkSession
    to_seq = spark._jvm.PythonUtils.toSeq  # type: ignore[union-attr]
    node = node.copy(name, node.metrics(), node.child(), _DATAFRAME)
    for parent in reversed(above):
        node = parent.withNewChildren(to_seq([node]))
    return _of_plan(spark, node)


def _is_of_operator(node: Any) -> bool:
    """Return whether a node of a plan is the observation of an operator."""
    return node.nodeName() == "CollectMetrics" and METRICS in node.child().schema().fieldNames()


def has_namesakes(query: StreamingQuery, name: str) -> bool:
    """Return whether several operators of a query that has had a micro-batch have this name."""
    execution: Any = query._jsq.streamingQuery()
    # The first metric of an operator has an id of its own, also where a result stands twice in the query.
    first = rf"CollectMetrics {re.escape(name)}, \[.*? AS {TASK_METRICS[0].name}#(\d+)L"
    return len(set(re.findall(first, execution.logicalPlan().toString()))) > 1


def _repeatable(observed: DataFrame) -> DataFrame:
    """Return a DataFrame of ``observe()`` that may stand twice in a query.

    Spark refuses two metrics of one name, as in the union of the results of two operators, unless they belong
    to one DataFrame. The progress then has the metrics of one of them; see `renamed`.
    """
    node = observed._jdf.logicalPlan()
    node = node.copy(node.name(), node.metrics(), node.child(), _DATAFRAME)
    return _of_plan(observed.sparkSession, node)


def _of_plan(spark: Any, plan: Any) -> DataFrame:
    jvm: Any = spark._jvm
    of_rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows
    return DataFrame(of_rows(spark._jsparkSession, plan), spark)
