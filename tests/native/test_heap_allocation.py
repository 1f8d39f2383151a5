"""Every allocation of every method, including small Python objects, may fail and leaves the heap unchanged.

A preloaded allocator (c/failing_malloc.c) fails the first allocation of a call, then of the same call the
second, and so on until none is left to fail. That needs a process of its own, in which this file is a
program.
"""

import copy
import ctypes
import itertools
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from timerheap import KeyTimerHeap, TimerHeap
from timerheap._native import _core
from timerheap._native._core import (
    FIXED,
    TEXT,
    ArrayView,
    CurrentKey,
    IdIndex,
    Packing,
    PlaceNumbers,
    RecordColumns,
    RowCells,
    RowTimers,
    RowTimerService,
    RowValue,
    SliceGroups,
    TimerChanges,
    read_frame,
    row_order,
    wave_order,
)

KINDS = {kind.__name__: kind for kind in (TimerHeap, KeyTimerHeap, IdIndex, _core.CodeTree)}
N = 1000
TS, KEY = np.random.default_rng(0).integers(10**6, 10**9, N), np.arange(N) * 1000 + 10**6
NEW_TS, NEW_KEY = TS + 10**6, KEY + 10**9
SPLIT = int(np.sort(TS)[N // 2])


FORMAT = _core.CodeFormat(
    [
        (_core.OF_FIELDS, 0, False, False, 3),
        (_core.OF_SIGNED, 8, True, False, 1),
        (_core.OF_TEXT, 0, False, True, 1),
    ],
    2,
)


def coded(numbers):
    """Return the codes of numbers with a text of as many bytes as 20 to 27."""
    n = len(numbers)
    lengths = 20 + np.arange(n) % 8
    views = [
        ArrayView(FIXED, 0, 0, n, None, None, None),
        ArrayView(FIXED, 8, 0, n, None, None, np.ascontiguousarray(numbers)),
        ArrayView(
            TEXT,
            8,
            0,
            n,
            np.full(n // 8 + 1, 0x7F, np.uint8),
            np.append(0, np.cumsum(lengths)),
            bytes(28 * n),
        ),
    ]
    return _core.encode(FORMAT, views)


CODES, NEW_CODES, ONES = coded(KEY), coded(NEW_KEY), np.ones(N, np.int64)


def new(kind):
    return _core.CodeTree(FORMAT) if kind is _core.CodeTree else kind()


def full(kind):
    """Return a heap or an index without unused capacity, or a tree."""
    heap = new(kind)
    if kind is _core.CodeTree:
        heap.add(TS, CODES, ONES)
        return heap
    if kind is IdIndex:
        heap.put_many(KEY, TS)
        return heap
    heap.push_many(TS, KEY, KEY)
    return kind.from_bytes(heap.to_bytes())


def roomy(kind):
    """Return a heap or an index that releases memory when it loses one more."""
    heap = new(kind)
    if kind is _core.CodeTree:
        heap.add(np.arange(3 * N), coded(np.arange(3 * N)), np.ones(3 * N, np.int64))
        heap.add(TS[:9], CODES.take(np.arange(9)), ONES[:9])
        heap.add(np.arange(2 * N), coded(np.arange(3 * N)).take(np.arange(2 * N)), -np.ones(2 * N, np.int64))
        return heap
    if kind is IdIndex:
        heap.put_many(np.append(np.arange(3 * N), KEY), 0)
        heap.remove_many(np.arange(3 * N))
        heap.put_many(KEY, TS)
        return heap
    heap.push_many(np.arange(4 * N + 4), np.arange(4 * N + 4))
    heap.push_many(TS, KEY, KEY)
    heap.pop_due(4 * N)
    assert len(heap) > heap.nbytes // (4 * 36)
    return heap


def identities(heap, n=N):
    """Return the columns that identify timers in this kind of heap."""
    return (TS[:n], KEY[:n], KEY[:n])[type(heap) is KeyTimerHeap :]


def round_trip(heap):
    return pickle.loads(pickle.dumps(heap))


def framed(_):
    """Pack rows, and read the first frame."""
    texts = ArrayView(TEXT, 8, 0, N, np.full(N // 8 + 1, 0x7F, np.uint8), np.arange(N + 1) * 3, bytes(3 * N))
    packing = Packing([KEY], 16, 2)
    data, ends = packing.frames(
        b"about", [[ArrayView(FIXED, 8, 0, N, None, None, TS)], [texts], [b"a", b"b"]]
    )
    rows, _, groups, counts, columns = read_frame(data[: ends[0]])
    return data, rows, groups, counts, *(column[4] for column in columns), packing.order()


NAMES = SimpleNamespace(known={})


def waves():
    keys = PlaceNumbers(N)
    numbers, added = keys.number_many(KEY // 1000 % 7)
    return numbers, added, *wave_order(np.arange(N), numbers, len(keys))


def grouped(_):
    """Group rows in two parts; a failure of the second leaves those of the first."""
    groups = SliceGroups(1)
    groups.add(KEY[:50], TS[:50], [ArrayView(FIXED, 8, 0, 50, None, None, KEY)])
    before = [column.tolist() for column in groups.groups()]
    try:
        new = groups.add(KEY, TS, [ArrayView(FIXED, 8, 0, N, None, None, KEY)])
    except MemoryError:
        assert [column.tolist() for column in groups.groups()] == before
        raise
    return new, *groups.groups(), groups.order()


def with_halves(ids):
    """Return values of ids; a function that is made without memory crashes CPython 3.12 and 3.13."""
    return ids * 10**9, ids % 2 == 0


def moved(_):
    """Move timers and values of numbered keys; after a failure the journal has what is in the heap."""
    keys, heap, changes = CurrentKey(), TimerHeap(), TimerChanges()
    timers, service = RowTimers(heap, changes, keys, NAMES), RowTimerService()
    service.bind(timers, timers, 0, None)
    cells = RowCells(keys.numbers, int, with_halves)
    state = RowValue(keys, None, int, 64, list)
    state.bind(None, {}, {}, cells)
    try:
        keys.announce(np.arange(20))
        for number in range(70):
            keys.current_key = number
            old = state.value()
            for at in (old or 5, 10**9 + number):
                service.register_event_time_timer(at)
                service.delete_event_time_timer(5)
            state.update(None if number % 5 == 0 else 10**9 + number)
    finally:
        journal = changes.take()[0].tolist()
        left = {tuple(row[1:]) for row in journal if row[0] == 0}
        assert left - {tuple(row[1:]) for row in journal if row[0] == 1} == set(heap)
    return sorted(heap), *cells.take()


RECORDS = [(n, "\xe9" * (n % 90) or None, n % 2 == 0, n) for n in range(300)]


def recorded(_):
    """Append records; after a failure those before it are there."""
    columns = RecordColumns([("integer", 8), ("string", 0), ("bool", 0), abs], 10_000, str)
    try:
        for record in RECORDS:
            assert columns.append(record)
        numbers, texts, flags, objects = columns.take()
        return *numbers, *texts, *flags, objects
    except MemoryError:
        n = len(columns)
        assert n == 0 or columns.take()[3] == list(range(n))
        raise


ANY = {
    "()": lambda heap: type(heap)(),
    "(capacity)": lambda heap: type(heap)(2000),
    "push, new": lambda heap: heap.push(10**9, 10**9, 10**9),
    "push, there": lambda heap: heap.push(int(TS[0]), int(KEY[0]), int(KEY[0])),
    "peek": lambda heap: heap.peek(),
    "pop": lambda heap: heap.pop(),
    "push_many": lambda heap: heap.push_many(NEW_TS, NEW_KEY),
    "push_many, few": lambda heap: heap.push_many(NEW_TS[:5], NEW_KEY[:5], 10**6),
    "push_many, there": lambda heap: heap.push_many(NEW_TS, KEY, KEY),
    "push_many, half new": lambda heap: heap.push_many(NEW_TS, NEW_KEY // 2000),
    "push_many, lists": lambda heap: heap.push_many(NEW_TS[:9].tolist(), NEW_KEY[:9].tolist(), (5,) * 9),
    "push_many, other dtypes": lambda heap: heap.push_many(
        NEW_TS.astype(">i8"), NEW_KEY.astype("u8"), KEY[::-1]
    ),
    "push_many, own columns": lambda heap: heap.push_many(heap.key_hashes, heap.timestamps, heap.namespaces),
    "push_many, refused": lambda heap: heap.push_many(NEW_TS, NEW_KEY.astype(float)),
    "remove_many": lambda heap: heap.remove_many(*identities(heap)),
    "remove_many, few": lambda heap: heap.remove_many(*identities(heap, 5)),
    "remove_keys": lambda heap: heap.remove_keys(KEY[10:]),
    "remove_keys, one": lambda heap: heap.remove_keys(int(KEY[5])),
    "remove_keys, list": lambda heap: heap.remove_keys(KEY[:9].tolist()),
    "count_due": lambda heap: heap.count_due(SPLIT),
    "_due_rows": lambda heap: heap._due_rows(SPLIT),
    "pop_due, all": lambda heap: heap.pop_due(2**62),
    "pop_due, half": lambda heap: heap.pop_due(SPLIT),
    "pop_due, limit of few": lambda heap: heap.pop_due(SPLIT, 5),
    "pop_due, limit of many": lambda heap: heap.pop_due(SPLIT, 400),
    "reserve": lambda heap: heap.reserve(3000),
    "reserve, less": lambda heap: heap.reserve(0),
    "clear": lambda heap: heap.clear(),
    "copy": lambda heap: heap.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": round_trip,
    "to_bytes": lambda heap: heap.to_bytes(),
    "from_bytes": lambda heap: heap.from_bytes(heap.to_bytes()),
    "from_bytes, refused": lambda heap: heap.from_bytes(heap.to_bytes()[:-1]),
    "timestamps": lambda heap: heap.timestamps,
    "key_hashes": lambda heap: heap.key_hashes,
    "namespaces": lambda heap: heap.namespaces,
    "nbytes": lambda heap: heap.nbytes,
    "iter": lambda heap: list(itertools.islice(heap, 3)),
    "len": len,
    "in": lambda heap: (int(TS[0]), int(KEY[0]), int(KEY[0])) in heap,
    "repr": repr,
    "_check": lambda heap: heap._check(),
}
ONE_OF_A_KIND = {
    TimerHeap: {
        "remove": lambda heap: heap.remove(int(TS[0]), int(KEY[0]), int(KEY[0])),
        "reschedule": lambda heap: heap.reschedule(int(TS[0]), 10**9, int(KEY[0]), int(KEY[0])),
        "reschedule_many": lambda heap: heap.reschedule_many(TS, NEW_TS, KEY, KEY),
        "reschedule_many, lists": lambda heap: heap.reschedule_many(TS[:9].tolist(), 7, KEY[:9], KEY[:9]),
    },
    KeyTimerHeap: {
        "remove": lambda heap: heap.remove(int(KEY[0]), int(KEY[0])),
        "timestamp_of": lambda heap: heap.timestamp_of(int(KEY[0]), int(KEY[0])),
        "timestamps_of": lambda heap: heap.timestamps_of(KEY, KEY),
    },
}
OF_AN_INDEX = {
    "()": lambda index: type(index)(),
    "put_many": lambda index: index.put_many(NEW_KEY, KEY),
    "put_many, there": lambda index: index.put_many(KEY, NEW_TS),
    "put_many, half new": lambda index: index.put_many(np.append(KEY, NEW_KEY), 5),
    "put_many, few new": lambda index: index.put_many(np.append(KEY, NEW_KEY // 10**6), 5),
    "put_many, lists": lambda index: index.put_many(NEW_KEY[:9].tolist(), (5,) * 9),
    "put_many, refused": lambda index: index.put_many(NEW_KEY, NEW_TS.astype(float)),
    "remove_many": lambda index: index.remove_many(KEY),
    "remove_many, one": lambda index: index.remove_many(KEY[:1]),
    "find_many": lambda index: index.find_many(KEY + 1000),
    "orders": lambda _: (*waves(), row_order(TS // 10**8, KEY % 3000, KEY)),
    "frames": framed,
    "groups": grouped,
    "row states": moved,
    "records": recorded,
    "ids": lambda index: np.sort(index.ids()),  # in arbitrary order
    "items": lambda index: rows(index),
    "clear": lambda index: index.clear(),
    "nbytes": lambda index: index.nbytes,
    "len": len,
    "_check": lambda index: index._check(),
}


OF_A_TREE = {
    "()": lambda _: _core.CodeTree(FORMAT),
    "add": lambda tree: tree.add(NEW_KEY, NEW_CODES, ONES),
    "add, there": lambda tree: tree.add(TS, CODES, ONES),
    "add, lists": lambda tree: tree.add([1, 2], CODES.take([3, 4]), [5, 6]),
    "add, refused": lambda tree: tree.add([1, 1], CODES.take([3, 3]), [2**63 - 1, 1]),
    "remove": lambda tree: tree.add(TS, CODES, -ONES),
    "remove, most": lambda tree: emptied(tree, 5),
    "remove, all": lambda tree: emptied(tree, 0),
    "pick": lambda tree: picked(tree, _core.PICK_ALL),
    "pick, rank": lambda tree: picked(tree, _core.PICK_TIES),
    "totals": lambda tree: tree.totals(TS),
    "ids": lambda tree: tree.ids(),
    "encode": lambda _: tuple(coded(KEY).tolist()),
    "decode": lambda _: tuple(each for field in _core.decode(FORMAT, CODES) for each in field),
    "add_up": lambda _: _core.add_up(KEY // 1000 % 7, CODES, ONES),
    "Codes": lambda _: tuple(_core.Codes(b"abc", [0, 1, 3]).tolist()),
    "clear": lambda tree: tree.clear(),
    "nbytes": lambda tree: tree.nbytes,
    "len": len,
    "_check": lambda tree: tree._check(),
}


def picked(tree, kind):
    lengths, codes, weights = tree.pick(TS, kind, 1)
    return lengths, tuple(codes.tolist()), weights


def emptied(tree, left):
    """Remove all entries but the first few."""
    lengths, codes, weights = tree.pick(tree.ids(), _core.PICK_ALL)
    ids = np.repeat(tree.ids(), lengths)
    return tree.add(ids[left:], codes.take(np.arange(left, len(codes))), -weights[left:])


def calls(kind):
    if kind is _core.CodeTree:
        return OF_A_TREE
    return OF_AN_INDEX if kind is IdIndex else ANY | ONE_OF_A_KIND[kind]


CASES = [
    (kind.__name__, name, start.__name__)
    for kind in KINDS.values()
    for name in calls(kind)
    for start in (full, roomy)
]


def rows(heap):
    """Return the contents of a heap, an index or a tree."""
    if type(heap) is _core.CodeTree:
        lengths, codes, weights = heap.pick(heap.ids(), _core.PICK_ALL)
        owners = np.repeat(heap.ids(), lengths)
        return list(zip(owners.tolist(), codes.tolist(), weights.tolist(), strict=True))
    if type(heap) is IdIndex:
        ids, values = heap.items()
        return sorted(zip(ids.tolist(), values.tolist(), strict=True))
    return sorted(heap)


def stored(heap):
    return rows(heap) if type(heap) in (IdIndex, _core.CodeTree) else heap.to_bytes()


def outcome(call, heap):
    """Return the result or the error of a call, and the contents of the heap after it."""
    try:
        result = call(heap)
    except MemoryError:
        raise
    except Exception as error:
        result = type(error)
    return result, rows(heap)


def same(one, other):
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, TimerHeap | KeyTimerHeap | IdIndex | _core.CodeTree):
        one._check()
        return rows(one) == rows(other)
    return one == other


def fail_one_by_one(kind, name, start, countdown, fired):
    """Return the number of allocations of a call; raise AssertionError if a failure changed the heap."""
    call = calls(kind)[name]
    expected = outcome(call, start(kind))
    for n in range(1, 10_000):
        heap = start(kind)
        before, room = stored(heap), heap.nbytes
        fired.value = 0
        try:
            countdown.value = n
            result = call(heap)
        except (MemoryError, pickle.PicklingError):  # pickle raises it instead when it looks up the class
            countdown.value = 0
            heap._check()
            assert stored(heap) == before, f"allocation {n} fails: the heap has changed"
            assert heap.nbytes == room, f"allocation {n} fails: the heap has other room"
            continue
        except Exception as error:  # expected for an invalid call only
            result = type(error)
        countdown.value = 0
        heap._check()
        assert same((result, rows(heap)), expected), f"allocation {n} fails in silence: {result}"
        if not fired.value:
            return n - 1
    raise AssertionError("no end")


def main():
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    countdown, fired = (ctypes.c_long.in_dll(library, name) for name in ("countdown", "fired"))
    results = {}
    for case in CASES:
        kind, name, start = case
        try:
            results[" ".join(case)] = fail_one_by_one(KINDS[kind], name, globals()[start], countdown, fired)
        except AssertionError as error:
            results[" ".join(case)] = str(error)
    json.dump(results, sys.stdout)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the preloaded allocator is glibc's")
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer has an allocator of its own, which this one would replace")
    compiler = shutil.which("gcc") or pytest.skip("no gcc to compile the failing allocator with")
    library = tmp_path_factory.mktemp("allocation") / "failing_malloc.so"
    source = Path(__file__).parents[1] / "c" / "failing_malloc.c"
    subprocess.run([compiler, "-O2", "-fno-builtin", "-shared", "-fPIC", source, "-o", library], check=True)
    child = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONMALLOC": "malloc"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(child.stdout)


@pytest.mark.parametrize("case", [" ".join(case) for case in CASES])
def test_a_failed_allocation_leaves_the_heap_unchanged(case, results):
    assert isinstance(results[case], int), results[case]


def test_the_calls_make_allocations(results):
    counts = [count for count in results.values() if isinstance(count, int)]
    assert sum(counts) > 500


if __name__ == "__main__":
    main()
