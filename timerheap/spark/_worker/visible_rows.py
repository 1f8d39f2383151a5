"""Rows without their computed columns, which are the last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Row

from timerheap.functions import KeyedProcessFunction
from timerheap.spark._worker.row_classes import row_class

__all__ = ["VisibleRows"]


class VisibleRows:
    """Calls a function with the first columns of the rows.

    Parameters
    ----------
    function : KeyedProcessFunction
    names : list of str
        The names of these columns.
    """

    def __init__(self, function: KeyedProcessFunction, names: list[str]) -> None:
        self._process_element = function.process_element
        self._names, self._class = names, row_class(tuple(names))
        self.on_timer = function.on_timer

    def process_element(self, value: Row, ctx: Any) -> Iterable[Any] | None:
        """Process one row."""
        row = tuple.__new__(self._class, value[: len(self._names)])
        row.__fields__ = self._names
        return self._process_element(row, ctx)
