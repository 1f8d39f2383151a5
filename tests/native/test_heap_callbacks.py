"""Allocations that call back: whatever they change, nothing is corrupted, lost or written twice.

Memory from NumPy and from a `Memory` of the Spark layer calls random operations on the structures that are
just being changed, or collects their changes. Each is then compared with a model.
"""

import ctypes
import random
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from arena import Block
from numpy.random import default_rng
from row_loop_model import Codec, refuse

from timerheap import KeyTimerHeap, TimerHeap
from timerheap._native._core import (
    FIXED,
    ArrayView,
    ColumnReader,
    CurrentKey,
    IdIndex,
    KnownKeys,
    RecordColumns,
    RowCells,
    RowContext,
    RowLoop,
    RowSource,
    RowTimers,
    RowTimerService,
    RowValue,
    SliceGroups,
    TimerChanges,
)

NAMES = SimpleNamespace(known={})

_MALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of NumPy's C API."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


def _python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_pointer = _python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
_name = _python("PyCapsule_GetName", ctypes.c_void_p, ctypes.py_object)
_capsule = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_forever = _python("PyMem_RawMalloc", ctypes.c_void_p, ctypes.c_size_t)


def _numpy(number, *arguments):
    """Return a function of NumPy's C API that returns an object."""
    table = _pointer(np._core._multiarray_umath._ARRAY_API, None)
    address = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))[number]
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(address)


@contextmanager
def numpy_calls(call):
    """Let NumPy call `call` whenever it allocates the data of an array."""
    set_handler, get_handler = _numpy(304, ctypes.py_object), _numpy(305)
    name = _name(get_handler())
    default = _Handler.from_address(_pointer(get_handler(), name))
    handler = _Handler.from_address(_forever(ctypes.sizeof(_Handler)))  # arrays that are left have it
    ctypes.memmove(ctypes.byref(handler), ctypes.byref(default), ctypes.sizeof(_Handler))

    def malloc(context, size):
        call()
        return default.malloc(context, size)

    def calloc(context, n, size):
        call()
        return default.calloc(context, n, size)

    handler.malloc, handler.calloc = _MALLOC(malloc), _CALLOC(calloc)
    old = set_handler(_capsule(ctypes.addressof(handler), name, None))
    try:
        yield
    finally:
        set_handler(old)


class CallingMemory:
    """A Memory that calls back; a sanitizer sees the use of a released block, since each is an array."""

    def __init__(self, call):
        self.call, self.blocks = call, 0

    def allocate(self, nbytes):
        self.call()
        array = np.full(nbytes + 64, 0xA5, np.uint8)
        self.call()
        self.blocks += 1
        return Block(array[-array.ctypes.data % 64 :][:nbytes], self.blocks << 20)

    def release(self, block):
        block.bytes[:] = 0xA5
        self.call()


REFUSED = object()


def refusable(message, call, *arguments):
    """Return the result of a call, or REFUSED if it raises the error that it may."""
    try:
        return call(*arguments)
    except (RuntimeError, ValueError) as error:
        if message not in str(error):
            raise
        return REFUSED


class Callbacks:
    """Calls random operations of `self.operations` from within operations, up to three deep."""

    def __init__(self, seed, chance=0.3):
        self.draw, self.chance = random.Random(seed), chance
        self.depth, self.errors = 0, []
        self.memory = CallingMemory(self.call_back)

    def call_back(self):
        if 0 < self.depth < 4 and self.draw.random() < self.chance:
            try:
                self.step()
            except BaseException as error:  # ctypes would swallow it
                self.errors.append(error)

    def step(self):
        self.depth += 1
        try:
            self.draw.choice(self.operations)()
        finally:
            self.depth -= 1

    def run(self, steps):
        with numpy_calls(self.call_back):
            for _ in range(steps):
                self.step()
                if self.errors:
                    raise self.errors[0]
                self.check()

    def check(self):
        pass


class OneKey:
    """Makes rows with a key each, for KnownKeys."""

    def __new__(cls, ids):
        view = ArrayView(FIXED, 8, 0, len(ids), None, None, np.array(ids, np.int64))
        return RowSource(tuple_row, ["k"], [ColumnReader("integer", view)], [0])


class tuple_row(tuple):
    __slots__ = ()


