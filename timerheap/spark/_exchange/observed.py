"""The event times of a micro-batch: the number of rows and the largest event time of each channel."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""One row for each channel of each input. The channel is null if the input has no channels; max_timestamp is
null if every row was too far ahead of the clock."""

_NONE = np.iinfo(np.int64).min
_NO_TIMES = np.empty(0, np.int64)
_UNNAMED = pa.nulls(1, pa.string())
_UNSORTED = np.zeros(1, np.int64)


def observed(
    n: int,
    times: np.ndarray | None,
    timed: np.ndarray | None = None,
    inputs: np.ndarray | None = None,
    channels: pa.Array | None = None,
) -> pa.Table:
    """Return what `n` rows show of their channels, a table of `OBSERVED`; O(n).

    The columns have the shape (n,): event times (int64), None if the rows have none; whether each counts
    (bool), by default yes; the number of each row's input (int8), by default 0; and its channel, by default
    none.
    """
    if channels is None and inputs is None:
        counted = _NO_TIMES if times is None else times if timed is None else times[timed]
        newest = counted.max(initial=_NONE, keepdims=True)
        return _table(_UNNAMED, np.zeros(1, np.int64), newest, np.array([n]))
    names, codes = _encoded(pa.nulls(n, pa.string()) if channels is None else channels)
    codes *= 2
    if inputs is not None:
        codes += inputs
    newest = np.full(2 * len(names), _NONE)
    if times is not None:
        chosen = slice(None) if timed is None else timed
        np.maximum.at(newest, codes[chosen], times[chosen])
    return _table(names, np.arange(len(newest)), newest, np.bincount(codes, minlength=len(newest)))


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    every = pa.concat_tables([OBSERVED.empty_table(), *tables])
    if every.num_rows <= 1:
        return every.combine_chunks()
    names, codes = _encoded(every.column("channel").combine_chunks())
    order = _UNSORTED if len(names) == 1 else pc.array_sort_indices(names).to_numpy()  # null is last
    ranks = np.empty(len(names), np.int64)
    ranks[order] = np.arange(len(names))
    codes = ranks[codes] + every.column("input").to_numpy() * np.int64(len(names))
    newest = np.full(2 * len(names), _NONE)
    np.maximum.at(newest, codes, every.column("max_timestamp").fill_null(_NONE).to_numpy())
    counts = np.zeros(len(newest), np.int64)
    np.add.at(counts, codes, every.column("count").to_numpy())
    by_name = np.concatenate([2 * order, 2 * order + 1])
    return _table(names, by_name, newest, counts)


def _encoded(channels: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct names of channels, and the number of each row's."""
    if channels.null_count == len(channels):  # as without channels
        return _UNNAMED, np.zeros(len(channels), np.int64)
    encoded = channels.dictionary_encode(null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _table(names: pa.Array, codes: np.ndarray, newest: np.ndarray, counts: np.ndarray) -> pa.Table:
    """Return a table of `OBSERVED`, of what has rows.

    The arrays are int64, of shape (n,). A code is twice the number of a name, plus the number of the input;
    beside it are the largest timestamp, or `_NONE`, and the number of rows.
    """
    present = np.flatnonzero(counts)
    codes, newest = codes[present], newest[present]
    columns = [
        pa.array((codes % 2).astype(np.int8)),
        names.take(pa.array(codes // 2)),
        pa.array(newest, mask=newest == _NONE),
        pa.array(counts[present]),
    ]
    return pa.Table.from_arrays(columns, schema=OBSERVED)
