"""The memory of the heaps: views, overlapping arguments, growing, shrinking and running out."""

import copy
import ctypes
import gc
import pickle
from contextlib import contextmanager

import numpy as np
import pytest
from filled_heaps import both, columns, filled
from heap_model import INT64_MAX

from timerheap import KeyTimerHeap, TimerHeap


@both
def test_views_are_read_only_and_outlive_the_heap(kind):
    heap = filled(kind, 1000)
    views = heap.timestamps, heap.key_hashes, heap.namespaces
    before = [view.copy() for view in views]
    for view in views:
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
    heap.reserve(10_000)  # the heap moves; the views keep the old memory
    heap.push(-1, -1)
    del heap
    for view, old in zip(views, before, strict=True):
        assert np.array_equal(view, old)


class Interface:
    """Foreign memory with NumPy's array interface."""

    def __init__(self, owner, **changes):
        self.owner = owner
        self.__array_interface__ = {**owner.__array_interface__, **changes}


VIEWS = {
    "itself": lambda view: view,
    "slice": lambda view: view[5:],
    "nothing of it": lambda view: view[:0],
    "one": lambda view: view[5:6],
    "reversed": lambda view: view[::-1],
    "strided": lambda view: view[20:3:-3],
    "reshaped": lambda view: view[:20].reshape(4, 5).T,
    "in place": lambda view: setattr(view, "shape", (1, -1)) or view,
    "bytes": lambda view: view.view(np.uint8),
    "times": lambda view: view[::-1].view("M8[ms]"),
    "fields": lambda view: view.view([("low", "u4"), ("high", "u4")])["high"],
    "broadcast": lambda view: np.broadcast_to(view, (3, len(view))),
    "window": lambda view: np.lib.stride_tricks.sliding_window_view(view, 5, writeable=True),
    "as_strided": lambda view: np.lib.stride_tricks.as_strided(view, (5,), (16,), writeable=True),
    "asarray": np.asarray,
    "record": lambda view: view.view(np.recarray),
    "masked": lambda view: np.ma.masked_array(view).data,
    "memoryview": lambda view: np.asarray(memoryview(view)),
    "frombuffer": lambda view: np.frombuffer(view, np.int64),
    "ndarray": lambda view: np.ndarray(3, np.int64, buffer=view, offset=8),
    "interface": lambda view: np.asarray(Interface(view)),
    "nditer": lambda view: np.nditer(view).operands[0],
    "flat": lambda view: view.flat.base,
}


@both
@pytest.mark.parametrize("form", VIEWS)
@pytest.mark.parametrize("column", ["timestamps", "key_hashes", "namespaces"])
@pytest.mark.parametrize("n", [30, 0])
def test_no_view_can_be_made_writeable(kind, n, column, form):
    if n == 0 and form not in ("itself", "slice", "reversed"):
        return
    heap = kind()
    heap.push_many(np.arange(n), np.arange(n), np.arange(n))
    before = heap.to_bytes()
    array = VIEWS[form](getattr(heap, column))
    while isinstance(array, np.ndarray):
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
        array = array.base
    assert heap.to_bytes() == before
    heap._check()


@both
def test_the_owner_of_the_memory_does_not_expose_it(kind):
    heap = filled(kind, 100)
    base = heap.timestamps.base
    for call in (memoryview, copy.copy, pickle.dumps):
        with pytest.raises(TypeError):
            call(base)
    assert not [held for held in gc.get_referents(heap, base) if isinstance(held, np.ndarray)]
    assert [name for name in dir(base) if not hasattr(object, name)] in ([], ["__pyx_vtable__"])


@both
def test_a_view_shows_the_live_heap(kind):
    heap = kind(100)
    view = None
    heap.push(5, 1)
    view = heap.timestamps
    heap.push(3, 2)
    assert view.tolist() == [3]


@both
def test_columns_of_the_heap_may_be_arguments(kind):
    heap = filled(kind, 3000)
    copy = heap.copy()
    expected = copy.push_many(heap.timestamps[::-1] + 1, heap.key_hashes[::-1].copy(), 0)
    assert np.array_equal(heap.push_many(heap.timestamps[::-1] + 1, heap.key_hashes[::-1]), expected)
    assert set(heap) == set(copy)
    assert heap.push_many(heap.timestamps, heap.timestamps, heap.timestamps).any()
    heap._check()
    assert heap.remove_keys(heap.key_hashes) > 0
    assert not heap


