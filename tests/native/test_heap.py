"""Heaps beyond the models: total order for every shape of data, heaps as containers, and batches."""

import random

import numpy as np
import pytest
from filled_heaps import both, columns, filled
from heap_model import INT64_MAX, INT64_MIN

from timerheap import KeyTimerHeap, Timer, TimerBatch, TimerHeap

# ---- order ----


@both
def test_the_limits_of_int64_are_valid_timestamps(kind):
    extremes = [INT64_MAX, INT64_MIN, INT64_MAX - 1, INT64_MIN + 1, 0, -1, 1]
    rows = [(t, k, 0) for k, t in enumerate(extremes)] + [(t, k, t) for k, t in enumerate(extremes) if t]
    random.Random(1).shuffle(rows)
    heap = kind()
    assert heap.push_many(*np.array(rows).T).all()
    assert list(heap.pop_due(INT64_MIN)) == sorted(row for row in rows if row[0] == INT64_MIN)
    assert list(heap.pop_due(INT64_MAX - 1)) == sorted(row for row in rows if INT64_MIN < row[0] < INT64_MAX)
    assert [heap.pop(), heap.pop()] == sorted(row for row in rows if row[0] == INT64_MAX)
    assert not heap


@both
@pytest.mark.parametrize("way", ["pop", "pop_due", "pop_due by limit"])
@pytest.mark.parametrize("shape", ["random", "few", "same", "descending", "skewed", "wide"])
def test_timers_come_out_in_total_order(kind, way, shape):
    n = 5000
    rng = np.random.default_rng(7)
    timestamps = {
        "random": rng.integers(0, 10**9, n),
        "few": rng.integers(0, 3, n),
        "same": np.full(n, 5),
        "descending": np.arange(n)[::-1],
        "skewed": np.append(10**12 + rng.integers(0, 50, n - 3), [INT64_MAX, INT64_MIN, 0]),
        "wide": rng.integers(INT64_MIN, INT64_MAX, n, endpoint=True),
    }[shape]
    keys = rng.permutation(n) % 97
    namespaces = np.arange(n) * (INT64_MAX // n) - 2**61
    heap = kind()
    heap.push_many(timestamps, keys, namespaces)
    heap._check()
    expected = sorted(zip(timestamps.tolist(), keys.tolist(), namespaces.tolist(), strict=True))
    if way == "pop":
        assert [heap.pop() for _ in range(n)] == expected
    elif way == "pop_due":
        assert list(heap.pop_due(INT64_MAX)) == expected
    else:
        found = []
        while heap:
            found += heap.pop_due(INT64_MAX, len(heap) // 3 + 1)
            heap._check()
        assert found == expected


@both
@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.5, 0.74, 0.76, 0.99, 1])
def test_any_share_of_the_timers_may_be_due(kind, share):
    n = 20_000
    timestamps, keys = columns(n)
    heap = filled(kind, n)
    watermark = int(np.quantile(timestamps, share))
    due = timestamps <= watermark
    assert heap.count_due(watermark) == due.sum()
    assert np.array_equal(heap._due_rows(watermark), np.flatnonzero(heap.timestamps <= watermark))
    batch = heap.pop_due(watermark)
    heap._check()
    order = np.lexsort((keys[due], timestamps[due]))
    assert np.array_equal(batch.timestamps, timestamps[due][order])
    assert np.array_equal(batch.key_hashes, keys[due][order])
    assert not batch.namespaces.any()
    assert len(heap) == n - due.sum()


