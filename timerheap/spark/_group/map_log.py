"""The stored form of a user's map: a log of entries that were put and removed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from timerheap._native._heap import IdIndex

__all__ = ["compact", "find", "log_type", "map_type", "maps", "searchable"]


def log_type(type_: pa.MapType) -> pa.ListType:
    """Return the type of the log of a map: its entries, and whether each was removed."""
    fields = [("removed", pa.bool_()), ("key", type_.key_type), ("value", type_.item_type)]
    return pa.list_(pa.field("entry", pa.struct(fields)))


def map_type(log: pa.ListType) -> pa.MapType:
    """Return the type of the map whose log has this type."""
    return pa.map_(log.value_type.field("key").type, log.value_type.field("value").type)


def compact(rows: pa.Array, whole: np.ndarray) -> pa.Array:
    """Return logs with the same effect, in which a key has at most a removal and then a value.

    Like a dict, a log keeps the place of the first value of a key since its last removal. A log of whole
    contents needs no removals.

    Parameters
    ----------
    rows : pyarrow.LargeListArray of `log_type`, shape (n,)
    whole : ndarray of bool, shape (n,)
        Which logs begin with nothing.
    """
    entries = rows.flatten()
    removed = entries.field("removed").to_numpy(zero_copy_only=False)
    owners = np.repeat(np.arange(len(rows)), rows.value_lengths())
    keys = _codes(entries.field("key"))
    codes = owners * (keys.max(initial=0) + 1) + keys
    if IdIndex().put_many(codes, 0).all() and not (removed & whole[owners]).any():
        return rows
    codes, distinct = pd.factorize(codes)
    at = np.arange(len(codes))
    removal = np.full(len(distinct), -1)
    removal[codes[removed]] = at[removed]  # of a repeated index, the last value stays
    put = at > removal[codes]
    first, last = np.full(len(distinct), -1), np.full(len(distinct), -1)
    first[codes[put][::-1]] = at[put][::-1]
    last[codes[put]] = at[put]
    present, removal = first >= 0, removal[removal >= 0]
    removal = removal[~whole[owners[removal]]]
    places = np.concatenate([removal, first[present]])
    order = np.argsort(places)
    kept = entries.take(pa.array(np.concatenate([removal, last[present]])[order]))
    counts = np.bincount(owners[places], minlength=len(rows))
    return pa.LargeListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(counts)])), kept, type=rows.type
    )


def maps(rows: pa.Array) -> pa.Array:
    """Return the maps of whole, compacted logs, fewer than 2**31 entries: shape (n,)."""
    entries = rows.flatten()
    keys, values = entries.field("key"), entries.field("value")
    offsets = np.concatenate([[0], np.cumsum(rows.value_lengths())])
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values)


def searchable(type_: pa.DataType) -> bool:
    """Return whether `find` can look for keys of this type: not for floats, because of NaN, nor structs."""
    return not (pa.types.is_nested(type_) or pa.types.is_floating(type_))


def find(log: pa.Array, key: Any) -> tuple[bool, Any]:
    """Return whether the map of a single log has a key, and its value; O(n) in Arrow."""
    entries = log.flatten()
    keys = entries.field("key")
    at = np.flatnonzero(pc.equal(keys, pa.scalar(key, keys.type)))
    if not len(at) or entries.field("removed")[at[-1]].as_py():
        return False, None
    return True, entries.field("value")[at[-1]].as_py()


def _codes(keys: pa.Array) -> np.ndarray:
    """Return numbers that are equal only for equal keys, shape (n,), int64."""
    codes: np.ndarray
    if not pa.types.is_struct(keys.type):
        codes = np.asarray(keys.dictionary_encode(null_encoding="encode").indices, np.int64)
        return codes
    codes = np.zeros(len(keys), np.int64)
    for column in keys.flatten():
        field = _codes(column)
        codes, _ = pd.factorize(codes * (field.max(initial=0) + 1) + field)
    return codes
