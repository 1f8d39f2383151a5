"""The timer queue compared with a model under any sequence of calls, and further behaviour."""

import gc
import weakref

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from queue_model import QueueModel

from timerheap.flink import InternalTimer, KeyGroupRange, TimerQueue

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Few values, so that calls often use the same timers.
timestamps = st.one_of(st.integers(-2, 12), st.sampled_from([INT64_MIN, INT64_MAX, -(2**32), 2**32]))
keys = st.one_of(
    st.integers(-4, 4),
    st.sampled_from(["", "a", "b", "\N{SNOWMAN}", 2.5, (1, "a"), (1, None), (("a",), -1), INT64_MIN]),
)
namespaces = st.sampled_from([None, "n", (0, 100), (100, 200), frozenset({1})])
timers = st.builds(InternalTimer, timestamps, keys, namespaces)
wrong_timestamps = st.sampled_from([2**63, -(2**63) - 1, 1.0, "1", None])


def outcome(call, *arguments):
    """Return the result of a call, or the built-in type of the error that it raises."""
    try:
        return call(*arguments)
    except (TypeError, ValueError, OverflowError) as error:
        return next(kind for kind in (TypeError, OverflowError, ValueError) if isinstance(error, kind))


class AgainstTheModel(RuleBasedStateMachine):
    """Calls the queue and the model with the same arguments, and expects equal results and errors."""

    @initialize(owned=st.sampled_from([(0, 3), (0, 1), (2, 3)]))
    def start(self, owned):
        self.owned = KeyGroupRange(*owned)
        self.queue = TimerQueue(4, self.owned)
        self.model = QueueModel(4, self.owned)

    def both(self, method, *arguments):
        answer = outcome(getattr(self.queue, method), *arguments)
        expected = outcome(getattr(self.model, method), *arguments)
        assert answer == expected
        assert type(answer) is type(expected)

    @rule(timer=timers)
    def add(self, timer):
        self.both("add", timer)

    @rule(timer=timers)
    def remove(self, timer):
        self.both("remove", timer)

    @rule(data=st.data())
    def remove_one_that_is_there(self, data):
        if self.model:
            self.both("remove", data.draw(st.sampled_from(sorted(self.model, key=repr))))

    @rule()
    def poll(self):
        self.both("poll")

    @rule(many=st.lists(timers, max_size=30))
    def add_many(self, many):
        self.both("add_many", many)

    @rule(many=st.lists(timers, max_size=5), timestamp=wrong_timestamps, timer=timers)
    def add_many_with_a_wrong_timestamp(self, many, timestamp, timer):
        wrong = timer._replace(timestamp=timestamp)
        assert outcome(self.queue.add_many, [*many, wrong]) in (TypeError, ValueError, OverflowError)

    @rule(method=st.sampled_from(["add", "remove"]), timestamp=wrong_timestamps, timer=timers)
    def wrong_timestamp(self, method, timestamp, timer):
        wrong = timer._replace(timestamp=timestamp)
        assert outcome(getattr(self.queue, method), wrong) in (TypeError, ValueError, OverflowError)

    @rule(some=st.lists(keys, max_size=6))
    def remove_keys(self, some):
        self.both("remove_keys", some)

    @rule(key=keys)
    def timers_of_key(self, key):
        self.both("timers_of_key", key)

    @rule(key_group=st.integers(-1, 4))
    def get_subset_for_key_group(self, key_group):
        self.both("get_subset_for_key_group", key_group)

    @rule(timer=timers)
    def contains(self, timer):
        assert (timer in self.queue) is (timer in self.model.timers)

    @rule()
    def clear(self):
        self.both("clear")

    @invariant()
    def same(self):
        assert self.queue.peek() == self.model.peek()
        assert len(self.queue) == len(self.model)
        assert self.queue.is_empty() is (not self.model)
        listed = list(self.queue)
        assert set(listed) == self.model.timers
        assert len(listed) == len(self.model)

    def teardown(self):
        polled = [self.queue.poll() for _ in range(len(self.model))]
        assert polled == [self.model.poll() for _ in polled]
        assert self.queue.poll() is None


