"""Heaps and the index on lent memory: allocations that fail, other processes, and heads that are wrong."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from arena import Arena, Block
from children import helpers
from heap_model import INT64_MAX

from timerheap import KeyTimerHeap, TimerHeap
from timerheap._native._core import IdIndex

KINDS = {kind.__name__: kind for kind in (TimerHeap, KeyTimerHeap, IdIndex)}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
heaps = pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])


def made(kind, memory):
    if kind is IdIndex:
        return IdIndex(memory)
    heap = kind()
    heap._lend(memory)
    return heap


def put(it, numbers):
    return it.put_many(numbers, numbers * 3) if type(it) is IdIndex else it.push_many(numbers % 97, numbers)


def take(it, numbers):
    if type(it) is IdIndex:
        return it.remove_many(numbers)[1]
    return it.remove_many(*(numbers % 97, numbers)[type(it) is KeyTimerHeap :])


def contents(it):
    return sorted(zip(*(c.tolist() for c in it.items()), strict=True)) if type(it) is IdIndex else sorted(it)


# ---- growing and shrinking ----


@every_kind
def test_a_structure_on_lent_memory_equals_one_of_its_own(kind):
    memory, rng = Arena(), np.random.default_rng(1)
    lent, own = made(kind, memory), kind()
    assert lent._head()[1:5] == [0, 0, 0, 0]
    assert not memory.sizes
    for n in (1, 5, 40, 1000, 9000, 20, 1):
        for call in (put, take):
            numbers = rng.integers(0, 2 * n, n)
            assert np.array_equal(call(lent, numbers), call(own, numbers))
            lent._check()
            assert contents(lent) == contents(own)
            assert list(memory.sizes.values()) == [lent._head()[2]]
            assert lent.nbytes == lent._head()[2]
        if kind is not IdIndex:
            assert lent.pop_due(50) == own.pop_due(50)
            assert lent.remove_keys(numbers[: n // 9]) == own.remove_keys(numbers[: n // 9])
    lent.clear()
    assert not memory.sizes
    assert lent.nbytes == 0


@every_kind
def test_memory_is_in_proportion_to_the_contents(kind):
    memory = Arena()
    it = made(kind, memory)
    put(it, np.arange(1))
    assert it.nbytes <= 640
    put(it, np.arange(50_000))
    assert it.nbytes < 47 * 50_000
    take(it, np.arange(49_999))
    assert it.nbytes <= 4096
    assert sum(memory.sizes.values()) == it.nbytes


@every_kind
def test_what_is_there_already_needs_no_room(kind):
    """10,000 entries of which one is new move a structure without room once, by the usual step."""
    memory = Arena()
    it = made(kind, memory)
    it.reserve(10_000)
    put(it, np.arange(10_000))
    calls, nbytes = memory.calls, it.nbytes
    put(it, np.arange(1, 10_001))
    it._check()
    assert memory.calls == calls + 1
    assert 1.2 * nbytes < it.nbytes < 1.6 * nbytes


@heaps
def test_reserved_memory_is_one_block_that_stays(kind):
    memory = Arena()
    heap = kind(500)
    heap._lend(memory)
    (block,) = memory.sizes.items()
    put(heap, np.arange(500))
    heap.clear()
    assert list(memory.sizes.items()) == [block]
    heap = kind._attach(memory, heap._head())
    heap.pop_due(INT64_MAX)
    assert list(memory.sizes.items()) == [block]
    heap.reserve(0)
    heap.clear()
    assert not memory.sizes


@heaps
def test_copies_have_memory_of_their_own(kind):
    memory = Arena()
    heap = made(kind, memory)
    put(heap, np.arange(100))
    copies = heap.copy(), kind.from_bytes(heap.to_bytes())
    memory.bytes[:] = 0
    for other in copies:
        other._check()
        assert len(other) == 100
        with pytest.raises(ValueError, match="must be called on a structure in a Memory"):
            other._head()


@heaps
def test_only_an_empty_heap_of_its_own_memory_can_be_lent(kind):
    heap = kind()
    heap.push(1, 2)
    with pytest.raises(ValueError, match="on an empty heap"):
        heap._lend(Arena())
    heap.clear()
    heap._lend(Arena())
    with pytest.raises(ValueError, match="once"):
        heap._lend(Arena())


@heaps
def test_arguments_may_be_columns_of_the_heap(kind):
    heap, own = made(kind, Arena()), kind()
    for it in (heap, own):
        put(it, np.arange(1000))
        it.push_many(it.key_hashes, it.timestamps, it.namespaces)
        it._check()
    assert contents(heap) == contents(own)
    with pytest.raises(ValueError, match="WRITEABLE"):
        heap.timestamps.flags.writeable = True


# ---- allocations that fail ----


class DiskFull(Exception):
    """What a Memory may raise besides MemoryError."""


@every_kind
@pytest.mark.parametrize("error", [MemoryError, DiskFull])
def test_an_allocation_that_fails_leaves_everything_as_it_was(kind, error):
    for fails_at in range(1, 12):
        memory = Arena()
        memory.error, memory.fails_at = error, fails_at
        it, numbers = made(kind, memory), np.arange(3000)
        for part in np.array_split(numbers, 6):
            before, head = contents(it), it._head()
            try:
                put(it, part)
            except error:
                it._check()
                assert contents(it) == before
                assert it._head() == head
                assert put(it, part).all()
            it._check()
        assert contents(it) == contents(filled(kind, numbers))
        assert list(memory.sizes.values()) == [it._head()[2]]
        if kind is not IdIndex:
            it.push(5, -5)
            with pytest.raises(MemoryError, match="at most"):
                it.reserve(2**40)


def filled(kind, numbers):
    it = kind()
    put(it, numbers)
    return it


@every_kind
@pytest.mark.parametrize("error", [MemoryError, DiskFull])
def test_a_structure_that_cannot_shrink_loses_no_result(kind, error):
    memory = Arena()
    memory.error = error
    it, numbers = made(kind, memory), np.arange(3000)
    put(it, numbers)
    head = it._head()
    memory.fails_at = memory.calls + 1
    assert take(it, numbers[10:]).all()
    assert it._head()[1:4] == head[1:4]
    it._check()
    assert contents(it) == contents(filled(kind, numbers[:10]))
    assert take(it, numbers[:1]).all()  # the next one shrinks it
    assert it._head()[2] < head[2]
    it._check()


@heaps
def test_a_failed_reservation_changes_nothing(kind):
    memory = Arena()
    memory.error, memory.fails_at = DiskFull, 1
    heap = kind(100)
    before = heap.nbytes
    with pytest.raises(DiskFull):
        heap._lend(memory)
    assert heap.nbytes == before
    heap._lend(memory)
    assert memory.sizes
    heap.push(1, 2)
    with pytest.raises(MemoryError, match="at most"):
        heap.reserve(2**40)
    assert contents(heap) == [(1, 2, 0)]


# ---- other threads and processes ----


@every_kind
def test_another_thread_may_use_a_structure_while_it_allocates(kind):
    class Slow(Arena):
        depth = 0

        def allocate(self, nbytes):
            if self.depth < 3:
                self.depth += 1
                other = threading.Thread(
                    target=put, args=(it, np.arange(self.depth * 10_000, 20_000 * self.depth))
                )
                other.start()
                other.join()
            return super().allocate(nbytes)

    memory = Slow()
    it = made(kind, memory)
    put(it, np.arange(100))
    put(it, np.arange(70_000, 80_000))
    it._check()
    expected = {*range(100), *range(10_000, 20_000), *range(20_000, 60_000), *range(70_000, 80_000)}
    assert {row[kind is not IdIndex] for row in contents(it)} == expected
    assert list(memory.sizes.values()) == [it._head()[2]]


CHILD = """
import json
from arena import Arena
from test_heap_lending import KINDS, put, take, contents, np
path, top, name, head = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
memory = Arena(path, top)
it = KINDS[name]._attach(memory, head)
it._check()
before = contents(it)
put(it, np.arange(100, 5000))
take(it, np.arange(0, 50))
memory.bytes.base.flush()
print(json.dumps([before, it._head(), memory.top]))
"""


@every_kind
def test_another_process_continues_with_the_same_bytes(kind, tmp_path):
    path = str(tmp_path / "memory")
    memory = Arena(path)
    it = made(kind, memory)
    put(it, np.arange(200))
    before = contents(it)
    paths = [str(Path(__file__).parent), *helpers()]
    arguments = [path, str(memory.top), kind.__name__, json.dumps(it._head())]
    script = f"import sys; sys.path[:0] = {paths}\n{CHILD}"
    child = subprocess.run([sys.executable, "-c", script, *arguments], check=True, stdout=subprocess.PIPE)
    seen, head, top = json.loads(child.stdout)
    assert [tuple(row) for row in seen] == before
    again = kind._attach(Arena(path, top), head)
    again._check()
    assert contents(again) == contents(filled(kind, np.arange(50, 5000)))


# ---- heads that are wrong ----

FIELDS = ["kind", "at", "size", "cap", "len", "seed", "reserved"]


@every_kind
def test_a_head_is_a_list_of_integers_that_json_keeps(kind):
    memory = Arena()
    it = made(kind, memory)
    for n in (0, 1, 500):
        put(it, np.arange(n))
        head = it._head()
        assert len(head) == len(FIELDS)
        assert all(type(number) is int for number in head)
        assert json.loads(json.dumps(head)) == head
        assert contents(kind._attach(memory, tuple(head))) == contents(it)


NONSENSE = [
    -1,
    1,
    5,
    63,
    2**31,
    2**32,
    2**40,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    2**200,
    0.5,
    "1",
    None,
    True,
    [],
    b"",
]


@every_kind
@pytest.mark.parametrize("n", [0, 3, 1000])
def test_a_head_with_a_wrong_number_raises(kind, n):
    memory = Arena()
    it = made(kind, memory)
    put(it, np.arange(n))
    head = it._head()
    for k, field in enumerate(FIELDS):
        for wrong in NONSENSE:
            broken = [*head[:k], wrong, *head[k + 1 :]]
            if type(wrong) is int and (broken == head or (field == "seed" and not n)):
                continue
            try:
                other = kind._attach(memory, broken)
            except ValueError:
                continue
            # Some wrong heads cannot be told from right ones: they use fewer rows, or keep other memory.
            assert field in ("at", "size", "cap", "len", "seed", "reserved"), (field, wrong)
            assert n < 20 or field in ("len", "reserved"), (field, wrong)
            repr(other)
    it._check()


@pytest.mark.parametrize(
    "head", [None, 5, "abc", b"1234567", {}, [], [1], [1] * 8, range(7), [[]] * 7], ids=repr
)
@every_kind
def test_what_is_not_a_head_raises(kind, head):
    with pytest.raises(ValueError, match="head"):
        kind._attach(Arena(), head)


def test_the_head_of_another_kind_raises():
    memory = Arena()
    for kind in KINDS.values():
        head = filled_on(kind, memory)._head()
        for other in KINDS.values():
            if other is not kind:
                with pytest.raises(
                    ValueError, match=f"must be that of an? {other.__name__}, got that of an? "
                ):
                    other._attach(memory, head)


def filled_on(kind, memory, n=100):
    it = made(kind, memory)
    put(it, np.arange(n))
    return it


@every_kind
@pytest.mark.parametrize("n", [0, 100])
def test_other_bytes_raise(kind, n):
    memory = Arena()
    it = filled_on(kind, memory)
    take(it, np.arange(n, 100))
    head = it._head()
    part = memory.bytes[head[1] : head[1] + head[2]]
    saved = part.copy()
    junks = [255, np.random.default_rng(0).integers(0, 256, len(part)), 0, np.roll(saved, 64)]
    for junk in junks if n else junks[:2]:  # an empty structure is of zeros
        part[:] = junk
        with pytest.raises(ValueError, match="its block holds other bytes"):
            kind._attach(memory, head)
    part[:] = saved
    assert len(kind._attach(memory, head)) == n


def test_an_index_whose_bytes_change_raises_when_it_grows():
    memory = Arena()
    index = filled_on(IdIndex, memory)
    memory.bytes[:] = 0
    with pytest.raises(RuntimeError, match="must not be written by others"):
        put(index, np.arange(100, 1000))


class Bad(Arena):
    """A Memory whose blocks cannot be lent."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def allocate(self, nbytes):
        return Block(self.change(super().allocate(nbytes + 64).bytes, nbytes), 0)


def read_only(array, n):
    array.flags.writeable = False
    return array


BAD = {
    "too short": lambda array, n: array[: n - 1],
    "not aligned": lambda array, n: array[8:],
    "not contiguous": lambda array, n: np.repeat(array, 2)[::2],
    "not bytes": lambda array, n: array.view(np.int8),
    "two dimensions": lambda array, n: array.reshape(2, -1),
    "read-only": read_only,
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
@every_kind
def test_a_block_that_cannot_be_lent_raises(kind, change):
    it = made(kind, Bad(change))
    with pytest.raises(ValueError, match="a block must be"):
        put(it, np.arange(10))
    assert len(it) == 0
    it._check()