class Timers(Callbacks):
    """The timers of a key group, their journal, the states of their keys, and records."""

    def __init__(self, seed):
        super().__init__(seed)
        self.heap, self.changes, self.keys = TimerHeap(), TimerChanges(), CurrentKey()
        self.heap._lend(self.memory)
        self.event = RowTimers(self.heap, self.changes, self.keys, NAMES)
        self.service = RowTimerService()
        self.service.bind(self.event, self.event, 0, 0)
        self.saved, self.fresh = set(), 0
        self.ahead, self.known = KnownKeys(), set()
        self.values, self.saved_values = {}, {}
        self.bind_state()
        self.records, self.yielded, self.written = self.new_records(), [], []
        context = RowContext(self.service)
        self.loop = RowLoop(self, context, self.service, self.keys, "event", "processing")
        self.rows, self.columns = lambda *_: None, RecordColumns([list], 9, int)
        self.loop.begin(self, self.ahead, self.ahead, lambda key, at: key)
        self.operations = [*[self.register] * 12, *[self.delete] * 6, self.gather, self.fire]
        self.operations += [self.renumber, *[self.put] * 4, *[self.read] * 2, self.gather_values]
        self.operations += [self.learn, *[self.append] * 6, self.take_records]

    def current(self):
        """Make a key current as long as an operation runs."""
        self.keys.current_key = key = self.draw.randrange(-5, 300)
        return key

    @contextmanager
    def other_key(self):
        before = self.keys.current_key
        try:
            yield self.current()
        finally:
            self.keys.current_key = before

    def register(self):
        with self.other_key():
            for _ in range(self.draw.choice([1, 1, 70])):
                self.service.register_event_time_timer(self.draw.randrange(5_000))

    def delete(self):
        with self.other_key():
            for timestamp in self.draw.sample(range(5_000), self.draw.choice([1, 500])):
                self.service.delete_event_time_timer(timestamp)

    def gather(self):
        journal, until, gone = self.changes.take()
        left = {timer[:2] for timer in self.heap}
        assert gone >= 0
        for op, timestamp, key, namespace in journal.tolist():
            assert namespace == 0
            if op == 0:
                self.saved.add((timestamp, key))
            else:
                assert op == 1
                self.saved.discard((timestamp, key))
        if until is not None:  # of those up to it, the ones that are left are saved with the journal
            self.saved = {timer for timer in self.saved if timer[0] > until or timer in left}

    def fire(self):
        with self.other_key():
            self.loop.advance(self.draw.randrange(200))

    def on_timer(self, timestamp, context):
        assert context.timestamp() == timestamp
        if self.depth < 3:
            self.step()

    def process_element(self, value, context):
        raise AssertionError

    def renumber(self):
        self.gather_values()
        self.keys.renumber()
        self.bind_state()

    def bind_state(self):
        self.cells = RowCells(self.keys.numbers, int, self.load)
        self.state = RowValue(self.keys, Codec(), int, 64, refuse)
        self.state.bind(None, {}, {}, self.cells)

    def load(self, ids):
        saved = [self.saved_values.get(id_) for id_ in ids.tolist()]
        return np.array([each or 0 for each in saved], np.int64), [each is not None for each in saved]

    def put(self):
        with self.other_key() as key:
            self.fresh += 1
            value, cells = self.fresh, self.cells
            self.state.update(value)
            if self.cells is cells:  # else it was not gathered before the states were bound anew
                self.values[key] = value

    def read(self):
        with self.other_key() as key:
            value = refusable("load must not change the values", self.state.value)
        assert self.depth > 1 or value in (REFUSED, self.values.get(key))

    def gather_values(self):
        ids, bits, held = self.cells.take()
        assert held.all()
        self.saved_values.update(zip(ids.tolist(), bits.tolist(), strict=True))

    def learn(self):
        ids = [self.draw.randrange(-5, 300) for _ in range(20)]
        source = OneKey(ids)
        self.ahead.add(ids, source)
        self.known.update(ids)

    def new_records(self):
        return RecordColumns([("integer", 8), ("string", 0), self.keep, ("bool", 0)], 5_000, bool)

    def keep(self, value):
        if self.draw.random() < 0.01:
            self.call_back()
        return list(value)

    def append(self):
        for _ in range(self.draw.choice([1, 300])):
            self.fresh += 1
            n = self.fresh
            record = n, str(n) * self.draw.choice([1, 1, 50]), [n], n % 2 == 0
            if self.records.append(record):
                self.yielded.append(n)

    def take_records(self):
        taken = refusable("there must be records, got none", self.records.take)  # or others have taken them
        if taken is REFUSED:
            return
        (_, _, numbers), (_, bounds, text), lists, _ = taken
        numbers, bounds, text = numbers.view(np.int64).tolist(), bounds.tolist(), text.tobytes().decode()
        assert len(lists) == len(numbers) == len(bounds) - 1
        for k, n in enumerate(numbers):
            assert lists[k] == [n]
            assert text[bounds[k] : bounds[k + 1]].startswith(str(n))
        self.written += numbers

    def check(self):
        self.heap._check()
        self.gather()
        assert {timer[:2] for timer in self.heap} == self.saved
        assert all(key in self.ahead and self.ahead[key] == key for key in self.known)
        self.take_records()
        assert sorted(self.written) == sorted(self.yielded)
        assert len(set(self.written)) == len(self.written)


