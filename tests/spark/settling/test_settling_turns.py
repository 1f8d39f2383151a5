"""The key groups of a task take turns in letting keys settle, so that not all write in one micro-batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore
from letters import Mailbox
from queries import opened
from settled_files import LIVE, ROWS, Sessions, query

from timerheap.spark._arrow import KeyedRows
from timerheap.spark._live.live_cache import Owner
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch

GROUPS = 4
ABOVE = 1 << 20  # bytes of a group from which on its keys settle, where there is next to no memory
MOST = ABOVE * 5 // 4


def rows_of_keys(first: int, count: int, at: int) -> KeyedRows:
    keys, times = np.arange(first, first + count), np.full(count, at)
    names = pa.array([f"a key of a group, number {key:09}" for key in keys], pa.large_string())
    nothing = pa.array(np.zeros(count, np.int64))
    batch = pa.record_batch([names, pa.array(times), nothing, nothing], names=ROWS.names)
    hashes = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return KeyedRows(batch, hashes.view(np.int64), times)


class Task:
    """Tasks that run all key groups, one after the other."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "memory.max").write_text("1")
        (folder / "process").write_text("0::/\n")
        settling_of = partial(LIVE.settling_of, process=folder / "process", root=folder)
        monkeypatch.setattr(LIVE, "settling_of", settling_of)
        monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder))
        self.query = query(Sessions(), "arrival")
        self.runner, self.owner = opened(self.query), Owner(folder.name, "operator")
        self.stores = [GroupStore() for _ in range(GROUPS)]
        self.keys = self.number = 0

    def batch(self, count: int) -> list[bool]:
        """Run a micro-batch with new keys of each group, and return which groups have let keys settle."""
        found, store = [], Selected()
        groups = LiveGroups(self.query.layout, store, self.owner, GROUPS, Mailbox())
        groups.begin("run", self.number)
        for label in range(GROUPS):
            store.of_group = self.stores[label]
            group, stored = groups.load(label)
            rows = rows_of_keys(self.keys, count, 1_000_000 + self.number)
            batch = MicroBatch(self.query, self.runner, self.number, ResultBuffer(*self.query.outputs))
            run_key_group(batch, group, rows, self.number)
            before = len(group.keys.table)
            groups.save(label, group, stored, b"")
            found.append(len(group.keys.table) < before)
        self.keys, self.number = self.keys + count, self.number + 1
        return found


class Selected:
    """The store of the group that is selected."""

    of_group: GroupStore

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of_group, name)


def test_groups_that_grow_alike_do_not_write_in_one_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(tmp_path, monkeypatch)
    wrote = [task.batch(500) for _ in range(50)]
    assert max(map(sum, wrote)) == 1
    assert min(map(sum, zip(*wrote, strict=True))) > 2, "each group has had its turns"
    task.batch(9_000)  # of which none may settle yet
    assert sum(task.batch(9_000)) == GROUPS, "none waits that has far more in memory"
