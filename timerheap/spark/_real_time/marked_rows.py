"""How an operator in real-time mode tells the next one its watermark: by rows among its results.

Behind each step an operator sends a row without results, whose column `MARK` is the watermark that it has
reached. It comes after all results that this watermark lets pass, through the same task. The projections and
filters that Spark has between two operators are made to let it through, and to compute nothing of it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.errors import UnsupportedError
from timerheap.spark._columns import MARK, MARKED
from timerheap.spark._compat import analyzed, jvm, of_plan


def without_marks(rows: DataFrame) -> DataFrame:
    """Return the results among the rows of an operator; `with_marks` finds the others again."""
    return rows.alias(MARKED).where(F.col(MARK).isNull()).drop(MARK)


def with_marks(df: DataFrame) -> DataFrame:
    """Return the rows of `df`, results of an operator, with the column `MARK` and the rows that have it.

    Raises UnsupportedError where Spark does more between than to choose rows and columns.
    """
    plan, _ = _Marking(df.sparkSession).through(analyzed(df))
    return of_plan(df.sparkSession, plan)


class _Marking:
    """Rewrites plans in the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = jvm(spark)
        catalyst = self._jvm.org.apache.spark.sql.catalyst
        self._expressions, self._logical = catalyst.expressions, catalyst.plans.logical

    def through(self, node: Any) -> tuple[Any, Any]:
        """Return a plan whose rows have `MARK` as their last column, and this column."""
        name = node.nodeName()
        if name == "SubqueryAlias" and node.alias() == MARKED:
            return node, node.output().last()
        if name not in ("Filter", "Project", "SubqueryAlias"):
            raise UnsupportedError(
                "df must be a source or the results of one operator in real-time mode, with no more than "
                f"select() and where() between, got Spark's {name} between; write the results to a sink, and "
                "read that in a query of its own"
            )
        below, mark = self.through(node.child())
        if name == "Filter":
            passes = self._expressions.Or(self._expressions.IsNotNull(mark), node.condition())
            return self._logical.Filter(passes, below), mark
        if name == "Project":
            columns = node.projectList()
            kept = [self._of_results(columns.apply(at), mark) for at in range(columns.size())]
            return self._logical.Project(self._seq([*kept, mark]), below), mark
        return node.withNewChildren(self._seq([below])), mark

    def _of_results(self, column: Any, mark: Any) -> Any:
        """Return a column of a projection that is null in rows with a mark."""
        if column.nodeName() != "Alias":
            return column
        value = column.child()
        nothing = self._expressions.Literal(None, value.dataType())
        of_results = self._expressions.If(self._expressions.IsNull(mark), value, nothing)
        return column.withNewChildren(self._seq([of_results]))

    def _seq(self, each: Any) -> Any:
        found = self._jvm.java.util.ArrayList()
        for one in each:
            found.add(one)
        return self._jvm.PythonUtils.toSeq(found)
