"""The event times of a micro-batch: the number of rows and the largest event time of each channel."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

__all__ = ["OBSERVED", "merged", "observed"]

OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""One row for each channel of each input. The channel is null if the input has no channels; max_timestamp is
null if every row was too far ahead of the clock."""

_NONE = np.iinfo(np.int64).min
_NO_TIMES = np.empty(0, np.int64)


def observed(
    n: int,
    times: np.ndarray | None,
    timed: np.ndarray | None = None,
    inputs: np.ndarray | None = None,
    channels: pa.Array | None = None,
) -> pa.Table:
    """Return what `n` rows show of their channels, a table of `OBSERVED`; O(n).

    Parameters
    ----------
    n : int
    times : ndarray of int64, shape (n,), or None
        Event times, None if the rows have none.
    timed : ndarray of bool, shape (n,), optional
        Whether the event time of a row counts; by default all do.
    inputs : ndarray of int8, shape (n,), optional
        The number of each row's input, 0 or 1; by default 0.
    channels : pyarrow.Array of string, shape (n,), optional
        By default the rows have no channels.
    """
    if channels is None and inputs is None:
        counted = _NO_TIMES if times is None else times if timed is None else times[timed]
        return _table([(0, None, int(counted.max()) if len(counted) else None, n)] if n else [])
    names: list[str | None] = [None]
    codes = np.zeros(n, np.int64)
    if channels is not None:
        encoded = channels.dictionary_encode(null_encoding="encode")
        names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy() * np.int64(2)
    if inputs is not None:
        codes = codes + inputs
    newest = np.full(2 * len(names), _NONE)
    if times is not None:
        chosen = slice(None) if timed is None else timed
        np.maximum.at(newest, codes[chosen], times[chosen])
    counts = np.bincount(codes, minlength=2 * len(names))
    present = np.flatnonzero(counts).tolist()
    return _table(
        [
            (
                code % 2,
                names[code // 2],
                None if newest[code] == _NONE else int(newest[code]),
                int(counts[code]),
            )
            for code in present
        ]
    )


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    found: dict[tuple[int, str | None], tuple[int, int]] = {}
    for table in tables:
        columns = (column.to_pylist() for column in table.columns)
        for input_, channel, newest, count in zip(*columns, strict=True):
            before = found.get((input_, channel), (_NONE, 0))
            found[input_, channel] = max(before[0], _NONE if newest is None else newest), before[1] + count
    ordered = sorted(found.items(), key=lambda item: (item[0][0], item[0][1] is None, item[0][1] or ""))
    return _table([(*at, None if newest == _NONE else newest, count) for at, (newest, count) in ordered])


def _table(rows: list[tuple[int, str | None, int | None, int]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([] for _ in OBSERVED)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, OBSERVED, strict=True)]
    return pa.Table.from_arrays(arrays, schema=OBSERVED)
