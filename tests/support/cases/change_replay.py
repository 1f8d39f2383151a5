"""An operator on its key groups, without Spark: rows are packed, groups saved, loaded and handed over."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from chunk_store import GroupStore, load, save
from live_files import handed_over, live_file

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._columns import HASH
from timerheap.spark._exchange.packed import OBSERVATION
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._exchange.unpacker import by_key_group, packed_pairs, unpack
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.split import restore, split
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.testing.inputs import spark_xxhash64

_PARTITIONS = 200  # of `Placement.running` without a task: one for each key group


class Groups:
    """The key groups of an operator, in `parallelism` partitions with one each."""

    def __init__(self, query: Query, parallelism: int, hashes: int | None, in_files: bool) -> None:
        self.query = query
        self.parallelism = parallelism
        self._hashes = hashes  # how many there are, if keys collide
        self._in_files = in_files
        self.groups: dict[int, tuple[KeyGroup, Stored, GroupStore]] = {}
        self.now: int | None = None

    def run(self, rows: pa.RecordBatch, tasks: int) -> pa.Table:
        """Run a micro-batch of rows, which so many tasks have packed; return the results."""
        output = ResultBuffer(*self.query.outputs)
        runner = self.query.work.runner(self.query, Placement.of(self.parallelism, _PARTITIONS))
        runner.open()
        batch = MicroBatch(self.query, runner, self.now, output)
        for key_group, found in self._exchanged(rows, tasks).items():
            group, _, _ = self._group(key_group)
            run_key_group(batch, group, found, None)
        runner.close()
        return output.table()

    def _exchanged(self, rows: pa.RecordBatch, tasks: int) -> dict[int, KeyedRows]:
        reduction = self.query.reduction
        packer = Packer(
            key=self.query.key[0],
            event_time=None,
            max_parallelism=self.parallelism,
            inputs=len(self.query.watermarks),
            reduce=None if reduction is None else reduction.reducer,
        )
        ends = np.linspace(0, len(rows), tasks + 1).astype(int).tolist()
        sent: dict[int, list[tuple[int, bytes]]] = {}
        hashed = rows.append_column(HASH, pa.array(self._key_hashes(rows)))
        for task, (start, end) in enumerate(pairwise(ends)):
            for packed in packer(iter([hashed.slice(start, end - start)])):
                for label, (sequence, blob) in zip(
                    packed.column("label").to_pylist(), packed_pairs(packed), strict=True
                ):
                    place = sequence if sequence == OBSERVATION else sequence + (task << 32)
                    sent.setdefault(label, []).append((place, blob))
        found: dict[int, KeyedRows] = {}
        for pairs in sent.values():
            parts, _ = unpack(self.query, pairs)
            found |= by_key_group(parts)
        return found

    def _key_hashes(self, rows: pa.RecordBatch) -> np.ndarray:
        hashes = spark_xxhash64([rows.column(name) for name in self.query.key])
        return hashes if self._hashes is None else hashes % self._hashes

    def _group(self, key_group: int) -> tuple[KeyGroup, Stored, GroupStore]:
        if key_group not in self.groups:
            store, manifest = GroupStore(), Manifest(self.parallelism)
            self.groups[key_group] = self._new(), Stored(manifest), store
        return self.groups[key_group]

    def _new(self) -> KeyGroup:
        return KeyGroup(self.query.layout, live_file()) if self._in_files else KeyGroup(self.query.layout)

    # What may happen between two micro-batches.

    def save(self) -> None:
        for group, stored, store in self.groups.values():
            group.forget_dead_keys(always=True)
            save(group, stored, store)

    def load(self) -> None:
        """Continue with what has been saved."""
        for key_group, (_, _, store) in self.groups.items():
            group = self._new()
            self.groups[key_group] = group, load(store, group), store

    def hand_over(self) -> None:
        """Continue as the next worker does."""
        if self._in_files:
            for key_group, (group, _, store) in self.groups.items():
                self.groups[key_group] = *handed_over(group, store), store

    def split(self, parallelism: int) -> None:
        """Continue with another number of key groups."""
        contents = [pair for group, _, _ in self.groups.values() for pair in split(group, parallelism)]
        self.parallelism, self.groups = parallelism, {}
        for key_group, data in contents:
            restore(self._group(key_group)[0], data)
        for group, stored, store in self.groups.values():
            stored.save(store, group.loaded(), b"", whole=True)

    def shake(self, rng: random.Random) -> None:
        """Save, and then continue in one of the ways."""
        self.save()
        chance = rng.random()
        if chance < 0.25:
            self.load()
        elif chance < 0.5:
            self.hand_over()
        elif chance < 0.6:
            factor = rng.choice([2, 3]) if self.parallelism < 8 else 1
            self.split(self.parallelism * factor if self._hashes or rng.random() < 0.5 else rng.randint(1, 6))

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the state: as it is stored, and live in files."""
        stored = live = 0
        for group, _, store in self.groups.values():
            stored += sum(map(len, store.chunks.values()))
            file: Any = group.memory
            live += file._end - sum(stop - start for start, stop in file._free)
        return stored, live
