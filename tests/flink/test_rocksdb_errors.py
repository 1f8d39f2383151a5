"""What the queue on disk refuses: paths, stores of others, timers and arguments."""

from __future__ import annotations

import sys
from unittest import mock

import pytest
from rocksdb_files import without_compaction

from timerheap.flink import (
    KeyGroupRange,
    RocksDBTimerQueue,
)

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@pytest.fixture
def path(tmp_path):
    with without_compaction():
        yield tmp_path / "timers"


def put(path, key, value=b""):
    rocksdict = pytest.importorskip("rocksdict")
    with rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True)) as db:
        db.put(key, value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (b"", b"{}", "path must be a new directory"),
        (b"", b"[1]", "path must be a new directory"),
        (b"", b"\xff", "path must be a new directory"),
        (b"", b'{"format": "timerheap timers", "version": 2}', "version must be 2"),
        (b"", b'{"format": "others"}', "format must be 'others'"),
    ],
)
def test_opening_a_foreign_or_newer_store_raises(path, key, value, message):
    RocksDBTimerQueue(path).close()
    put(path, key, value)
    with pytest.raises(ValueError, match=message):
        RocksDBTimerQueue(path)


def test_opening_a_foreign_directory_raises(path):
    put(path, b"mine", b"yours")
    with pytest.raises(ValueError, match="path must be a new directory or one of timerheap timers"):
        RocksDBTimerQueue(path)


def test_a_path_of_the_wrong_type_raises():
    for wrong in (7, b"timers"):
        with pytest.raises(TypeError, match="path must be a str or a path, got"):
            RocksDBTimerQueue(wrong)


def test_a_path_of_a_file_raises(path):
    path.write_text("mine")
    with pytest.raises(OSError, match="exists"):
        RocksDBTimerQueue(path)


@pytest.mark.parametrize("stranger", [b"\0\0", b"12345678", b"12345678abcq", b"12345678abcdq"])
def test_opening_a_store_with_an_invalid_first_timer_raises(path, stranger):
    RocksDBTimerQueue(path).close()
    put(path, stranger)
    with pytest.raises(ValueError, match="data must be a timer"):
        RocksDBTimerQueue(path)


def test_reading_an_invalid_timer_raises_and_keeps_it(path):
    with RocksDBTimerQueue(path) as queue:
        queue.add((INT64_MIN, "key", None))
    put(path, b"12345678")
    with RocksDBTimerQueue(path) as queue:
        assert queue.peek() == (INT64_MIN, "key", None)
        for call in [
            lambda: list(queue),
            lambda: queue.get_subset_for_key_group(0),
        ]:
            with pytest.raises(ValueError, match="data must be a timer"):
                call()
        assert len(queue) == 2


@pytest.mark.parametrize(
    ("timer", "error", "message"),
    [
        ((1, {"a"}, None), TypeError, "key must be"),
        ((1, "b", {}), TypeError, "namespace must be what the serializer 'any' takes"),
        ((1, "a"), TypeError, r"timer must be \(timestamp, key, namespace\)"),
        (7, TypeError, "timer must be"),
        (("7", "b", None), TypeError, "timestamp.*'7'"),
        ((2**63, "b", None), OverflowError, "timestamp.*9223372036854775808"),
        ((1, None, None), TypeError, "key must be"),
        ((1, float("nan"), None), ValueError, "key must equal itself"),
        ((1, 2**63, None), OverflowError, "key must be.*9223372036854775808"),
        ((1, "key", None), ValueError, r"key must belong to KeyGroupRange.*'key' of key group 72"),
    ],
)
@pytest.mark.parametrize("method", ["add", "remove", "add_many"])
def test_an_invalid_timer_raises_and_leaves_the_queue_unchanged(method, timer, error, message):
    with RocksDBTimerQueue(None, 128, KeyGroupRange(0, 71)) as queue:
        queue.add((1, "b", None))
        with pytest.raises(error, match=message):
            getattr(queue, method)([(2, "b", None), timer] if method == "add_many" else timer)
        assert list(queue) == [(1, "b", None)]


def test_a_single_key_for_a_bulk_operation_raises():
    with RocksDBTimerQueue() as queue:
        queue.add((1, 1, None))
        with pytest.raises(TypeError, match="keys must be an iterable of keys, got the single key 'key'"):
            queue.remove_keys("key")
        assert len(queue) == 1


def test_a_missing_rocksdict_raises_an_error_with_the_install_command():
    with (
        mock.patch.dict(sys.modules, rocksdict=None),
        pytest.raises(ImportError, match=r"pip install 'timerheap\[rocksdb\]'"),
    ):
        RocksDBTimerQueue()
