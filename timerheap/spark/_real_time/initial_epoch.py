"""The state that a query in real-time mode starts from, written as that of the epoch before its first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.sql import DataFrame, GroupedData

from timerheap.spark._compat import weak_function
from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.split import restore
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._query import Query
from timerheap.spark._state.epoch_store import EpochStore, begin_at, folder_of

BEFORE = -1
"""The epoch before the first of a query that continues no other."""


@dataclass(frozen=True)
class _Writer:
    """Writes the state of one partition (``applyInArrow``), given the rows of `INITIAL` for it."""

    query: Query
    operator: int
    location: str
    run: int
    epoch: int

    def __call__(self, initial: pa.Table) -> pa.Table:
        files, folder = fs.FileSystem.from_uri(self.location)
        partition = key_group_of(initial.column("label")[0].as_py())
        place = folder_of(folder, self.operator, partition)
        store = EpochStore(files, place, partition, self.epoch, self.run, begins=True)
        for number, rows in groupby(initial.sort_by("key_group").to_pylist(), itemgetter("key_group")):
            self._save(store, number, rows)
        store.commit()
        return pa.table({"partition": pa.array([partition], pa.int32())})

    def _save(self, store: EpochStore, number: int, rows: Iterable[dict[str, bytes | None]]) -> None:
        query = self.query
        group = KeyGroup(query.layout)
        state = WatermarkState(query.watermarks, query.channels)
        for row in rows:
            if contents := row["contents"]:
                restore(group, contents)
            if data := row["watermark"]:
                state = WatermarkState.continued(data, query.watermarks, query.channels)
        group.watermark = state.watermark
        stored = Stored(Manifest(Placement.running(query.max_parallelism).max_parallelism, os.urandom(8)))
        store.select(label_of(number))
        stored.save(store, group.loaded(), state.to_bytes(), whole=True, writes_watermark=True)


@dataclass(frozen=True)
class Beginning:
    """What an operator of a query starts from, by partition, as rows of `INITIAL`.

    operator: how many operators are before it
    """

    query: Query
    operator: int
    groups: GroupedData

    def write(self, location: str, run: int, epoch: int = BEFORE) -> None:
        """Write it for a run, as the state after an epoch."""
        writer: Callable[[pa.Table], pa.Table] = _Writer(self.query, self.operator, location, run, epoch)
        self.groups.applyInArrow(lambda rows: writer(rows), "partition int").collect()
        if epoch != BEFORE:
            files, folder = fs.FileSystem.from_uri(location)
            begin_at(files, folder, epoch)


class Beginnings:
    """What queries start from, by the names of their operators, for as long as Spark has a plan of them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, Beginning]] = {}

    def add(self, name: str, result: DataFrame, beginning: Beginning) -> None:
        """Add that of an operator, which is the last one of `result`."""
        self._forget()
        self._known[name] = weak_function(result), beginning

    def get(self, name: str) -> Beginning | None:
        """Return that of an operator, None if it starts from nothing."""
        known = self._known.get(name)
        return None if known is None else known[1]

    def _forget(self) -> None:
        """Forget those of operators that can no longer be started."""
        for name, (function, _) in list(self._known.items()):
            try:
                gone = function.get() is None
            except Py4JError:  # the JVM has ended
                gone = True
            if gone:
                self._known.pop(name, None)


beginnings = Beginnings()