TestAgainstTheModel = AgainstTheModel.TestCase


def test_the_head_has_the_fields_of_the_added_timer():
    queue = TimerQueue()
    key, namespace = ("N14228", 7), (0, 60_000)
    queue.add((5, key, namespace))
    head = queue.peek()
    assert head == InternalTimer(5, key, namespace)
    assert (head.timestamp, head.key, head.namespace) == (5, key, namespace)
    assert head.key is key
    assert head.namespace is namespace


def test_numpy_integers_are_accepted_as_ints():
    queue = TimerQueue()
    assert queue.add((np.int64(5), np.int64(-7), None)) is True
    assert (5, -7, None) in queue
    assert type(queue.peek().timestamp) is int
    assert queue.add((np.int64(4), -7, None)) is True
    assert queue.remove((4, -7, None)) is True


class Key:
    """A key that supports weak references."""


def key_hash_code(key):
    return 0


LEAVE = {
    "poll": lambda queue, timer: queue.poll(),
    "remove": lambda queue, timer: queue.remove(timer),
    "remove_keys": lambda queue, timer: queue.remove_keys([timer[1]]),
    "clear": lambda queue, timer: queue.clear(),
}


@pytest.mark.parametrize("leave", LEAVE)
def test_a_key_and_a_namespace_are_released_with_their_last_timer(leave):
    queue = TimerQueue(hash_code=key_hash_code)
    for _ in range(3):
        key, namespace = Key(), Key()
        gone = [weakref.ref(key), weakref.ref(namespace)]
        queue.add((1, key, namespace))
        queue.add((2, key, namespace))
        queue.remove((1, key, namespace))
        assert gone[0]() is key
        LEAVE[leave](queue, (2, key, namespace))
        del key, namespace
        gc.collect()
        assert [reference() for reference in gone] == [None, None]


def test_a_key_of_an_invalid_timer_is_not_kept():
    queue = TimerQueue(hash_code=key_hash_code)
    key = Key()
    gone = weakref.ref(key)
    for wrong in ("now", 2**63):
        with pytest.raises((TypeError, OverflowError)):
            queue.add((wrong, key, None))
        with pytest.raises((TypeError, OverflowError)):
            queue.add_many([(0, key, None), (wrong, key, None)])
    assert queue.remove((1, key, None)) is False
    assert (1, key, None) not in queue
    del key
    gc.collect()
    assert gone() is None
    assert not queue


def test_add_many_adds_all_timers_or_none():
    queue = TimerQueue(max_parallelism=128, key_group_range=KeyGroupRange(72, 72))
    queue.add((3, "key", None))
    for wrong in [(1, "other", None), (1, "key"), (1.5, "key", None), (1, ["key"], None), None]:
        with pytest.raises((TypeError, ValueError)):
            queue.add_many([(1, "key", None), (2, "key", "new"), wrong])
        assert list(queue) == [(3, "key", None)]

    def failing():
        yield (1, "key", None)
        raise KeyError("from the iterator")

    with pytest.raises(KeyError, match="from the iterator"):
        queue.add_many(failing())
    assert list(queue) == [(3, "key", None)]
    queue.add_many(iter([(4, "key", None), (3, "key", None), (4, "key", None)]))
    assert sorted(queue) == [(3, "key", None), (4, "key", None)]


def test_a_queue_may_change_during_iteration():
    queue = TimerQueue()
    queue.add_many((timestamp, "key", None) for timestamp in range(10))
    for timer in queue:
        queue.remove(timer)
        queue.add((timer.timestamp + 100, "key", None))
    assert sorted(timer.timestamp for timer in queue) == list(range(100, 110))


