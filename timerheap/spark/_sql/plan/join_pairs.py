"""Pairs of the rows of both sides of a window join, of the lists that each window and key has."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

from timerheap.spark._columns import SIDES, WINDOW, name_without_number
from timerheap.spark._compat import with_columns
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sql.nodes import Joined
from timerheap.spark._sql.plan.relations import side_fields
from timerheap.spark._sql.run.grouped_sides_runner import GROUPED


def joined_pairs(grouped: DataFrame, node: Joined) -> DataFrame:
    """Return the pairs of the rows of each group, as a join of its kind has them."""
    for name in GROUPED:
        type_: Any = grouped.schema[name].dataType
        fields = [StructField(name_without_number(field.name), field.dataType) for field in type_.elementType]
        grouped = grouped.withColumn(name, quoted(name).cast(ArrayType(StructType(fields))))
    left, right = SIDES
    lefts, rights = (f"`{name}`" for name in GROUPED)
    that = node.condition
    of_left = rights if that is None else f"filter({rights}, {right} -> {that})"
    windows = list(map(quoted, WINDOW))
    if node.how in ("semi", "anti"):
        found = f"exists({rights}, {right} -> {that or 'true'})"
        if node.how == "anti":
            found = f"NOT {found if node.null_aware else f'coalesce({found}, false)'}"
        kept = grouped.select(F.explode(F.expr(f"filter({lefts}, {left} -> {found})")).alias(left), *windows)
        return kept.select(f"{left}.*", *windows)
    first, second, firsts, found = left, right, lefts, of_left
    if node.how == "right":
        first, second, firsts = right, left, rights
        found = lefts if that is None else f"filter({lefts}, {left} -> {that})"
    elif node.how == "full":  # a last row that is null stands for the right rows without a match
        firsts = f"array_append({lefts}, null)"
        matched = f"coalesce(exists({lefts}, {left} -> {that or 'true'}), false)"
        alone = f"filter({rights}, {right} -> NOT {matched})"
        found = f"if({left} IS NULL, {alone}, {of_left})"
    pairs = grouped.select(F.explode(F.expr(firsts)).alias(first), *map(quoted, GROUPED), *windows)
    explode = F.explode if node.how == "inner" else F.explode_outer
    pairs = pairs.select(first, explode(F.expr(found)).alias(second), *windows)
    if node.how == "full":
        pairs = pairs.where(quoted(left).isNotNull() | quoted(right).isNotNull())
    fields_of_sides = [(side, name) for side in SIDES for name in side_fields(pairs, side)]
    names = [name.lower() for _, name in fields_of_sides]
    once = {name: quoted(side)[name] for side, name in fields_of_sides if names.count(name.lower()) == 1}
    return with_columns(pairs, once)
