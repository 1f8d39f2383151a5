"""Evaluates windows that share slices: a grid with one line per key and one cell per slice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cells", "Grid", "over_windows", "scan_by_doubling"]

Cells = tuple[NDArray[Any], ...]
Combine = Callable[[Cells, Cells], Cells]


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of slices, and the windows to compute over it.

    Parameters
    ----------
    lines, width : int
        The shape. Cells are numbered line by line.
    span : int or None
        The number of cells in a window; None if a window is all cells up to its last. With a span, a line is
        ``2 * span - 1`` cells wide, so that all its windows contain the middle cell.
    cells : ndarray of intp, shape (n,)
        The numbers of the nonempty cells, ascending.
    windows : ndarray of intp, shape (w,)
        The numbers of the windows, line by line; the first window of a line ends in `first_cell`.
    """

    lines: int
    width: int
    span: int | None
    cells: NDArray[np.intp]
    windows: NDArray[np.intp]

    @property
    def first_cell(self) -> int:
        """The cell of a line in which its first window ends."""
        return 0 if self.span is None else self.span - 1

    @property
    def last_cells(self) -> NDArray[np.intp]:
        """The last cell of each window."""
        lines, steps = np.divmod(self.windows, self.width - self.first_cell)
        return lines * self.width + steps + self.first_cell


def over_windows(cells: Cells, span: int | None, scan: Callable[[Cells], Cells], combine: Combine) -> Cells:
    """Combine the cells of each window in each line.

    Each window consists of the cells up to the middle of the line and those after it. Two scans and one
    combination of them compute all windows, whatever the span. Nothing is ever subtracted, so this works for
    every accumulator that can be merged (van Herk 1992, Gil and Werman 1993).

    Parameters
    ----------
    cells : tuple of ndarray, shape (lines, width)
        The columns of an accumulator.
    span : int or None
        As in `Grid`.
    scan : callable
        Combines each cell with all cells before it in its line.
    combine : callable
        Merges two accumulators element by element, in any order.

    Returns
    -------
    tuple of ndarray, shape (lines, windows per line)

    Examples
    --------
    >>> sums = lambda cells: (np.add.accumulate(cells[0], axis=1),)
    >>> add = lambda a, b: (a[0] + b[0],)
    >>> over_windows((np.array([[1, 2, 3, 4, 5]]),), 3, sums, add)
    (array([[ 6,  9, 12]]),)
    >>> over_windows((np.array([[1, 2, 3, 4, 5]]),), None, sums, add)
    (array([[ 1,  3,  6, 10, 15]]),)
    """
    if span is None:
        return scan(cells)
    to_middle = tuple(c[:, ::-1] for c in scan(tuple(c[:, :span][:, ::-1] for c in cells)))
    from_middle = scan(tuple(c[:, span:] for c in cells))
    joined = combine(tuple(c[:, 1:] for c in to_middle), from_middle)
    return tuple(np.concatenate([c[:, :1], d], axis=1) for c, d in zip(to_middle, joined, strict=True))


def scan_by_doubling(cells: Cells, combine: Combine) -> Cells:
    """Combine each cell with all cells before it in its line, in O(log width) steps over whole columns.

    Examples
    --------
    >>> scan_by_doubling((np.array([[1, 2, 3, 4]]),), lambda a, b: (a[0] + b[0],))
    (array([[ 1,  3,  6, 10]]),)
    """
    length = 1
    while length < cells[0].shape[1]:
        joined = combine(tuple(c[:, length:] for c in cells), tuple(c[:, :-length] for c in cells))
        cells = tuple(np.concatenate([c[:, :length], d], axis=1) for c, d in zip(cells, joined, strict=True))
        length *= 2
    return cells
