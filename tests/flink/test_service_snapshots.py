"""The timer service with queues of all kinds, and its snapshots."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_model import QueueModel
from timer_recorder import Recorder, held

from timerheap import MIN_WATERMARK
from timerheap.flink import (
    InternalTimer,
    InternalTimerService,
    KeyGroupRange,
    ManualProcessingTimeService,
    RocksDBTimerQueue,
    TimerQueue,
    assign_to_key_group,
)
from timerheap.flink.internal_timer_service import InternalTimersSnapshot


def test_timers_already_in_the_queues_fire(recorder, clock):
    queues = [TimerQueue(), TimerQueue()]
    for queue in queues:
        queue.add_many([(5, "key", None), (3, "key", None)])
    service = InternalTimerService(
        recorder, clock, event_time_timers=queues[0], processing_time_timers=queues[1]
    )
    assert clock.get_active_timers() == [(3, 3)]
    service.advance_watermark(4)
    clock.set_current_time(6)
    assert [(domain.name, timer.timestamp) for domain, timer in recorder.fired] == [
        ("EVENT_TIME", 3),
        ("PROCESSING_TIME", 3),
        ("PROCESSING_TIME", 5),
    ]


def test_one_queue_for_both_time_domains_raises(recorder, clock):
    queue = TimerQueue()
    with pytest.raises(ValueError, match="must be two queues"):
        InternalTimerService(recorder, clock, event_time_timers=queue, processing_time_timers=queue)


def with_key_groups(recorder, clock, owned):
    queues = [TimerQueue(max_parallelism=8, key_group_range=owned) for _ in range(2)]
    return InternalTimerService(
        recorder, clock, event_time_timers=queues[0], processing_time_timers=queues[1]
    )


def test_snapshots_of_key_groups_are_restored_by_their_owners_only(recorder, clock):
    whole = with_key_groups(recorder, clock, KeyGroupRange(0, 7))
    for key in range(50):
        whole.key_context.current_key = key
        whole.register_event_time_timer("ns", key)
        whole.register_processing_time_timer("ns", 1_000 + key)
    whole.advance_watermark(-5)
    snapshots = [whole.snapshot_timers_for_key_group(key_group) for key_group in range(8)]
    parts = [
        with_key_groups(Recorder(), ManualProcessingTimeService(), r)
        for r in (KeyGroupRange(0, 2), KeyGroupRange(3, 7))
    ]
    for key_group, snapshot in enumerate(snapshots):
        parts[key_group > 2].restore_timers(snapshot)
        before = held(parts[key_group <= 2])
        if snapshot.event_time_timers:
            with pytest.raises(ValueError, match="key must belong to"):
                parts[key_group <= 2].restore_timers(snapshot)
        assert held(parts[key_group <= 2]) == before
    assert sum(part.num_event_time_timers() for part in parts) == 50
    assert sum(part.num_processing_time_timers() for part in parts) == 50
    assert {part.current_watermark() for part in parts} == {MIN_WATERMARK}
    with pytest.raises(ValueError, match="key_group must be in"):
        parts[0].snapshot_timers_for_key_group(3)


def test_a_restore_schedules_a_callback_for_the_earliest_timer(service, recorder, clock):
    service.register_processing_time_timer(None, 50)
    service.restore_timers(
        InternalTimersSnapshot([], [InternalTimer(20, "key", None), InternalTimer(70, "key", None)])
    )
    assert clock.get_active_timers() == [(20, 20)]
    service.restore_timers(InternalTimersSnapshot([], []))
    assert clock.get_active_timers() == [(20, 20)]
    clock.set_current_time(100)
    assert recorder.timestamps() == [20, 50, 70]


@pytest.mark.parametrize("queue_class", [TimerQueue, RocksDBTimerQueue], ids=["heap", "rocksdb"])
@pytest.mark.parametrize("events_fail", [False, True])
@pytest.mark.parametrize(
    "wrong", [(5, "of another operator", None), (2**63, 1, None), (5, object(), None), (5, 1), None]
)
def test_a_restore_that_fails_adds_no_timer_in_either_domain(
    recorder, clock, queue_class, events_fail, wrong
):
    owned = KeyGroupRange(0, 0)
    keys = [key for key in range(1_000) if assign_to_key_group(key, 128) == 0]
    queues = [queue_class(key_group_range=owned) for _ in range(2)]
    service = InternalTimerService(
        recorder, clock, event_time_timers=queues[0], processing_time_timers=queues[1]
    )
    for service.key_context.current_key in keys[:2]:
        service.register_event_time_timer(None, 20)
        service.register_processing_time_timer(None, 20)
    before, waiting = held(service), clock.get_active_timers()
    fine = [InternalTimer(at, key, None) for at in (10, 20, 30) for key in keys[:4]]
    kinds = [fine, [*fine[:5], wrong, *fine[5:]]]
    snapshot = InternalTimersSnapshot(*reversed(kinds) if events_fail else kinds)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        service.restore_timers(snapshot)
    assert held(service) == before
    assert clock.get_active_timers() == waiting
    service.restore_timers(InternalTimersSnapshot(fine, fine))
    assert service.num_event_time_timers() == service.num_processing_time_timers() == 12
    assert clock.get_active_timers() == [(10, 10)]


@pytest.mark.parametrize("queue_class", [TimerQueue, RocksDBTimerQueue], ids=["heap", "rocksdb"])
def test_a_restore_at_a_shut_down_clock_raises_and_adds_no_timer(recorder, clock, queue_class):
    queues = [queue_class() for _ in range(2)]
    service = InternalTimerService(
        recorder, clock, event_time_timers=queues[0], processing_time_timers=queues[1]
    )
    clock.shutdown_service()
    with pytest.raises(RuntimeError, match="shut down"):
        service.restore_timers(InternalTimersSnapshot([(5, "key", None)], [(5, "key", None)]))
    assert service.num_event_time_timers() == service.num_processing_time_timers() == 0


acts = st.lists(
    st.tuples(
        st.sampled_from(["register", "register", "register", "delete", "advance"]),
        st.sampled_from(["event_time", "processing_time"]),
        st.integers(0, 4),
        st.sampled_from([None, "ns"]),
        st.integers(-3, 30),
    ),
    max_size=60,
)


def run(make_queue, jump, steps):
    """Return all timers that fire, and the state of the service after each step."""

    def then(timer):
        # every second callback registers timers, some of which are already due
        if timer.timestamp % 2:
            service.register_event_time_timer("from a callback", timer.timestamp + 3)
            service.register_processing_time_timer("from a callback", timer.timestamp + 5)

    recorder, clock = Recorder(then), ManualProcessingTimeService(jump=jump)
    service = InternalTimerService(
        recorder, clock, event_time_timers=make_queue(), processing_time_timers=make_queue()
    )
    states = []
    for act, domain, key, namespace, timestamp in steps:
        service.key_context.current_key = key
        if act != "advance":
            getattr(service, f"{act}_{domain}_timer")(namespace, timestamp)
        elif domain == "event_time":
            service.advance_watermark(timestamp)
        else:
            clock.set_current_time(timestamp)
        states.append((held(service), clock.get_active_timers()))
    return recorder.fired, states


@settings(deadline=None)
@given(steps=acts, jump=st.booleans())
def test_a_service_works_alike_with_any_queue(steps, jump):
    assert run(TimerQueue, jump, steps) == run(QueueModel, jump, steps)
