"""The manager of timer services: order of services and watermarks, snapshots and rescaling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from managed_operator import Named, Operator

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.flink import (
    InternalTimeServiceManager,
    KeyContext,
    KeyGroupRange,
    ManualProcessingTimeService,
    TimerQueue,
    assign_to_key_group,
)
from timerheap.flink.timer_service_manager import KeyGroupSnapshot


def test_services_advance_in_order_of_creation_before_the_watermark_is_emitted():
    operator = Operator(["z", "a", "m"])
    for name in "amz":
        operator.register(name, "key", 5)
    operator.manager.advance_watermark(4)
    operator.manager.advance_watermark(7)
    assert operator.log == [
        ("downstream", 4),
        ("z", "key", 5),
        ("a", "key", 5),
        ("m", "key", 5),
        ("downstream", 7),
    ]
    assert [service.current_watermark() for service in operator.services.values()] == [7, 7, 7]
    assert operator.manager.current_output_watermark() == 7


def test_a_name_returns_the_same_service_with_its_first_triggerable():
    operator = Operator(["a"])
    service = operator.services["a"]
    assert operator.manager.get_internal_timer_service("a", None) is service
    assert operator.get("b") is not service
    operator.register("a", "key", 1)
    operator.manager.advance_watermark(1)
    assert operator.log[0] == ("a", "key", 1)


def test_services_share_the_key_context_and_the_clock():
    context, clock = KeyContext(), ManualProcessingTimeService()
    manager = InternalTimeServiceManager(clock, context)
    operator = Operator([])
    one, two = (manager.get_internal_timer_service(name, Named(name, operator)) for name in "ab")
    context.current_key = "key"
    one.register_processing_time_timer(None, 20)
    two.register_processing_time_timer(None, 10)
    two.register_event_time_timer(None, 10)
    assert (manager.num_event_time_timers(), manager.num_processing_time_timers()) == (1, 2)
    clock.set_current_time(30)
    assert operator.log == [("b", "key", 10), ("a", "key", 20)]
    assert manager.num_processing_time_timers() == 0


def test_a_watermark_that_does_not_rise_is_not_emitted():
    operator = Operator(["a"])
    for watermark in (MIN_WATERMARK, 5, 5, 3, 6, MAX_WATERMARK):
        operator.manager.advance_watermark(watermark)
    assert operator.log == [("downstream", 5), ("downstream", 6), ("downstream", MAX_WATERMARK)]


def test_a_watermark_is_emitted_without_services():
    operator = Operator([])
    operator.manager.advance_watermark(5)
    assert operator.manager.try_advance_watermark(7, limit=1) is True
    assert operator.log == [("downstream", 5), ("downstream", 7)]


def test_an_error_in_a_callback_holds_the_watermark_until_the_next_advance():
    def fail(name, timer):
        if (name, timer.timestamp) == ("a", 2):
            raise KeyError("in a callback")

    operator = Operator("ab", then=fail)
    for name in "ab":
        for timestamp in (1, 2, 3):
            operator.register(name, "key", timestamp)
    with pytest.raises(KeyError, match="in a callback"):
        operator.manager.advance_watermark(5)
    assert operator.log == [("a", "key", 1), ("a", "key", 2)]
    operator.manager.advance_watermark(9)
    assert operator.log[2:] == [
        *[("a", "key", 3), ("b", "key", 1), ("b", "key", 2), ("b", "key", 3)],
        *[("downstream", 5), ("downstream", 9)],
    ]


def test_a_watermark_is_emitted_again_after_an_error_downstream():
    told = []

    def emit(watermark):
        told.append(watermark)
        if len(told) == 1:
            raise OSError("downstream")

    manager = InternalTimeServiceManager(ManualProcessingTimeService(), emit_watermark=emit)
    with pytest.raises(OSError, match="downstream"):
        manager.advance_watermark(5)
    assert manager.current_output_watermark() == MIN_WATERMARK
    manager.advance_watermark(5)
    assert (told, manager.current_output_watermark()) == ([5, 5], 5)


@pytest.mark.parametrize("nested", ["advance_watermark", "try_advance_watermark"])
def test_a_watermark_from_a_callback_follows_the_current_one(nested):
    def advance_further(name, timer):
        if timer.timestamp == 1:
            limit = [1] if nested == "try_advance_watermark" else []
            assert not getattr(operator.manager, nested)(9, *limit)

    operator = Operator("ab", then=advance_further)
    for name in "ab":
        for timestamp in (1, 2, 7):
            operator.register(name, "key", timestamp)
    operator.manager.advance_watermark(5)
    assert operator.log == [
        *[("a", "key", 1), ("a", "key", 2), ("b", "key", 1), ("b", "key", 2), ("downstream", 5)],
        *[("a", "key", 7), ("b", "key", 7), ("downstream", 9)],
    ]


def test_a_watermark_from_downstream_follows_the_current_one():
    told = []

    def emit(watermark):
        told.append(watermark)
        if watermark < 30:
            manager.advance_watermark(watermark + 10)

    manager = InternalTimeServiceManager(ManualProcessingTimeService(), emit_watermark=emit)
    manager.advance_watermark(10)
    assert (told, manager.current_output_watermark()) == ([10, 20, 30], 30)


def test_a_new_service_starts_at_the_lowest_watermark():
    operator = Operator(["a"])
    operator.manager.advance_watermark(5)
    operator.services["b"] = operator.get("b")
    assert operator.services["b"].current_watermark() == MIN_WATERMARK
    assert operator.manager.current_output_watermark() == 5
    operator.register("b", "key", 6)
    operator.register("b", "key", 8)
    assert operator.manager.try_advance_watermark(9, limit=1) is False
    assert operator.manager.try_advance_watermark(9, limit=1) is True
    assert operator.log == [*[("downstream", 5), ("b", "key", 6), ("b", "key", 8), ("downstream", 9)]]


def test_a_service_created_in_a_callback_takes_part_in_the_next_advance():
    def ask(name, timer):
        operator.services["b"] = operator.get("b")
        operator.register("b", "key", 4)

    operator = Operator(["a"], then=ask)
    operator.register("a", "key", 3)
    operator.manager.advance_watermark(5)
    operator.then = lambda name, timer: None
    operator.manager.advance_watermark(6)
    assert operator.log == [("a", "key", 3), ("downstream", 5), ("b", "key", 4), ("downstream", 6)]


class Draining(Operator):
    """An operator that checks, at each watermark, that every timer registered in time has fired."""

    def __init__(self, rules):
        super().__init__("abc", then=self.follow)
        self.rules = rules  # timestamp -> what its callback registers: service, delta
        self.in_time = set()

    def register(self, name, key, timestamp, namespace=None):
        in_time = timestamp > self.services[name].current_output_watermark()
        super().register(name, key, timestamp)
        (self.in_time.add if in_time else self.in_time.discard)((name, key, timestamp))

    def follow(self, name, timer):
        self.log[-1] += (self.services[name].current_watermark(),)
        self.in_time.discard((name, timer.key, timer.timestamp))
        for target, delta in self.rules.get(timer.timestamp, ()):
            self.register(target, timer.key, timer.timestamp + delta)

    def emit(self, watermark):
        super().emit(watermark)
        assert all(timestamp > watermark for _, _, timestamp in self.in_time)


def endless(rules):
    """Return whether a timer's callback may register the same timestamp again."""
    return any(
        timestamp + delta in rules and delta <= 0 for timestamp, acts in rules.items() for _, delta in acts
    )


