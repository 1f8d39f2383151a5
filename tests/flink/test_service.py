"""The timer service beyond the traces: failures, limits and the system clock."""

import random
import threading

import pytest
from timer_recorder import Recorder, held

from timerheap import MAX_WATERMARK, MIN_WATERMARK, TimeDomain
from timerheap.flink import (
    InternalTimer,
    InternalTimerService,
    KeyContext,
    SystemProcessingTimeService,
)

LONG = 60  # seconds; a timeout that no test reaches


# ---- event time ----


def test_watermarks_start_at_min_watermark_and_may_reach_max_watermark(service, recorder):
    assert service.current_watermark() == MIN_WATERMARK == -(2**63)
    service.register_event_time_timer(None, MAX_WATERMARK)
    service.register_event_time_timer(None, MIN_WATERMARK)
    service.advance_watermark(MIN_WATERMARK)
    assert recorder.timestamps() == [MIN_WATERMARK]
    service.advance_watermark(MAX_WATERMARK - 1)
    assert len(recorder.fired) == 1
    service.advance_watermark(MAX_WATERMARK)
    assert recorder.timestamps() == [MIN_WATERMARK, MAX_WATERMARK]
    assert service.current_watermark() == MAX_WATERMARK == 2**63 - 1


def test_the_watermark_is_set_and_the_timer_removed_before_the_callback(service, recorder):
    def look(timer):
        assert service.current_watermark() == 10
        assert service.num_event_time_timers() == 0
        assert service.key_context.current_key == "key"

    recorder.then = look
    service.register_event_time_timer("namespace", 7)
    service.key_context.current_key = "another"
    service.advance_watermark(10)
    assert recorder.fired == [(TimeDomain.EVENT_TIME, InternalTimer(7, "key", "namespace"))]


def test_small_steps_of_the_watermark_fire_the_same_timers_as_one_step(service, recorder):
    timestamps = [random.Random(1).randrange(100) for _ in range(200)]
    for namespace, timestamp in enumerate(timestamps):
        service.register_event_time_timer(namespace, timestamp)
    for watermark in range(0, 101, 7):
        service.advance_watermark(watermark)
        assert recorder.timestamps() == sorted(t for t in timestamps if t <= watermark)


def test_an_exception_in_a_callback_loses_only_its_own_timer(service, recorder):
    def fail(timer):
        if timer.timestamp == 2:
            raise KeyError("in a callback")

    recorder.then = fail
    for timestamp in (1, 2, 3):
        service.register_event_time_timer(None, timestamp)
    with pytest.raises(KeyError, match="in a callback"):
        service.advance_watermark(5)
    assert service.current_watermark() == 5
    assert service.num_event_time_timers() == 1
    service.advance_watermark(5)
    assert recorder.timestamps() == [1, 2, 3]


# ---- processing time ----


def test_an_exception_in_a_processing_time_callback_keeps_the_other_timers(service, recorder, clock):
    def fail(timer):
        if timer.timestamp == 2:
            raise KeyError("in a callback")

    recorder.then = fail
    for timestamp in (1, 2, 3, 50):
        service.register_processing_time_timer(None, timestamp)
    with pytest.raises(KeyError, match="in a callback"):
        clock.set_current_time(10)
    assert service.num_processing_time_timers() == 2
    clock.set_current_time(10)
    assert recorder.timestamps() == [1, 2, 3]
    clock.set_current_time(51)
    assert recorder.timestamps() == [1, 2, 3, 50]


def test_a_service_has_one_callback_at_the_clock(service, clock):
    for timestamp in (50, 70, 30, 40, 10):
        service.register_processing_time_timer(None, timestamp)
        assert len(clock.get_active_timers()) == 1
    assert clock.get_active_timers() == [(10, 10)]
    service.delete_processing_time_timer(None, 10)
    assert clock.get_active_timers() == [(10, 10)]  # not cancelled; the call schedules the next one
    clock.set_current_time(11)
    assert clock.get_active_timers() == [(30, 30)]


def test_a_timer_at_max_watermark_never_fires_in_processing_time(service, clock):
    service.register_processing_time_timer(None, MAX_WATERMARK)
    assert clock.get_active_timers() == []
    assert service.num_processing_time_timers() == 1


def test_registering_at_a_shut_down_clock_raises_and_adds_no_timer(service, clock):
    service.register_processing_time_timer(None, 100)
    clock.shutdown_service()
    before = held(service)
    with pytest.raises(RuntimeError, match="shut down"):
        service.register_processing_time_timer(None, 50)
    assert held(service) == before
    service.register_event_time_timer(None, 50)  # event time still works


def test_a_callback_may_shut_the_clock_down(service, recorder, clock):
    service.register_processing_time_timer(None, 1)
    service.register_processing_time_timer(None, 100)
    recorder.then = lambda timer: clock.shutdown_service()
    clock.set_current_time(5)
    assert recorder.timestamps() == [1]
    assert service.num_processing_time_timers() == 1


def fire_on_the_system_clock(count):
    """Fire timers of many keys within a quarter of a second, and more timers from their callbacks."""
    done = threading.Event()

    def then(timer):
        if timer.namespace is None:
            service.register_processing_time_timer("again", timer.timestamp + 20)
        if len(recorder.fired) == 2 * count:
            done.set()

    recorder = Recorder(then)
    with SystemProcessingTimeService() as clock:
        service = InternalTimerService(recorder, clock)
        start = clock.get_current_processing_time() + 5
        timers = [InternalTimer(start + (i * 7919) % 250, i, None) for i in range(count)]
        for timer in timers:
            with clock.lock:
                service.key_context.current_key = timer.key
                service.register_processing_time_timer(None, timer.timestamp)
        assert done.wait(LONG)
    return timers, [timer for _, timer in recorder.fired]


