"""Maps slices to windows: places rows of accumulators in the lines of a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from timerheap.tvf.columns import group_by
from timerheap.tvf.slices import CumulativeSliceAssigner, HoppingSliceAssigner, SliceAssigner

__all__ = ["Layout", "lay_out"]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A placement of slices in a grid, and the windows along its lines.

    Parameters
    ----------
    rows, lines, cells : ndarray of intp, shape (r,)
        The row of the accumulators in each occupied cell. One row may occur in two lines.
    keys, first_ends : ndarray of int64, shape (l,)
        The key of each line, and the end of its first window; each further window ends one slice later.
    windows : ndarray of int64, shape (l,)
        The number of windows in each line.
    width : int
        The number of cells in a line.
    span : int or None
        The number of cells in a window; None if a window is all cells up to its end, as in `Grid`.
    """

    rows: NDArray[np.intp]
    lines: NDArray[np.intp]
    cells: NDArray[np.intp]
    keys: NDArray[np.int64]
    first_ends: NDArray[np.int64]
    windows: NDArray[np.int64]
    width: int
    span: int | None


def lay_out(
    assigner: SliceAssigner, key_ids: NDArray[np.int64], slice_ends: NDArray[np.int64], first: int, last: int
) -> Layout:
    """Lay out slices for the windows that end from `first` to `last`, both included.

    Parameters
    ----------
    assigner : SliceAssigner
        The window definition.
    key_ids, slice_ends : ndarray of int64, shape (n,)
        The slices; each is part of at least one of these windows.
    first, last : int
        Local ms.

    Notes
    -----
    Slices that are part of the same windows share a cell. For hopping windows, a line holds one key and at
    most as many windows as a window has slices. The slices that all windows of the line share are one cell;
    the cells to its left and right are as many as the windows. Long gaps in the input cost nothing.

    Examples
    --------
    >>> day = HoppingSliceAssigner(size=24, slide=1)
    >>> layout = lay_out(day, np.array([7, 7, 7]), np.array([80, 99, 101]), first=100, last=102)
    >>> layout.cells, layout.width, layout.span
    (array([2, 2, 3]), 5, 3)
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
    lines, firsts = _number(key_ids[rows], chunks)
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
    lines, firsts = _number(key_ids, starts)
    rows = np.arange(len(key_ids))
    width = int(windows.max(initial=0))
    return Layout(rows, lines, cells, key_ids[firsts], first_ends[firsts], windows[firsts], width, None)


def _number(*columns: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Number the groups of the rows, and return the first row of each."""
    groups = group_by(*columns)
    return groups.of_rows, groups.firsts
