"""The order of rows of one key and timestamp: by their columns, so that it depends on the data alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._heap import row_order

__all__ = ["content_order"]


def content_order(
    rows: pa.RecordBatch, timestamps: np.ndarray, ids: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Return the positions of rows by timestamp, key id and columns.

    Columns are compared from left to right, and null comes last. Lists and maps are compared as text. Equal
    rows stay in their order. O(n), and O(t log t) for t rows that share their timestamp and key with others.

    Parameters
    ----------
    rows : pyarrow.RecordBatch
    timestamps, ids : ndarray of int64
        The timestamp of each row, and the id of its key.
    positions : ndarray of int64, shape (n,)
        The rows to order.

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    ids_here = ids[positions]
    order = positions[row_order(timestamps[positions], ids_here, ids_here)]
    at, keys = timestamps[order], ids[order]
    follows = np.zeros(len(order) + 1, bool)  # row i equals row i - 1 in timestamp and key
    follows[1:-1] = (at[1:] == at[:-1]) & (keys[1:] == keys[:-1])
    if not follows.any():
        return order
    tied = np.flatnonzero(follows[:-1] | follows[1:])
    ties = np.cumsum(~follows[:-1])[tied]
    columns = [pa.array(ties), *_comparable(rows.take(pa.array(order[tied])).columns)]
    names = [str(number) for number in range(len(columns))]
    tied_rows = pa.RecordBatch.from_arrays(columns, names)
    by_content = pc.sort_indices(tied_rows, sort_keys=[(name, "ascending") for name in names])
    order[tied] = order[tied][by_content.to_numpy()]
    return order


def _comparable(columns: list[pa.Array]) -> Iterator[pa.Array]:
    """Yield the columns that Arrow can sort by: those of structs in their place, text for others."""
    for column in columns:
        type_ = column.type
        if pa.types.is_struct(type_):
            yield column.is_null()
            yield from _comparable(column.flatten())
        elif pa.types.is_nested(type_):
            yield pa.array([None if value is None else repr(value) for value in column.to_pylist()])
        else:
            yield column
