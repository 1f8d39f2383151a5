"""The first row of each key: a feature in one module, which the engine does not know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from timerheap._native._core import IdIndex
from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._memory.blocks import PROCESS, Memory
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of
from timerheap.spark._plan.build import marked
from timerheap.spark._plan.computed_columns import Columns
from timerheap.spark._plan.inputs import Input
from timerheap.spark._query import Query
from timerheap.spark._worker.keyed_work import KeyedWork
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import Runner

FIRST_TIMES = 40
"""The kind of chunks: one of `timerheap.spark._group.stored.kinds.OWN` that no other feature has."""


def first_rows(
    df: DataFrame, key: Any, event_time: Any, *, watermark: Any = None, max_parallelism: int | None = None
) -> DataFrame:
    """Return the first row of each key, once the watermark has passed it."""
    source = Input.checked(Columns("df", df), key, event_time, watermark)
    work = FirstRowsWork()
    query = query_of(work, source.rows, source, max_parallelism=max_parallelism, own=(work,))
    return build(query, marked(source))


@dataclass(frozen=True)
class FirstRowsWork(KeyedWork):
    """What is pickled with the query; also the `OwnLayout`, of what each key group has for it."""

    name = "first rows"

    def runner(self, query: Query, placement: Placement) -> Runner:
        return FirstRowsRunner(query.result.names)

    def part(self, memory: Memory = PROCESS, head: Sequence[Any] = ()) -> FirstTimes:
        return FirstTimes(self.name, memory, head)


class FirstRowsRunner(Runner):
    """Runs in a task: takes the rows of one key group after the other."""

    fired_timers = 0

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns

    def begin(self, group: KeyGroup, now: int | None, output: ResultBuffer) -> None:
        (times,) = group.own
        assert isinstance(times, FirstTimes)
        self._times, self._output = times, output

    def replay(self, rows: KeyedRows, order: np.ndarray, watermark: int) -> None:
        self.process(rows.take(order), watermark)

    def process(self, rows: KeyedRows, watermark: int) -> None:
        new = rows.where(self._times.add(rows.ids, rows.timestamps))
        if len(new):
            self._output.batch(new.rows.select(self._columns), "first_rows")

    def advance(self, watermark: int) -> None:
        pass

    def advance_clock(self, now: int) -> None:
        pass


class FirstTimes:
    """The time of the first row by key id; see `timerheap.spark._group.layout.OwnPart`."""

    kind = FIRST_TIMES
    settling = None
    id_column = 0
    schema = pa.schema([("id", pa.int64()), ("time", pa.int64())])

    def __init__(self, name: str, memory: Memory, head: Sequence[Any]) -> None:
        self.name = name
        self._times = IdIndex._attach(memory, head) if head else IdIndex(memory)
        self._added: list[pa.RecordBatch] = []

    def add(self, ids: np.ndarray, times: np.ndarray) -> np.ndarray:
        """Add the times of rows whose keys have none; return which rows those are, shape (n,)."""
        new = ~self._times.find_many(ids)[1]
        new[new] = IdIndex().put_many(ids[new], 0)  # the first of several rows of a new key
        if new.any():
            self._times.put_many(ids[new], times[new])
            self._added.append(self._rows(ids[new], times[new]))
        return new

    def _rows(self, ids: np.ndarray, times: np.ndarray) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(ids), pa.array(times)], schema=self.schema)

    # In the checkpoint: see `timerheap.spark._group.stored.parts.CheckpointedPart`.

    def changes(self) -> pa.RecordBatch | None:
        added, self._added = self._added, []
        return pa.concat_batches(added) if added else None

    def snapshot(self) -> pa.RecordBatch:
        ids, times = self._times.items()
        order = np.argsort(ids)  # the bytes depend on the contents alone
        return self._rows(ids[order], times[order])

    def replay(self, batch: pa.RecordBatch) -> None:
        if batch.schema != self.schema:
            raise DamagedCheckpointError(
                f"the first rows must have the columns {self.schema}, got {batch.schema}"
            )
        self._times.put_many(*(column.to_numpy() for column in batch.columns))

    def reserve(self, times: float) -> None:
        self._times.reserve(round(times * len(self._times)))

    def merge(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        return pa.concat_batches(batches)  # no key is in two

    def __len__(self) -> int:
        return len(self._times)

    # In a key group.

    def head(self) -> Sequence[Any]:
        return self._times._head()

    def loaded(self, watermark: int) -> None:
        pass

    def ids(self) -> np.ndarray:
        return self._times.ids()

    def count_losses(self) -> int:
        return 0  # a key stays for ever

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        return 0, None

    def misfit(self, stored: str) -> CheckpointMismatchError:
        return CheckpointMismatchError(f"the checkpoint has {stored}, and the query has {self.name}")
