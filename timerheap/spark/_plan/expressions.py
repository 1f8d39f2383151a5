"""Reads the call of a function from a Column, of a classic session or of Spark Connect."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from pyspark.sql import Column, SparkSession

from timerheap.spark._compat import on_connect

__all__ = ["FunctionCall", "function_call"]


class FunctionCall(NamedTuple):
    """A call of a function.

    Parameters
    ----------
    column : pyspark.sql.Column
        The call, without aliases.
    name : str
    is_distinct : bool
    arguments : list of pyspark.sql.Column
    of_rows : bool
        Whether it has no argument, or the first is ``*`` or a constant other than null.
    """

    column: Column
    name: str
    is_distinct: bool
    arguments: list[Column]
    of_rows: bool


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
    to_column = cast(Any, spark)._jvm.org.apache.spark.sql.Column
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
