"""Windows that share slices, evaluated at once: a grid whose lines are keys and whose cells are slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid", "over_windows"]

Cells = tuple[NDArray[Any], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Where slices stand in a grid of lines, and which windows over it are asked for.

    Parameters
    ----------
    lines, width : int
        The shape. A cell is named by its number, line by line.
    span : int or None
        A window is a cell and the ``span - 1`` before it, or all before it in its line.
    cells : ndarray of intp, shape (n,)
        The cells that hold something, ascending.
    windows : ndarray of intp, shape (w,)
        The last cells of the windows.
    """

    lines: int
    width: int
    span: int | None
    cells: NDArray[np.intp]
    windows: NDArray[np.intp]


def over_windows(cells: Cells, span: int | None, combine: Callable[[Cells, Cells], Cells]) -> Cells:
    """Combine every cell with those of its window, in each line.

    Windows are put together of runs of 1, 2, 4, ... cells: O(log span) steps, each over whole columns, and
    without ever taking anything out again, so that it serves whatever can be merged.

    Parameters
    ----------
    cells : tuple of ndarray, shape (lines, width)
        The columns of an accumulator.
    span : int or None
        As in `Grid`.
    combine : callable
        Merges two accumulators, element by element; in any order.

    Examples
    --------
    >>> add = lambda a, b: (a[0] + b[0],)
    >>> over_windows((np.array([[1, 2, 3, 4]]),), 3, add)
    (array([[1, 3, 6, 9]]),)
    >>> over_windows((np.array([[1, 2, 3, 4]]),), None, add)
    (array([[ 1,  3,  6, 10]]),)
    """
    width = cells[0].shape[1]
    if span is None:
        length = 1
        while length < width:
            cells = _combine_shifted(cells, cells, length, combine)
            length *= 2
        return cells
    result: Cells | None = None
    covered, length, span = 0, 1, min(span, width)
    while True:
        if span & length:
            result = cells if result is None else _combine_shifted(result, cells, covered, combine)
            covered += length
        if covered == span:
            assert result is not None  # span is at least 1
            return result
        cells = _combine_shifted(cells, cells, length, combine)
        length *= 2


def _combine_shifted(
    cells: Cells, earlier: Cells, by: int, combine: Callable[[Cells, Cells], Cells]
) -> Cells:
    """Combine each cell with the one so many before it; the first ones of a line stay."""
    combined = combine(tuple(c[:, by:] for c in cells), tuple(e[:, :-by] for e in earlier))
    return tuple(np.concatenate([c[:, :by], d], axis=1) for c, d in zip(cells, combined, strict=True))
