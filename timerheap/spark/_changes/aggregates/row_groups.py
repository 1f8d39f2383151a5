"""Rows by group: which rows each has, in an order in which they are side by side."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from timerheap._native._core import SliceGroups


class RowGroups:
    """Groups of rows, none of which is empty.

    order: the rows, those of each group side by side: int64, shape (n,)
    sizes: how many rows each has: int64, shape (g,)
    """

    def __init__(self, order: np.ndarray, sizes: np.ndarray) -> None:
        self.order, self.sizes = order, sizes
        self.starts = np.cumsum(sizes) - sizes

    @classmethod
    def of(cls, groups: SliceGroups) -> RowGroups:
        """Return the groups of rows that have been added by key."""
        return cls(groups.order(), groups.groups()[2])

    @classmethod
    def by_id(cls, ids: np.ndarray) -> tuple[RowGroups, np.ndarray]:
        """Return the groups of rows of one id, and the ids, in the order in which they first occur."""
        groups = SliceGroups(0)
        first = groups.add(ids, np.zeros(len(ids), np.int64), [])
        if len(first) == len(ids):
            return cls(np.arange(len(ids)), np.ones(len(ids), np.int64)), ids
        return cls.of(groups), ids[first]

    @classmethod
    def pairs(cls, held: np.ndarray) -> RowGroups:
        """Return groups of n rows, and of as many after them as are `held`, each with one of those."""
        sizes = 1 + held.astype(np.int64)
        starts = np.cumsum(sizes) - sizes
        order = np.empty(int(sizes.sum()), np.int64)
        order[starts] = np.arange(len(held))
        order[starts[held] + 1] = len(held) + np.arange(np.count_nonzero(held))
        return cls(order, sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The number of the group of each row, in their order."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of values in each group."""
        if len(self.sizes) == len(values):
            return np.asarray(values[self.order])
        found: Any = np.add.reduceat(values[self.order], self.starts) if len(values) else values
        return np.asarray(found)