@pytest.mark.parametrize("seed", range(30))
def test_timers_states_and_records_are_right_if_allocations_change_them(seed):
    Timers(seed).run(60)


class Heaps(Callbacks):
    """A heap and an index on memory that calls back."""

    def __init__(self, seed, kind):
        super().__init__(seed)
        self.heap, self.index = kind(), IdIndex(self.memory)
        self.heap._lend(self.memory)
        heap = self.heap
        self.by_key = kind is KeyTimerHeap
        self.operations = [
            lambda: heap.push_many(*self.some()),
            lambda: [heap.push(*row) for row in zip(*map(np.ndarray.tolist, self.some()), strict=True)],
            lambda: heap.remove_many(*self.some()[self.by_key :]),
            lambda: [
                heap.remove(*row[self.by_key :])
                for row in zip(*map(np.ndarray.tolist, self.some()), strict=True)
            ],
            lambda: self.ordered(heap.pop_due(self.draw.randrange(3_000)).timestamps),
            lambda: heap.pop() if len(heap) else None,
            lambda: heap.remove_keys(self.some()[1]),
            lambda: heap.copy()._check(),
            lambda: type(heap).from_bytes(heap.to_bytes())._check(),
            lambda: heap.reserve(self.draw.choice([0, 10, 10_000])),
            lambda: heap.clear() if self.draw.random() < 0.1 else None,
            lambda: self.ordered(heap._due_rows(1_000) * 0),
            lambda: heap.push_many(heap.timestamps, heap.key_hashes) if not self.by_key else None,
            lambda: self.index.put_many(*self.some()[:2]),
            lambda: self.index.remove_many(self.some()[0]),
            lambda: len(self.index.items()[0]) + len(self.index.ids()),
            lambda: self.index.reserve(self.draw.choice([0, 5_000])),
            lambda: self.index.clear() if self.draw.random() < 0.1 else None,
        ]

    def some(self):
        rng = default_rng(self.draw.randrange(2**32))
        n = self.draw.choice([1, 30, 3_000])
        return rng.integers(0, 3_000, n), rng.integers(0, 50, n) if n < 100 else rng.integers(0, 9_000, n)

    def ordered(self, times):
        assert (np.diff(times) >= 0).all()

    def check(self):
        self.heap._check()
        self.index._check()
        identities = [timer[self.by_key :] for timer in self.heap]
        assert len(set(identities)) == len(identities)


@pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])
@pytest.mark.parametrize("seed", range(10))
def test_heaps_and_indexes_stay_valid_if_allocations_change_them(seed, kind):
    Heaps(seed, kind).run(60)


class Groups(Callbacks):
    """SliceGroups, which refuse to be used while rows are added."""

    def __init__(self, seed):
        super().__init__(seed)
        self.groups, self.counts, self.parts = SliceGroups(1), {}, []
        self.operations = [self.add, self.read]

    def refusing(self, call, *arguments):
        result = refusable("SliceGroups must not be used while rows are added", call, *arguments)
        assert self.depth > 1 or result is not REFUSED
        return result

    def add(self):
        keys = np.array([self.draw.randrange(200) for _ in range(100)])
        columns = [ArrayView(FIXED, 8, 0, 100, None, None, keys)]
        if self.refusing(self.groups.add, keys % 7, keys % 3, columns) is not REFUSED:
            self.parts.append(keys)

    def read(self):
        self.refusing(self.groups.groups)
        self.refusing(self.groups.order)

    def check(self):
        keys = np.concatenate([*self.parts, np.empty(0, np.int64)])
        _, slices, sizes = self.groups.groups()
        ordered = keys[self.groups.order()]
        assert sizes.sum() == len(keys)
        assert sorted(sizes.tolist()) == sorted(np.unique(keys, return_counts=True)[1].tolist())
        assert np.array_equal(np.repeat(slices, sizes), ordered % 3)


@pytest.mark.parametrize("seed", range(5))
def test_groups_refuse_to_be_used_by_allocations_of_their_own(seed):
    Groups(seed).run(40)
