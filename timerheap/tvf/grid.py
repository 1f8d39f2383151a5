"""Windows that share slices, evaluated at once: a grid whose lines are keys and whose cells are slices."""

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
    """Where slices stand in a grid of lines, and which windows over it are asked for.

    Parameters
    ----------
    lines, width : int
        The shape. A cell is named by its number, line by line.
    span : int or None
        A window is `span` cells, or all up to its last. With a span lines are ``2 * span - 1`` cells wide,
        so that all windows of a line share its middle.
    cells : ndarray of intp, shape (n,)
        The cells that hold something, ascending.
    windows : ndarray of intp, shape (w,)
        The windows by number, line by line: a line has as many as fit, and the first ends in `first_cell`.
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
        """The last cell of each of the windows."""
        lines, steps = np.divmod(self.windows, self.width - self.first_cell)
        return lines * self.width + steps + self.first_cell


def over_windows(cells: Cells, span: int | None, scan: Callable[[Cells], Cells], combine: Combine) -> Cells:
    """Combine the cells of each window, in each line.

    A window is the cells from its first to the middle of the line, and those from there to its last: two
    scans, and one step that joins them, whatever the span. Nothing is ever taken out again, so that this
    serves whatever can be merged (van Herk 1992, Gil and Werman 1993).

    Parameters
    ----------
    cells : tuple of ndarray, shape (lines, width)
        The columns of an accumulator.
    span : int or None
        As in `Grid`.
    scan : callable
        Combines each cell with all before it in its line.
    combine : callable
        Merges two accumulators, element by element; in any order.

    Returns
    -------
    tuple of ndarray, shape (lines, windows of a line)

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
    """Combine each cell with all before it in its line, in O(log width) steps over whole columns.

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
