"""Key groups whose keys settle, beside plain ones, without Spark."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
from chunk_store import MemoryStore, load, save
from live_files import handed_over
from queries import opened

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.saving import Stored
from timerheap.spark._group.stored.chunks import pieces
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._live import live_groups
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

LIVE: Any = live_groups
DEFAULT = LIVE.settling_of(1)
ALWAYS = replace(DEFAULT, above=0, records=8, ranges=1000, least=1, share=0)


class Driven:
    """A key group, its store and its runner."""

    def __init__(self, query: Query, settling: Any) -> None:
        self.query, self.settling = query, settling
        self.runner = opened(query)
        self.folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.store = MemoryStore()
        self.group, self.stored = KeyGroup(query.layout, self.new_file()), Stored(Manifest(1))
        self.most = 0  # keys that had settled

    def batch(
        self,
        rows: KeyedRows | None,
        watermark: int | None,
        now: int | None,
        broadcast: pa.Table | None = None,
    ) -> list[dict[str, Any]]:
        output = ResultBuffer(*self.query.outputs)
        run_key_group(
            MicroBatch(self.query, self.runner, now, output), self.group, rows, watermark, broadcast
        )
        self.group.forget_dead_keys()
        save(self.group, self.stored, self.store)
        if self.settling is not None:
            self.group.settling.settle(self.settling)
            self.most = max(self.most, self.has_settled)
        found: list[dict[str, Any]] = output.table().to_pylist()
        return found

    @property
    def has_settled(self) -> int:
        settled = self.group.settling.settled
        return 0 if settled is None else len(settled)

    @property
    def file(self) -> LiveFile:
        return cast(LiveFile, self.group.memory)

    def new_file(self) -> LiveFile:
        return LiveFile.create(os.path.join(self.folder, os.urandom(8).hex()))

    def snapshots(self) -> dict[tuple[int, str], list[bytes]]:
        """Return all that each part has, by kind and name, as pieces for chunks."""
        return {
            (part.kind, part.name): [
                piece.serialize().to_pybytes() for piece in pieces(part.snapshot(), part.schema)
            ]
            for part in self.group.parts()
        }

    def hand_over(self) -> None:
        self.group, self.stored = handed_over(self.group, self.store)

    def load(self) -> None:
        if self.settling is not None and not self.query.layout.own:  # keys settle while they are loaded
            arguments = self.store.read_manifest(), self.query.layout, self.new_file(), self.settling
            self.group, self.stored = LIVE.large_group(self.store, *arguments)
            return
        self.group = KeyGroup(self.query.layout, self.new_file())
        self.stored = load(self.store, self.group)

    def manifest(self) -> Manifest:
        manifest = self.store.read_manifest()
        manifest.token = b""
        return manifest


class Pair:
    """A plain group, and one whose keys settle, which must do and write the same."""

    def __init__(self, queries: tuple[Query, Query], settling: Any) -> None:
        self.plain, self.other = Driven(queries[0], None), Driven(queries[1], settling)

    def batch(self, about: object, *arguments: Any) -> list[dict[str, Any]]:
        """Run a micro-batch in both, and return its results."""
        plain, other = self.plain, self.other
        found = [each.batch(*arguments) for each in (plain, other)]
        assert repr(found[0]) == repr(found[1]), about  # NaN
        assert plain.store.chunks == other.store.chunks, about
        assert plain.manifest() == other.manifest(), about
        for event_time in (True, False):
            assert plain.group.next_due(event_time) == other.group.next_due(event_time), about
        assert plain.group.standing() == other.group.standing(), about
        snapshots = [each.snapshots() for each in (plain, other)]
        for part in snapshots[0].keys() & snapshots[1].keys():
            assert snapshots[0][part] == snapshots[1][part], (about, part)
        return found[0]
