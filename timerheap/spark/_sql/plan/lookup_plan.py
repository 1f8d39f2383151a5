"""Plans lookup joins: rows as they arrive, each with the rows of a table as it is in that micro-batch."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN, KEPT, SIDES
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sql.nodes import AsOf
from timerheap.spark._sql.plan.relations import pairs_of_sides, visible_columns
from timerheap.spark._sql.plan.timed_sides import RowsOfSide


def looked_up_pairs(node: AsOf, rows: RowsOfSide) -> DataFrame:
    """Return the rows of both sides of a join by the processing time as structs of the names `SIDES`.

    Spark plans a table that is no stream anew for each micro-batch, so that JDBC and tables of Delta or
    Iceberg are read as they are then.
    """
    right = rows(node.right, None)
    if right.isStreaming:
        raise ArgumentValueError(
            f"query: FOR SYSTEM_TIME AS OF the processing time {node.time} of the stream {node.names[1]} is "
            "not supported, as in Flink; read it as a table: spark.read, or name an event-time column"
        )
    left = rows(node.left, None)
    if KEPT in left.columns:
        left = left.where(quoted(KEPT))
    left_keys, right_keys = ([f"{HIDDEN}{side}_key{at}" for at in range(len(node.keys))] for side in SIDES)
    left = _with_keys(left, SIDES[0], dict(zip(left_keys, [one for one, _, _ in node.keys], strict=True)))
    right = _with_keys(right, SIDES[1], dict(zip(right_keys, [one for _, one, _ in node.keys], strict=True)))
    met = [
        quoted(one).eqNullSafe(quoted(other)) if null_safe else quoted(one) == quoted(other)
        for one, other, (*_, null_safe) in zip(left_keys, right_keys, node.keys, strict=True)
    ]
    met += [F.expr(text) for text in (node.candidates, node.match, node.condition) if text is not None]
    return pairs_of_sides(left.join(right, reduce(Column.__and__, met, F.lit(True)), node.how))


def _with_keys(df: DataFrame, side: str, keys: dict[str, str]) -> DataFrame:
    """Return rows as a struct beside the values of the expressions by which they are joined."""
    row = F.struct(*map(quoted, visible_columns(df))).alias(side)
    return df.select(row, *(F.expr(text).alias(name) for name, text in keys.items()))
