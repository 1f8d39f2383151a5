"""The memory of a key group in a mapped file."""

from __future__ import annotations

import errno
import os
import random
import resource
import stat
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from timerheap.spark._live import live_file
from timerheap.spark._live.free_space import FreeSpace
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._memory.blocks import Block

FORK = get_context("fork")


def in_another_process(work: Callable[[], None]) -> None:
    process = FORK.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0


def fill(block: Block, value: int) -> None:
    block.bytes[:] = value


def opened(path: Path) -> LiveFile:
    file = LiveFile.lock(str(path))
    assert file is not None
    return file


def test_free_space_agrees_with_a_set_of_bytes() -> None:
    random_ = random.Random(7)
    space, model = FreeSpace(), set(range(100, 1100))
    space.add(100, 1100)
    taken: list[tuple[int, int]] = []
    for _ in range(3000):
        if taken and random_.random() < 0.5:
            start, stop = taken.pop(random_.randrange(len(taken)))
            space.add(start, stop)
            model.update(range(start, stop))
            with pytest.raises(ValueError, match="free already"):
                space.add(start, start + 1)
        elif random_.random() < 0.5:
            nbytes = random_.randint(1, 60)
            found = space.take(nbytes)
            assert (found is None) == all(stop - start < nbytes for start, stop in space)
            if found is not None:
                taken.append((found, found + nbytes))
        else:
            start = random_.randrange(90, 1100)
            stop = start + random_.randint(1, 30)
            if model.issuperset(range(start, stop)):
                space.claim(start, stop)
                taken.append((start, stop))
            else:
                with pytest.raises(ValueError, match="outside of the file or in use"):
                    space.claim(start, stop)
        for start, stop in taken:
            model.difference_update(range(start, stop))
        ranges = list(space)
        assert {byte for start, stop in ranges for byte in range(start, stop)} == model
        start, stop = sorted(random_.choices(range(90, 1110), k=2))
        within = {byte for one, other in space.within(start, stop) for byte in range(one, other)}
        assert within == model.intersection(range(start, stop))
        assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))


def test_blocks_are_aligned_and_separate_and_keep_their_bytes_while_the_file_grows(tmp_path: Path) -> None:
    file = LiveFile.create(str(tmp_path / "file"))
    blocks = []
    for number, nbytes in enumerate([0, 1, 63, 64, 65, 5000, 200_000, 3_000_000, 20_000_000]):
        block = file.allocate(nbytes)
        assert len(block.bytes) >= max(nbytes, 1)
        assert block.bytes.ctypes.data % 64 == 0
        fill(block, number)
        blocks.append(block)
    for number, block in enumerate(blocks):
        assert (block.bytes == number).all()
    ends = sorted((block.at, block.at + len(block.bytes)) for block in blocks)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(ends))


def test_released_space_is_used_again(tmp_path: Path) -> None:
    file = LiveFile.create(str(tmp_path / "file"))
    for _ in range(50):
        blocks = [file.allocate(30_000) for _ in range(10)]
        for block in blocks[::2] + blocks[1::2]:
            file.release(block)
    assert (tmp_path / "file").stat().st_blocks * 512 < 1_000_000


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_large_free_space_is_returned_to_the_disk_and_reserved_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = LiveFile.create(str(path))
    for _ in range(3):  # in the middle and at the end
        large = [file.allocate(3_000_000) for _ in range(2)]
        kept = file.allocate(5000)
        fill(kept, 1)
        large += [file.allocate(3_000_000) for _ in range(2)]
        for block in large:
            fill(block, 2)
            file.release(block)
        assert on_disk(path) > 12_000_000
        assert file.write_head(b"head")
        assert on_disk(path) < 2_000_000, "the page cache may keep a large page"
        assert (kept.bytes == 1).all()
        file = file.anew()  # which knows where the holes are
        assert file.read_head() == b"head"
        assert (file.attach(kept.at, 5000).bytes == 1).all()
        file.attached()
    before = on_disk(path)
    small = file.allocate(100_000)
    assert before <= on_disk(path) < before + 1_000_000, "most of the hole stays"
    fill(small, 3)
    assert file.write_head(b"head")
    assert (small.bytes == 3).all()


