"""Calls are atomic: eight threads use one heap with all methods, and signals interrupt long calls."""

import gc
import itertools
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from timerheap import KeyTimerHeap, TimerHeap

THREADS = 8
END = 2**63 - 1
both = pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])

# ---- threads ----


class Worker(threading.Thread):
    """Calls random methods of a shared heap, and counts the timers it has added and removed."""

    unique = itertools.count(10**6)  # new timestamps, so that no two timers are equal

    def __init__(self, heap, seed, calls, clearing):
        super().__init__()
        self.heap, self.random, self.calls = heap, random.Random(seed), calls
        self.rng = np.random.default_rng(seed)
        self.added, self.error = 0, None
        self.methods = [method for name, method in vars(Worker).items() if name.startswith("call_")]
        if not clearing:
            self.methods.remove(Worker.call_clear)

    def run(self):
        try:
            for _ in range(self.calls):
                self.random.choice(self.methods)(self)
        except BaseException as error:
            self.error = error

    def row(self):
        return self.random.randrange(1000), self.random.randrange(100), self.random.randrange(2)

    def rows(self):
        n = self.random.randrange(200)
        return self.rng.integers(0, 1000, n), self.rng.integers(0, 100, n), self.rng.integers(0, 2, n)

    def identity(self, columns):
        return columns[type(self.heap) is KeyTimerHeap :]

    def call_push(self):
        self.added += self.heap.push(*self.row())

    def call_push_many(self):
        self.added += int(self.heap.push_many(*self.rows()).sum())

    def call_remove(self):
        self.added -= self.heap.remove(*self.identity(self.row()))

    def call_remove_many(self):
        self.added -= int(self.heap.remove_many(*self.identity(self.rows())).sum())

    def call_remove_keys(self):
        self.added -= self.heap.remove_keys(self.rng.integers(0, 100, 3))

    def call_pop(self):
        try:
            self.heap.pop()
        except IndexError:
            return
        self.added -= 1

    def call_pop_due(self):
        limit = self.random.choice([None, 1, 20])
        batch = self.heap.pop_due(self.random.randrange(1200), limit)
        assert list(batch) == sorted(batch)
        self.added -= len(batch)

    def call_move(self):
        ts, key, ns = self.row()
        if isinstance(self.heap, KeyTimerHeap):
            self.heap.timestamp_of(key, ns)
            self.heap.timestamps_of(*self.rows()[1:])
        else:
            self.heap.reschedule(ts, next(self.unique), key, ns)
            timestamps, keys, namespaces = self.rows()
            to = np.array([next(self.unique) for _ in keys], np.int64)
            self.heap.reschedule_many(timestamps, to, keys, namespaces)

    def call_look(self):
        heap = self.heap
        heap.peek(), len(heap), heap.nbytes, repr(heap), heap.count_due(500), (1, 2, 0) in heap
        assert heap.timestamps.sum() + heap.key_hashes.sum() + heap.namespaces.sum() >= 0
        try:
            list(heap)
        except RuntimeError as error:
            assert "changed during iteration" in str(error)  # noqa: PT017

    def call_snapshot(self):
        way = self.random.randrange(3)
        if way == 0:
            other = self.heap.copy()
        elif way == 1:
            other = pickle.loads(pickle.dumps(self.heap))
        else:
            other = self.heap.from_bytes(self.heap.to_bytes())
        other._check()
        other.clear()

    def call_reserve(self):
        self.heap.reserve(self.random.randrange(2000))

    def call_check(self):
        self.heap._check()

    def call_clear(self):
        self.heap.clear()


