"""The tree of weighted codes: compared with a dict after any changes, its memory, and what is refused."""

import gc
import weakref

import numpy as np
import pytest
from arena import Arena
from heap_model import INT64_MAX, INT64_MIN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timerheap._native import _core

IDS = st.one_of(st.integers(-1, 6), st.sampled_from([INT64_MIN, INT64_MAX]))
SEEDS = st.integers(0, 2**32 - 1)
FORMAT = _core.CodeFormat(
    [
        (_core.OF_FIELDS, 0, False, False, 3),
        (_core.OF_BYTES, 1, False, False, 1),
        (_core.OF_TEXT, 0, False, False, 1),
    ],
    2,
)


def code(lead, rest):
    """Return a code of FORMAT: a byte, and a text without 0 and 1."""
    return bytes([1, 1, lead, 1, *rest, 0])


CODES = st.builds(code, st.integers(0, 3), st.binary(max_size=40).map(lambda b: bytes(x | 2 for x in b)))


def codes_of(values):
    return _core.Codes(b"".join(values), np.cumsum([0, *map(len, values)]))


def picked(entries, kind, n):
    """Return what a tree picks of entries (code, weight), in this order."""
    rows, leads, found, last, rank = 0, 0, [], None, 0
    for value, weight in entries:
        if kind != _core.PICK_ALL and weight <= 0:
            continue
        if value[:3] != last:
            last, leads, rank = value[:3], leads + 1, rows + 1
        first = max(0, min(weight, n - rows))
        rows += weight
        kept = {
            _core.PICK_ALL: weight,
            _core.PICK_ROWS: first,
            _core.PICK_REST: weight - first,
            _core.PICK_TIES: weight if rank <= n else 0,
            _core.PICK_LEADS: weight if leads <= n else 0,
        }[kind]
        if kept:
            found.append((value, kept))
    return found


class Machine(RuleBasedStateMachine):
    @initialize(lent=st.booleans())
    def start(self, lent):
        self.memory = Arena() if lent else None
        self.tree, self.model = _core.CodeTree(FORMAT, self.memory), {}

    def add(self, ids, values, weights):
        changed = {}
        for id_, value, weight in zip(ids, values, weights, strict=True):
            changed[id_, value] = changed.get((id_, value), 0) + weight
        before = {key: self.model.get(key, 0) for key in changed}
        held = {id_ for id_, _ in self.model}
        for key, weight in changed.items():
            self.model[key] = before[key] + weight
            if not self.model[key]:
                del self.model[key]
        lost = self.tree.losses
        rows, was, now = self.tree.add(np.array(ids, np.int64), codes_of(values), np.array(weights, np.int64))
        keys = sorted(key for key, weight in changed.items() if weight)
        assert [(ids[row], values[row]) for row in rows.tolist()] == keys
        assert was.tolist() == [before[key] for key in keys]
        assert now.tolist() == [self.model.get(key, 0) for key in keys]
        assert self.tree.losses - lost == len(held - {id_ for id_, _ in self.model})

    @rule(rows=st.lists(st.tuples(IDS, CODES, st.integers(-2, 3)), max_size=30))
    def add_few(self, rows):
        self.add(*map(list, zip(*rows, strict=True))) if rows else self.add([], [], [])

    @rule(seed=SEEDS, ascending=st.booleans())
    def add_many(self, seed, ascending):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 2000))
        numbers = rng.integers(0, 10**9, n).tolist()
        values = [code(x % 5, b"%d" % (1_000_000 + at if ascending else x)) for at, x in enumerate(numbers)]
        self.add((rng.integers(0, 1 if ascending else 50, n)).tolist(), values, [1] * n)

    @rule(seed=SEEDS, part=st.sampled_from([0.1, 0.5, 0.95, 1.0]), in_order=st.booleans())
    def remove(self, seed, part, in_order):
        keys = sorted(self.model)
        if not in_order:
            np.random.default_rng(seed).shuffle(keys)
        keys = keys[: int(part * len(keys))]
        self.add([id_ for id_, _ in keys], [value for _, value in keys], [-self.model[key] for key in keys])

    @rule(
        ids=st.lists(IDS, max_size=5),
        kind=st.sampled_from(range(5)),
        n=st.integers(-1, 9),
        backwards=st.booleans(),
    )
    def pick(self, ids, kind, n, backwards):
        lengths, codes, weights = self.tree.pick(np.array(ids, np.int64), kind, n, backwards=backwards)
        found = list(zip(codes.tolist(), weights.tolist(), strict=True))
        entries = sorted(self.model.items(), reverse=backwards)
        expected = [picked([(v, w) for (i, v), w in entries if i == id_], kind, n) for id_ in ids]
        assert found == [each for one in expected for each in one]
        assert lengths.tolist() == [len(one) for one in expected]

    @rule(ids=st.lists(IDS, max_size=5))
    def total(self, ids):
        rows, entries = self.tree.totals(np.array(ids, np.int64))
        positive = [[w for (i, _), w in self.model.items() if i == id_ and w > 0] for id_ in ids]
        assert rows.tolist() == [sum(each) for each in positive]
        assert entries.tolist() == [len(each) for each in positive]

    @rule()
    def attach(self):
        if self.memory is not None:
            self.tree = _core.CodeTree._attach(FORMAT, self.memory, self.tree._head())

    @rule()
    def clear(self):
        self.tree.clear()
        self.model.clear()

    @invariant()
    def same(self):
        self.tree._check()
        assert len(self.tree) == len(self.model)
        assert self.tree.ids().tolist() == sorted({id_ for id_, _ in self.model})
        assert bool(self.tree.nbytes) == bool(self.model)
        if self.memory is not None:
            assert sum(self.memory.sizes.values()) == self.tree.nbytes
            assert len(self.memory.sizes) <= 1


