"""SQL's functions OVER rows, computed in columns: other rows of a key, ranks and frames."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import wide
from timerheap.spark._event_times import exact_times
from timerheap.spark._sql.over_calls import Frame, RowCall


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The numbers of rows among those of their key that count, from 1; valid says which count."""

    numbers: np.ndarray
    valid: np.ndarray

    @property
    def before(self) -> np.ndarray:
        """How many count before each row."""
        before: np.ndarray = self.numbers - self.valid
        return before


class KeyRows:
    """Rows from the state and new rows, by key and order: n rows, of which h are from the state.

    A row's source is its number among those from the state, or h and its number among the new rows. Of one
    key, all rows from the state are before the new ones.

    held: the rows of the state, by key and order; `lengths`, of shape (k,), says how many of each key
    new: the new rows, by key and order; `counts` likewise
    times: of the new rows, later of all rows
    begins: which of the new rows differ from those before them in their key or in ORDER BY
    run (int64, shape (n,)): the number of each row's key
    starts, ends (int64, shape (k,)): where the rows of each key start and end
    source (int64, shape (n,))
    at (int64, shape (n - h,)): where the new rows are
    peers (int64, shape (n - h,)): the last new row that is equal to each in ORDER BY
    numbers (int64, shape (n,)): the number of each row in its key
    """

    def __init__(
        self,
        held: pa.StructArray,
        lengths: np.ndarray,
        new: pa.RecordBatch,
        counts: np.ndarray,
        times: np.ndarray,
        begins: np.ndarray,
    ) -> None:
        h, n = len(held), len(held) + len(new)
        self.held, self.new, self.lengths, self.counts, self.begins = held, new, lengths, counts, begins
        self.ends = np.cumsum(lengths + counts)
        self.starts = self.ends - lengths - counts
        self.run = np.repeat(np.arange(len(counts)), lengths + counts)
        self.at = np.arange(n - h) + np.repeat(np.cumsum(lengths), counts)
        self.source = np.empty(n, np.int64)
        self.source[np.arange(h) + np.repeat(np.cumsum(counts) - counts, lengths)] = np.arange(h)
        self.source[self.at] = np.arange(h, n)
        peers = np.append(np.flatnonzero(begins), n - h)
        self.peers = np.repeat(peers[1:] - 1, np.diff(peers))
        self.times = np.concatenate([held.field("time").to_numpy(), times])[self.source]
        self.numbers = self._sums(held.field("number"), np.ones(n - h, np.int64))
        self._counts: dict[str, RowCounts] = {}

    @cached_property
    def dense(self) -> np.ndarray:
        """DENSE_RANK of each row: int64, shape (n,)."""
        return self._sums(self.held.field("dense_rank"), self.begins.astype(np.int64))

    def joined(self, of_held: pa.Array | None, of_new: pa.Array) -> pa.Array:
        """Return values by source; of rows from the state they are null if none are given."""
        if not len(self.held):
            return of_new
        type_ = wide(of_new.type)
        of_held = pa.nulls(len(self.held), type_) if of_held is None else of_held.cast(type_)
        return pa.concat_arrays([of_held, of_new.cast(type_)])

    def column(self, name: str) -> pa.Array:
        """Return a column that functions read, by source."""
        return self.joined(self._field("values", name), self.new.column(name))

    def count(self, call: RowCall) -> RowCounts:
        """Return the numbers of the rows that a function counts."""
        if not call.ignore_nulls:
            return RowCounts(self.numbers, np.ones(len(self.run), bool))
        name = call.argument
        if name not in self._counts:
            valid = np.asarray(self.column(name).is_valid())[self.source]
            numbers = self._sums(self._field("counts", name), valid[self.at].astype(np.int64))
            self._counts[name] = RowCounts(numbers, valid)
        return self._counts[name]

    def _field(self, part: str, name: str) -> pa.Array | None:
        fields = self.held.field(part) if part in self.held.type.names else None
        return fields.field(name) if fields is not None and name in fields.type.names else None

    def _sums(self, of_held: pa.Array, steps: np.ndarray) -> np.ndarray:
        """Return sums of integers of new rows within each key, which continue those of the state."""
        total, last = np.cumsum(steps), np.zeros(len(self.counts), np.int64)
        known = self.lengths > 0
        last[known] = of_held.to_numpy()[np.cumsum(self.lengths)[known] - 1]
        last -= np.append(0, total)[np.cumsum(self.counts) - self.counts]
        sums: np.ndarray = np.concatenate([of_held.to_numpy(), total + np.repeat(last, self.counts)])
        return sums[self.source]


