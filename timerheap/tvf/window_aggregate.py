"""TUMBLE, HOP and CUMULATE over columns: the local and the global stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from timerheap._arguments import int64
from timerheap._native._core import TimerHeap
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK, lateness
from timerheap.tvf.accumulators import Aggregate, Grid
from timerheap.tvf.aggregates import Aggregation, Partials
from timerheap.tvf.columns import Int64s, column, group_by
from timerheap.tvf.slices import CumulativeSliceAssigner, HoppingSliceAssigner, SliceAssigner

_CELLS = 1 << 17  # cells to compute at a time, so that they fit into the cache


class LateRows(NamedTuple):
    """Rows, or partials, that were dropped as late."""

    rows: NDArray[np.intp]  # their positions in the input
    late_by: NDArray[np.int64]  # how much longer the watermark's delay would have had to be to keep each, ms


def late_slices(assigner: SliceAssigner, slice_ends: NDArray[np.int64], watermark: int) -> LateRows:
    """Return the slices whose last window has ended; in processing time there are none."""
    rows, late_by = np.empty(0, np.intp), np.empty(0, np.int64)
    if assigner.is_event_time:
        passed = assigner.last_passed(watermark)
        rows = np.flatnonzero(slice_ends <= passed)
    if len(rows):
        last = assigner.last_window_ends(slice_ends[rows])
        rows, last = rows[last <= passed], last[last <= passed]
        late_by = lateness(watermark, assigner.timers(last))
    return LateRows(rows, late_by)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A placement of slices in the lines of a grid, and the windows along them; each ends one slice later.

    If a slide has several slices, most of these windows are no results.
    """

    rows: NDArray[np.intp]  # of the accumulators in each occupied cell; one may occur in two lines
    lines: NDArray[np.intp]  # of these cells
    cells: NDArray[np.intp]  # their places in the lines
    keys: NDArray[np.int64]  # of each line
    first_ends: NDArray[np.int64]  # the end of the first window of each line
    windows: NDArray[np.int64]  # the number of windows in each line
    width: int  # cells in a line
    span: int | None  # as in `Grid`
    wanted: tuple[int, int] | None = None  # the first and the last end of windows that are results


def lay_out(
    assigner: SliceAssigner, key_ids: NDArray[np.int64], slice_ends: NDArray[np.int64], first: int, last: int
) -> Layout:
    """Lay out slices for the windows that end from `first` to `last`; each slice is part of one or more.

    Slices that are part of the same windows share a cell. For hopping windows, a line holds one key and at
    most as many windows as a window has slices. The slices that all windows of the line share are one cell;
    the cells to its left and right are as many as the windows. Long gaps in the input cost nothing.
    """
    if isinstance(assigner, HoppingSliceAssigner):
        return _hopping(assigner, key_ids, slice_ends, first, last)
    if isinstance(assigner, CumulativeSliceAssigner):
        return _cumulative(assigner, key_ids, slice_ends, first, last)
    rows = np.arange(len(key_ids))
    one = np.ones(len(rows), np.int64)
    return Layout(rows, rows, np.zeros_like(rows), key_ids, slice_ends, one, 1, 1)


def _hopping(
    assigner: HoppingSliceAssigner,
    key_ids: NDArray[np.int64],
    slice_ends: NDArray[np.int64],
    first: int,
    last: int,
) -> Layout:
    slices = assigner.size // assigner.interval
    windows = (last - first) // assigner.interval + 1
    chunk = min(slices, windows)
    # Positions count slices from the end of the first window; a slice belongs to windows from its own end on.
    position = (slice_ends - first) // assigner.interval
    first_chunk = np.maximum(position, 0) // chunk
    last_chunk = np.minimum(position + slices - 1, windows - 1) // chunk
    twice = np.flatnonzero(last_chunk > first_chunk)
    rows = np.concatenate([np.arange(len(key_ids)), twice])
    chunks = np.concatenate([first_chunk, last_chunk[twice]])
    inside = position[rows] - chunks * chunk
    cells = np.where(inside <= 0, np.minimum(inside + slices, chunk), chunk + inside) - 1
    lines, firsts = _numbered_lines(key_ids[rows], chunks)
    return Layout(
        rows,
        lines,
        cells,
        key_ids[rows[firsts]],
        first + chunks[firsts] * (chunk * assigner.interval),
        np.minimum(chunk, windows - chunks[firsts] * chunk),
        2 * chunk - 1,
        chunk,
    )