def test_a_disk_that_is_full_when_a_hole_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LiveFile.create(str(tmp_path / "file"))
    first, kept = file.allocate(3_000_000), file.allocate(5000)
    fill(kept, 1)
    file.release(first)
    assert file.write_head(b"head")

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    large = file.allocate(2_000_000)
    assert file.failure is not None
    assert file.failure.errno == errno.ENOSPC
    fill(large, 2)  # in the memory of the process
    assert not np.shares_memory(large.bytes, file._map)
    assert (kept.bytes == 1).all()
    assert not file.write_head(b"head")


def test_limited_address_space_is_used(tmp_path: Path) -> None:
    def work() -> None:
        file = LiveFile.create(str(tmp_path / "file"))
        status = Path("/proc/self/status").read_text()
        used = int(status[status.index("VmSize:") + 7 :].split()[0]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + (60 << 20), used + (60 << 20)))
        if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
            return  # qemu-user keeps no such limit, so the file would fill the disk
        fill(file.allocate(10 << 20), 1)
        fill(file.allocate(10 << 20), 2)
        assert file.failure is None, "a mapping of four times the size would not fit"
        while file.failure is None:
            file.allocate(1 << 20)
        assert file.failure.strerror == os.strerror(errno.ENOMEM)

    in_another_process(work)


def test_a_growing_file_needs_few_file_descriptors(tmp_path: Path) -> None:
    file = LiveFile.create(str(tmp_path / "file"))
    before = len(os.listdir("/proc/self/fd"))
    blocks = [file.allocate(100_000) for _ in range(2000)]
    assert len(os.listdir("/proc/self/fd")) <= before + 6, "of which 5 go with the oldest blocks"
    del blocks, file


def test_another_process_attaches_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write() -> None:
        file = LiveFile.create(str(path))
        blocks = [file.allocate(nbytes) for nbytes in (100, 100_000, 1_000_000)]
        for number, block in enumerate(blocks):
            fill(block, number + 1)
        file.release(blocks.pop(0))
        head = ",".join(f"{block.at}:{len(block.bytes)}" for block in blocks)
        assert file.write_head(head.encode())
        os._exit(0)  # as a worker that is killed leaves it

    in_another_process(write)
    file = opened(path)
    places = [tuple(map(int, place.split(":"))) for place in file.read_head().decode().split(",")]
    blocks = [file.attach(at, nbytes) for at, nbytes in places]
    assert [set(block.bytes.tolist()) for block in blocks] == [{2}, {3}]
    at, _ = places[0]
    for wrong in [(at, 64), (at + 64, 64), (at - 64, 128), (1 << 40, 64), (0, 64), (-64, 64), (at + 1, 8)]:
        with pytest.raises(ValueError, match=r"outside of the file or in use|multiple of 64"):
            file.attach(*wrong)
    fresh = file.allocate(500_000)
    assert all(not np.shares_memory(fresh.bytes, block.bytes) for block in blocks)


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    before = os.umask(0)
    try:
        LiveFile.create(str(tmp_path / "file")).unlock()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    os.chmod(tmp_path / "file", 0o640)
    with pytest.raises(ValueError, match="only this user"):
        opened(tmp_path / "file").read_head()