def outside(view, row, stride):
    """Return a few values from `row` on, outside the view, in memory allocated only for alignment."""
    address = view.__array_interface__["data"][0] + 8 * row
    return np.asarray(Interface(view, data=(address, True), shape=(len(view) // 20,), strides=(stride,)))


ARGUMENTS = {
    **{form: VIEWS[form] for form in ("itself", "slice", "reversed", "strided", "as_strided")},
    "through other dtypes": lambda view: view.view("M8[ms]").view(np.uint8)[56:].view(np.int64),
    "across values": lambda view: view.view(np.uint8)[1:-7].view(np.int64),
    "before the start": lambda view: outside(view, -1, 16),
    "behind the end": lambda view: outside(view, len(view), -8 * 20),
}


@both
@pytest.mark.parametrize("form", ARGUMENTS)
def test_arguments_may_overlap_the_columns_of_the_heap(kind, form):
    """Rows move while the call reads them, so these arguments are copied first."""
    heap = kind.from_bytes(filled(kind, 3000).to_bytes())  # without unused capacity
    twin = heap.copy()
    columns = [ARGUMENTS[form](view) for view in (heap.timestamps, heap.key_hashes)]
    columns = columns[kind is KeyTimerHeap :]
    expected = twin.remove_many(*[column.copy() for column in columns])
    assert np.array_equal(heap.remove_many(*columns), expected)
    heap._check()
    assert sorted(heap) == sorted(twin)


def test_reschedule_many_accepts_the_columns_of_the_heap():
    heap = filled(TimerHeap, 3000)
    expected = sorted((t + 5, k, n) for t, k, n in heap)
    assert heap.reschedule_many(heap.timestamps, heap.timestamps + 5, heap.key_hashes).all()
    heap._check()
    assert sorted(heap) == expected


@both
def test_memory_grows_in_proportion(kind):
    heap = kind()
    for n in (1, 10, 100, 1000, 10_000, 100_000):
        timestamps, keys = columns(n)
        for row in zip(timestamps.tolist(), keys.tolist(), strict=True):
            heap.push(*row)
        if n >= 10_000:
            assert heap.nbytes / len(heap) <= 48
        heap.clear()
    heap = filled(kind, 100_000)
    assert heap.nbytes / len(heap) <= 36


@both
@pytest.mark.parametrize("way", ["pop", "pop_due", "clear", "remove_many", "remove_keys"])
def test_memory_is_released(kind, way):
    heap = filled(kind, 100_000)
    full = heap.nbytes
    keep = 1000
    watermark = int(np.sort(heap.timestamps)[-keep - 1])
    due = heap.timestamps <= watermark
    match way:
        case "pop":
            for _ in range(100_000 - keep):
                heap.pop()
        case "pop_due":
            heap.pop_due(watermark)
        case "clear":
            heap.clear()
        case "remove_keys":
            heap.remove_keys(heap.key_hashes[due])
        case "remove_many":
            columns_due = heap.timestamps[due], heap.key_hashes[due]
            heap.remove_many(*columns_due[kind is KeyTimerHeap :])
    heap._check()
    assert len(heap) == (0 if way == "clear" else keep)
    assert heap.nbytes < full / 20


@both
def test_a_heap_below_a_quarter_full_shrinks_to_half_full(kind):
    heap = kind()
    heap.push_many(*columns(1000))
    room = heap.nbytes
    heap.pop_due(int(np.sort(heap.timestamps)[749]))  # 250 remain
    assert heap.nbytes == room
    heap.pop()
    assert len(heap) == 249
    assert heap.nbytes == kind(2 * 249).nbytes


@both
def test_reserved_memory_is_kept(kind):
    heap = kind(10_000)
    room = heap.nbytes
    held = heap.timestamps
    heap.push_many(*columns(10_000))
    heap.pop_due(INT64_MAX)
    heap.push_many(*columns(10))
    heap.clear()
    assert heap.nbytes == room
    heap.push_many(*columns(10_000))
    assert heap.nbytes == room
    assert held.base is heap.timestamps.base  # the heap has not moved
    heap.reserve(100_000)
    assert heap.nbytes > room
    heap.reserve(0)
    heap.clear()
    assert heap.nbytes == 0


def test_memory_for_rows_that_were_not_new_is_released():
    heap = KeyTimerHeap()
    timestamps, _ = columns(100_000)
    heap.push_many(timestamps, np.arange(100_000) % 1000)
    heap._check()
    assert len(heap) == 1000
    assert heap.nbytes < 100_000


@both
def test_running_out_of_memory_raises_and_changes_nothing(kind):
    heap = filled(kind, 100)
    before, room = heap.to_bytes(), heap.nbytes
    for n in (2**40, 9 << 28 | 1, INT64_MAX):
        with pytest.raises(MemoryError, match="at most 2415919104 timers"):
            heap.reserve(n)
        with pytest.raises(MemoryError, match="at most"):
            kind(n)
    # More rows than a heap can hold, in the memory of one value.
    rows = np.broadcast_to(np.array(5), 2**40)
    for call in (heap.push_many, TimerHeap().remove_many):
        with pytest.raises(MemoryError):
            call(rows, rows)
    assert heap.to_bytes() == before
    assert heap.nbytes == room
    heap._check()


class Allocator:
    """NumPy's allocator with one call that fails."""

    MALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    CALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

    class Handler(ctypes.Structure):
        """PyDataMem_Handler."""

        _fields_ = [
            ("name", ctypes.c_char * 127),
            ("version", ctypes.c_uint8),
            *[(name, ctypes.c_void_p) for name in ("ctx", "malloc", "calloc", "realloc", "free")],
        ]

    def __init__(self):
        self.calls = self.fails_at = 0
        new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
            ("PyCapsule_New", ctypes.pythonapi)
        )
        pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
            ("PyCapsule_GetPointer", ctypes.pythonapi)
        )
        table = ctypes.cast(
            pointer(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p)
        )
        self.set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[304])
        usual = ctypes.PYFUNCTYPE(ctypes.py_object)(table[305])()  # PyDataMem_GetHandler
        self.handler = self.Handler.from_buffer_copy(
            self.Handler.from_address(pointer(usual, b"mem_handler"))
        )
        malloc, calloc = self.MALLOC(self.handler.malloc), self.CALLOC(self.handler.calloc)
        self.malloc = self.MALLOC(lambda ctx, size: self.may() and malloc(ctx, size))
        self.calloc = self.CALLOC(lambda ctx, n, size: self.may() and calloc(ctx, n, size))
        self.handler.malloc = ctypes.cast(self.malloc, ctypes.c_void_p)
        self.handler.calloc = ctypes.cast(self.calloc, ctypes.c_void_p)
        self.capsule = new(ctypes.addressof(self.handler), b"mem_handler", None)

    def may(self):
        self.calls += 1
        return self.calls != self.fails_at or None

    @contextmanager
    def failing(self, at):
        self.calls, self.fails_at = 0, at
        before = self.set_handler(self.capsule)
        try:
            yield
        finally:
            self.set_handler(before)


