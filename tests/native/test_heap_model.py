"""Both heaps compared with their models after any sequence of single and bulk calls."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from heap_model import INT64_MAX, INT64_MIN, KeyTimerHeapModel, TimerHeapModel
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from timerheap import KeyTimerHeap, TimerHeap

# Few values, so that calls often use the same timers; also the limits, and values with equal lower bits.
timestamps = st.one_of(
    st.integers(-3, 40), st.sampled_from([INT64_MIN, INT64_MIN + 1, -(2**32), 2**32, INT64_MAX])
)
key_hashes = st.one_of(st.integers(0, 12), st.sampled_from([INT64_MIN, -1, 2**32, 2**62, INT64_MAX]))
namespaces = st.one_of(st.just(0), st.sampled_from([1, -1, INT64_MIN, INT64_MAX]))
rows = st.lists(st.tuples(timestamps, timestamps, key_hashes, namespaces), max_size=40)
seeds = st.integers(0, 2**32 - 1)


def columns(table):
    """Return the rows as columns; a column with one value for all rows may be an int."""
    array = np.array(table, np.int64).reshape(-1, 4)
    result = []
    for column in array.T:
        constant = len(table) > 1 and len(set(column.tolist())) == 1 and (column is not array.T[2])
        result.append(int(column[0]) if constant else column)
    result[2] = array.T[2]  # at least one column must be an array
    return result


class Machine(RuleBasedStateMachine):
    steps = 0  # the number of steps of all machines

    def __init__(self):
        super().__init__()
        self.views = []

    @initialize(capacity=st.sampled_from([0, 1, 100]))
    def start(self, capacity):
        self.heap, self.model = self.make(capacity)
        Machine.steps -= 1  # `same` counts this one too

    def every(self, table, call):
        return [call(*row) for row in table]

    def spread(self, seed):
        """Push a few hundred rows, enough to use every bulk algorithm."""
        rng = np.random.default_rng(seed)
        n, wide = int(rng.integers(10, 400)), int(rng.choice([10, 200, 10**6]))
        draw = rng.integers(0, wide, (n, 4))
        draw[:, 3] %= 3
        return draw.tolist()

    @rule(timestamp=timestamps, key_hash=key_hashes, namespace=namespaces)
    def push(self, timestamp, key_hash, namespace):
        timer = timestamp, key_hash, namespace
        assert self.heap.push(*timer) is self.model.push(*timer)

    @rule(table=st.one_of(rows, seeds))
    def push_many(self, table):
        table = self.spread(table) if isinstance(table, int) else table
        ts, _, key, ns = columns(table)
        expected = self.every([(row[0], row[2], row[3]) for row in table], self.model.push)
        assert self.heap.push_many(ts, key, ns).tolist() == expected

    @rule(shift=st.integers(0, 3))
    def push_own_views(self, shift):
        if INT64_MAX - shift < max(self.heap.timestamps, default=0):
            return
        table = [(timer.timestamp + shift, timer.key_hash, timer.namespace) for timer in self.heap]
        expected = self.every(table, self.model.push)
        ts = self.heap.timestamps + shift if shift else self.heap.timestamps
        assert self.heap.push_many(ts, self.heap.key_hashes, self.heap.namespaces).tolist() == expected

    @precondition(lambda self: len(self.heap))
    @rule()
    def pop(self):
        assert self.heap.pop() == self.model.pop()

    @rule(watermark=timestamps, limit=st.one_of(st.none(), st.integers(0, 30)))
    def pop_due(self, watermark, limit):
        assert self.heap.count_due(watermark) == self.model.count_due(watermark)
        assert list(self.heap.pop_due(watermark, limit)) == self.model.pop_due(watermark, limit)

    @rule(share=st.floats(0, 1), limited=st.one_of(st.none(), st.floats(0, 1)))
    def pop_due_share(self, share, limited):
        if not len(self.heap):
            return
        watermark = int(np.quantile(self.heap.timestamps, share, method="lower"))
        limit = None if limited is None else int(limited * len(self.heap))
        assert list(self.heap.pop_due(watermark, limit)) == self.model.pop_due(watermark, limit)

    @rule(keys=st.one_of(st.lists(key_hashes, max_size=5), key_hashes))
    def remove_keys(self, keys):
        expected = self.model.remove_keys(keys if isinstance(keys, list) else [keys])
        assert self.heap.remove_keys(keys) == expected

    @rule(n=st.integers(0, 300))
    def reserve(self, n):
        self.heap.reserve(n)

    @rule()
    def clear(self):
        self.heap.clear()
        self.model.clear()

    @rule(way=st.sampled_from([copy.copy, copy.deepcopy, lambda heap: heap.from_bytes(heap.to_bytes())]))
    def go_on_with_a_copy(self, way):
        old, self.heap = self.heap, way(self.heap)
        assert list(self.heap) == list(old)
        assert type(self.heap) is type(old)
        old.clear()

    @rule(protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
    def go_on_with_a_pickle(self, protocol):
        self.heap = pickle.loads(pickle.dumps(self.heap, protocol))

    @rule()
    def hold_views(self):
        self.views = [*self.views[-6:], self.heap.timestamps, self.heap.key_hashes, self.heap.namespaces]

    @rule(column=st.sampled_from([[1.5], [None], np.ones(2), np.ones((1, 1), int), "1", [2**63], [1, 2, 3]]))
    def be_refused(self, column):
        for method in ("push_many", "remove_many"):
            with pytest.raises((TypeError, ValueError, OverflowError)):
                getattr(self.heap, method)(column, np.arange(2))
        with pytest.raises(ValueError, match="data"):
            self.heap.from_bytes(self.heap.to_bytes() + b"x")
        with pytest.raises(OverflowError):
            self.heap.push(2**63, 0)

    @precondition(lambda self: len(self.heap) > 1)
    @rule()
    def iterate(self):
        timers = list(self.heap)
        iterator = iter(self.heap)
        assert next(iterator) == self.model.peek() == timers[0]
        assert list(iterator) == timers[1:]
        iterator = iter(self.heap)
        next(iterator)
        self.heap.pop()
        self.model.pop()
        with pytest.raises(RuntimeError, match="changed"):
            next(iterator)

    @invariant()
    def same(self):
        Machine.steps += 1
        self.heap._check()
        assert len(self.heap) == len(self.model.timers)
        assert self.heap.nbytes >= 28 * len(self.heap)
        assert repr(self.heap).startswith(f"<timerheap.{type(self.heap).__name__} of {len(self.heap)} timers")
        assert self.heap.peek() == self.model.peek()
        assert set(self.heap) == self.model.timers
        assert [len(self.heap)] * 3 == [
            len(c) for c in (self.heap.timestamps, self.heap.key_hashes, self.heap.namespaces)
        ]
        for view in self.views:  # stale or not, it must be valid memory
            view.sum()
            assert not view.flags.writeable


class TimerHeapMachine(Machine):
    def make(self, capacity):
        return TimerHeap(capacity), TimerHeapModel()

    @rule(timestamp=timestamps, key_hash=key_hashes, namespace=namespaces)
    def remove(self, timestamp, key_hash, namespace):
        timer = timestamp, key_hash, namespace
        assert (timer in self.heap) is (timer in self.model.timers)
        assert self.heap.remove(*timer) is self.model.remove(*timer)

    @rule(row=st.tuples(timestamps, timestamps, key_hashes, namespaces))
    def reschedule(self, row):
        assert self.heap.reschedule(*row) is self.model.reschedule(*row)

    @rule(table=rows)
    def reschedule_many(self, table):
        expected = self.every(table, self.model.reschedule)
        assert self.heap.reschedule_many(*columns(table)).tolist() == expected

    @rule(table=rows)
    def remove_many(self, table):
        ts, _, key, ns = columns(table)
        expected = self.every([(row[0], row[2], row[3]) for row in table], self.model.remove)
        assert self.heap.remove_many(ts, key, ns).tolist() == expected

    @rule(seed=seeds, share=st.floats(0, 1), remove=st.booleans())
    def change_a_share(self, seed, share, remove):
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self.heap))[: int(share * len(self.heap)) + 1]
        table = np.array([*self.heap], np.int64).reshape(-1, 3)[chosen]
        ts, key, ns = table.T
        if remove:
            expected = self.every(table.tolist(), self.model.remove)
            assert self.heap.remove_many(ts, key, ns).tolist() == expected
        else:
            to = rng.integers(0, 50, len(table))
            expected = self.every(np.column_stack([ts, to, key, ns]).tolist(), self.model.reschedule)
            assert self.heap.reschedule_many(ts, to, key, ns).tolist() == expected

    @rule()
    def remove_own_views(self):
        heap = self.heap
        assert heap.remove_many(heap.timestamps, heap.key_hashes, heap.namespaces).all()
        self.model.clear()


class KeyTimerHeapMachine(Machine):
    def make(self, capacity):
        return KeyTimerHeap(capacity), KeyTimerHeapModel()

    @rule(key_hash=key_hashes, namespace=namespaces)
    def remove(self, key_hash, namespace):
        assert self.heap.timestamp_of(key_hash, namespace) == self.model.timestamp_of(key_hash, namespace)
        there = self.model.remove(key_hash, namespace)
        assert ((key_hash, namespace) in self.heap) is there
        assert self.heap.remove(key_hash, namespace) is there

    @rule(table=rows)
    def remove_many(self, table):
        _, _, key, ns = columns(table)
        known = self.every([row[2:] for row in table], self.model.timestamp_of)
        timestamps, found = self.heap.timestamps_of(key, ns)
        assert found.tolist() == [timestamp is not None for timestamp in known]
        assert timestamps.tolist() == [timestamp or 0 for timestamp in known]
        expected = self.every([row[2:] for row in table], self.model.remove)
        assert self.heap.remove_many(key, ns).tolist() == expected

    @rule(seed=seeds, share=st.floats(0, 1))
    def move_a_share(self, seed, share):
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(len(self.heap))[: int(share * len(self.heap)) + 1]
        key, ns = self.heap.key_hashes[chosen], self.heap.namespaces[chosen]
        to = rng.integers(0, 50, len(chosen))
        expected = self.every(np.column_stack([to, key, ns]).tolist(), self.model.push)
        assert self.heap.push_many(to, key, ns).tolist() == expected


TestTimerHeap = TimerHeapMachine.TestCase
TestKeyTimerHeap = KeyTimerHeapMachine.TestCase
TestTimerHeap.settings = TestKeyTimerHeap.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None
)


@pytest.mark.parametrize("machine", [TimerHeapMachine, KeyTimerHeapMachine])
def test_the_machine_calls_every_method(machine):
    heap, _ = machine().make(0)
    source = inspect.getsource(Machine) + inspect.getsource(machine)
    missing = [name for name in dir(heap) if not name.startswith("_") and f"heap.{name}" not in source]
    assert not set(missing) - {"copy"}  # called by copy.copy