def test_a_file_that_cannot_grow_is_given_up_and_its_blocks_stay_valid(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
        file = LiveFile.create(str(path))
        first = file.allocate(1000)
        fill(first, 1)
        large = file.allocate(50 << 20)
        assert file.failure is not None
        assert not path.exists()
        fill(large, 2)
        later = file.allocate(100)
        fill(later, 3)
        assert (first.bytes == 1).all()
        assert (large.bytes == 2).all()
        file.release(large)
        file.release(first)
        assert not file.write_head(b"head")

    in_another_process(work)


def test_a_lock_is_held_by_one_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = LiveFile.create(str(path))
    assert file.write_head(b"head")
    assert LiveFile.lock(str(path)) is None
    in_another_process(lambda: _expect(LiveFile.lock(str(path)) is None))
    file.unlock()
    again = opened(path)
    assert not file.relock(str(path))
    again.unlock()
    assert file.relock(str(path))
    del file, again
    assert not path.exists(), "a locked file is removed with its object"
    assert LiveFile.lock(str(path)) is None


def test_a_forked_process_neither_removes_the_file_nor_keeps_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    ready, release = FORK.Event(), FORK.Event()

    def worker() -> None:
        file = LiveFile.create(str(path))
        file.allocate(3_000_000)
        if not os.fork():  # as the user's function may do
            file.discard()
            ready.set()
            release.wait()
            os._exit(0)
        ready.wait()
        assert path.exists()
        os._exit(0)

    try:
        in_another_process(worker)
        assert opened(path), "the worker is dead, and its child is not"
    finally:
        release.set()


@pytest.mark.parametrize("given_up", [False, True])
def test_a_forked_process_does_not_write_into_the_blocks_of_its_parent(
    tmp_path: Path, given_up: bool
) -> None:
    file = LiveFile.create(str(tmp_path / "file"))
    blocks = [file.allocate(nbytes) for nbytes in (100, 3_000_000, 20_000_000)]
    for block in blocks:
        fill(block, 1)
    if given_up:
        file.give_up(OSError(errno.ENOSPC, "no space"))

    def child() -> None:
        for block in blocks:
            assert (block.bytes == 1).all()
            fill(block, 2)
            assert (block.bytes == 2).all()
        fill(file.allocate(100), 3)
        assert not file.write_head(b"that of the child")

    in_another_process(child)
    assert all((block.bytes == 1).all() for block in blocks)
    assert file.write_head(b"head") == (not given_up)


def test_a_file_of_another_build_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released(tmp_path / "file")
    monkeypatch.setattr(live_file, "_build", lambda: 1)
    with pytest.raises(ValueError, match="was written by another version of timerheap, NumPy or PyArrow"):
        opened(tmp_path / "file").read_head()


def test_a_file_system_that_cannot_reserve_space_gets_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_file, "_without_reservation", lambda fd: "btrfs")
    with pytest.raises(OSError, match="btrfs cannot reserve space"):
        LiveFile.create(str(tmp_path / "file"))
    assert not (tmp_path / "file").exists()


def test_space_is_reserved_by_writing_where_there_is_no_call_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", missing)
    file = LiveFile.create(str(tmp_path / "file"))
    file.allocate(3_000_000)
    assert file.failure is None
    assert (tmp_path / "file").stat().st_blocks * 512 >= 3_000_000


def released(path: Path) -> int:
    """Write a file with a head, and return the size of the part that must not be damaged."""
    file = LiveFile.create(str(path))
    assert file.write_head(b"some head")
    place = int.from_bytes(path.read_bytes()[24:32], "little")
    file.unlock()
    return place


def damaged(path: Path) -> Iterator[None]:
    place = released(path)
    original = path.read_bytes()
    for at in [*range(64), *range(place, place + 33)]:
        path.write_bytes(original[:at] + bytes([original[at] ^ 0x41]) + original[at + 1 :])
        yield
    for size in (0, 1, 4095, 4096, place + 10):
        path.write_bytes(original[:size])
        yield
    path.write_bytes(os.urandom(len(original)))
    yield


def test_a_damaged_file_raises_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    cases = 0
    for _ in damaged(path):
        with pytest.raises(ValueError, match=r".+"):
            opened(path).read_head()
        assert not path.exists()
        os.close(os.open(path, os.O_CREAT, 0o600))
        cases += 1
    assert cases == 103


def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path) -> None:
    released(tmp_path / "file")
    os.symlink(tmp_path / "file", tmp_path / "link")
    with pytest.raises(OSError, match="link"):
        LiveFile.lock(str(tmp_path / "link"))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(ValueError, match="must be a file"):
        opened(tmp_path / "fifo").read_head()


def _expect(true: bool) -> None:
    assert true
