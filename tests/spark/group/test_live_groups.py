"""Workers of an executor continue each other's key groups, and load them where they cannot."""

from __future__ import annotations

import errno
import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore
from letters import Mailbox
from live_files import files, reads_single_pages
from pyspark.sql.types import StringType, StructField, StructType
from queries import QUERY

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.stored.chunks import pieces
from timerheap.spark._live import live_groups
from timerheap.spark._live.live_cache import Cache, Owner
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._live.live_groups import LiveGroups
from timerheap.spark._memory.blocks import Memory
from timerheap.spark._query import Query

OWNER = Owner("query", "operator")
NEW, CONTINUED, HANDED_OVER, LOADED = "new", "continued", "handed over", "loaded"


class Executor:
    """Workers that run micro-batches of one key group, which holds a timer for each of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.caches: dict[str, Cache] = {}
        self.store = GroupStore()
        self.number = 0
        self.notices: list[str] = []

    def batch(self, worker: str, query: Query = QUERY, owner: Owner = OWNER, commits: bool = True) -> str:
        """Run a micro-batch in a worker, and return where it had its group from."""
        self._patch.setattr(live_groups, "_cache", self.caches.setdefault(worker, Cache()))
        store, mail = self.store.copy(), Mailbox()
        groups = LiveGroups(query.layout, store, owner, 4, mail)
        groups.begin(owner.operator, self.number)
        group, stored = groups.load(7)
        part = group.event_timers
        every = pieces(part.snapshot(), part.schema)  # of keys that have settled, too
        _, timestamps, owners, _ = pa.Table.from_batches(every, part.schema).columns
        timers = timestamps.to_pylist()
        assert sorted(timers) == list(range(self.number)), "what was committed, and nothing else"
        names = pa.array([f"k{self.number}"])
        ids = group.keys.resolve(np.array([self.number]), [names])
        assert group.keys.keys(owners.to_numpy()).column(0).to_pylist() == [f"k{number}" for number in timers]
        group.event_timers.push_many(np.array([self.number]), ids, 0)
        groups.save(7, group, stored, b"")
        del group, stored
        if commits:
            self.store = store
            self.number += 1
        self.notices += mail.warnings
        (found,) = groups.origins
        return found


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return Executor(monkeypatch)


def test_any_worker_continues_the_group_without_a_load(executor: Executor, tmp_path: Path) -> None:
    found = [executor.batch(worker) for worker in ["a", "a", "b", "a", "c", "c", "b", "new"]]
    assert found == [NEW, CONTINUED, *[HANDED_OVER] * 3, CONTINUED, *[HANDED_OVER] * 2]
    assert len(files(tmp_path)) == 1
    assert not executor.notices


@pytest.mark.skipif("TIMERHEAP_SETTLING" in os.environ, reason="files with runs are read by single pages")
def test_what_is_around_the_places_that_attaching_touches_is_not_read(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.batch("a")
    found = []

    def attached(layout: GroupLayout, memory: Memory, head: Any) -> KeyGroup:
        found.append(reads_single_pages(tmp_path))
        return KeyGroup(layout, memory, head)

    monkeypatch.setattr(attached, "fits", KeyGroup.fits, raising=False)
    monkeypatch.setattr(live_groups, "KeyGroup", attached)
    assert executor.batch("b") == HANDED_OVER
    assert found == [True]
    assert not reads_single_pages(tmp_path)


def test_a_failed_attempt_is_loaded_by_its_retry(executor: Executor, tmp_path: Path) -> None:
    executor.batch("a")
    assert executor.batch("b", commits=False) == HANDED_OVER
    assert executor.batch("b") == LOADED, "in the same worker, whose objects are those of the failed attempt"
    assert executor.batch("a") == HANDED_OVER
    assert executor.batch("c", commits=False) == HANDED_OVER
    assert executor.batch("a") == LOADED
    assert executor.batch("c") == HANDED_OVER
    assert len(files(tmp_path)) == 1


def test_a_restarted_query_continues_its_groups(executor: Executor, tmp_path: Path) -> None:
    executor.batch("a")
    assert executor.batch("a", owner=Owner("query", "planned anew")) == HANDED_OVER
    other = replace(QUERY, state_changes=replace(QUERY.state_changes, drop=("other",)))
    assert executor.batch("b", other, Owner("query", "third")) == HANDED_OVER, "it has no such state"
    rows = StructType([*QUERY.rows, StructField("more", StringType())])
    assert executor.batch("b", replace(QUERY, rows=rows), Owner("query", "fourth")) == LOADED
    assert len(files(tmp_path)) == 1
    assert not executor.notices


def test_a_damaged_file_is_loaded_from_the_store(executor: Executor, tmp_path: Path) -> None:
    executor.batch("a")
    (path,) = tmp_path.rglob("*.*")
    path.write_bytes(os.urandom(path.stat().st_size))
    assert executor.batch("b") == LOADED
    assert "live state was damaged" in str(executor.notices)
    assert executor.batch("a") == HANDED_OVER


@pytest.mark.parametrize("worker", ["a", "b"])  # the one that has the file mapped, and another
@pytest.mark.parametrize(
    ("left", "extended"), [(0, False), (0, True), (100, False), (4096, False), (20_000, False)]
)
def test_a_truncated_file_is_loaded_from_the_store(
    executor: Executor, tmp_path: Path, worker: str, left: int, extended: bool
) -> None:
    executor.batch("a")
    (path,) = tmp_path.rglob("*.*")
    size = path.stat().st_size
    os.truncate(path, left)
    if extended:
        os.truncate(path, size)
    assert executor.batch(worker) == LOADED
    assert "live state was damaged" in str(executor.notices)
    assert executor.batch(worker) == CONTINUED


def test_a_removed_file_is_loaded_from_the_store(executor: Executor, tmp_path: Path) -> None:
    executor.batch("a")
    (path,) = tmp_path.rglob("*.*")
    path.unlink()
    assert executor.batch("a") == LOADED
    assert executor.batch("a") == CONTINUED


@pytest.mark.parametrize("directories", [None, "", "/proc/self", "/nowhere/at/all"])
def test_without_a_usable_directory_a_worker_keeps_its_groups_in_memory(
    executor: Executor, monkeypatch: pytest.MonkeyPatch, directories: str | None
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    if directories is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", directories)
    found = [executor.batch(worker) for worker in "aaabbaa"]
    assert found == [NEW, CONTINUED, CONTINUED, LOADED, CONTINUED, LOADED, CONTINUED]
    assert len(set(executor.notices)) == 1
    assert "is loaded from the state store" in str(executor.notices)


def test_a_full_disk_falls_back_to_memory_with_one_warning(
    executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, nbytes: int) -> None:
        if start:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    executor.batch("a")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        patch.setattr(LiveFile, "write_head", lambda self, head: self.allocate(1 << 20) and False)
        assert executor.batch("b") == HANDED_OVER
    assert files(tmp_path) == []
    assert "No space left on device" in str(executor.notices)
    assert executor.batch("b") == CONTINUED
    assert executor.batch("c") == LOADED
    assert executor.batch("b") == HANDED_OVER, "there is room again"
    assert len(set(executor.notices)) == 1


def test_memory_does_not_grow_with_restarts(executor: Executor, tmp_path: Path) -> None:
    gc.collect()  # of what other tests have left
    fds = []
    for run in range(10):
        executor.batch("a", owner=Owner("query", f"run {run}"))
        fds.append(len(os.listdir("/proc/self/fd")))
        assert len(executor.caches["a"]._groups) == 1
    assert len(set(fds[1:])) == 1
    assert len(files(tmp_path)) == 1
