"""The index of ids: compared with a dict after any calls, its arguments, and its memory."""

import gc
import weakref

import numpy as np
import pytest
from arena import Arena
from heap_model import INT64_MAX, INT64_MIN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from timerheap._native._core import IdIndex

# Few ids, so that calls often use the same ones; also 0, which the table treats specially, and the limits.
ids = st.one_of(st.integers(-2, 20), st.sampled_from([INT64_MIN, INT64_MIN + 1, -(2**32), 2**32, INT64_MAX]))
values = st.integers(INT64_MIN, INT64_MAX)
seeds = st.integers(0, 2**32 - 1)


class Machine(RuleBasedStateMachine):
    @initialize(lent=st.booleans())
    def start(self, lent):
        self.memory = Arena() if lent else None
        self.index, self.model = IdIndex(self.memory), {}

    def many(self, seed):
        rng = np.random.default_rng(seed)
        n, span = int(rng.integers(1, 3000)), int(rng.choice([100, 10_000, 2**62]))
        return rng.integers(-span, span, n)

    def put(self, columns, new):
        added = self.index.put_many(columns, new)
        assert added.dtype == bool
        for id_, value, was_added in zip(columns.tolist(), new.tolist(), added.tolist(), strict=True):
            assert was_added == (id_ not in self.model)
            self.model[id_] = value

    def take(self, columns):
        old, found = self.index.remove_many(columns)
        for id_, value, was_found in zip(columns.tolist(), old.tolist(), found.tolist(), strict=True):
            assert was_found == (id_ in self.model)
            assert value == self.model.pop(id_, 0)

    @rule(rows=st.lists(st.tuples(ids, values), max_size=40))
    def put_few(self, rows):
        self.put(*np.array(rows, np.int64).reshape(-1, 2).T)

    @rule(seed=seeds)
    def put_many(self, seed):
        columns = self.many(seed)
        self.put(columns, columns[::-1])

    @rule(n=st.integers(0, 5000))
    def reserve(self, n):
        self.index.reserve(n)

    @rule(columns=st.lists(ids, max_size=40))
    def remove_few(self, columns):
        self.take(np.array(columns, np.int64))

    @rule(seed=seeds, part=st.sampled_from([0.1, 0.5, 0.9, 1.0]), in_order=st.booleans())
    def remove_many(self, seed, part, in_order):
        known = self.index.ids() if in_order else np.random.default_rng(seed).permutation(list(self.model))
        self.take(known[: int(part * len(known))].astype(np.int64))

    @rule(seed=seeds)
    def put_back_in_order(self, seed):
        """The ids come in the order of their hashes, from which a table could suffer."""
        columns = self.index.ids()
        self.take(columns)
        for part in np.array_split(columns, 7):
            self.put(part, part)

    @rule(columns=st.lists(ids, max_size=40))
    def find(self, columns):
        found_values, found = self.index.find_many(np.array(columns, np.int64))
        assert found_values.tolist() == [self.model.get(id_, 0) for id_ in columns]
        assert found.tolist() == [id_ in self.model for id_ in columns]

    @rule()
    def attach(self):
        if self.memory is not None:
            self.index = IdIndex._attach(self.memory, self.index._head())

    @rule()
    def clear(self):
        self.index.clear()
        self.model.clear()
        assert self.index.nbytes == 0

    @invariant()
    def same(self):
        self.index._check()
        columns, found = self.index.items()
        assert dict(zip(columns.tolist(), found.tolist(), strict=True)) == self.model
        assert np.array_equal(self.index.ids(), columns)
        assert len(self.index) == len(columns) == len(self.model)
        if self.memory is not None:
            assert sum(self.memory.sizes.values()) == self.index.nbytes
            assert len(self.memory.sizes) <= 1


TestIdIndex = Machine.TestCase
TestIdIndex.settings = settings(max_examples=25, stateful_step_count=15, deadline=None)