def ranks(rows: KeyRows, function: str) -> pa.Array:
    """Return ROW_NUMBER, RANK or DENSE_RANK of the new rows."""
    if function == "rank":
        first = np.maximum.accumulate(np.where(rows.begins, np.arange(len(rows.at)), 0))
        return pa.array(rows.numbers[rows.at[first]])
    return pa.array((rows.numbers if function == "row_number" else rows.dense)[rows.at])


def frames(rows: KeyRows, frame: Frame, unit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the first and the last row of the frame of each new row.

    unit: how many units of the times are 1 ms
    """
    at = rows.at
    last = at[rows.peers] if frame.peers else at
    if frame.rows is not None:
        return at - np.minimum(frame.rows, rows.numbers[at] - 1), last
    first, end = rows.starts[rows.run[at]], at
    if frame.preceding is not None:
        wanted = rows.times[at] - frame.preceding * unit
        if frame.since:
            wanted = exact_times(rows.new.column(frame.since))
        while (first < end).any():  # a binary search for all rows together
            middle = (first + end) // 2
            before = rows.times[middle] < wanted
            first, end = np.where(before, middle + 1, first), np.where(before, end, middle)
    return first, last


def picked(
    rows: KeyRows, call: RowCall, at: np.ndarray, first: np.ndarray, last: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the rows whose values a function returns for others, and where there are any.

    at: the positions of these others; `first` and `last` are those of the ends of their frames
    """
    counts = rows.count(call)
    numbers = counts.numbers
    before = np.zeros(len(at), np.int64) if call.frame.whole else counts.before[first]
    if call.function == "lag":
        wanted, guess = counts.before[at] + 1 - call.offset, at - call.offset
        found = wanted > 0
    elif call.function == "lead":
        wanted, guess = numbers[at] + call.offset, at + call.offset
        found = wanted <= numbers[rows.ends[rows.run[at]] - 1]
    elif call.function == "last_value":
        wanted, guess = numbers[last], last
        found = wanted > before
    else:
        wanted, guess = before + call.offset, first + call.offset - 1
        found = wanted <= numbers[last]
    positions = np.clip(guess, 0, len(numbers) - 1)
    if not (len(rows.held) or call.ignore_nulls):  # then all rows of a key are here
        return positions, found
    same = (rows.run[positions] == rows.run[at]) & (numbers[positions] == wanted) & counts.valid[positions]
    rest = np.flatnonzero(found & ~same)
    if len(rest):
        some = np.flatnonzero(counts.valid)
        step = int(numbers.max()) + 1  # int64 has room for the numbers of keys and rows together
        known, asked = rows.run[some] * step + numbers[some], rows.run[at[rest]] * step + wanted[rest]
        positions[rest] = some[np.searchsorted(known, asked)]
    return positions, found


def values_of(
    rows: KeyRows, call: RowCall, positions: np.ndarray, found: np.ndarray, at: np.ndarray
) -> pa.Array:
    """Return the values of rows, or the default of the rows `at` where there are none."""
    values, source = rows.column(call.argument), rows.source
    if call.default is None:
        return values.take(pa.array(source[positions], mask=~found))
    both = pa.concat_arrays([values, rows.column(call.default).cast(values.type)])
    return both.take(pa.array(np.where(found, source[positions], len(source) + source[at])))


def needed(rows: KeyRows, calls: Iterable[RowCall], within: Iterable[Frame], unit: int) -> np.ndarray:
    """Return which rows later ones of their key need, the last one among them: bool, shape (n,)."""
    last = rows.ends[rows.run] - 1
    found: np.ndarray = last == np.arange(len(last))
    for frame in within:
        if frame.rows is not None:
            found |= rows.numbers > rows.numbers[last] - frame.rows
        elif frame.preceding is not None:
            found |= rows.times >= rows.times[last] - frame.preceding * unit
    for call in calls:
        counts = rows.count(call)
        if call.function == "lag":
            found |= counts.valid & (counts.numbers > counts.numbers[last] - call.offset)
        elif call.frame.whole and call.function == "last_value" and call.ignore_nulls:
            found |= counts.valid & (counts.numbers == counts.numbers[last])
        elif call.frame.whole and call.function in ("first_value", "nth_value"):
            found |= counts.valid & (counts.numbers == call.offset)
    return found
