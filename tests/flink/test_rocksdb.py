"""The queue on disk compared with a model, also when closed, killed and reopened; durability."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from queue_model import QueueModel
from rocksdb_files import without_compaction
from test_queue import AgainstTheModel

from timerheap.flink import (
    InternalTimer,
    KeyGroupRange,
    RocksDBTimerQueue,
    TimerQueue,
    TypeSerializer,
    java_hash_code,
)
from timerheap.flink import rocksdb_queue as head
from timerheap.flink import rocksdb_queue as store
from timerheap.flink.timer_bytes import SERIALIZERS, TimerSerializer

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class WithSets(TypeSerializer):
    """A serializer for the types of "any", and for sets."""

    name = "any and sets"

    def serialize(self, value):
        is_set = isinstance(value, frozenset)
        return SERIALIZERS["any"].serialize((is_set, *sorted(value)) if is_set else (is_set, value))

    def deserialize(self, data, start):
        (is_set, *values), end = SERIALIZERS["any"].deserialize(data, start)
        return frozenset(values) if is_set else values[0], end


class BytesModel(QueueModel):
    """A model that orders timers by their bytes."""

    serializer = TimerSerializer("any", WithSets())

    def order(self, timer):
        return timer.timestamp, java_hash_code(timer.key) % (1 << 32), self.serializer.serialize(timer)


class OnDisk(AgainstTheModel):
    """The state machine with small caches and batches, so that few timers suffice to exceed each."""

    @initialize(owned=st.sampled_from([(0, 3), (0, 1), (2, 3)]), kept=st.booleans(), sync=st.booleans())
    def start(self, owned, kept, sync):
        self.small = ExitStack()
        for module, name, value in [
            (head, "_CACHED", 4),
            (head, "_MOST_CACHED", 8),
        ]:
            self.small.enter_context(mock.patch.object(module, name, value))
        self.small.enter_context(without_compaction())
        self.directory = Path(self.small.enter_context(tempfile.TemporaryDirectory()))
        self.path = self.directory / "0" if kept else None
        self.sync = sync
        self.owned = KeyGroupRange(*owned)
        self.queue = self.open()
        self.model = BytesModel(4, self.owned)

    def open(self):
        return RocksDBTimerQueue(
            self.path,
            4,
            self.owned,
            namespace_serializer=WithSets(),
            sync=self.sync and self.path is not None,
        )

    @rule(sync=st.booleans())
    def close_and_open(self, sync):
        if self.path is not None:
            self.queue.close()
            self.sync = sync
            self.queue = self.open()

    @rule(sync=st.booleans())
    def be_killed_and_open(self, sync):
        """Copy the files: this is what a process killed at this moment leaves behind."""
        if self.path is not None:
            left = self.directory / str(int(self.path.name) + 1)
            shutil.copytree(self.path, left)
            self.queue.close()
            self.path, self.sync = left, sync
            self.queue = self.open()

    def teardown(self):
        if hasattr(self, "queue"):
            try:
                super().teardown()
            finally:
                self.queue.close()
                self.small.close()


OnDisk.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestOnDisk = OnDisk.TestCase
del AgainstTheModel


@pytest.fixture
def path(tmp_path):
    with without_compaction():
        yield tmp_path / "timers"


def hash_code_of_anything(key):
    return len(key) if isinstance(key, bytes) else java_hash_code(key)


def timers_of(*timestamps):
    return [InternalTimer(timestamp, "key", None) for timestamp in timestamps]


def test_many_timers_behave_as_in_the_heap_queue(path):
    """Use more timers than the cached head, the batches and the ranges hold."""
    heap = TimerQueue()
    timers = [InternalTimer(i * 7919 % 20_011, i * 31 % 997, None) for i in range(20_000)]
    with RocksDBTimerQueue(path) as queue:
        for each in (heap, queue):
            for timer in timers[:3_000]:
                each.add(timer)
            each.add_many(timers)
            for timer in timers[::3]:
                each.remove(timer)
            each.add_many(timers[:12])
        assert len(queue) == len(heap)
        assert sorted(queue) == sorted(heap)
        assert sorted(queue.timers_of_key(5)) == sorted(heap.timers_of_key(5))
        assert sorted(queue.get_subset_for_key_group(5)) == sorted(heap.get_subset_for_key_group(5))
        assert queue.remove_keys(range(100, 200)) == heap.remove_keys(range(100, 200))
        for _ in range(9_000):
            assert queue.poll().timestamp == heap.poll().timestamp
        assert len(queue) == len(heap)
        rest = [queue.poll() for _ in range(len(queue))]
        assert [timer.timestamp for timer in rest] == [heap.poll().timestamp for _ in rest]
        assert queue.poll() is None


def test_a_reopened_queue_holds_its_timers(path):
    with RocksDBTimerQueue(str(path), hash_code=hash_code_of_anything) as queue:
        queue.add_many([(5, "a", (0, 60)), (INT64_MIN, b"a" * 9, None), (INT64_MAX, 1.5, True)])
        assert repr(queue).startswith(f"<RocksDBTimerQueue in {path}, head InternalTimer(timestamp=-922337")
    with RocksDBTimerQueue(path, hash_code=hash_code_of_anything) as queue:
        assert list(queue) == [(INT64_MIN, b"a" * 9, None), (5, "a", (0, 60)), (INT64_MAX, 1.5, True)]
        assert len(queue) == 3
        assert queue


def test_a_temporary_directory_is_removed_with_its_queue():
    queue = RocksDBTimerQueue()
    directory = queue._timers.store.path
    queue.add((1, "a", None))
    assert directory.exists()
    del queue
    assert not directory.exists()
    with RocksDBTimerQueue() as queue:
        directory = queue._timers.store.path
    assert not directory.exists()


def test_an_unclosed_queue_is_closed_silently_when_the_process_ends(path):
    program = """