@pytest.mark.parametrize(
    ("timer", "error", "message"),
    [
        ((1, ["a"], None), TypeError, "hashable"),
        ((1, "a", {}), TypeError, "hashable"),
        ((1, "a"), TypeError, r"timer must be \(timestamp, key, namespace\)"),
        (7, TypeError, "timer must be"),
        (("7", "a", None), TypeError, "timestamp.*'7'"),
        ((True, "a", None), TypeError, "timestamp.*True"),
        ((7.5, "a", None), TypeError, "timestamp.*7.5"),
        ((2**63, "a", None), OverflowError, "timestamp.*9223372036854775808"),
        ((1, None, None), TypeError, "key must be"),
        ((1, b"a", None), TypeError, "key must be"),
        ((1, float("nan"), None), ValueError, "key must equal itself"),
        ((1, 2**63, None), OverflowError, "key must be.*9223372036854775808"),
    ],
)
@pytest.mark.parametrize("method", ["add", "remove"])
def test_an_invalid_timer_raises_an_error_that_names_it(method, timer, error, message):
    queue = TimerQueue()
    with pytest.raises(error, match=message):
        getattr(queue, method)(timer)
    assert len(queue) == 0


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        ("add", (1, "key", None)),
        ("remove", (1, "key", None)),
        ("add_many", [(1, "b", None), (1, "key", None)]),
        ("timers_of_key", "key"),
        ("remove_keys", ["b", "key"]),
    ],
)
def test_a_key_outside_the_owned_range_raises(method, argument):
    queue = TimerQueue(128, KeyGroupRange(0, 71))
    queue.add((5, "b", None))
    with pytest.raises(ValueError, match=r"key must belong to KeyGroupRange.*'key' of key group 72"):
        getattr(queue, method)(argument)
    assert list(queue) == [(5, "b", None)]
    with pytest.raises(ValueError, match=r"key_group must be in .*got 72"):
        queue.get_subset_for_key_group(72)


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("remove_keys", ("key",), TypeError, "keys must be an iterable of keys, got the single key 'key'"),
        ("remove_keys", (7,), TypeError, "keys must be an iterable of hashable keys, got 7"),
        ("remove_keys", ([["key"]],), TypeError, "keys must be an iterable of hashable keys"),
        ("remove_keys", (["key", None],), TypeError, "key must be"),
        ("timers_of_key", (["key"],), TypeError, "hashable"),
        ("timers_of_key", (float("nan"),), ValueError, "key must equal itself"),
    ],
)
def test_an_invalid_bulk_call_raises_and_leaves_the_queue_unchanged(method, arguments, error, message):
    queue = TimerQueue()
    queue.add((5, "key", None))
    with pytest.raises(error, match=message):
        getattr(queue, method)(*arguments)
    assert list(queue) == [(5, "key", None)]


def test_an_invalid_constructor_argument_raises():
    with pytest.raises(ValueError, match="max_parallelism must be from 1 to 32768, got 0"):
        TimerQueue(0)
    with pytest.raises(TypeError, match=r"max_parallelism must be an int, got 1\.5"):
        TimerQueue(1.5)
    with pytest.raises(TypeError, match="max_parallelism must be an int, got True"):
        TimerQueue(True)
    with pytest.raises(TypeError, match="key_group_range must be a KeyGroupRange"):
        TimerQueue(4, (0, 3))
    with pytest.raises(ValueError, match="key_group_range must lie below max_parallelism=4"):
        TimerQueue(4, KeyGroupRange(0, 4))


def test_a_queue_of_some_key_groups_uses_the_hash_code_it_was_given():
    owned = KeyGroupRange(8, 15)
    queue = TimerQueue(max_parallelism=16, key_group_range=owned, hash_code=key_hash_code)
    queue.add((1, Key(), None))  # without a Java hash code
    assert [len(queue.get_subset_for_key_group(key_group)) for key_group in owned] == [0, 0, 0, 0, 0, 0, 1, 0]
