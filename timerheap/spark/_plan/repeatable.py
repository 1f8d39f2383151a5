"""Which expressions of a plan may compute something else when a row of the same values comes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from timerheap.spark._columns import METRICS
from timerheap.spark._compat import analyzed, calls_on_connect, on_connect, patterns_of_plans

# Nodes whose rows are what other code has made of groups of rows: what is below them is its own matter.
_MADE = ("CoGroup", "FlatMap", "MapGroups", "TransformWithState")
_UNREPEATABLE_CALLS = {
    "current_date", "current_timestamp", "curdate", "input_file_name", "localtimestamp",
    "monotonically_increasing_id", "now", "rand", "randn", "random", "randstr", "shuffle",
    "spark_partition_id", "uniform", "uuid",
}  # fmt: skip


class Unrepeatable(NamedTuple):
    """Expressions between the rows of a DataFrame and the operator or source that has made them.

    changing: those that are different each time
    python: those in Python, of which nobody knows
    """

    changing: list[str]
    python: list[str]


def unrepeatable(df: DataFrame) -> Unrepeatable:
    """Return the expressions that may give something else for the same row."""
    if on_connect(df.sparkSession):
        calls = calls_on_connect(df) & _UNREPEATABLE_CALLS
        return Unrepeatable([f"{call}()" for call in sorted(calls)], [])
    patterns = patterns_of_plans(df.sparkSession)
    found = Unrepeatable([], [])
    for node in _nodes(analyzed(df)):
        if node.nodeName() == "Sample":
            found.changing.append("sample()")
        for expression in _each(node.expressions()):
            if not expression.deterministic() or expression.containsPattern(patterns.CURRENT_LIKE()):
                found.changing.append(_culprit(expression, patterns))
            elif expression.containsPattern(patterns.PYTHON_UDF()):
                found.python.append(node.nodeName() if node.nodeName().startswith("Map") else "a Python UDF")
    return found


def _nodes(node: Any) -> Iterator[Any]:
    """Yield the nodes of a plan, from the top down to what has made the rows."""
    name = node.nodeName()
    if name.startswith(_MADE) or (name == "CollectMetrics" and METRICS in node.child().schema().fieldNames()):
        return
    yield node
    for child in _each(node.children()):
        yield from _nodes(child)


def _culprit(expression: Any, patterns: Any) -> str:
    """Return the call in an expression that is different each time."""
    for child in _each(expression.children()):
        if not child.deterministic() or child.containsPattern(patterns.CURRENT_LIKE()):
            return _culprit(child, patterns)
    return f"{expression.prettyName()}()"


def _each(items: Any) -> Iterator[Any]:
    yield from (items.apply(at) for at in range(items.size()))
