"""Workers that die, lose their executor or save in vain change no micro-batch; without Spark."""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import kill_jobs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from chunk_store import GroupStore
from letters import Mailbox
from pyspark.sql.types import StructType
from queries import query_of

from timerheap import BatchProcessFunction, KeyedProcessFunction
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._live import live_groups
from timerheap.spark._live.live_cache import Cache, Owner
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._query import Query
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

BATCHES, ROWS, KEYS = 30, 15, 12
LABEL = 7
FATES = ["done"] * 5 + ["dies at once", "dies after its rows", "saves in vain", "loses its executor", "ends"]


def words_query(function: KeyedProcessFunction | BatchProcessFunction, order: Any) -> Query:
    rows = StructType().add("k", "string").add("at", "long").add("n", "long").add("word", "string")
    result = StructType().add("k", "string").add("at", "long").add("what", "string")
    return query_of(function, rows, result, watermarks=(kill_jobs.WATERMARK,), order=order)


class Group:
    """A key group in a state store, and the workers of an executor that run its micro-batches."""

    def __init__(self, query: Query, home: Path | None, patch: pytest.MonkeyPatch) -> None:
        self.query, self.home, self.patch = query, home, patch
        self.store = GroupStore()
        self.workers: dict[int, Cache] = {}
        self.mail = Mailbox()
        self.origins: Counter[str] = Counter()

    def attempt(
        self, number: int, rows: pa.Table, watermark: int, worker: int, fate: str
    ) -> list[Any] | None:
        """Run a micro-batch in a worker, and commit it if it is done; return what the worker has returned."""
        if fate == "loses its executor":
            assert self.home is not None
            shutil.rmtree(self.home)
            self.home.mkdir()
            self.workers.clear()
        if fate in ("ends", "loses its executor"):
            self.workers.pop(worker, None)
            return None
        self.patch.setenv("SPARK_LOCAL_DIRS", str(self.home or ""))
        self.patch.setattr(live_groups, "_cache", self.workers.setdefault(worker, Cache()))
        store, placement = self.store.copy(), Placement.of(1, 1)
        groups = LiveGroups(self.query.layout, store, Owner("query", "operator"), 1, self.mail)
        groups.begin("run", number)
        group, stored = groups.load(LABEL)
        self.origins += groups.origins
        if fate == "dies at once":
            return self._die(worker, group.memory)
        output = ResultBuffer(*self.query.outputs)
        runner = self.query.work.runner(self.query, placement)
        runner.open()
        run_key_group(MicroBatch(self.query, runner, None, output), group, self._hashed(rows), watermark)
        group.notices()
        group.forget_dead_keys()
        if fate == "dies after its rows":
            return self._die(worker, group.memory)
        state = WatermarkState(self.query.watermarks, self.query.channels)
        state.follow(watermark)
        groups.save(LABEL, group, stored, state.to_bytes())
        if fate == "done":
            self.store = store
        return sorted(output.table().to_pylist(), key=repr)

    def _die(self, worker: int, memory: object) -> None:
        """Leave behind what kill -9 leaves behind: files without locks."""
        del self.workers[worker]
        assert isinstance(memory, LiveFile)
        os.close(memory._fd)
        memory._fd, memory._locked = -1, False

    def _hashed(self, rows: pa.Table) -> KeyedRows | None:
        if not len(rows):
            return None
        hashes = np.array([hash_of(key) for key in rows["k"].to_pylist()])
        batch = rows.combine_chunks().to_batches()[0]
        return KeyedRows(batch, hashes, batch["at"].to_numpy())


def hash_of(key: str) -> int:
    return int(key.removeprefix("k")) * 0x9E3779B97F4A7C15 % 2**64 - 2**63


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("function", [kill_jobs.Sessions, kill_jobs.Columns], ids=["rows", "columns"])
def test_whatever_happens_to_workers_the_output_of_a_key_group_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Any, order: str
) -> None:
    home = tmp_path / "local"
    home.mkdir()
    draw = random.Random(f"{function.__name__} {order}")
    kill_jobs.write_input(tmp_path / "in", 1, BATCHES, ROWS, KEYS)
    inputs = [pa.parquet.read_table(file) for file in sorted((tmp_path / "in").iterdir())]
    undisturbed = Group(words_query(function(), order), None, monkeypatch)  # in the memory of one process
    disturbed = Group(words_query(function(), order), home, monkeypatch)
    newest, fired = 0, 0
    for number, rows in enumerate(inputs):
        newest = max(newest, pc.max(rows["at"]).as_py())
        wanted = undisturbed.attempt(number, rows, newest - 301, 0, "done")
        fate = ""
        while fate != "done":
            fate = draw.choice(FATES)
            got = disturbed.attempt(number, rows, newest - 301, draw.randrange(3), fate)
            assert got in (wanted, None), (number, fate)
        fired += len(wanted or [])
    assert fired > KEYS
    assert not disturbed.mail.warnings, "no live file was damaged"
    assert set(disturbed.origins) == {"new", "continued", "handed over", "loaded"}
    left = [path for path in home.rglob("*.*") if path.is_file()]
    assert len(left) <= 1, "the files of the dead are removed"
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (home / "timerheap").rglob("*.*"))