names = st.sampled_from("abc")

rules = st.dictionaries(
    st.integers(0, 20), st.lists(st.tuples(names, st.sampled_from([-3, 1, 2, 4])), max_size=3), max_size=6
).filter(lambda rules: not endless(rules))


@given(
    rules=rules,
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(names, st.integers(0, 2), st.integers(0, 20)), max_size=12),
            st.sets(st.integers(0, 25), min_size=1, max_size=3),
        ),
        max_size=3,
    ),
    limits=st.lists(st.integers(1, 5), min_size=1, max_size=10),
)
def test_limited_advances_fire_timers_in_the_same_order(rules, steps, limits):
    whole, pieces = Draining(rules), Draining(rules)
    for timers, watermarks in steps:
        for name, key, timestamp in timers:
            whole.register(name, key, timestamp)
            pieces.register(name, key, timestamp)
        for watermark in sorted(watermarks):
            whole.manager.advance_watermark(watermark)
        for watermark in sorted(watermarks)[:-1]:  # each may come before the last one has finished
            pieces.manager.try_advance_watermark(watermark, limits[0])
        for limit in limits:
            fired = len([entry for entry in pieces.log if entry[0] != "downstream"])
            done = pieces.manager.try_advance_watermark(max(watermarks), limit)
            fired = len([entry for entry in pieces.log if entry[0] != "downstream"]) - fired
            assert fired == limit or (done and fired < limit)
            if done:
                break
        else:
            pieces.manager.advance_watermark(max(watermarks))
        assert pieces.log == whole.log


