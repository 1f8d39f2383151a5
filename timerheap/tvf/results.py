"""Window results as columns, and the rows that were dropped as late."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.columns import group_by
from timerheap.tvf.grid import Grid
from timerheap.tvf.layout import Layout
from timerheap.tvf.partials import Aggregation, Partials

__all__ = ["LateRows", "WindowResults", "evaluate"]

_CELLS = 1 << 17  # cells to compute at a time, so that they fit into the cache


class LateRows(NamedTuple):
    """Rows, or partials, that were dropped because the last window of their slice has fired.

    Attributes
    ----------
    rows : ndarray of intp, shape (n,)
        The positions of the dropped rows in the input.
    late_by : ndarray of int64, shape (n,)
        How much longer the watermark's delay would have had to be to keep the row, ms.
    """

    rows: NDArray[np.intp]
    late_by: NDArray[np.int64]


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
    aggregation: Aggregation, partials: Partials, layout: Layout, interval: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[np.ma.MaskedArray[Any, Any], ...]]:
    """Compute the windows of a layout that have rows.

    Returns
    -------
    key_ids, window_ends : ndarray of int64, shape (w,)
        The key and the end of each window, ordered by end.
    results : tuple of masked_array, shape (w,) each
        One column for each output of the aggregation.
    """
    numbers = layout.lines * layout.width + layout.cells
    groups = group_by(numbers)
    cells = numbers[groups.firsts]
    slices = partials[layout.rows].accumulators
    placed = Partials(cells, cells, aggregation.merge_accumulators(groups, slices))
    lines_at_once = max(_CELLS // max(layout.width, 1), 1)
    edges = np.arange(0, len(layout.keys) + lines_at_once, lines_at_once)
    bounds = np.searchsorted(cells, edges * layout.width)
    blocks = [
        _block(aggregation, placed[start:end], layout, edge, min(lines_at_once, len(layout.keys) - edge))
        for edge, start, end in zip(edges.tolist(), bounds.tolist(), bounds[1:].tolist(), strict=False)
    ]
    if not blocks:
        nothing = aggregation.empty()
        return nothing.key_ids, nothing.slice_ends, aggregation.results(nothing)
    lines = np.concatenate([block[0] for block in blocks])
    steps = np.concatenate([block[1] for block in blocks])
    columns = tuple(map(_join, zip(*(block[2] for block in blocks), strict=True)))
    ends = layout.first_ends[lines] + steps * interval
    order = np.argsort(ends, kind="stable")
    return layout.keys[lines][order], ends[order], tuple(column[order] for column in columns)


def _block(
    aggregation: Aggregation, cells: Partials, layout: Layout, first_line: int, lines: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], tuple[np.ma.MaskedArray[Any, Any], ...]]:
    """Compute some lines; return line, number in the line and results of each window with rows."""
    at = cells.key_ids - first_line * layout.width
    windows = layout.width if layout.span is None else layout.span
    grid = Grid(lines, layout.width, layout.span, at, np.arange(lines * windows))
    rows = np.asarray(aggregation.aggregates[0].window_results(cells.accumulators[0], grid))
    has_rows = rows.reshape(lines, windows) != 0
    has_rows &= np.arange(windows) < layout.windows[first_line : first_line + lines, None]
    grid = replace(grid, windows=np.flatnonzero(has_rows))
    results = tuple(
        aggregation.aggregates[number].window_results(cells.accumulators[number], grid)
        if number
        else np.ma.masked_array(rows[grid.windows])
        for number in aggregation.outputs
    )
    line, step = np.divmod(grid.windows, windows)
    return line + first_line, step, results


def _join(columns: tuple[np.ma.MaskedArray[Any, Any], ...]) -> np.ma.MaskedArray[Any, Any]:
    """Concatenate masked columns; `numpy.ma.concatenate` takes ten times as long."""
    if len(columns) == 1:
        return columns[0]
    data = np.concatenate([np.ma.getdata(column) for column in columns])
    return np.ma.masked_array(data, np.concatenate([np.ma.getmaskarray(column) for column in columns]))