def test_arguments_are_those_of_the_heaps():
    index = IdIndex()
    assert index.put_many([3, 1, 3], np.array([7, 8, 9], np.int16)).tolist() == [True, True, False]
    assert index.put_many(range(10, 12), 5).tolist() == [True, True]
    found_values, found = index.find_many(np.array([1, 3, 10, 4], ">i8"))
    assert found_values.tolist() == [8, 9, 5, 0]
    assert found.tolist() == [True, True, True, False]
    for empty in ([], np.empty(0, np.int64)):
        assert [len(column) for column in (*index.find_many(empty), *index.remove_many(empty))] == [0] * 4
        assert len(index.put_many(empty, empty)) == 0


BAD = [
    ([1.5], TypeError, r"ids\[0\] must be an integer, got 1.5"),
    ([2**63], OverflowError, r"ids must fit in int64, got ids\[0\] = 9223372036854775808"),
    (np.array([1.0]), TypeError, "ids must be integers"),
    (np.zeros((2, 2), np.int64), ValueError, "ids must be one-dimensional"),
    (np.array([2**63], np.uint64), OverflowError, "ids must fit in int64"),
    (None, TypeError, "ids must be"),
    (5, TypeError, "one of the columns must be an array, got only integers$"),
]


@pytest.mark.parametrize("method", ["find_many", "put_many", "remove_many"])
@pytest.mark.parametrize(("argument", "error", "text"), BAD, ids=[repr(bad[0])[:20] for bad in BAD])
def test_a_bad_argument_is_named_and_changes_nothing(method, argument, error, text):
    index = IdIndex()
    index.put_many([1, 2], [3, 4])
    with pytest.raises(error, match=text):
        getattr(index, method)(argument, *([7] if method == "put_many" else []))
    assert sorted(zip(*(column.tolist() for column in index.items()), strict=True)) == [(1, 3), (2, 4)]


def test_columns_of_different_lengths_are_rejected():
    with pytest.raises(ValueError, match="values has 2 rows but ids has 3"):
        IdIndex().put_many([1, 2, 3], [1, 2])


def test_results_are_copies():
    index = IdIndex()
    index.put_many([1], [2])
    results = [index.ids(), *index.items(), *index.find_many([1])]
    index.put_many([1], [3])
    index.clear()
    assert [int(column[0]) for column in results] == [1, 1, 2, 2, 1]
    assert all(column.flags.writeable and column.base is None for column in results)


def test_memory_follows_the_number_of_ids():
    index = IdIndex()
    assert index.nbytes == 0
    columns = np.arange(100_000)
    index.put_many(columns, columns)
    assert index.nbytes < 26 * len(columns)
    for part in np.array_split(columns + 100_000, 1000):
        index.put_many(part, part)
    assert index.nbytes < 44 * len(index)
    index.remove_many(np.arange(190_000))
    assert index.nbytes < 60 * len(index)
    index.put_many(
        np.arange(100_000) % 100, 1
    )  # it grows for the rows, and shrinks since most are no new ids
    assert index.nbytes < 60 * len(index)


def test_consecutive_ids_are_spread():
    """Neither small numbers nor multiples of large ones collide, whatever the seed."""
    for step in (1, 3, 2**20, 2**32, 2**44 + 1):
        index = IdIndex()
        columns = np.arange(1000) * step
        index.put_many(columns, columns)
        index._check()
        assert index.find_many(columns)[1].all()


def test_too_many_ids_raise_memory_error():
    index = IdIndex()
    index.put_many([1], [2])
    rows = np.broadcast_to(np.array(5), 2**40)
    for call in (
        lambda: index.put_many(rows, 1),
        lambda: index.find_many(rows),
        lambda: index.remove_many(rows),
    ):
        with pytest.raises(MemoryError):
            call()
    assert index.find_many([1])[0].tolist() == [2]


def test_the_memory_is_freed_with_the_index():
    memory = Arena()
    index = IdIndex(memory)
    index.put_many([1], [2])
    cycle = [index]
    memory.cycle = cycle  # index -> memory -> index
    freed = weakref.ref(memory)
    del index, cycle, memory
    gc.collect()
    assert freed() is None


def test_a_reserved_index_does_not_move():
    index = IdIndex()
    index.reserve(10_000)
    nbytes = index.nbytes
    index.put_many(np.arange(10_000), 0)
    assert index.nbytes == nbytes
    with pytest.raises(ValueError, match="n must not be negative, got -1"):
        index.reserve(-1)
