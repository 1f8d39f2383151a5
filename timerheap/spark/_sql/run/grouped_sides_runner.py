"""The sides of a window join in tasks: the rows of each window and key, as a list for each side.

Rows of windows wait in the row buffer until their window ends, with that as their event time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from timerheap.functions import BatchProcessFunction
from timerheap.spark._columns import SIDES, WINDOW
from timerheap.spark._sql.run.first_rows_runner import groups_of

GROUPED = ["rows of the left side", "rows of the right side"]
"""Names of the columns with the rows of a window and a key: lists of structs."""


class GroupedSides(BatchProcessFunction):
    """Emits the rows of each window and key: a list of those of the left side, and one of the right.

    As in SQL, null equals no key: a row with null in a column of `keys` is a group of its own. Null equals
    null in the other key columns, those of IS NOT DISTINCT FROM.
    """

    _takes_all = _any_order = True

    def __init__(self, keys: list[str], how: str) -> None:
        self._keys = keys
        self._needs = [how in ("inner", "left", "semi", "anti"), how in ("inner", "right", "semi")]

    def process_batch(
        self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context
    ) -> Iterator[pa.RecordBatch]:
        """Group the rows."""
        order, begins = groups_of(batch, ctx.ids)
        for name in self._keys:
            null = np.asarray(batch.column(name).is_null())[order]
            begins |= null
            begins[1:] |= null[:-1]
        starts = np.flatnonzero(begins)
        lists, wanted = [], np.ones(len(starts), bool)
        for name, needed in zip(SIDES, self._needs, strict=True):
            rows = batch.column(name)
            of_side = np.asarray(rows.is_valid())[order]
            counts = np.add.reduceat(of_side.astype(np.int32), starts)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            lists.append(pa.ListArray.from_arrays(pa.array(offsets), rows.take(pa.array(order[of_side]))))
            if needed:
                wanted &= counts > 0
        windows = [batch.column(name).take(pa.array(order[starts])) for name in WINDOW]
        grouped = pa.RecordBatch.from_arrays([*windows, *lists], names=[*WINDOW, *GROUPED])
        yield grouped.filter(pa.array(wanted))