def _cumulative(
    assigner: CumulativeSliceAssigner,
    key_ids: NDArray[np.int64],
    slice_ends: NDArray[np.int64],
    first: int,
    last: int,
) -> Layout:
    starts = assigner.window_starts(slice_ends)
    first_ends = np.maximum(starts + assigner.interval, first)
    last_ends = np.minimum(starts + assigner.size, last)
    cells = np.maximum(slice_ends - first_ends, 0) // assigner.interval
    windows = (last_ends - first_ends) // assigner.interval + 1
    lines, firsts = _numbered_lines(key_ids, starts)
    rows = np.arange(len(key_ids))
    width = int(windows.max(initial=0))
    return Layout(rows, lines, cells, key_ids[firsts], first_ends[firsts], windows[firsts], width, None)


def _numbered_lines(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number the groups of the rows, and return the first row of each."""
    groups = group_by(*columns)
    return groups.of_rows, groups.firsts


@dataclass(frozen=True, slots=True, eq=False)
class WindowResults:
    """Results of windows, ordered by the ends of the windows.

    Parameters
    ----------
    key_ids : ndarray of int64, shape (n,)
        The keys.
    window_starts, window_ends : ndarray of int64, shape (n,)
        SQL's ``window_start`` and ``window_end`` in local ms; the end is exclusive.
    window_times : ndarray of int64, shape (n,)
        SQL's ``window_time``: the last instant of the window, epoch ms.
    results : tuple of masked_array, shape (n,) each
        One column for each aggregate; a result is masked where it is NULL.
    """

    key_ids: NDArray[np.int64]
    window_starts: NDArray[np.int64]
    window_ends: NDArray[np.int64]
    window_times: NDArray[np.int64]
    results: tuple[np.ma.MaskedArray[Any, Any], ...]

    def __len__(self) -> int:
        return len(self.key_ids)


def evaluate(
    aggregation: Aggregation, partials: Partials, layout: Layout, assigner: SliceAssigner
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[np.ma.MaskedArray[Any, Any], ...]]:
    """Return the keys, the ends and the results of the windows that have rows, ordered by end."""
    numbers = layout.lines * layout.width + layout.cells
    groups = group_by(numbers)
    cells = numbers[groups.firsts]
    slices = partials[layout.rows].accumulators
    placed = Partials(cells, cells, aggregation.merge_accumulators(groups, slices))
    lines_at_once = max(_CELLS // max(layout.width, 1), 1)
    edges = np.arange(0, len(layout.keys) + lines_at_once, lines_at_once)
    bounds = np.searchsorted(cells, edges * layout.width)
    blocks = [
        _block(
            aggregation,
            placed[start:end],
            layout,
            edge,
            min(lines_at_once, len(layout.keys) - edge),
            assigner,
        )
        for edge, start, end in zip(edges.tolist(), bounds.tolist(), bounds[1:].tolist(), strict=False)
    ]
    if not blocks:
        nothing = aggregation.empty()
        return nothing.key_ids, nothing.slice_ends, aggregation.results(nothing)
    lines = np.concatenate([block[0] for block in blocks])
    steps = np.concatenate([block[1] for block in blocks])
    columns = tuple(map(_concatenated, zip(*(block[2] for block in blocks), strict=True)))
    ends = layout.first_ends[lines] + steps * assigner.interval
    order = np.argsort(ends, kind="stable")
    return layout.keys[lines][order], ends[order], tuple(column[order] for column in columns)


def _block(
    aggregation: Aggregation,
    cells: Partials,
    layout: Layout,
    first_line: int,
    lines: int,
    assigner: SliceAssigner,
) -> tuple[NDArray[np.intp], NDArray[np.intp], tuple[np.ma.MaskedArray[Any, Any], ...]]:
    """Compute some lines; return line, number in the line and results of each window with rows."""
    at = cells.key_ids - first_line * layout.width
    windows = layout.width if layout.span is None else layout.span
    grid = Grid(lines, layout.width, layout.span, at, np.arange(lines * windows))
    rows = np.asarray(aggregation.aggregates[0].window_results(cells.accumulators[0], grid))
    has_rows = rows.reshape(lines, windows) != 0
    has_rows &= np.arange(windows) < layout.windows[first_line : first_line + lines, None]
    slides = isinstance(assigner, HoppingSliceAssigner) and assigner.slide != assigner.interval
    if slides or layout.wanted is not None:
        steps = np.arange(windows) * assigner.interval
        ends = layout.first_ends[first_line : first_line + lines, None] + steps
        if slides:
            has_rows &= assigner.next_window_ends(ends) == ends
        if layout.wanted is not None:
            has_rows &= (ends >= layout.wanted[0]) & (ends <= layout.wanted[1])
    grid = replace(grid, windows=np.flatnonzero(has_rows))
    results = tuple(
        aggregation.aggregates[number].window_results(cells.accumulators[number], grid)
        if number
        else np.ma.masked_array(rows[grid.windows])
        for number in aggregation.outputs
    )
    line, step = np.divmod(grid.windows, windows)
    return line + first_line, step, results


def _concatenated(columns: tuple[np.ma.MaskedArray[Any, Any], ...]) -> np.ma.MaskedArray[Any, Any]:
    """Concatenate masked columns; `numpy.ma.concatenate` takes ten times as long."""
    if len(columns) == 1:
        return columns[0]
    data = np.concatenate([np.ma.getdata(column) for column in columns])
    return np.ma.masked_array(data, np.concatenate([np.ma.getmaskarray(column) for column in columns]))


class GlobalWindowAggregate:
    """Keyed windows over shared slices; a window fires when the watermark reaches its end minus 1 ms.

    Parameters
    ----------
    assigner : TumblingSliceAssigner, HoppingSliceAssigner or CumulativeSliceAssigner
        The windows.
    aggregates : sequence of Aggregate
        What to compute for each window, made by `aggregate`.
    folds : bool, default True
        Whether slices that only the longer ones of cumulative windows need become one, which may round a sum
        of floats in another way.

    Attributes
    ----------
    watermark : int
        Epoch ms; ``MIN_WATERMARK`` before the first watermark.
    fired : int
        The end of the last window, empty or not, that has fired.
    late_rows : int
        The number of rows dropped as late: the last window of their slice had already fired.
    timers : TimerHeap
        The ends of windows, in epoch ms, with the key as the key hash and the slice as the namespace.

    Notes
    -----
    Flink: ``WindowAggOperator`` with ``SliceSharedSyncStateWindowAggProcessor``. State is one accumulator per
    key and slice, sorted by slice. Merging n partials costs a sort of them and of the state from their first
    slice on. A watermark that ends no window costs one look at the timer heap; one that ends m windows of k
    keys costs a sort of their slices and a few passes over k * m results.

    Examples
    --------
    >>> from timerheap.tvf import CumulativeSliceAssigner, aggregate
    >>> so_far = CumulativeSliceAssigner("1 day", "1 hour")
    >>> delays = GlobalWindowAggregate(so_far, [aggregate("avg", "delay")])
    >>> late = delays.add([7, 7], [1_000, 3_600_001], {"delay": [10, 20]})
    >>> fired = delays.advance_watermark(7_200_000)
    >>> fired.key_ids, fired.window_starts, fired.window_ends, fired.results[0].data
    (array([7, 7]), array([0, 0]), array([3600000, 7200000]), array([10., 15.]))
    """

    def __init__(
        self, assigner: SliceAssigner, aggregates: Sequence[Aggregate], *, folds: bool = True
    ) -> None:
        self.assigner = assigner
        self.aggregation = Aggregation(aggregates)
        self.watermark = MIN_WATERMARK
        self.late_rows = 0
        self.fired = MIN_WATERMARK
        self._folds = folds and isinstance(assigner, CumulativeSliceAssigner)
        self._slices = self.aggregation.empty()
        self.timers = TimerHeap()
        self._changed: set[int] = set()  # slices in the state that changed since the last `changes`
        self._reported = np.empty(0, np.int64)  # slices in the state at the last `changes`

    def __len__(self) -> int:
        """Return the number of accumulators, one for each key and slice."""
        return len(self._slices)

    def add(
        self, key_ids: Int64s, timestamps: Int64s | int, inputs: Mapping[str, object] | None = None
    ) -> LateRows:
        """Add rows: the local and the global stage in one.

        Parameters
        ----------
        key_ids : array_like of int64, shape (n,)
            The keys of the rows.
        timestamps : array_like of int64, shape (n,), or int
            Epoch ms; in processing time, the clock's reading.
        inputs : mapping of str to array_like, shape (n,) each
            The columns that the aggregates need; a masked array where there are nulls.

        Returns
        -------
        LateRows
            `rows`, the positions of the rows that were dropped as late, and `late_by`: how much longer the
            watermark's delay would have had to be to keep each, in ms.

        Raises
        ------
        KeyError
            If a column is missing; the state is then unchanged.
        ArgumentTypeError, ArgumentValueError
            If a column is invalid; the state is then unchanged.
        """
        times = column("timestamps", timestamps, np.size(key_ids))
        slice_ends = self.assigner.assign_slice_ends(times)
        partials = self.aggregation.accumulate(key_ids, slice_ends, inputs)
        self.merge(partials)
        return late_slices(self.assigner, slice_ends, self.watermark)

    def merge(self, partials: Partials) -> None:
        """Merge the partials of a local stage; late ones are dropped and counted."""
        passed = self.assigner.last_passed(self.watermark)
        late = late_slices(self.assigner, partials.slice_ends, self.watermark).rows
        late_rows = int(partials.rows[late].sum())
        partials = partials.without(late)
        if self.assigner.is_event_time:
            partials = self._fold(partials, passed)
        else:  # in processing time no row is late: it belongs to the current slice
            now = np.maximum(partials.slice_ends, min(passed + self.assigner.interval, MAX_WATERMARK))
            partials = Partials(partials.key_ids, now, partials.accumulators)
        if len(partials):
            begin = int(np.searchsorted(self._slices.slice_ends, partials.slice_ends.min()))
            merged = self.aggregation.merge([self._slices[begin:], partials])
            timers = self._next_timers(partials, passed)
            self._slices = self.aggregation.concatenate([self._slices[:begin], merged])
            self._changed.update(np.unique(partials.slice_ends).tolist())
            self.timers.push_many(*timers)
        self.late_rows += late_rows

    def advance_watermark(self, watermark: int) -> WindowResults:
        """Set the watermark and fire the windows that it ends.

        A watermark that is not higher than the current one has no effect. All results are held in memory:
        where very many windows may end together, as in a batch query, advance in steps.

        Parameters
        ----------
        watermark : int
            Epoch ms: no more rows with this timestamp or a lower one will arrive. ``MAX_WATERMARK`` at the
            end of the input. In processing time, the clock's reading minus 1 ms.

        Returns
        -------
        WindowResults
            The results, ordered by the ends of the windows.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `watermark` is not an int64, or a sum does not fit; the state is then unchanged.
        Exception
            If a Python aggregate raises; the state is then unchanged.
        """
        watermark = max(int64("watermark", watermark), self.watermark)
        last = self.assigner.last_passed(watermark)
        head = self.next_timer()
        if head is None or head > watermark:
            self.watermark, self.fired = watermark, last
            return self._evaluate(self.aggregation.empty(), last, last)
        in_reach = self._slices[: self._ended(last)]
        results = self._evaluate(in_reach, self.fired + self.assigner.interval, last)
        self.close_windows(watermark)
        return results

    def close_windows(self, watermark: int) -> None:
        """Set the watermark as `advance_watermark` does, and compute no results.

        watermark: that of the operator, or a later one
        """
        last = self.assigner.last_passed(watermark)
        head = self.next_timer()
        if head is None or head > watermark:
            self.watermark, self.fired = watermark, last
            return
        ended = self._ended(last)
        in_reach, ahead = self._slices[:ended], self._slices[ended:]
        kept, folded = self._expire(in_reach, last)
        following = self._next_timers(kept, last)

        self.watermark, self.fired = watermark, last
        self._slices = self.aggregation.concatenate([kept, ahead])
        self._changed.difference_update(np.setdiff1d(in_reach.slice_ends, kept.slice_ends).tolist())
        self._changed.update(folded.tolist())
        self.timers.pop_due(watermark)
        self.timers.push_many(*following)

    def _ended(self, last: int) -> int:
        """Return how many slices have an end up to this one."""
        return int(np.searchsorted(self._slices.slice_ends, last, side="right"))

    def take(self, rows: NDArray[np.bool_]) -> Partials:
        """Remove some of the accumulators of `snapshot`, and return them."""
        taken, self._slices = self._slices[rows], self._slices[~rows]
        self._changed.update(np.unique(taken.slice_ends).tolist())
        self._changed.intersection_update(self._present().tolist())
        self.timers.clear()
        self.timers.push_many(*self._next_timers(self._slices, self.fired))
        return taken

    def open_windows(self) -> WindowResults:
        """Return the current results of the windows that have rows and have not fired, without firing them.

        This costs as much as firing them.

        Examples
        --------
        >>> from timerheap.tvf import HoppingSliceAssigner, aggregate
        >>> counts = GlobalWindowAggregate(HoppingSliceAssigner(size=20, slide=10), [aggregate("count")])
        >>> late = counts.add([7, 7], [5, 15])
        >>> counts.open_windows().window_ends, counts.open_windows().results[0].data
        (array([10, 20, 30]), array([1, 2, 1]))
        """
        return self._evaluate(self._slices, self.fired + self.assigner.interval, MAX_WATERMARK)

    def next_timer(self) -> int | None:
        """Return the watermark at which the next window with rows ends, or None."""
        head = self.timers.peek()
        return None if head is None else head.timestamp

    def snapshot(self) -> Partials:
        """Return the state, accumulators by slice and then key, for `restore` with the `watermark`; O(1)."""
        return self._slices

    def changes(self) -> tuple[Partials, NDArray[np.int64]]:
        """Return what has changed since the last call, or since `restore`.

        All accumulators of the slices that have changed, and the ends of the slices that have been removed.
        """
        present = self._present()
        sizes = np.diff(np.append(np.searchsorted(self._slices.slice_ends, present), len(self._slices)))
        changed = np.isin(present, np.fromiter(self._changed, np.int64, len(self._changed)))
        gone = np.setdiff1d(self._reported, present)
        self._changed, self._reported = set(), present
        return self._slices[np.repeat(changed, sizes)], gone

    def restore(self, slices: Partials, watermark: int, timers: TimerHeap | None = None) -> None:
        """Replace the state with that of operators with the same windows, aggregates and watermark.

        slices: what `snapshot` returned, or the collected slices of `changes`, in any order
        watermark: the watermark of those operators
        timers: the `timers` of one operator, which are moved; by default they are made anew
        """
        self.watermark = int64("watermark", watermark)
        self.fired = self.assigner.last_passed(self.watermark)
        self._slices = self.aggregation.merge([slices])
        self._changed, self._reported = set(), self._present()
        if timers is not None:
            self.timers = timers
        else:
            self.timers.clear()
            self.timers.push_many(*self._next_timers(self._slices, self.fired))

    def _present(self) -> NDArray[np.int64]:
        """Return the ends of the slices in the state, sorted."""
        ends = self._slices.slice_ends  # sorted
        return ends[np.append(True, ends[1:] != ends[:-1])] if len(ends) else ends

    def _fold(self, partials: Partials, passed: int) -> Partials:
        """Move slices that have ended into the first slice of their cumulative windows."""
        over = partials.slice_ends <= passed
        if not self._folds or not over.any():
            return partials
        firsts = self.assigner.window_starts(partials.slice_ends) + self.assigner.interval
        return Partials(partials.key_ids, np.where(over, firsts, partials.slice_ends), partials.accumulators)

    def _expire(self, fired: Partials, last: int) -> tuple[Partials, NDArray[np.int64]]:
        """Return the slices that later windows need, and the ends of slices that others were folded into."""
        kept = fired[self.assigner.last_window_ends(fired.slice_ends) > last]
        folded = self._fold(kept, last)
        changed = folded.slice_ends[folded.slice_ends != kept.slice_ends]
        return self.aggregation.merge([folded]), np.unique(changed)

    def _next_timers(
        self, slices: Partials, passed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the timer of the next window over each slice, once per key, for `TimerHeap.push_many`."""
        ends, keys = slices.slice_ends, slices.key_ids
        first = min(passed + self.assigner.interval, MAX_WATERMARK)
        following = self.assigner.next_window_ends(np.maximum(ends, first))
        if (following != ends).any():  # several slices of a key may have the same next window
            ends = following
            groups = group_by(ends, keys)
            ends, keys = ends[groups.firsts], keys[groups.firsts]
        return self.assigner.timers(ends), keys, ends

    def _evaluate(self, slices: Partials, first: int, last: int) -> WindowResults:
        """Compute the windows over these slices that end from `first` to `last`, both included."""
        if len(slices):
            first = max(first, int(slices.slice_ends[0]))
            last = min(last, int(self.assigner.last_window_ends(slices.slice_ends).max()))
        else:
            last = first
        layout = lay_out(self.assigner, slices.key_ids, slices.slice_ends, first, last)
        keys, ends, results = evaluate(self.aggregation, slices, layout, self.assigner)
        starts, times = self.assigner.window_starts(ends), self.assigner.window_times(ends)
        return WindowResults(keys, starts, ends, times, results)
