"""Runs key groups whose state may be larger than the memory, and tells what comes out of each micro-batch.

Its argument is a JSON file: `folder`, which holds live files and chunks, `keys`, the number of keys,
`batches`, the first micro-batch and the one after the last, and `loses`, the one before which the live
files are removed, or null. It says when it is ready, and waits for a line before it runs. Its last line is
JSON: `results`, a digest for each micro-batch, `chunks`, one for each group of all that is stored,
`settled`, the most keys that had settled, and `loaded`, how often a group came from the store.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from letters import Mailbox
from pyspark.sql.types import StructType
from queries import opened, query_of

from timerheap import BatchProcessFunction, Types, ValueStateDescriptor
from timerheap._native._core import xxh64
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.stored.manifest import Manifest
from timerheap.spark._live import live_groups
from timerheap.spark._live.live_cache import Owner
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

ROWS = StructType().add("k", "string").add("at", "long")
RESULT = StructType().add("k", "string").add("at", "long").add("rows", "long")
GROUPS = 16
MANY, SOME = 40_000, 4_000  # rows of a micro-batch that brings new keys, and of one that does not
SILENCE = 1_000_000
LIVE: Any = live_groups


class Counts(BatchProcessFunction):
    """Counts the rows of each key until it is silent, and names the day of the first one."""

    def open(self, runtime_context: Any) -> None:
        self.rows = runtime_context.get_state(ValueStateDescriptor("rows", Types.LONG()))
        self.first = runtime_context.get_state(ValueStateDescriptor("first", Types.STRING()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        counts = self.rows.values(ctx.ids).fill_null(0).to_numpy()
        self.rows.update_many(ctx.ids, pa.array(counts + 1))
        self.first.update_many(ctx.ids, pa.array([f"day {at % 1000:04}" for at in ctx.timestamps.tolist()]))
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + SILENCE, name="silent")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        counts = self.rows.values(due.ids)
        for state, type_ in ((self.rows, pa.int64()), (self.first, pa.large_string())):
            state.update_many(due.ids, pa.nulls(len(due.ids), type_))
        yield pa.record_batch([ctx.keys(due.ids).column("k"), due.timestamps, counts], names=RESULT.names)


class Files:
    """The store of one group: a file for each chunk, and one for the manifest."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.manifest = folder, folder / "manifest"

    def read(self, kind: int, id_: int) -> bytes | None:
        path = self.folder / f"{kind}.{id_}"
        return path.read_bytes() if path.exists() else None

    def write(self, kind: int, id_: int, data: bytes) -> None:
        (self.folder / f"{kind}.{id_}").write_bytes(data)

    def remove(self, kind: int, id_: int) -> None:
        (self.folder / f"{kind}.{id_}").unlink()

    def read_manifest(self) -> Manifest | None:
        return Manifest.from_bytes(self.manifest.read_bytes()) if self.manifest.exists() else None

    def write_manifest(self, manifest: Manifest) -> None:
        self.manifest.write_bytes(manifest.to_bytes())

    def digest(self) -> int:
        """Return a digest of all chunks; the manifest has a token by chance."""
        found = 0
        for path in sorted(path for path in self.folder.iterdir() if path != self.manifest):
            found = xxh64(path.name.encode() + path.read_bytes(), found)
        return found


class Groups:
    """The key groups, which a task runs one after the other."""

    def __init__(self, folder: Path, keys: int) -> None:
        self.local, self.keys = folder / "local", keys
        self.local.mkdir(exist_ok=True)
        os.environ["SPARK_LOCAL_DIRS"] = str(self.local)
        self.query = query_of(Counts(), ROWS, RESULT, order="arrival")
        self.runner = opened(self.query)
        self.stores = [Files(folder / "store" / str(number)) for number in range(GROUPS)]
        self.settled = self.loaded = 0

    @property
    def builds(self) -> int:
        """How many micro-batches bring new keys, the first ones."""
        return self.keys // MANY

    def batch(self, number: int) -> int:
        """Run a micro-batch, and return a digest of its result."""
        draw = np.random.default_rng(number)
        if number < self.builds:
            keys = np.arange(number * MANY, (number + 1) * MANY)
        else:
            keys = draw.choice(self.keys, SOME, replace=False)
        # The first keys are silent when the last have come: some timers are due in each micro-batch then.
        at = 1_000_000_000 + number * SILENCE // (self.builds or 1) + draw.integers(0, 1000, len(keys))
        watermark = int(at.min()) - 1
        output = ResultBuffer(*self.query.outputs)
        settled = 0
        for label, store in enumerate(self.stores):
            groups = LiveGroups(self.query.layout, store, Owner("query", "operator"), GROUPS, Mailbox())
            groups.begin("run", number)
            group, stored = groups.load(label)
            mine = keys % GROUPS == label
            rows = rows_of_chosen(keys[mine], at[mine])
            batch = MicroBatch(self.query, self.runner, None, output)
            try:
                run_key_group(batch, group, rows, watermark)
            except LIVE.SettledLost as e:
                group, stored = groups.load_again(group, e)
                run_key_group(batch, group, rows, watermark)
            group.forget_dead_keys()
            groups.save(label, group, stored, b"")
            settled += groups.settled["keys"]
            self.loaded += groups.origins["loaded"]
        self.settled = max(self.settled, settled)
        found = output.table().sort_by([("at", "ascending"), ("k", "ascending")]).combine_chunks()
        return xxh64(repr(found.to_pydict()).encode())

    def lose(self) -> None:
        """Remove the live files, as the end of an executor does."""
        shutil.rmtree(self.local / "timerheap")


def rows_of_chosen(keys: np.ndarray, at: np.ndarray) -> KeyedRows:
    names = pa.array([f"a key, {key:012}" for key in keys.tolist()], pa.large_string())
    hashes = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return KeyedRows(pa.record_batch([names, at], names=ROWS.names), hashes.view(np.int64), at)


def main(spec: dict[str, Any]) -> None:
    groups = Groups(Path(spec["folder"]), spec["keys"])
    print("ready", flush=True)
    sys.stdin.readline()
    results = []
    for number in range(*spec["batches"]):
        if number == spec["loses"]:
            groups.lose()
        results.append(groups.batch(number))
    chunks = [store.digest() for store in groups.stores]
    found = {"results": results, "chunks": chunks, "settled": groups.settled, "loaded": groups.loaded}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