import sys
from timerheap.flink import RocksDBTimerQueue
for path in (None, sys.argv[1]):
    queue = RocksDBTimerQueue(path)
    queue.add_many([(number, "key", None) for number in range(5_000)])
    queue.poll()
    print(queue._timers.store.path)
    keep = [queue, *globals().get("keep", [])]
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    temporary, kept = map(Path, done.stdout.split())
    assert not temporary.exists()
    with RocksDBTimerQueue(kept) as queue:
        assert list(queue) == timers_of(*range(1, 5_000))


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.add((1, "a", None)),
        lambda queue: queue.remove((1, "a", None)),
        lambda queue: queue.peek(),
        lambda queue: queue.poll(),
        lambda queue: queue.add_many([(1, "a", None)]),
        lambda queue: queue.remove_keys(["a"]),
        lambda queue: queue.timers_of_key("a"),
        lambda queue: queue.get_subset_for_key_group(0),
        lambda queue: queue.clear(),
        lambda queue: queue.is_empty(),
        lambda queue: list(queue),
        lambda queue: len(queue),
        lambda queue: bool(queue),
        lambda queue: (1, "a", None) in queue,
    ],
)
def test_an_operation_on_a_closed_queue_raises(path, call):
    queue = RocksDBTimerQueue(path)
    queue.add((1, "a", None))
    queue.close()
    queue.close()
    assert repr(queue) == f"<RocksDBTimerQueue in {path}, closed>"
    with pytest.raises(ValueError, match="is closed"):
        call(queue)
    with RocksDBTimerQueue(path) as queue:
        assert list(queue) == [(1, "a", None)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_parallelism": 64}, "max_parallelism must be 128, as stored in .*, got 64"),
        ({"key_group_range": KeyGroupRange(0, 99)}, r"key_group_range must be \[0, 127\].*got \[0, 99\]"),
        ({"key_serializer": "string"}, "key_serializer must be 'any'.*got 'string'"),
        ({"namespace_serializer": "void"}, "namespace_serializer must be 'any'.*got 'void'"),
        ({"hash_code": lambda key: java_hash_code(key) + 1}, "hash_code must be the one that.*'key'"),
    ],
)
def test_opening_with_other_properties_raises(path, changed, message):
    with RocksDBTimerQueue(path) as queue:
        queue.add((1, "key", None))
    with pytest.raises(ValueError, match=message):
        RocksDBTimerQueue(path, **changed)
    with RocksDBTimerQueue(path) as queue:
        assert list(queue) == [(1, "key", None)]