def test_100k_timers_within_a_second_fire_once_and_in_order():
    done, count = threading.Event(), 100_000
    recorder = Recorder(lambda timer: len(recorder.fired) == count and done.set())
    with SystemProcessingTimeService() as clock:
        service = InternalTimerService(recorder, clock)
        with clock.lock:  # nothing fires before all timers are registered
            start = clock.get_current_processing_time()
            timers = [InternalTimer(start + (i * 7919) % 1_000, i, None) for i in range(count)]
            for timer in timers:
                service.key_context.current_key = timer.key
                service.register_processing_time_timer(None, timer.timestamp)
        assert done.wait(LONG)
    fired = [timer for _, timer in recorder.fired]
    assert [timer.timestamp for timer in fired] == sorted(timer.timestamp for timer in timers)
    assert sorted(fired) == sorted(timers)


def test_each_timer_fires_once_with_its_key_on_the_system_clock():
    timers, fired = fire_on_the_system_clock(2_000)
    again = [InternalTimer(timer.timestamp + 20, timer.key, "again") for timer in timers]
    assert sorted(fired, key=repr) == sorted([*timers, *again], key=repr)


# ---- either time ----


@pytest.mark.parametrize("domain", ["event_time", "processing_time"])
@pytest.mark.parametrize("act", ["register", "delete"])
@pytest.mark.parametrize(
    ("key", "namespace", "timestamp", "error", "message"),
    [
        ("key", None, 1.5, TypeError, r"timestamp.*1\.5"),
        ("key", None, "5", TypeError, "timestamp.*'5'"),
        ("key", None, None, TypeError, "timestamp.*None"),
        ("key", None, 2**63, OverflowError, "timestamp.*9223372036854775808"),
        ("key", None, -(2**63) - 1, OverflowError, "timestamp"),
        ("key", [], 5, TypeError, "hashable key and namespace"),
        (["key"], None, 5, TypeError, "hashable"),
        (None, None, 5, TypeError, "key must be"),
    ],
)
def test_invalid_arguments_raise_and_change_nothing(
    service, act, domain, key, namespace, timestamp, error, message
):
    for kept in (1, 9):
        service.register_event_time_timer(None, kept)
        service.register_processing_time_timer(None, kept)
    before = held(service)
    service.key_context.current_key = key
    with pytest.raises(error, match=message):
        getattr(service, f"{act}_{domain}_timer")(namespace, timestamp)
    assert held(service) == before


@pytest.mark.parametrize(
    ("watermark", "error"), [("5", TypeError), (None, TypeError), (2**63, OverflowError)]
)
def test_an_invalid_watermark_raises_and_changes_nothing(service, recorder, watermark, error):
    service.register_event_time_timer(None, 1)
    with pytest.raises(error, match="watermark"):
        service.advance_watermark(watermark)
    assert service.current_watermark() == MIN_WATERMARK
    assert recorder.fired == []


def test_timers_are_counted_by_namespace(service):
    for namespace in (None, "a", (0, 10)):
        service.register_event_time_timer(namespace, 1)
    service.register_processing_time_timer("a", 1)
    service.register_processing_time_timer("a", 1)
    service.register_processing_time_timer("a", 2)
    assert service.num_event_time_timers() == 3
    assert [service.num_event_time_timers(ns) for ns in (None, "a", (0, 10), "b")] == [1, 1, 1, 0]
    assert service.num_processing_time_timers() == 2
    assert [service.num_processing_time_timers(ns) for ns in (None, "a")] == [0, 2]


def test_a_consumer_may_change_the_timers(service):
    for key in ("a", "b"):
        service.key_context.current_key = key
        for timestamp in (1, 2):
            service.register_event_time_timer("old", timestamp)

    def renew(namespace, timestamp):
        service.delete_event_time_timer(namespace, timestamp)
        service.register_event_time_timer("new", timestamp + 10)

    service.for_each_event_time_timer(renew)
    timers, _ = held(service)
    assert timers[1:] == [("a", "new", 11), ("a", "new", 12), ("b", "new", 11), ("b", "new", 12)]


def test_services_of_one_operator_share_the_current_key(clock):
    context, one, two = KeyContext(), Recorder(), Recorder()
    assert context.current_key is None
    services = [InternalTimerService(recorder, clock, context) for recorder in (one, two)]
    for key in (1, 2):
        context.current_key = key
        for service in services:
            service.register_event_time_timer(None, key)
    services[0].advance_watermark(1)
    assert context.current_key == 1
    services[1].advance_watermark(2)
    assert context.current_key == 2
    assert one.timestamps() == [1]
    assert two.timestamps() == [1, 2]


def fill(service):
    for key in ("a", "b", "c"):
        service.key_context.current_key = key
        for timestamp in (20, 10, 30):
            service.register_event_time_timer(None, timestamp)
            service.register_processing_time_timer("ns", timestamp + 5)


def test_a_callback_for_a_deleted_timer_schedules_the_next(service, recorder, clock):
    fill(service)
    service.key_context.current_key = "d"
    service.register_processing_time_timer(None, 8)
    assert clock.get_active_timers() == [(8, 8)]
    service.delete_processing_time_timer(None, 8)
    assert clock.get_active_timers() == [(8, 8)]
    clock.set_current_time(9)
    assert recorder.fired == []
    assert clock.get_active_timers() == [(15, 15)]