@pytest.fixture(scope="module")
def allocator():
    return Allocator()  # freeing its memory needs it, and fixtures outlive the variables of a test


CALLS = {
    "push": lambda heap, ts, key: heap.push(-1, -1),
    "push_many": lambda heap, ts, key: heap.push_many(ts, key),
    "push_many of half": lambda heap, ts, key: heap.push_many(ts, key % (len(key) // 2)),
    "push_many of lists": lambda heap, ts, key: heap.push_many(ts.tolist(), key.tolist(), key.tolist()),
    "reserve": lambda heap, ts, key: heap.reserve(len(ts)),
    "remove_many": lambda heap, ts, key: heap.remove_many(*(ts, key)[type(heap) is KeyTimerHeap :]),
    "remove_keys": lambda heap, ts, key: heap.remove_keys(key),
    "pop_due": lambda heap, ts, key: heap.pop_due(INT64_MAX),
    "pop_due by limit": lambda heap, ts, key: heap.pop_due(INT64_MAX, len(heap) - 1),
    "reschedule_many": lambda heap, ts, key: heap.reschedule_many(ts, ts + 1, key),
    "copy": lambda heap, ts, key: heap.copy(),
    "to_bytes": lambda heap, ts, key: heap.to_bytes(),
    "from_bytes": lambda heap, ts, key: heap.from_bytes(heap.to_bytes()),
}


@pytest.mark.parametrize("call", CALLS)
@both
def test_a_failed_allocation_of_numpy_leaves_the_heap_unchanged(kind, call, allocator):
    if call == "reschedule_many" and kind is KeyTimerHeap:
        return
    ts, key = columns(1000)
    heap = kind()
    heap.push_many(ts[::4], key[::4])
    before, room = heap.to_bytes(), heap.nbytes
    for at in range(1, 30):
        try:
            with allocator.failing(at):
                CALLS[call](heap, ts, key)
                if allocator.calls < at:
                    break
        except MemoryError:
            pass
        else:  # only shrinking may fail silently
            assert call in ("push_many of half", "remove_many", "remove_keys", "pop_due", "pop_due by limit")
            heap._check()
            return
        assert heap.to_bytes() == before
        assert heap.nbytes == room
        heap._check()
    assert at > 1 or call == "to_bytes"
