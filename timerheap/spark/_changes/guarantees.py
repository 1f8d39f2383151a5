"""What a result guarantees: keys, which no two rows of its table share, and that its rows only come.

The result says so in the metadata of its columns, which Spark keeps where a column is renamed, and loses
where it is computed. The nodes of a plan between say whether rows may have been doubled, or others added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from timerheap.spark._changes.change_rows import CHANGE_FIELD, is_changelog
from timerheap.spark._columns import CHANGE_TYPE, METRICS
from timerheap.spark._compat import analyzed, below_on_connect, on_connect

_UNIQUE = "timerheap.unique"
"""Metadata of `CHANGE_TYPE`: how many columns each key has; of a column: its place in keys, such as "0/1"."""

_GROWS = "timerheap.grows"
"""Metadata of `CHANGE_TYPE`: that each change is an insert."""

_KEEP_ROWS = {
    "CollectMetrics", "Drop", "EventTimeWatermark", "Filter", "Hint", "Project", "Repartition",
    "RepartitionByExpression", "ResolvedHint", "Sort", "SubqueryAlias", "ToDF", "UnresolvedHint", "View",
    "WithColumnsRenamed", "WithWatermark",
}  # fmt: skip
_OF_BATCH = ("FlatMapGroups", "FlatMapCoGroups", "GroupMap", "CoGroupMap")  # begins what runs a batch


def changelog_type(
    fields: Iterable[T.StructField], *keys: Sequence[str], grows: bool = False
) -> T.StructType:
    """Return the type of a result: these columns and the change type, with what it guarantees."""
    columns = [T.StructField(f.name, f.dataType, f.nullable, _without_claims(f)) for f in fields]
    for number, key in enumerate(keys):
        for place, name in enumerate(key):
            (field,) = (field for field in columns if field.name == name)
            places = [*field.metadata.get(_UNIQUE, []), f"{number}/{place}"]
            field.metadata = {**field.metadata, _UNIQUE: places}
    claims: dict[str, Any] = {_UNIQUE: [len(key) for key in keys]} if keys else {}
    if grows:
        claims[_GROWS] = True
    change = T.StructField(CHANGE_TYPE, CHANGE_FIELD.dataType, CHANGE_FIELD.nullable, claims)
    return T.StructType([*columns, change])


def unique_keys(df: DataFrame) -> tuple[tuple[str, ...], ...]:
    """Return the keys that the table of a changelog is known to have, each the names of its columns.

    They are known of results of operators, also where rows are filtered, and columns selected and renamed.
    """
    if not is_changelog(df) or not _has_rows_of_result(df):
        return ()
    sizes = df.schema[CHANGE_TYPE].metadata.get(_UNIQUE, [])
    names: dict[str, str] = {}
    for field in df.schema:
        for place in field.metadata.get(_UNIQUE, []) if field.name != CHANGE_TYPE else ():
            names.setdefault(place, field.name)
    keys = ([names.get(f"{number}/{place}") for place in range(size)] for number, size in enumerate(sizes))
    return tuple(tuple(map(str, key)) for key in keys if None not in key)


def only_grows(df: DataFrame) -> bool:
    """Return whether the rows of a DataFrame only come: they have no change type, or each is an insert.

    That is known of results of operators whose own input only grows, and that take no row back.
    """
    if not is_changelog(df):
        return True
    return bool(df.schema[CHANGE_TYPE].metadata.get(_GROWS)) and _has_rows_of_result(df)


def _without_claims(field: T.StructField) -> dict[str, Any]:
    return {name: value for name, value in (field.metadata or {}).items() if name != _UNIQUE}


def _has_rows_of_result(df: DataFrame) -> bool:
    """Return whether each row is one of the result of an operator, which none is twice."""
    return _rows_on_connect(df) if on_connect(df.sparkSession) else _rows_on_classic(analyzed(df))


def _rows_on_classic(node: Any) -> bool:
    while True:
        name, children = node.nodeName(), node.children()
        if name.startswith(_OF_BATCH):
            return True
        if children.size() != 1:
            return False
        below = children.head()
        if METRICS in below.schema().fieldNames() and name in ("CollectMetrics", "Generate"):
            return _is_claimed(below.schema())
        if name not in _KEEP_ROWS:
            return False
        node = below


def _is_claimed(schema: Any) -> bool:
    text = json.dumps(json.loads(schema.json()))
    return _UNIQUE in text or _GROWS in text


def _rows_on_connect(df: DataFrame) -> bool:
    name, _, below = below_on_connect(df)
    while name in _KEEP_ROWS and len(below) == 1:
        under = below_on_connect(below[0])
        if name == "Project":  # may be an explode of the user's, unless it takes the results of an operator
            return METRICS in below[0].columns
        name, _, below = under
    return name.startswith(_OF_BATCH)
