"""Live tables that change at random: what is in them after each micro-batch, and the changes of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from timerheap.spark._columns import WEIGHT

Row = tuple[Any, ...]


class LiveTable:
    """A table of rows, any of which may be there more than once.

    rows: what is in it
    """

    def __init__(self, names: list[str], row: Callable[[np.random.Generator], Row], seed: int) -> None:
        self.names, self._row = names, row
        self._rng = np.random.default_rng(seed)
        self.rows: list[Row] = []

    def change(self, most: int = 12, grows: bool = False) -> list[dict[str, Any]]:
        """Insert, update and delete rows; return the changes in any order, some of which cancel out."""
        rng, changes = self._rng, list[tuple[Row, int]]()
        for _ in range(int(rng.integers(0, most))):
            what = rng.random()
            if grows or what < 0.45 or not self.rows:
                new = self._row(rng)
                if what < 0.1:  # as one that is there
                    new = self.rows[int(rng.integers(len(self.rows)))] if self.rows else new
                self.rows.append(new)
                changes.append((new, 1))
                continue
            old = self.rows.pop(int(rng.integers(len(self.rows))))
            changes.append((old, -1))
            if what < 0.75:
                new = (old[0], *self._row(rng)[1:])
                self.rows.append(new)
                changes.append((new, 1))
        if not grows and rng.random() < 0.05:  # all of it goes
            changes += [(row, -1) for row in self.rows]
            self.rows.clear()
        changes = [changes[at] for at in rng.permutation(len(changes))]
        return [dict(zip(self.names, row, strict=True)) | {WEIGHT: weight} for row, weight in changes]
