"""The state that a query in real-time mode starts from, written as that of the epoch before the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import GroupedData

from timerheap.spark._exchange.placement import Placement, key_group_of, label_of
from timerheap.spark._group.checkpoint import Manifest, Stored
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.split import restore
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._query import Query
from timerheap.spark._state.epoch_store import EpochStore, folder_of

BEFORE = -1
"""The epoch before the first."""


@dataclass(frozen=True)
class _Writer:
    """Writes the state of one partition (``applyInArrow``), given the rows of `INITIAL` for it."""

    query: Query
    location: str
    run: int

    def __call__(self, initial: pa.Table) -> pa.Table:
        files, folder = fs.FileSystem.from_uri(self.location)
        partition = key_group_of(initial.column("label")[0].as_py())
        store = EpochStore(files, folder_of(folder, partition), partition, BEFORE, self.run)
        for number, rows in groupby(initial.sort_by("key_group").to_pylist(), itemgetter("key_group")):
            self._save(store, number, rows)
        store.commit()
        return pa.table({"partition": pa.array([partition], pa.int32())})

    def _save(self, store: EpochStore, number: int, rows: Iterable[dict[str, bytes | None]]) -> None:
        query = self.query
        group = KeyGroup(query.layout)
        clock = WatermarkState(query.watermarks, query.channels)
        for row in rows:
            if contents := row["contents"]:
                restore(group, contents)
            if data := row["clock"]:
                clock = WatermarkState.from_bytes(data, query.watermarks, query.channels)
        group.watermark = clock.watermark
        stored = Stored(Manifest(Placement.running(query.max_parallelism).max_parallelism, os.urandom(8)))
        store.select(label_of(number))
        stored.save(store, group.loaded(), clock.to_bytes(), whole=True, writes_clock=True)


@dataclass(frozen=True)
class Beginning:
    """What a query starts from, by partition, as rows of `INITIAL`."""

    query: Query
    groups: GroupedData

    def write(self, location: str, run: int) -> None:
        """Write it for a run."""
        writer: Callable[[pa.Table], pa.Table] = _Writer(self.query, location, run)
        self.groups.applyInArrow(lambda rows: writer(rows), "partition int").collect()


beginnings: dict[str, Beginning] = {}
"""By the names of operators; they are written when the query is first started."""