TestCodeTree = Machine.TestCase
TestCodeTree.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


def some(n, span, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, span, n), codes_of(
        [code(x % 5, b"%d" % x) for x in rng.integers(0, 10**6, n).tolist()]
    )


def contents(tree):
    lengths, codes, weights = tree.pick(tree.ids(), _core.PICK_ALL)
    return lengths.tolist(), codes.tolist(), weights.tolist()


def test_each_failed_allocation_changes_nothing():
    ids, codes = some(2000, 100)
    memory = Arena(size=1 << 24)
    tree = _core.CodeTree(FORMAT, memory)
    fails = 0
    for start in range(0, 2000, 50):
        part = np.arange(start, start + 50)
        before = contents(tree), memory.sizes.copy()
        memory.fails_at = memory.calls + 1
        try:
            tree.add(ids[part], codes.take(part), np.ones(50, np.int64))
        except MemoryError:
            fails += 1
            assert (contents(tree), memory.sizes) == before
            memory.fails_at = 0
            tree.add(ids[part], codes.take(part), np.ones(50, np.int64))
        tree._check()
    assert fails > 5
    lengths, held, weights = tree.pick(tree.ids(), _core.PICK_ALL)
    owners, nbytes = np.repeat(tree.ids(), lengths), tree.nbytes
    memory.fails_at, memory.calls = 1, 0
    tree.add(owners[10:], held.take(np.arange(10, len(held))), -weights[10:])
    assert memory.calls == 1, "there was no memory to move to"
    assert tree.nbytes == nbytes
    assert len(tree) == 10
    tree._check()


def test_weights_beyond_int64_change_nothing():
    tree, one = _core.CodeTree(FORMAT), codes_of([code(1, b"a")])
    tree.add([1], one, [INT64_MAX])
    for weight in (1, INT64_MAX):
        with pytest.raises(OverflowError, match="must add up to an integer"):
            tree.add([1], one, [weight])
    with pytest.raises(OverflowError, match="nothing has been changed"):
        tree.add([1, 1], codes_of([code(1, b"a")] * 2), [-INT64_MAX, INT64_MIN])
    assert contents(tree) == ([1], one.tolist(), [INT64_MAX])
    tree.add([1], one, [-INT64_MAX])
    assert not len(tree)
    with pytest.raises(OverflowError):
        _core.add_up([1], one, [INT64_MIN])


def test_an_allocation_that_changes_the_tree_is_survived():
    ids, codes = some(300, 20)
    memory = Arena()
    tree = _core.CodeTree(FORMAT, memory)
    inside = []
    allocate = memory.allocate

    def calling(nbytes):
        if len(inside) < 3:
            inside.append(nbytes)
            tree.add(ids[::2], codes.take(np.arange(0, 300, 2)), np.ones(150, np.int64))
        return allocate(nbytes)

    memory.allocate = calling
    tree.add(ids, codes, np.ones(300, np.int64))
    tree._check()
    expected = _core.CodeTree(FORMAT)
    for _ in range(3):
        expected.add(ids[::2], codes.take(np.arange(0, 300, 2)), np.ones(150, np.int64))
    expected.add(ids, codes, np.ones(300, np.int64))
    assert contents(tree) == contents(expected)
    assert len(memory.sizes) == 1


