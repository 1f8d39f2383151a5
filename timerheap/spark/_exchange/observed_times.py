"""What tasks that pack rows have observed: event times by channel, watermarks of other operators, counts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timerheap.spark._observed import COUNTED, EARLIER, FIRST_COUNTED, OBSERVED, REACHED, input_of
from timerheap.spark._query import Query
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.strategy import MAX_AHEAD

_NONE = np.iinfo(np.int64).min
_NO_TIMES = np.empty(0, np.int64)
_NONE_SEEN = pa.Table.from_batches([], OBSERVED)
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
        return _observed_table(_UNNAMED, np.zeros(1, np.int64), newest, np.array([n]), earlier)
    names, codes = _encoded(pa.nulls(n, pa.string()) if channels is None else channels)
    codes *= 2
    if inputs is not None:
        codes += inputs
    newest, earlier = np.full(2 * len(names), _NONE), None
    if times is not None:
        chosen = slice(None) if timed is None else timed
        np.maximum.at(newest, codes[chosen], times[chosen])
        earlier = _earlier(newest, codes[chosen], times[chosen])
    return _observed_table(
        names, np.arange(len(newest)), newest, np.bincount(codes, minlength=len(newest)), earlier
    )


def _earlier(newest: np.ndarray, codes: np.ndarray, times: np.ndarray) -> np.ndarray | None:
    """Return the largest time of each code of a day or more before its newest, or `_NONE`."""
    # The result is None if there is no such time, or none for any code. A single code need not be repeated.
    if not len(times) or int(times.max()) - int(times.min()) < MAX_AHEAD:
        return None
    before = times <= (np.maximum(newest, _NONE + MAX_AHEAD) - MAX_AHEAD)[codes]
    earlier: np.ndarray = np.full(len(newest), _NONE)
    if len(newest) == 1:
        earlier[0] = times[before].max(initial=_NONE)
        return earlier
    np.maximum.at(earlier, codes[before], times[before])
    return earlier


def merged(tables: list[pa.Table]) -> pa.Table:
    """Merge the tables of batches or tasks into one row per channel, always in the same order; O(rows)."""
    every = pa.concat_tables([_NONE_SEEN, *tables]) if tables else _NONE_SEEN
    if every.num_rows <= 1:
        return every.combine_chunks()
    if pc.max(every.column("input")).as_py() >= FIRST_COUNTED:
        extra = {name: n for name, n in counts_of(every).items() if n}
        rest = merged([every.filter(pc.less(every.column("input"), FIRST_COUNTED))])
        marks = reached(_lowest(every))
        return pa.concat_tables([rest, *starmap(counted, extra.items()), marks]).combine_chunks()
    names, codes = _encoded(every.column("channel").combine_chunks())
    order = _UNSORTED if len(names) == 1 else pc.array_sort_indices(names).to_numpy()  # null is last
    numbers = np.empty(len(names), np.int64)
    numbers[order] = np.arange(len(names))
    codes = numbers[codes] + input_of(every.column("input").to_numpy()) * np.int64(len(names))
    newest = np.full(2 * len(names), _NONE)
    times, rows = every.column("max_timestamp").fill_null(_NONE).to_numpy(), every.column("count").to_numpy()
    np.maximum.at(newest, codes, times)
    counts = np.zeros(len(newest), np.int64)
    np.add.at(counts, codes, rows)
    by_name = np.concatenate([2 * order, 2 * order + 1])
    known = times > _NONE
    return _observed_table(names, by_name, newest, counts, _earlier(newest, codes[known], times[known]))


def counted(name: str, n: int) -> pa.Table:
    """Return a table of `OBSERVED` for a metric in `COUNTED`."""
    return pa.table([[COUNTED[name]], [None], [None], [n]], schema=OBSERVED)


def reached(watermarks: Mapping[str, int | None]) -> pa.Table:
    """Return a table of `OBSERVED` for the watermarks of operators, by what tells them apart."""
    names, marks = list(watermarks), list(watermarks.values())
    columns = [pa.array([REACHED] * len(names), pa.int8()), pa.array(names, pa.string())]
    columns += [pa.array(marks, pa.int64()), pa.array([0] * len(names), pa.int64())]
    return pa.Table.from_arrays(columns, schema=OBSERVED)


def _lowest(observed: pa.Table) -> dict[str, int | None]:
    """Return the lowest watermark of each operator in its tasks, None if none of them has key groups."""
    rows = observed.filter(pc.equal(observed.column("input"), REACHED))
    found: dict[str, int | None] = {}
    names, marks = (rows.column(name).to_pylist() for name in ("channel", "max_timestamp"))
    for name, mark in sorted(zip(names, marks, strict=True), key=lambda pair: pair[0]):
        before = found.get(name)
        found[name] = mark if before is None else before if mark is None else min(mark, before)
    return found


def without_times(observed: pa.Table) -> pa.Table:
    """Return the rows of a table that are no event times."""
    return observed.filter(pc.greater_equal(observed.column("input"), FIRST_COUNTED))


def reached_in(observed: pa.Table) -> int | None:
    """Return the lowest watermark of the operators in a table; None if it tells of none."""
    # Of an operator without a watermark all tasks may be without key groups, or none has had a row so far.
    marks = _lowest(observed).values()
    return min((MIN_WATERMARK if mark is None else mark for mark in marks), default=None)


def counts_of(observed: pa.Table) -> dict[str, int]:
    """Return the numbers in a table for the metrics in `COUNTED`."""
    inputs, counts = (observed.column(name).to_numpy() for name in ("input", "count"))
    if inputs.max(initial=0) < FIRST_COUNTED:
        return dict.fromkeys(COUNTED, 0)
    return {name: int(counts[inputs == number].sum()) for name, number in COUNTED.items()}


def _encoded(channels: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the distinct names of channels, and the number of each row's."""
    if channels.null_count == len(channels):  # as without channels
        return _UNNAMED, np.zeros(len(channels), np.int64)
    encoded = channels.dictionary_encode(null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _observed_table(
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


def watermark_limit(query: Query, observed: pa.Table) -> int | None:
    """Return the watermark that a query must not pass, given what tasks have observed; None if none told."""
    # Saturating: the watermark of an operator may be the lowest there is.
    reached, delay = reached_in(observed), query.follows
    return None if reached is None or delay is None else max(reached - delay, MIN_WATERMARK)