def mix(kind, clearing, calls=400):
    heap = kind()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [Worker(heap, seed, calls, clearing) for seed in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    heap._check()
    if not clearing:
        assert len(heap) == sum(worker.added for worker in workers)
    n = len(heap)
    assert len(heap.pop_due(END)) == n


@both
@pytest.mark.parametrize("clearing", [False, True])
def test_threads_share_a_heap(kind, clearing):
    mix(kind, clearing)


@both
def test_a_heap_stays_valid_if_arguments_change_during_a_call(kind):
    """A thread writes to the arguments with NumPy, which releases the GIL, while bulk calls read them."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 500, (2, 4, 20_000))
    lent = images[0].copy()
    ts, new_ts, key, ns = lent
    done = threading.Event()

    def write():
        while not done.is_set():
            for image in images:
                np.copyto(lent, image)

    writer = threading.Thread(target=write)
    writer.start()
    heap = kind()
    try:
        for _ in range(10):
            heap.push_many(ts, key, ns)
            heap._check()
            heap.push_many(ts[:200], key[:200], ns[:200])  # few rows of many, which move one by one
            heap._check()
            if kind is TimerHeap:
                heap.reschedule_many(ts, new_ts, key, ns)
            else:
                heap.timestamps_of(key, ns)
            heap._check()
            heap.remove_many(*(ts, key, ns)[kind is KeyTimerHeap :])
            heap._check()
            before = len(heap)
            assert heap.remove_keys(key[:50]) == before - len(heap)
            heap._check()
    finally:
        done.set()
        writer.join()


@both
def test_a_snapshot_is_of_one_moment(kind):
    """A finalizer, or another thread while one runs, may use the heap during any allocation of `to_bytes`."""
    heap = kind()
    unique = itertools.count()

    def change(phase, info):
        if phase == "start":
            heap.pop_due(END)  # the memory stays the same
            heap.push_many(number := next(unique), range(50 - number % 9), 0)

    heap.push(1, 2, 3)
    thresholds = gc.get_threshold()
    gc.callbacks.append(change)
    gc.set_threshold(1)
    try:
        snapshots = [(heap.to_bytes(), [], []) for _ in range(300)]  # CPython 3.14 counts lists, not bytes
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(change)
    assert next(unique) > 50  # the heap changed
    for data, *_ in snapshots:
        assert len({timestamp for timestamp, *_ in kind.from_bytes(data)}) == 1


def test_threads_share_a_heap_without_the_gil():
    """Runs on a free-threaded interpreter, whether or not the module has enabled the GIL again."""
    names = [f"python3.{minor}t" for minor in (13, 14, 15)]
    found = [path for path in map(shutil.which, names) if path]
    if not found:
        pytest.skip(f"no free-threaded interpreter here ({', '.join(names)})")
    able = [path for path in found if not subprocess.run([path, "-c", "import timerheap, pytest"]).returncode]
    if not able:
        pytest.skip(f"timerheap is not installed for {', '.join(found)}")
    for path in able:
        subprocess.run([path, __file__], check=True)


# ---- signals ----

N = 100_000
TS, KEY = np.random.default_rng(0).integers(0, 10**9, N), np.random.default_rng(1).permutation(N)
SPLIT = int(np.median(TS))
LONG = {
    "push_many": lambda heap: heap.push_many(TS + 10**9, KEY + N),
    "push_many of lists": lambda heap: heap.push_many((TS + 10**9).tolist(), (KEY + N).tolist()),
    "move": lambda heap: (
        heap.reschedule_many(TS, TS[::-1], KEY)
        if isinstance(heap, TimerHeap)
        else heap.push_many(TS[::-1], KEY)
    ),
    "remove_many": lambda heap: heap.remove_many(*(TS, KEY)[isinstance(heap, KeyTimerHeap) :]),
    "remove_keys": lambda heap: heap.remove_keys(KEY[: N // 2]),
    "pop_due": lambda heap: heap.pop_due(SPLIT),
    "reserve": lambda heap: heap.reserve(10 * N),
    "pickle": lambda heap: pickle.loads(pickle.dumps(heap)),
}


def contents(heap):
    return heap.copy().pop_due(END)


def interrupted(after, call, heap):
    """Call with the heap, and raise KeyboardInterrupt, like Ctrl+C, after so many seconds."""
    signals = []

    def interrupt(signum, frame):
        signals.append(signum)
        raise KeyboardInterrupt

    def wait():  # not a sleep: it does not see a signal that comes just before it
        while not signals:
            pass

    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        call(heap)
        wait()  # not the loop itself: CPython 3.13.0 lets an interrupt at its jump back escape from `try`
    except KeyboardInterrupt:  # Python ignores it in a finalizer
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@both
@pytest.mark.parametrize("call", LONG)
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer that sends signals")
def test_a_keyboard_interrupt_leaves_a_valid_heap(kind, call):
    full = kind()
    full.push_many(TS, KEY)
    heap, before = full.copy(), contents(full)
    start = time.perf_counter()
    LONG[call](heap)
    took = time.perf_counter() - start
    after = contents(heap)
    for part in range(1, 16):
        heap = full.copy()
        interrupted(took * part / 12, LONG[call], heap)
        heap._check()
        assert contents(heap) in (before, after)
        heap.push(-1, -1)
        assert heap.pop() == (-1, -1, 0)


if __name__ == "__main__":
    for kind in (TimerHeap, KeyTimerHeap):
        for clearing in (False, True):
            mix(kind, clearing)
