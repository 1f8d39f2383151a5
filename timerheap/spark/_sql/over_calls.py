"""Calls of functions OVER rows: ranks, values of other rows, and the frames that functions see."""

from __future__ import annotations

from dataclasses import dataclass

ALL_ROWS = (1 << 63) - 1
"""The rows of a frame of all rows whose function needs each of them, not what they add up to."""


@dataclass(frozen=True)
class Frame:
    """The rows up to a row that a function sees: from some ms or rows before it, or all of its key.

    peers: whether the rows that are equal in ORDER BY are in it, as with RANGE
    since: if it is from some months before it, which differ in length, these as an interval in Spark's SQL;
        in an operator, the column with the time from which rows are in it, `preceding` ms or fewer before
    """

    preceding: int | None = None
    rows: int | None = None
    peers: bool = True
    since: str = ""

    @property
    def whole(self) -> bool:
        """Whether it has all rows before, of which none is kept."""
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