def test_memory_follows_the_entries():
    n = 20_000
    tree = _core.CodeTree(FORMAT)
    rng = np.random.default_rng(1)
    codes = codes_of([code(x % 5, b"%d" % x) for x in range(n)])
    for part in np.array_split(rng.permutation(n), 200):
        tree.add(part, codes.take(part), np.ones(len(part), np.int64))
    assert tree.nbytes < 100 * n
    sizes = []
    for cycle in range(20):
        long = codes_of([code(1, b"%d" % (10**50 * (cycle + 2) + x)) for x in range(n)])
        tree.add(np.arange(n), long, np.ones(n, np.int64))
        tree.add(np.arange(n), long, np.full(n, -1))
        sizes.append(tree.nbytes)
    assert max(sizes[10:]) <= max(sizes[:10])
    tree.add(np.arange(n), codes, np.full(n, -1))
    assert tree.nbytes == 0


@pytest.mark.parametrize(
    "head",
    [
        None,
        [],
        [4, 0],
        [3, 0, 0, 0],
        [4, 0, -1, 0],
        [4, 1.5, 0, 0],
        [4, 64, 1 << 62, 0],
        [4, 0, 64, 0],
        [4, True, 0, 0],
    ],
    ids=repr,
)
def test_a_hostile_head_is_refused(head):
    memory = Arena()
    _core.CodeTree(FORMAT, memory).add([1], codes_of([code(1, b"a")]), [1])
    with pytest.raises(ValueError, match=r"head must|a block must"):
        _core.CodeTree._attach(FORMAT, memory, head)


def test_hostile_bytes_are_refused_or_lead_nowhere():
    memory = Arena()
    tree = _core.CodeTree(FORMAT, memory)
    tree.add(*some(500, 30), np.ones(500, np.int64))
    _, at, size, _ = head = tree._head()
    whole, rng, refused = memory.bytes[at : at + size].copy(), np.random.default_rng(3), 0
    for _ in range(2000):
        block = memory.bytes[at : at + size]
        block[:] = whole
        places = rng.integers(0, rng.choice([100, 4000, size]), 3)
        block[places] = rng.integers(0, 256, 3)
        try:
            contents(_core.CodeTree._attach(FORMAT, memory, head))
        except (ValueError, RuntimeError):
            refused += 1
    assert refused > 500
    memory.bytes[at : at + size] = whole
    assert contents(_core.CodeTree._attach(FORMAT, memory, head)) == contents(tree)


def test_codes_of_another_format_are_not_ranked():
    tree = _core.CodeTree(FORMAT)
    tree.add([1, 1], codes_of([b"\7", b"\1\7" * 20]), [1, 1])
    for kind in (_core.PICK_TIES, _core.PICK_LEADS):
        with pytest.raises(RuntimeError, match="must not be written by others"):
            tree.pick([1], kind, 3)


@pytest.mark.parametrize(
    ("fields", "lead"),
    [
        ([], 0),
        ([(_core.OF_SIGNED, 0, 0, 0, 1)], 1),
        ([(_core.OF_SIGNED, 8, 0, 0, 2)], 1),
        ([(99, 8, 0, 0, 1)], 1),
        ([(_core.OF_FIELDS, 0, 0, 0, 2), (_core.OF_TEXT, 0, 0, 0, 2)], 1),
        ([(_core.OF_FIELDS, 0, 0, 0, 3), (_core.OF_FIELDS, 0, 0, 0, 2), (_core.OF_TEXT, 0, 0, 0, 1)], 2),
        ([(_core.OF_TEXT, 0, 0, 0, 1)], 2),
    ],
)
def test_what_is_no_format_is_refused(fields, lead):
    with pytest.raises(ValueError, match="fields and lead must be those of a type"):
        _core.CodeFormat(fields, lead)


def test_arguments_are_checked():
    tree = _core.CodeTree(FORMAT)
    codes = codes_of([code(1, b"a")])
    with pytest.raises(ValueError, match="ids must have 1 values, one for each code, got 2"):
        tree.add([1, 2], codes, [1])
    with pytest.raises(ValueError, match="weights must have 1 values"):
        tree.add([1], codes, [])
    with pytest.raises(ValueError, match="kind must be one of the PICK constants, got 9"):
        tree.pick([1], 9)
    for offsets in ([], [1, 0], [-1], [0, 5], [0, 2**33]):
        with pytest.raises(ValueError, match="offsets must"):
            _core.Codes(b"abc", offsets)
    with pytest.raises(ValueError, match="rows must be from 0 to 1 - 1, got 1"):
        codes.take([1])
    assert _core.Codes(b"abcd", [1, 3, 3]).take([1, 0, 0]).tolist() == [b"", b"bc", b"bc"]


def test_the_memory_is_freed_with_the_tree():
    memory = Arena()
    tree = _core.CodeTree(FORMAT, memory)
    tree.add([1], codes_of([code(1, b"a")]), [1])
    cycle = [tree]
    memory.cycle = cycle  # tree -> memory -> tree
    freed = weakref.ref(memory)
    del tree, cycle, memory
    gc.collect()
    assert freed() is None
