"""SQL's functions OVER rows, computed in columns: other rows of a key, ranks, frames and aggregates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._arrow import wide
from timerheap.spark._windows.partial_aggregates import PartialColumns, input_column
from timerheap.spark._windows.window_runner import WindowWork, result_column
from timerheap.timer import MAX_WATERMARK
from timerheap.tvf.accumulators import Aggregate, Cells, FieldAggregate
from timerheap.tvf.aggregates import Partials
from timerheap.tvf.columns import Groups
from timerheap.tvf.slices import TumblingSliceAssigner
from timerheap.tvf.window_aggregate import GlobalWindowAggregate

_AT_ONCE = 1 << 22  # rows of frames


@dataclass(frozen=True)
class Frame:
    """The rows up to a row that a function sees: from some ms or rows before it, or all of its key.

    peers: whether the rows that are equal in ORDER BY are in it, as with RANGE
    """

    preceding: int | None = None
    rows: int | None = None
    peers: bool = True

    @property
    def whole(self) -> bool:
        """Whether it has all rows before."""
        return self.preceding is None and self.rows is None


@dataclass(frozen=True)
class RowCall:
    """A rank, or a function that returns a value of another row, by its name in lower case.

    argument, default: expressions in Spark's SQL; in an operator, columns
    offset: how many rows before or after, or of NTH_VALUE, the number of the row
    """

    function: str
    frame: Frame
    argument: str = ""
    offset: int = 1
    default: str | None = None
    ignore_nulls: bool = False


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The numbers of rows among those of their key that count, from 1; valid says which count."""

    numbers: np.ndarray
    valid: np.ndarray

    @property
    def before(self) -> np.ndarray:
        """How many count before each row."""
        return self.numbers - self.valid


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


def over_frames(work: WindowWork, rows: KeyRows, first: np.ndarray, last: np.ndarray) -> list[pa.Array]:
    """Return aggregates of frames; a row costs as much as its frame has rows."""
    columns = {name: rows.column(name) for name in work.inputs}
    parts: list[list[pa.Array]] = [[] for _ in work.results]
    for part in _parts(last - first + 1):
        begin, counts = first[part], (last - first)[part] + 1
        numbers = np.repeat(np.arange(len(part)), counts)
        inside = np.arange(len(numbers)) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        taken = pa.array(rows.source[inside])
        inputs = {name: input_column(columns[name].take(taken), type_) for name, type_ in work.inputs.items()}
        windows = GlobalWindowAggregate(TumblingSliceAssigner(1), work.spec.aggregates)
        windows.add(numbers, np.zeros(len(numbers), np.int64), inputs)
        found = windows.advance_watermark(MAX_WATERMARK)
        order = np.argsort(found.key_ids)
        for one, result, field in zip(parts, found.results, work.results, strict=True):
            one.append(result_column(result[order], field))
    return [pa.concat_arrays(one) for one in parts]


def _parts(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers of rows in parts whose frames have about `_AT_ONCE` rows."""
    numbers = np.cumsum(sizes) // _AT_ONCE
    yield from np.split(np.arange(len(sizes)), np.flatnonzero(np.diff(numbers)) + 1)


class Totals:
    """Aggregates of all rows of a key so far; of each key the state has their accumulators."""

    def __init__(self, work: WindowWork) -> None:
        self._work, self._columns = work, PartialColumns(work.spec)
        self._aggregation = self._columns.aggregation
        self.type = pa.struct(list(self._columns.schema)[2:])

    def add(
        self, stored: pa.StructArray, counts: np.ndarray, new: pa.RecordBatch, last: np.ndarray
    ) -> tuple[list[pa.Array], pa.StructArray]:
        """Return the results of new rows, each of those up to its `last` one, and what to store of each key.

        stored: what has been stored of each key, of which `counts` new rows follow, one or more
        """
        one_each = np.ones(len(new), np.int64)
        groups = Groups(np.arange(len(new)), np.arange(len(new)), one_each)
        inputs = {name: input_column(new.column(name), type_) for name, type_ in self._work.inputs.items()}
        before = self._from_arrow(stored.drop_null())
        found = self._aggregation.accumulate_groups(groups, inputs)
        totals = [
            _running(aggregate, counts, one, np.asarray(stored.is_valid()), first)
            for aggregate, one, first in zip(self._aggregation.aggregates, found, before, strict=True)
        ]
        at = last if (np.diff(last) != 1).any() else slice(None)  # no rows of one time
        of_rows = Partials(last, last, tuple(tuple(field[at] for field in one) for one in totals))
        results = [
            result_column(result, field)
            for result, field in zip(self._aggregation.results(of_rows), self._work.results, strict=True)
        ]
        ends = np.cumsum(counts) - 1
        groups = Groups(ends, np.arange(len(ends)), np.ones(len(ends), np.int64))  # which shortens sums
        after = Partials(ends, ends, self._aggregation.merge_accumulators(groups, tuple(totals)))
        columns = self._columns.to_arrow(after)[2:]
        return results, pa.StructArray.from_arrays(columns, fields=list(self.type))

    def _from_arrow(self, stored: pa.StructArray) -> tuple[tuple[Any, ...], ...]:
        no_ids = pa.array(np.zeros(len(stored), np.int64))
        fields = [column.cast(field.type) for column, field in zip(stored.flatten(), self.type, strict=True)]
        rows = pa.RecordBatch.from_arrays([no_ids, no_ids, *fields], schema=self._columns.schema)
        return self._columns.from_arrow(rows).accumulators


def _running(
    aggregate: Aggregate, counts: np.ndarray, accumulators: Any, known: np.ndarray, before: Any
) -> Cells:
    """Merge the accumulator of each row with those before it of its key, and with that from the state.

    Keys with about the same number of rows are the lines of one grid, so the number of steps is that of the
    bits of the longest.
    """
    assert isinstance(aggregate, FieldAggregate)
    first = aggregate.identities(len(counts))
    for column, values in zip(first, before, strict=True):
        column[known] = values
    found = tuple(np.empty_like(column) for column in accumulators)
    starts, bits = np.cumsum(counts) - counts, np.frexp(counts)[1]
    for size in np.unique(bits):
        lines = np.flatnonzero(bits == size)
        offsets = np.arange(counts[lines].max())
        inside = offsets < counts[lines][:, np.newaxis]
        at = (starts[lines][:, np.newaxis] + offsets)[inside]
        cells = aggregate.identities(len(lines) * (len(offsets) + 1))
        cells = tuple(column.reshape(len(lines), -1) for column in cells)
        for cell, column, one in zip(cells, accumulators, first, strict=True):
            cell[:, 0], cell[:, 1:][inside] = one[lines], column[at]
        for column, cell in zip(found, aggregate.scan(cells), strict=True):
            column[at] = cell[:, 1:][inside]
    return found
