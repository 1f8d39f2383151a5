"""What a changelog is: rows with weights of 1 and -1 inside, and `_change_type` in a DataFrame.

A consumer reads only the weights, so neither the order of rows in a micro-batch nor what is a pair matters.
An operator emits at most the net change of a micro-batch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap.errors import ArgumentValueError
from timerheap.spark._arrow import concatenated
from timerheap.spark._columns import CHANGE_TYPE, COMMIT, WEIGHT
from timerheap.spark._compat import with_columns

INSERT, BEFORE, AFTER, DELETE = "insert", "update_preimage", "update_postimage", "delete"
"""The words of `CHANGE_TYPE`, which are those of Delta's change feed and of Spark's ``changes()``."""

_WORDS = pa.array([INSERT, BEFORE, AFTER, DELETE])
_INSERT, _BEFORE, _AFTER, _DELETE = range(4)  # their places

CHANGE_FIELD = T.StructField(CHANGE_TYPE, T.StringType(), nullable=False)


def is_changelog(df: DataFrame) -> bool:
    """Return whether rows have a change type; others are all inserted."""
    return CHANGE_TYPE in df.columns


def weighted(argument: str, df: DataFrame) -> DataFrame:
    """Return changes with `WEIGHT` in place of their type, and without what else a change feed adds."""
    type_ = df.schema[CHANGE_TYPE].dataType
    if not isinstance(type_, T.StringType):
        raise ArgumentValueError(
            f"{argument} must have change types that are strings, got column {CHANGE_TYPE!r} of type "
            f"{type_.simpleString()}; rename it, if it says something else"
        )
    return with_columns(df, {WEIGHT: _weight(argument)}).drop(CHANGE_TYPE, *COMMIT)


def inserted(df: DataFrame) -> DataFrame:
    """Return rows that only come, with `WEIGHT`."""
    return with_columns(df, {WEIGHT: F.lit(1).cast("tinyint")}).drop(CHANGE_TYPE)


def _weight(argument: str) -> Column:
    word = F.col(CHANGE_TYPE)
    wrong = F.concat(
        F.lit(f"{CHANGE_TYPE} of {argument} must be {INSERT}, {BEFORE}, {AFTER} or {DELETE}, got "),
        F.coalesce(word, F.lit("null")),
    )
    return (
        F.when(word.isin(INSERT, AFTER), F.lit(1))
        .when(word.isin(BEFORE, DELETE), F.lit(-1))
        .otherwise(F.raise_error(wrong).cast("int"))
        .cast("tinyint")
    )


def replacements(
    before: pa.RecordBatch, had: np.ndarray, after: pa.RecordBatch, has: np.ndarray
) -> pa.RecordBatch:
    """Return the changes from one row of each key to the next, with `CHANGE_TYPE`.

    before, after: rows of one schema, with the same key in the same place: shape (n,)
    had, has: where there is a row before, and after: bool, shape (n,); where there is none it has any values
    """
    updated = had & has
    if updated.any():
        updated[updated] = ~same_rows(before.filter(pa.array(updated)), after.filter(pa.array(updated)))
    (gone,), (new,) = (had & (updated | ~has)).nonzero(), (has & (updated | ~had)).nonzero()
    rows, types = after.take(pa.array(new)), np.where(updated[new], _AFTER, _INSERT)
    if len(gone):
        rows = concatenated([before.take(pa.array(gone)), rows])
        types = np.concatenate([np.where(updated[gone], _BEFORE, _DELETE), types])
        order = np.argsort(np.concatenate([2 * gone, 2 * new + 1]), kind="stable")  # a pair is side by side
        rows, types = rows.take(pa.array(order)), types[order]
    return _typed(rows, types)


def net_changes(rows: pa.RecordBatch, weights: np.ndarray) -> pa.RecordBatch:
    """Return inserts and deletes of distinct rows, each as often as its weight says, with `CHANGE_TYPE`."""
    types, times = np.where(weights > 0, _INSERT, _DELETE), np.abs(weights)
    if (times != 1).any():
        rows, types = rows.take(pa.array(np.repeat(np.arange(len(rows)), times))), np.repeat(types, times)
    return _typed(rows, types)


def same_rows(one: pa.RecordBatch, other: pa.RecordBatch) -> np.ndarray:
    """Return where rows are the same, as in a multiset: bool, shape (n,).

    Null is the same as null and NaN as NaN, and -0.0 is not the same as 0.0.
    """
    same = np.ones(len(one), bool)
    for pair in zip(one.columns, other.columns, strict=True):
        same &= _same(*pair)
    return same


def _same(one: pa.Array, other: pa.Array) -> np.ndarray:
    nulls: list[np.ndarray] = [np.asarray(column.is_null()) for column in (one, other)]
    if pa.types.is_null(one.type):
        return np.ones(len(one), bool)
    same: np.ndarray = nulls[0] == nulls[1]
    if pa.types.is_struct(one.type):
        for pair in zip(one.flatten(), other.flatten(), strict=True):
            same &= _same(*pair)
        return same
    if pa.types.is_map(one.type) or pa.types.is_list(one.type) or pa.types.is_large_list(one.type):
        one, other = map(_as_list, (one, other))
        sizes = [np.asarray(column.value_lengths().fill_null(0)) for column in (one, other)]
        same &= sizes[0] == sizes[1]
        elements = _same(*(column.filter(pa.array(same)).flatten() for column in (one, other)))
        owners = np.repeat(same.nonzero()[0], sizes[0][same])
        same[owners[~elements]] = False
        return same
    equal = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        bits = pa.int64() if one.type.bit_width == 64 else pa.int32()
        equal = pc.or_(pc.equal(one.view(bits), other.view(bits)), pc.and_(pc.is_nan(one), pc.is_nan(other)))
    equals: np.ndarray = np.array(equal.fill_null(False))
    equals |= nulls[0] & nulls[1]
    return equals


def _as_list(column: pa.Array) -> pa.Array:
    if not pa.types.is_map(column.type):
        return column
    return column.cast(pa.list_(pa.struct([column.type.key_field, column.type.item_field])))


def _typed(rows: pa.RecordBatch, types: np.ndarray) -> pa.RecordBatch:
    return rows.append_column(CHANGE_TYPE, _WORDS.take(pa.array(types)))