def test_opening_a_directory_twice_raises(path):
    with RocksDBTimerQueue(path), pytest.raises(OSError, match=r"could not be opened: .*lock"):
        RocksDBTimerQueue(path)


def damage(files, at=0.5, data=b"\xff" * 64):
    for file in files:
        with file.open("r+b") as opened:
            opened.seek(int(file.stat().st_size * at))
            opened.write(data)


def test_reading_damaged_files_raises(path):
    queue = RocksDBTimerQueue(path)
    queue.add_many(timers_of(*range(20_000)))
    left = path.with_name("left")
    shutil.copytree(path, left)
    damage(left.glob("*.log"))
    with pytest.raises(OSError, match=r"could not be opened: Corruption"):
        RocksDBTimerQueue(left)
    queue.close()
    damage(path.glob("*.sst"))
    queue = RocksDBTimerQueue(path)
    for call in [lambda: [queue.poll() for _ in range(20_000)], lambda: list(queue), lambda: len(queue)]:
        with pytest.raises(OSError, match="could not be read: Corruption"):
            call()
    with suppress(OSError):  # RocksDB may have found the damage in the background
        queue.close()


def test_opening_a_damaged_manifest_raises(path):
    RocksDBTimerQueue(path).close()
    damage(path.glob("MANIFEST*"), 0)
    with pytest.raises(OSError, match="could not be opened: Corruption"):
        RocksDBTimerQueue(path)


def test_reads_include_single_writes(path):
    near, far, farther = timers_of(7, 2_500, 3_500)
    with RocksDBTimerQueue(path) as queue:
        queue.add_many(timers_of(*range(3_000)))
        for timer in (near, far):
            queue.remove(timer)
            assert timer not in queue
            queue.add(timer)
            assert timer in queue
        assert farther not in queue
        queue.add(farther)
        assert farther in queue
        queue.remove(near)
        assert len(queue) == 3_000
        assert list(queue) == timers_of(*range(7), *range(8, 3_000), 3_500)


def test_every_single_write_survives_a_kill(path):
    with RocksDBTimerQueue(path) as queue:
        for number in range(18):
            queue.add((number, "key", None))
            if number % 3 == 2:
                assert queue.poll() == (number // 3, "key", None)
            left = path.with_name(f"left{number}")
            shutil.copytree(path, left)
            with RocksDBTimerQueue(left) as found:
                assert list(found) == timers_of(*range((number + 1) // 3, number + 1))


def test_a_failing_write_leaves_the_queue_unchanged(path):
    with RocksDBTimerQueue(path) as queue:
        queue.add_many(timers_of(*range(3_000)))
        full = OSError("no space left on device")
        with mock.patch.object(store.Store, "_write", side_effect=full):
            for call in [
                lambda: queue.add_many(timers_of(5_000, 5_001)),
                lambda: queue.remove_keys(["key"]),
                lambda: queue.clear(),
            ]:
                with pytest.raises(OSError, match="no space"):
                    call()
        with (
            mock.patch.object(store.Store, "add", side_effect=full),
            mock.patch.object(store.Store, "remove", side_effect=full),
        ):
            for call in [
                lambda: queue.add(timers_of(-1)[0]),
                queue.poll,
                lambda: queue.remove(timers_of(7)[0]),
            ]:
                with pytest.raises(OSError, match="no space"):
                    call()
        assert list(queue) == timers_of(*range(3_000))
        assert [queue.poll() for _ in range(3_000)] == timers_of(*range(3_000))


@pytest.mark.parametrize("sync", [False, True])
def test_a_large_key_survives_a_kill(path, sync):
    large = b"k" * 300_000
    queue = RocksDBTimerQueue(path, hash_code=len, sync=sync)
    queue.add((1, large, None))
    queue.add((2, b"k", None))
    left = path.with_name("left")
    shutil.copytree(path, left)
    queue.close()
    with RocksDBTimerQueue(left, hash_code=len) as queue:
        assert list(queue) == [(1, large, None), (2, b"k", None)]
        assert queue.remove((1, large, None)) is True
        assert list(queue) == [(2, b"k", None)]
