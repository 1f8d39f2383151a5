"""Key groups whose keys settle in each save, as a worker runs them, and files to which something happens."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore
from letters import Mailbox
from pyspark.sql.types import StructType
from queries import opened, query_of
from settling_groups import ALWAYS, LIVE

from timerheap import BatchProcessFunction, Types, ValueStateDescriptor
from timerheap._native._core import xxh64
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._live import live_groups
from timerheap.spark._live.live_cache import Owner
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

ROWS = StructType().add("k", "string").add("at", "long").add("op", "long").add("arg", "long")
RESULT = StructType().add("k", "string").add("what", "string")


class Sessions(BatchProcessFunction):
    """Counts, and moves the timer of each key, in columns."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ids, first = np.unique(ctx.ids, return_index=True)
        counts = np.nan_to_num(self.count.values(ids).to_numpy(zero_copy_only=False)).astype(np.int64)
        self.count.update_many(ids, pa.array(counts + 1))
        ctx.timer_service().register_event_time_timers(ids, ctx.timestamps[first] + 60, name="end")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        counts = [str(count) for count in self.count.values(due.ids).to_pylist()]
        self.count.update_many(np.unique(due.ids), pa.nulls(len(np.unique(due.ids)), pa.int64()))
        yield pa.record_batch([ctx.keys(due.ids).column("k"), pa.array(counts)], names=["k", "what"])


def rows_of(draw: random.Random, n: int, at: int, keys: int, displaced: bool) -> KeyedRows:
    names = [f"key {int(draw.random() ** 2 * keys)}" if draw.random() > 0.02 else None for _ in range(n)]
    times = [at + draw.randrange(50) for _ in range(n)]
    columns = [
        pa.array(names, pa.large_string()),
        pa.array(times),
        pa.array([draw.randrange(9) for _ in range(n)]),
        pa.array([draw.randrange(100) for _ in range(n)]),
    ]
    hashes = np.array([xxh64(str(name).encode()) for name in names], np.uint64)
    if displaced:
        hashes %= np.uint64(keys // 3 + 1)
    batch = pa.record_batch(columns, names=ROWS.names)
    return KeyedRows(batch, hashes.view(np.int64), np.array(times))


def query(function: Any, order: str) -> Query:
    return query_of(function, ROWS, RESULT, order=order, time_mode="ProcessingTime")


class Live:
    """A key group that each micro-batch takes from a live file or loads, and whose keys always settle."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
        monkeypatch.setattr(live_groups, "settling_of", lambda groups, waits=False: ALWAYS)
        self.folder, self.query = folder, query(Sessions(), "arrival")
        self.runner = opened(self.query)
        self.name = os.urandom(8).hex()
        self.store, self.mail = GroupStore(), Mailbox()
        self.counts: Counter[str] = Counter()
        self.workers = 0
        self.places: list[tuple[int, int]] = []  # of runs: where each begins and ends

    def batch(self, number: int, rows: KeyedRows | None, worker: str = "") -> list[dict[str, Any]]:
        owner = Owner(self.name, f"operator{worker}")
        groups = LiveGroups(self.query.layout, self.store, owner, 1, self.mail)
        groups.begin("run", number)
        group, stored = groups.load(0)
        output = ResultBuffer(*self.query.outputs)
        batch = MicroBatch(self.query, self.runner, number, output)
        try:
            run_key_group(batch, group, rows, watermark_of(number))
        except LIVE.SettledLost as e:
            group, stored = groups.load_again(group, e)
            run_key_group(batch, group, rows, watermark_of(number))
        group.forget_dead_keys()
        groups.save(0, group, stored, b"")
        settled = group.settling.settled
        places = [] if settled is None else settled.places
        self.places = [(run.at, run.at + len(run.bytes)) for run in places]
        self.counts = groups.origins + groups.settled
        return cast(list[dict[str, Any]], output.table().to_pylist())

    @property
    def file(self) -> Path:
        (path,) = (each for each in self.folder.rglob("*.*") if each.is_file())
        return path


def watermark_of(number: int) -> int:
    return 20 * number - 30


def rows_of_batch(number: int, n: int = 60) -> KeyedRows:
    return rows_of(random.Random(number), 40 if number else 5 * n, 20 * number, n, False)


class Repeated:
    """Two micro-batches of a group whose keys have settled, repeated from the same live file and store.

    They look at all keys, and must do what an undisturbed group does, whatever happens to the file.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, keys: int = 60) -> None:
        folder.mkdir()
        self.live, self.keys = Live(folder, monkeypatch), keys
        for number in range(2):
            self.live.batch(number, rows_of_batch(number, keys))
        self.path, self.bytes = self.live.file, self.live.file.read_bytes()
        self.places, self.store = self.live.places, self.live.store.copy()
        self.pages = [page for start, stop in self.places for page in range(start, stop, 4096)]
        self.loads = self.times = 0
        self.expected = self.batches(lambda: None)
        assert not self.loads
        assert self.live.counts["returned"] > 20

    def batches(self, damage: Callable[[], object], during: Callable[[], object] | None = None) -> Any:
        """Return what they result in and the chunks, in a worker that knows nothing of the group.

        damage: is called when there is the file
        during: is called before the first micro-batch, which another worker repeats
        """
        self.put_back()
        damage()
        results, loads = [], 0
        for number in (2, 30):
            self.times += 1
            if during is not None and number == 2:
                during()
            results.append(self.batch(number, f" {self.times}"))
            loads += self.live.counts["loaded"]
        self.loads += loads > 0
        return results, self.live.store.chunks

    def batch(self, number: int, worker: str) -> list[dict[str, Any]]:
        """Run one of the two, 2 or 30, in a worker."""
        return self.live.batch(number, rows_of_batch(number, self.keys) if number == 2 else None, worker)

    def put_back(self) -> None:
        """Bring the file and the store back, as the two micro-batches find them."""
        shutil.rmtree(self.live.folder)
        self.path.parent.mkdir(parents=True, mode=0o700)
        self.path.parent.parent.chmod(0o700)
        self.path.touch(0o600)
        self.path.write_bytes(self.bytes)
        self.live.store, self.live.mail = self.store.copy(), Mailbox()

    def change(self, at: int, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def truncate(self, size: int) -> None:
        with self.path.open("r+b") as file:
            file.truncate(size)
