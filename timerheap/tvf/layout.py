"""Which slices make up which windows: rows of accumulators laid out as lines of a grid."""

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
    """A grid of slices, and the windows that are seen along its lines.

    Parameters
    ----------
    rows, lines, cells : ndarray of intp, shape (r,)
        Which row of the accumulators stands where. One row may stand in two lines.
    keys, first_ends : ndarray of int64, shape (l,)
        Of each line the key, and the end of its first window; the others follow one slice apart.
    windows : ndarray of int64, shape (l,)
        The number of windows of each line.
    width : int
        The number of cells of a line.
    span : int or None
        The number of cells of a window, None for all up to its end; as in `Grid`.
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
        Which windows.
    key_ids, slice_ends : ndarray of int64, shape (n,)
        The slices; each is part of such a window.
    first, last : int
        Local ms.

    Notes
    -----
    Slices that no window tells apart share a cell. Of hopping windows a line is a key and as many windows, at
    most, as a window has slices: then the slices of a line that all its windows share are one cell, and those
    to its left and right are as many as it has windows. Nothing depends on how long nothing came.

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
    # Positions count slices from the end of the first window; a slice is part of windows from its own on.
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
    """Number the rows' groups, and give a row of each."""
    groups = group_by(*columns)
    return groups.of_rows, groups.firsts
