"""What the tasks that pack rows have observed of their event times, which advances watermarks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._arrow import EARLIER
from timerheap.watermarks.strategy import MAX_AHEAD

OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""One row for each channel of each input. The channel is null if the input has no channels; max_timestamp is
null if every row was too far ahead of the clock.

If a channel has times of a day or more before max_timestamp, there is another row with the largest of them,
whose input is increased by `EARLIER`. It counts where max_timestamp is too far ahead: a task knows no clock.
A last row for each metric in `COUNTED`, with its number as the input, has the number of such rows, if any.
"""

COUNTED = {"null_time_rows": 4, "ahead_rows": 6}  # even, as numbers of a first input
_FIRST_COUNTED = min(COUNTED.values())

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
        earlier = _earlier(newest, np.zeros(1, np.int64), counted)
        return _table(_UNNAMED, np.zeros(1, np.int64), newest, np.array([n]), earlier)
    names, codes = _encoded(pa.nulls(n, pa.string()) if channels is None else channels)
    codes *= 2
    if inputs is not None:
        codes += inputs
    newest, earlier = np.full(2 * len(names), _NONE), None
    if times is not None:
        chosen = slice(None) if timed is None else timed
        np.maximum.at(newest, codes[chosen], times[chosen])
        earlier = _earlier(newest, codes[chosen], times[chosen])
    return _table(names, np.arange(len(newest)), newest, np.bincount(codes, minlength=len(newest)), earlier)


def _earlier(newest: np.ndarray, codes: np.ndarray, times: np.ndarray) -> np.ndarray | None:
    """Return the largest time of each code of a day or more before its newest, or `_NONE`.

    The result is None if there is no such time, or none for any code. A single code need not be repeated.
    """
    if not len(times) or int(times.max()) - int(times.min()) < MAX_AHEAD:
        return None
    before = times <= (np.maximum(newest, _NONE + MAX_AHEAD) - MAX_AHEAD)[codes]
    earlier: np.ndarray = np.full(len(newest), _NONE)
    if len(newest) == 1:
        earlier[0] = times[before].max(initial=_NONE)
        return earlier
    np.maximum.at(earlier, codes[before], times[before])
    return earlier


def merged(tables: Iterable[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    every = pa.concat_tables([OBSERVED.empty_table(), *tables])
    if every.num_rows <= 1:
        return every.combine_chunks()
    if extra := {name: n for name, n in counts_of(every).items() if n}:
        rest = merged([every.filter(pc.less(every.column("input"), _FIRST_COUNTED))])
        return pa.concat_tables([rest, *starmap(counted, extra.items())]).combine_chunks()
    names, codes = _encoded(every.column("channel").combine_chunks())
    order = _UNSORTED if len(names) == 1 else pc.array_sort_indices(names).to_numpy()  # null is last
    numbers = np.empty(len(names), np.int64)
    numbers[order] = np.arange(len(names))
    codes = numbers[codes] + every.column("input").to_numpy() % EARLIER * np.int64(len(names))
    newest = np.full(2 * len(names), _NONE)
    times, rows = every.column("max_timestamp").fill_null(_NONE).to_numpy(), every.column("count").to_numpy()
    np.maximum.at(newest, codes, times)
    counts = np.zeros(len(newest), np.int64)
    np.add.at(counts, codes, rows)
    by_name = np.concatenate([2 * order, 2 * order + 1])
    known = times > _NONE
    return _table(names, by_name, newest, counts, _earlier(newest, codes[known], times[known]))


def counted(name: str, n: int) -> pa.Table:
    """Return a table of `OBSERVED` for a metric in `COUNTED`."""
    return pa.table([[COUNTED[name]], [None], [None], [n]], schema=OBSERVED)


def counts_of(observed: pa.Table) -> dict[str, int]:
    """Return the numbers in a table for the metrics in `COUNTED`."""
    inputs, counts = (observed.column(name).to_numpy() for name in ("input", "count"))
    if inputs.max(initial=0) < _FIRST_COUNTED:
        return dict.fromkeys(COUNTED, 0)
    return {name: int(counts[inputs == number].sum()) for name, number in COUNTED.items()}


def _encoded(channels: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct names of channels, and the number of each row's."""
    if channels.null_count == len(channels):  # as without channels
        return _UNNAMED, np.zeros(len(channels), np.int64)
    encoded = channels.dictionary_encode(null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _table(
    names: pa.Array, codes: np.ndarray, newest: np.ndarray, counts: np.ndarray, earlier: np.ndarray | None
) -> pa.Table:
    """Return a table of `OBSERVED`, of what has rows.

    The arrays are int64, of shape (n,). A code is twice the number of a name, plus the number of the input;
    beside it are the largest timestamp, or `_NONE`, the number of rows, and what `_earlier` returns.
    """
    present = np.flatnonzero(counts)
    codes, newest, counts = codes[present], newest[present], counts[present]
    inputs = codes % 2
    if earlier is not None:
        earlier = earlier[present]
        found = np.flatnonzero(earlier > _NONE)
        codes, newest = np.append(codes, codes[found]), np.append(newest, earlier[found])
        inputs = np.append(inputs, inputs[found] + EARLIER)
        counts = np.append(counts, np.zeros(len(found), np.int64))
    columns = [
        pa.array(inputs.astype(np.int8)),
        names.take(pa.array(codes // 2)),
        pa.array(newest, mask=newest == _NONE),
        pa.array(counts),
    ]
    return pa.Table.from_arrays(columns, schema=OBSERVED)