@pytest.mark.parametrize("share", [0.001, 0.03, 0.2, 1])
def test_any_share_of_the_timers_may_change(share):
    n = 20_000
    timestamps, keys = columns(n)
    chosen = np.random.default_rng(5).permutation(n)[: int(share * n)]
    heap, by_key = filled(TimerHeap, n), filled(KeyTimerHeap, n)
    assert heap.reschedule_many(timestamps[chosen], timestamps[chosen] // 2, keys[chosen]).all()
    assert not by_key.push_many(timestamps[chosen] // 2, keys[chosen]).any()
    heap._check()
    by_key._check()
    assert set(heap) == set(by_key)
    assert heap.remove_many(timestamps[chosen] // 2, keys[chosen]).all()
    assert by_key.remove_many(keys[chosen]).all()
    heap._check()
    by_key._check()
    assert set(heap) == set(by_key)
    assert len(heap) == n - len(chosen)


def test_rescheduling_onto_another_timer_leaves_one_timer():
    heap = TimerHeap()
    heap.push_many([1, 2, 3], 5)
    assert heap.reschedule(1, 2, 5)
    assert list(heap.pop_due(9)) == [(2, 5, 0), (3, 5, 0)]
    heap.push_many(np.arange(100), 5)
    assert heap.reschedule_many(np.arange(100), np.arange(100) // 2 * 2, 5).all()
    heap._check()
    assert heap.pop_due(1000).timestamps.tolist() == list(range(0, 100, 2))


def test_the_last_row_of_an_identity_wins():
    heap = KeyTimerHeap()
    heap.push(100, 1)
    assert heap.push_many([7, 8, 9, 3], [1, 2, 2, 1]).tolist() == [False, True, False, False]
    assert (heap.timestamp_of(1), heap.timestamp_of(2)) == (3, 9)
    assert heap.timestamp_of(3) is None


# ---- container ----


@both
def test_an_empty_heap_has_no_timers(kind):
    heap = kind()
    assert len(heap) == 0
    assert heap.peek() is None
    assert heap.nbytes == 0
    assert list(heap) == []
    assert list(heap.pop_due(INT64_MAX)) == []
    assert heap.count_due(INT64_MAX) == 0
    assert heap.remove_keys([1, 2]) == 0
    assert heap.timestamps.tolist() == heap.key_hashes.tolist() == heap.namespaces.tolist() == []
    with pytest.raises(IndexError, match="pop from an empty heap"):
        heap.pop()
    heap.clear()
    heap._check()
    assert repr(heap) == f"<timerheap.{kind.__name__} of 0 timers>"
    heap.push(1, 2)
    assert repr(heap) == f"<timerheap.{kind.__name__} of 1 timers, first {Timer(1, 2, 0)}>"


@both
def test_a_heap_returns_timers_that_equal_tuples(kind):
    heap = kind()
    heap.push(1, 2, 3)
    for timer in (heap.peek(), next(iter(heap)), heap.pop()):
        assert type(timer) is Timer
        assert (timer.timestamp, timer.key_hash, timer.namespace) == (1, 2, 3)
        assert {(1, 2, 3): "same"}[timer] == "same"  # it hashes as the tuple that it equals


@both
def test_iteration_is_lazy_and_raises_after_a_change(kind):
    heap = filled(kind, 100)
    assert [timer.timestamp for timer in heap] == heap.timestamps.tolist()
    for change in (heap.pop, lambda: heap.push(1, 1000), lambda: heap.push_many([1, 2], [1001, 1002])):
        iterator = iter(heap)
        next(iterator)
        change()
        with pytest.raises(RuntimeError, match="changed during iteration"):
            next(iterator)


@both
def test_copies_are_independent(kind):
    heap = filled(kind, 1000)
    other = heap.copy()
    other.clear()
    assert len(heap) == 1000
    heap._check()

    class Special(kind):
        pass

    assert type(Special().copy()) is Special


# ---- batches ----


def test_a_batch_is_a_sequence_of_timers():
    heap = TimerHeap()
    heap.push_many([3, 1, 2], [10, 20, 30], [0, 0, 5])
    batch = heap.pop_due(9)
    assert isinstance(batch, TimerBatch)
    assert len(batch) == 3
    assert list(batch) == [(1, 20, 0), (2, 30, 5), (3, 10, 0)]
    assert batch[-1] == Timer(3, 10)
    assert type(batch[0].timestamp) is int
    assert batch[1:] == TimerBatch(batch.timestamps[1:], batch.key_hashes[1:], batch.namespaces[1:])
    assert batch[1:] != batch
    assert batch != [1]
    assert repr(batch[:1]) == "<TimerBatch of 1 timers: Timer(timestamp=1, key_hash=20, namespace=0)>"
    with pytest.raises(IndexError):
        batch[3]
    with pytest.raises(AttributeError):
        batch.timestamps = batch.key_hashes
    for column in (batch.timestamps, batch.key_hashes, batch.namespaces):
        assert column.dtype == np.int64


@pytest.mark.parametrize(
    ("name", "column", "error", "text"),
    [
        ("timestamps", [1], TypeError, "must be an array of int64, got list"),
        ("key_hashes", np.array([1.0]), TypeError, "must be an array of int64, got float64"),
        ("namespaces", np.array([[1]]), ValueError, "must be one-dimensional"),
        ("key_hashes", np.array([1, 2]), ValueError, "must have 1 rows, like timestamps, got 2"),
    ],
)
def test_a_batch_with_invalid_columns_raises(name, column, error, text):
    one = np.array([1])
    with pytest.raises(error, match=f"{name} {text}"):
        TimerBatch(**{"timestamps": one, "key_hashes": one, "namespaces": one, name: column})