@pytest.mark.parametrize(
    ("watermark", "limit", "error", "message"),
    [
        (5, 0, ValueError, "limit must be 1 or more, got 0"),
        (5, None, TypeError, "limit must be an int, got None"),
        ("5", 1, TypeError, "watermark must be an int, got '5'"),
    ],
)
def test_an_invalid_advance_raises_and_changes_nothing(watermark, limit, error, message):
    operator = Operator(["a"])
    operator.register("a", "key", 1)
    with pytest.raises(error, match=message):
        operator.manager.try_advance_watermark(watermark, limit)
    with pytest.raises(TypeError, match="watermark must be an int"):
        operator.manager.advance_watermark(None)
    assert operator.log == []
    assert operator.services["a"].current_watermark() == MIN_WATERMARK


def test_a_custom_queue_is_used():
    made = {}

    def create_queue(name):
        made[name] = TimerQueue(max_parallelism=4, hash_code=lambda key: 0)
        return made[name]

    operator = Operator("a", max_parallelism=4, hash_code=lambda key: 0, create_queue=create_queue)
    assert list(made) == ["a/event_time", "a/processing_time"]
    operator.register("a", b"bytes", 5)
    assert list(made["a/event_time"]) == [(5, b"bytes", None)]
    key_group = assign_to_key_group(0, 4, "int")
    services = {g: KeyGroupSnapshot.from_bytes(d).services for g, d in operator.manager.snapshot().items()}
    assert [g for g, (service,) in services.items() if service.event_time_timers] == [key_group]


def test_a_create_queue_that_returns_none_raises():
    manager = InternalTimeServiceManager(ManualProcessingTimeService(), create_queue=lambda name: None)
    with pytest.raises(
        TypeError, match="create_queue must return a KeyedTimerQueue, got None for 'a/event_time'"
    ):
        manager.get_internal_timer_service("a", None)
    assert set(map(len, manager.snapshot().values())) == {len(KeyGroupSnapshot(0, 128, []).to_bytes())}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_parallelism": 0}, ValueError, "max_parallelism must be from 1 to 32768"),
        ({"key_group_range": (0, 3)}, TypeError, "key_group_range must be a KeyGroupRange"),
        ({"key_group_range": KeyGroupRange(0, 200)}, ValueError, "key_group_range must lie below"),
    ],
)
def test_an_invalid_constructor_argument_raises(arguments, error, message):
    with pytest.raises(error, match=message):
        InternalTimeServiceManager(ManualProcessingTimeService(), **arguments)


@pytest.mark.parametrize("name", [None, 7, b"a"])
def test_a_service_name_that_is_not_a_str_raises(name):
    with pytest.raises(TypeError, match="name must be a str"):
        Operator([]).get(name)
