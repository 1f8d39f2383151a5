"""The state of a partition in real-time mode beside a dict, over epochs that succeed, fail and come again."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import fs

from timerheap.spark._group.stored.kinds import MANIFEST
from timerheap.spark._state.epoch_store import EpochStore

FILES = fs.LocalFileSystem()
Contents = dict[tuple[int, int, int], bytes]


def opened(folder: Path, epoch: int, run: int, partition: int = 3) -> EpochStore:
    return EpochStore(FILES, str(folder), partition, epoch, run)


def contents(store: EpochStore, keys: set[tuple[int, int, int]]) -> Contents:
    found = {}
    for label, kind, id_ in keys:
        store.select(label)
        if (data := store.read(kind, id_)) is not None:
            found[label, kind, id_] = data
    return found


def changed(
    random_: random.Random, store: EpochStore, before: Contents, keys: set[tuple[int, int, int]]
) -> Contents:
    """Change a store at random; return what it then must hold."""
    now = dict(before)
    for _ in range(random_.randrange(30)):
        key = random_.randrange(4), random_.choice([16, 18, MANIFEST]), random_.randrange(5)
        keys.add(key)
        store.select(key[0])
        if random_.random() < 0.2:
            store.remove(*key[1:])
            now.pop(key, None)
        else:
            now[key] = random_.randbytes(random_.choice([0, 10, 1000, 5000]))
            store.write(*key[1:], now[key])
    return now


@pytest.mark.parametrize("seed", range(30))
def test_each_epoch_starts_from_the_one_that_succeeded(tmp_path: Path, seed: int) -> None:
    random_, keys = random.Random(seed), set[tuple[int, int, int]]()
    folder, run, model = tmp_path / "00003", 1, Contents()
    zombies: list[EpochStore] = []
    for epoch in range(40):
        while True:
            store = opened(folder, epoch, run)
            store.sweep()
            assert contents(store, keys) == model
            now = changed(random_, store, model, keys)
            assert contents(store, keys) == now
            fate = random_.random()
            if fate < 0.7:
                store.commit()
                model = now
                break
            if fate < 0.85:  # saved, but a task of another partition has failed
                store.commit()
            elif fate < 0.95:
                zombies.append(store)  # it ends later, when another run has taken over
            run += 1
        if zombies and random_.random() < 0.5:
            with suppress(FileNotFoundError):  # what it started from is gone
                zombies.pop().commit()
    files = [path for path in folder.iterdir() if not path.name.endswith(".draft")]
    assert sum(path.stat().st_size for path in files) < 10 * (sum(map(len, model.values())) + 20_000)


def test_state_that_is_missing_or_of_a_later_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"state of epoch 4 of partition 3 must be in .*, got no file"
    ):
        opened(tmp_path, 5, 1)
    opened(tmp_path, 0, 7).commit()
    with pytest.raises(FileNotFoundError, match=r"got only that of later runs \[7\]"):
        opened(tmp_path, 1, 6)
    with pytest.raises(ValueError, match="it is of epoch, run and partition"):
        opened(tmp_path, 1, 7, partition=2)


def test_the_first_epoch_begins_with_the_state_to_start_from(tmp_path: Path) -> None:
    assert contents(opened(tmp_path, 0, 1), {(1, 16, 0)}) == {}
    for run in (1, 2):  # the first attempt to start has failed later
        store = opened(tmp_path, -1, run)
        store.select(1)
        store.write(16, 0, bytes([run]))
        store.commit()
    store = opened(tmp_path, 0, 2)
    assert list(store.chunks()) == [((1, 16, 0), b"\2")]
    store.commit()
    opened(tmp_path, 1, 2).sweep()
    assert {path.name for path in tmp_path.iterdir()} == {"0-2"}  # small ones are copied


def test_damage_is_an_error(tmp_path: Path) -> None:
    store = opened(tmp_path, 0, 1)
    store.write(MANIFEST, 0, b"x" * 100)
    store.commit()
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for at in range(100, len(whole)):  # the index and what follows; chunks are sealed each
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="must be the state of an epoch, got other bytes"):
            opened(tmp_path, 1, 1)
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises((ValueError, OSError)):
            opened(tmp_path, 1, 1)
