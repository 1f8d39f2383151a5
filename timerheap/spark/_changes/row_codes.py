"""Rows as numbers, which are equal where rows are the same, so that changes of the same row add up."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._order_by import run_starts


def row_codes(rows: pa.StructArray) -> np.ndarray:
    """Return numbers from 0, equal only for the same rows, as in a multiset: int64, shape (n,).

    Null is the same as null and NaN as NaN, and -0.0 is not the same as 0.0.
    """
    codes: np.ndarray = np.zeros(len(rows), np.int64)
    for column in rows.flatten():
        codes, _ = combined_codes(codes, _column_codes(column))
    return codes


def combined_codes(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, int]:
    """Return numbers from 0, equal only for equal pairs, and how many there are; both count from 0."""
    codes, pairs = pd.factorize(one * (int(other.max(initial=0)) + 1) + other)
    return codes, len(pairs)


def net_weights(codes: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a place of each code whose weights do not add up to 0, and what they add up to."""
    order = np.argsort(codes, kind="stable")
    (starts,) = run_starts(codes[order]).nonzero()
    sums = np.add.reduceat(weights[order], starts) if len(starts) else weights
    kept = sums != 0
    return order[starts[kept]], sums[kept]


def _column_codes(column: pa.Array) -> np.ndarray:
    type_ = column.type
    if pa.types.is_struct(type_):
        return combined_codes(row_codes(column), np.asarray(column.is_null(), np.int64))[0]
    if pa.types.is_null(type_):
        return np.zeros(len(column), np.int64)
    if pa.types.is_floating(type_):
        nan = pa.scalar(float("nan"), type_)
        column = pc.if_else(pc.is_nan(column), nan, column)
        column = column.view(pa.int64() if type_.bit_width == 64 else pa.int32())
    return np.asarray(column.dictionary_encode(null_encoding="encode").indices, np.int64)
