"""A group that is larger than what it may have in memory is loaded and written with little memory."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chunk_store import GroupStore, MemoryStore, save
from settled_files import Live, Sessions, query, rows_of_batch
from settling_groups import ALWAYS, DEFAULT, LIVE, Driven
from test_settled_keys import Ops, compare

from timerheap._native._core import xxh64
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._group.saving import Stored, loaded_group
from timerheap.spark._group.stored.kinds import EVENT_TIMERS
from timerheap.spark._group.stored.manifest import Manifest

SOME = replace(DEFAULT, above=3_000, records=16, ranges=2, least=3, share=4)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("settling", [ALWAYS, SOME])
@pytest.mark.parametrize("seed", range(3))
def test_keys_that_settle_while_they_are_loaded_are_like_others(seed: int, settling: Any) -> None:
    """All that micro-batches do and write is compared; the group is loaded before each."""
    compare(seed, settling, 15, loads=1)


def loaded(store: MemoryStore, driven: Driven) -> Any:
    """Return a group that a store has, whose keys have settled in the load."""
    return LIVE.large_group(store, store.read_manifest(), driven.query.layout, driven.new_file(), ALWAYS)[0]


def test_keys_settle_while_they_are_loaded() -> None:
    driven = Driven(query(Sessions(), "arrival"), None)
    driven.batch(rows_of_batch(0), 5, 0)
    group = loaded(driven.store, driven)
    assert len(group.settling.settled) > 50
    assert not len(group.keys.table)
    assert group.standing() == driven.group.standing()


def test_keys_with_lists_and_displaced_keys_stay_in_memory() -> None:
    driven = Driven(query(Ops(), "arrival"), None)
    rows = rows_of_batch(0)
    ids = rows.ids.view(np.uint64) % np.uint64(30)  # which are those of several keys
    driven.batch(replace(rows, ids=ids.view(np.int64)), 5, 0)
    group = loaded(driven.store, driven)
    with_list, displaced = group.states["log"].ids(), np.sort(driven.group.keys.table.ids())
    displaced = displaced[driven.group.keys.are_displaced(displaced)]
    assert min(len(with_list), len(displaced), len(group.settling.settled)) > 3
    assert group.keys.table.find(with_list).all()
    assert group.keys.table.find(displaced).all()


def test_states_that_a_load_renames_and_leaves_out_are_those_of_any_load() -> None:
    driven = Driven(query(Ops(), "arrival"), None)
    for number in range(3):
        driven.batch(rows_of_batch(number), 20 * number, number)
    layout = replace(driven.query.layout, rename_state={"seen": "viewed"}, drop_state=("ratio", "last"))
    found = []
    for load in (loaded_group, LIVE.large_group):
        store = GroupStore()
        store.chunks, store.manifest = dict(driven.store.chunks), driven.store.manifest
        arguments = (ALWAYS,) if load is LIVE.large_group else ()
        group, stored = load(store, store.read_manifest(), layout, driven.new_file(), *arguments)
        losses = group.losses()
        group.forget_dead_keys()
        save(group, stored, store)
        settled = group.settling.settled
        found.append((store.chunks, store.read_manifest().runs, group.standing(), losses))
    assert settled is not None
    assert len(settled) > 20
    assert len(group.known_expiries()[0].settled) > 5
    assert found[0] == found[1]


def keyed(n: int, at: np.ndarray, prefix: str = "") -> KeyedRows:
    names = [f"{prefix}{number}" for number in range(n)]
    zeros = pa.array(np.zeros(n, np.int64))
    columns = [pa.array(names, pa.large_string()), pa.array(at), zeros, zeros]
    ids = np.array([xxh64(name.encode()) for name in names], np.uint64).view(np.int64)
    return KeyedRows(pa.record_batch(columns, names=["k", "at", "op", "arg"]), ids, at)


@pytest.mark.parametrize("span", [1, 3, 100_000])
@pytest.mark.parametrize("full", [False, True])
def test_a_snapshot_that_streams_is_that_of_a_plain_group(
    span: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has several chunks of each part, and some of the keys are in memory; the disk may be full."""
    monkeypatch.setattr("timerheap.spark._settling.settled_parts._TIMERS", 1000)
    n, settling = 120_000, replace(ALWAYS, records=3_000)
    groups = [Driven(query(Sessions(), "arrival"), each) for each in (None, settling)]
    at = np.random.default_rng(span).integers(0, span, n)
    for number, rows in enumerate([keyed(n, at), None, keyed(n // 9, at[: n // 9] + 1)]):
        for driven in groups:
            driven.settling = settling if driven is groups[1] and number < 2 else None
            driven.batch(rows, number, number)
    assert 0 < groups[1].has_settled < n
    if full:
        monkeypatch.setattr(tempfile, "TemporaryFile", full_disk)
    found = []
    for driven in groups:
        store = MemoryStore()
        Stored(Manifest(1)).save(store, driven.group, b"", whole=True)
        found.append((store.chunks, store.read_manifest().runs))
    assert found[0] == found[1]
    assert sum(kind == EVENT_TIMERS for kind, _ in found[0][0]) > 3


def full_disk(**_: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_keys_stay_settled_when_others_have_more_timers() -> None:
    """Records get room for more timers, and no key comes back for that."""
    groups = [Driven(query(Ops(), "arrival"), each) for each in (None, ALWAYS)]
    at = np.full(60, 1_000)
    for number, count in enumerate((60, 50, 50, 1)):
        rows = keyed(count, at[:count])
        args, ops = pa.array(np.full(count, 1 + 10 * number)), pa.array(np.ones(count, np.int64))
        batch = pa.record_batch([*rows.rows.columns[:2], ops, args], names=rows.rows.schema.names)
        found = [driven.batch(replace(rows, rows=batch), 5 + number, number) for driven in groups]
        assert found[0] == found[1]
        assert groups[0].store.chunks == groups[1].store.chunks
        came = groups[1].group.settling.came
        groups[1].group.settling.settle(ALWAYS)
        assert not came
    settled = groups[1].group.settling.settled
    assert settled is not None
    assert settled.records.slots["event"] == 3
    assert len(settled) > 55


class Disk:
    """Files without a name, of which the write or read with a number fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.fails = 1 << 30, "write"
        make = tempfile.TemporaryFile
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: DiskFile(self, make(**options)))

    def turn(self, what: str) -> bool:
        """Return whether a call fails."""
        self.left -= self.fails in (what, f"{what} silently")
        return self.left == 0 and self.fails in (what, f"{what} silently")


class DiskFile:
    def __init__(self, disk: Disk, file: Any) -> None:
        self.disk, self.file = disk, file
        self.seek, self.close = file.seek, file.close

    def write(self, data: bytes) -> int:
        if self.disk.turn("write"):
            if self.disk.fails == "write":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = bytes([data[0] ^ 1]) + data[1:]
        return int(self.file.write(data))

    def read(self, nbytes: int) -> bytes:
        found: bytes = self.file.read(nbytes)
        if self.disk.turn("read"):
            if self.disk.fails == "read":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            found = found[: nbytes // 2]
        return found


def results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what micro-batches result in, with a load between them, and what is then in the store."""
    folder.mkdir()
    live, found, settled = Live(folder, monkeypatch), [], []
    for number in range(4):
        if number == 2:
            for path in folder.rglob("*.*"):
                path.unlink(missing_ok=True)
        found.append(live.batch(number, rows_of_batch(number), f" {number // 2}"))
        settled.append(live.counts["returned"])
        assert live.counts["loaded"] or number != 2
    return (found, live.store.chunks), settled


@pytest.mark.parametrize("fails", ["write", "write silently", "read", "read silently"])
def test_a_load_whose_scratch_file_fails_changes_no_result(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    disk.fails = fails
    (expected, returned), times = results(tmp_path / "all", monkeypatch), (1 << 30) - disk.left
    assert min(*returned[2:], times) > 5
    for turn in random.Random(1).sample(range(1, times + 1), 10):
        disk.left = turn
        assert results(tmp_path / str(turn), monkeypatch)[0] == expected, turn
        assert disk.left <= 0


def test_a_load_whose_disk_is_full_at_any_reservation_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, left = os.posix_fallocate, 1000

    def reserved(fd: int, at: int, nbytes: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(fd, at, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", reserved)
    (expected, _), times = results(tmp_path / "all", monkeypatch), 1000 - left
    assert times > 5
    for most in range(times):
        left = most
        assert results(tmp_path / str(most), monkeypatch)[0] == expected, most
        assert left < 0


class Folder(MemoryStore):
    """The state of a group in files, so that it takes no memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        manifest = folder / "manifest"
        self.manifest = manifest.read_bytes() if manifest.exists() else None

    def read(self, kind: int, id_: int) -> bytes:
        return (self.folder / f"{kind}.{id_}").read_bytes()

    def write(self, kind: int, id_: int, data: bytes) -> None:
        (self.folder / f"{kind}.{id_}").write_bytes(data)

    def write_manifest(self, manifest: Manifest) -> None:
        (self.folder / "manifest").write_bytes(manifest.to_bytes())


def peak() -> int:
    """Return the most memory that this process has had, in KiB."""
    status = Path("/proc/self/status").read_text()  # `getrusage` has that of the process which has started it
    return int(status.partition("VmHWM:")[2].split()[0])


def rise(folder: Path, above: int) -> int:
    """Return by how many KiB a load and a save of the whole raise the peak of this process."""
    driven, store = Driven(query(Sessions(), "arrival"), None), Folder(folder)
    arguments = store.read_manifest(), driven.query.layout, driven.new_file()
    before = peak()
    group, stored = LIVE.large_group(store, *arguments, replace(DEFAULT, above=above))
    (folder / "again").mkdir(exist_ok=True)
    stored.save(Folder(folder / "again"), group, b"", whole=True)
    return peak() - before


@pytest.mark.in_turn(5)
def test_a_load_and_a_snapshot_take_little_memory_however_large_the_group_is(tmp_path: Path) -> None:
    driven = Driven(query(Sessions(), "arrival"), None)
    for number in range(6):
        driven.batch(keyed(200_000, np.full(200_000, number), f"{number} "), None, 0)
    save_whole = Stored(Manifest(1)).save
    save_whole(Folder(tmp_path), driven.group, b"", whole=True)
    found = []
    for above in (1 << 20, 1 << 40):
        code = f"from test_large_groups import *; print(rise(Path({str(tmp_path)!r}), {above}))"
        here = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        command = [sys.executable, "-c", code]
        ran = subprocess.run(command, env=os.environ | {"PYTHONPATH": here}, stdout=subprocess.PIPE)
        found.append(int(ran.stdout))
    assert 0 < found[0] < 0.6 * found[1], found
