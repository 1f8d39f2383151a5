"""Snapshots of a manager of timer services: restored by key groups, on other queues, and refused."""

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from managed_operator import Operator

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap._native._core import seal
from timerheap.flink import (
    InternalTimeServiceManager,
    KeyGroupRange,
    ManualProcessingTimeService,
    RocksDBTimerQueue,
    TimerQueue,
    assign_to_key_group,
)
from timerheap.flink.timer_bytes import SERIALIZERS, TypeSerializer
from timerheap.flink.timer_service_manager import KeyGroupSnapshot, ServiceSnapshot

keys = st.integers(-5, 5) | st.sampled_from(["", "a", "Zoë", (1, "a"), 2.5])

namespaces = st.sampled_from([None, "landed", (0, 60_000), -7, True])
entries = st.tuples(
    st.sampled_from(["a", "b"]),
    st.sampled_from(["event", "processing"]),
    st.integers(MIN_WATERMARK, MAX_WATERMARK),
    keys,
    namespaces,
)


def fill(operator, timers):
    for name, time, timestamp, key, namespace in timers:
        operator.manager.key_context.current_key = key
        service = operator.services[name]
        register = (
            service.register_event_time_timer if time == "event" else service.register_processing_time_timer
        )
        register(namespace, timestamp)


def timers_of(operator):
    found = set()
    for name, service in operator.services.items():
        for time in ("event", "processing"):
            getattr(service, f"for_each_{time}_time_timer")(
                lambda namespace, timestamp, name=name, time=time: found.add(
                    (name, time, timestamp, operator.manager.key_context.current_key, namespace)
                )
            )
    return found


@given(timers=st.lists(entries, max_size=30), cut=st.integers(1, 7), again=st.integers(1, 7))
def test_key_groups_can_be_restored_by_operators_of_any_range(timers, cut, again):
    whole = Operator("ab", max_parallelism=8)
    fill(whole, timers)
    before = timers_of(whole)
    snapshot = whole.manager.snapshot()
    assert timers_of(whole) == before
    assert list(snapshot) == list(range(8))
    for at in (cut, again):  # split the operator, and then split the parts at another key group
        parts = []
        for owned in (KeyGroupRange(0, at - 1), KeyGroupRange(at, 7)):
            part = Operator([], max_parallelism=8, key_group_range=owned)
            part.manager.restore(snapshot)
            part.services = {name: part.get(name) for name in "ba"}
            assert all(assign_to_key_group(timer[3], 8) in owned for timer in timers_of(part))
            parts.append(part)
        assert timers_of(parts[0]) | timers_of(parts[1]) == before
        assert sum(len(timers_of(part)) for part in parts) == len(before)
        assert {part.manager.current_output_watermark() for part in parts} == {MIN_WATERMARK}
        snapshot = {**parts[0].manager.snapshot(), **parts[1].manager.snapshot()}


def test_keys_and_namespaces_keep_their_types_in_a_snapshot():
    operator = Operator(["a"])
    values = [True, 7, 1.5, "1", (1, (2, "x")), -0.0]
    for timestamp, value in enumerate(values):
        operator.register("a", value, timestamp, namespace=value)
    restored = Operator([])
    restored.manager.restore(operator.manager.snapshot())
    found = []
    restored.get("a").for_each_event_time_timer(lambda namespace, _: found.append(namespace))
    assert sorted(map(repr, found)) == sorted(map(repr, values))


def test_restored_timers_do_not_fire_before_their_service_is_requested():
    operator = Operator("ab")
    fill(operator, [(name, time, 50, "key", None) for name in "ab" for time in ("event", "processing")])
    clock = ManualProcessingTimeService(now=100)
    restored = Operator([], clock=clock)
    restored.manager.restore(operator.manager.snapshot())
    restored.manager.advance_watermark(60)
    clock.advance(1)
    assert restored.log == [("downstream", 60)]
    assert clock.get_active_timers() == []
    restored.services["b"] = restored.get("b")
    assert clock.get_active_timers() == [(50, 50)]
    clock.advance(1)
    restored.manager.advance_watermark(60)
    assert restored.log[1:] == [("b", "key", 50), ("b", "key", 50)]
    again = Operator([])  # unrequested services are in the next snapshot
    again.manager.restore(restored.manager.snapshot())
    again.services = {name: again.get(name) for name in "ab"}
    assert timers_of(again) == {("a", time, 50, "key", None) for time in ("event", "processing")}


def test_restore_raises_for_a_repeated_key_group_or_after_a_service():
    snapshot = Operator("a").manager.snapshot()
    operator = Operator([])
    operator.manager.restore({key_group: snapshot[key_group] for key_group in range(64)})
    with pytest.raises(ValueError, match="snapshot must not contain restored key groups, got 5 again"):
        operator.manager.restore({100: snapshot[100], 5: snapshot[5]})
    operator.manager.restore({key_group: snapshot[key_group] for key_group in range(64, 128)})
    operator.get("a")
    with pytest.raises(
        RuntimeError, match=r"restore must be called before services are requested, got \['a'\]"
    ):
        operator.manager.restore({})


def test_a_foreign_or_invalid_snapshot_raises():
    def snapshot(**options):
        return Operator("a", **options).manager.snapshot()

    operator = Operator([])
    for wrong, message in [
        (snapshot(max_parallelism=256), "key group 0 of 256"),
        ({3: snapshot()[4]}, "snapshot must contain key group 3 of 128 at that key, got key group 4 of 128"),
    ]:
        with pytest.raises(ValueError, match=message):
            operator.manager.restore(wrong)
    for wrong in ([snapshot()[0]], None, b"", "snapshot"):
        with pytest.raises(TypeError, match="snapshot must be a mapping of key groups to bytes"):
            operator.manager.restore(wrong)
    with pytest.raises(TypeError, match="key groups, which are ints, to bytes, got '5'"):
        operator.manager.restore({"5": snapshot()[5]})
    for wrong in ("bytes", 7, None):
        with pytest.raises(TypeError, match="data must be bytes"):
            operator.manager.restore({0: wrong})
    operator.manager.restore(snapshot())  # the failed calls have restored nothing


class Colour(str):
    __slots__ = ()


class ColourSerializer(TypeSerializer):
    name = "colour"

    def serialize(self, value):
        return b"%c%b" % (len(value), value.encode())

    def deserialize(self, data, start):
        end = start + 1 + data[start]
        return Colour(data[start + 1 : end].decode()), end


def test_a_custom_serializer_is_used_and_must_stay_the_same():
    operator = Operator([])
    service = operator.manager.get_internal_timer_service("a", None, "long", ColourSerializer())
    operator.manager.key_context.current_key = 7
    service.register_event_time_timer(Colour("red"), 5)
    assert operator.manager.get_internal_timer_service("a", None, "long", ColourSerializer()) is service
    restored = Operator([])
    restored.manager.restore(operator.manager.snapshot())
    for manager in (operator.manager, restored.manager):
        for wrong in (("any", "any"), ("long", "any"), ("string", ColourSerializer())):
            with pytest.raises(ValueError, match="service 'a' must be 'long' and 'colour', as before"):
                manager.get_internal_timer_service("a", None, *wrong)
    service = restored.manager.get_internal_timer_service("a", None, "long", ColourSerializer())
    timer = service.event_time_timers.peek()
    assert (timer, type(timer.namespace)) == ((5, 7, "red"), Colour)


def test_a_snapshot_of_an_unsupported_namespace_raises():
    operator = Operator(["a"])
    operator.register("a", "key", 5, namespace=frozenset({1}))
    with pytest.raises(TypeError, match=r"namespace must be what the serializer 'any' takes.*frozenset"):
        operator.manager.snapshot()
    assert operator.services["a"].num_event_time_timers() == 1


def test_queues_on_disk_keep_their_timers_and_their_snapshot_restores_into_memory(tmp_path):
    pytest.importorskip("rocksdict")
    timers = [("a", time, 50, key, None) for time in ("event", "processing") for key in ("x", "y")]
    for attempt in range(2):
        with ExitStack() as stack:
            operator = Operator(
                "a",
                create_queue=lambda name, stack=stack: stack.enter_context(
                    RocksDBTimerQueue(tmp_path / name)
                ),
            )
            if attempt == 0:
                fill(operator, timers)
            assert timers_of(operator) == set(timers)
            snapshot = operator.manager.snapshot()
    restored = Operator([])
    restored.manager.restore(snapshot)
    restored.services["a"] = restored.get("a")
    assert timers_of(restored) == set(timers)


def test_a_service_that_cannot_be_restored_is_not_created():
    operator = Operator("a", max_parallelism=4)
    fill(operator, [("a", "event", 5, 1, None), ("a", "processing", 5, 1, None)])
    clock = ManualProcessingTimeService()
    restored = Operator([], clock=clock, max_parallelism=4)
    restored.manager.restore(operator.manager.snapshot())
    clock.shutdown_service()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shut down"):
            restored.get("a")
        assert restored.manager.num_event_time_timers() == 0
    assert restored.manager.snapshot() == operator.manager.snapshot()


@pytest.mark.parametrize("queue_class", [TimerQueue, RocksDBTimerQueue], ids=["heap", "rocksdb"])
def test_a_service_that_cannot_be_restored_leaves_nothing_in_its_queues(queue_class):
    operator = Operator("a", max_parallelism=4)
    fill(operator, [("a", "event", 5, 1, None), ("a", "processing", 5, 1, None)])
    queues = {name: queue_class() for name in ("a/event_time", "a/processing_time")}
    queues["a/event_time"].add((7, 2, None))
    clock = ManualProcessingTimeService()
    manager = InternalTimeServiceManager(clock, max_parallelism=4, create_queue=queues.__getitem__)
    manager.restore(operator.manager.snapshot())
    clock.shutdown_service()
    with pytest.raises(RuntimeError, match="shut down"):
        manager.get_internal_timer_service("a", None)
    assert [list(queue) for queue in queues.values()] == [[(7, 2, None)], []]


EXAMPLE = KeyGroupSnapshot(
    5,
    128,
    [
        ServiceSnapshot("a", "any", "void", [b"12345678n", b""], [b"x" * 300]),
        ServiceSnapshot("Zoë", "long", "any", [], []),
    ],
)


def test_the_snapshot_format_is_as_documented():
    whole = 5, 128, (("a", "any", "void", (b"xy", b""), ()),)
    payload = SERIALIZERS["any"].serialize(whole)
    snapshot = KeyGroupSnapshot(5, 128, [ServiceSnapshot("a", "any", "void", [b"xy", b""], [])])
    assert snapshot.to_bytes() == seal(3, payload)
    assert KeyGroupSnapshot.from_bytes(seal(3, payload)) == snapshot
    assert KeyGroupSnapshot.from_bytes(EXAMPLE.to_bytes()) == EXAMPLE


def test_damaged_bytes_raise():
    data = EXAMPLE.to_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match=r"damaged|timerheap|version|kind|cut off"):
            KeyGroupSnapshot.from_bytes(bytes(damaged))
        with pytest.raises(ValueError, match=r"too short|cut off"):
            KeyGroupSnapshot.from_bytes(data[:at])


@given(cut=st.integers(0, 400), at=st.integers(0, 400), byte=st.integers(0, 255), more=st.binary(max_size=12))
def test_malformed_bytes_with_a_valid_checksum_raise_or_are_a_snapshot(cut, at, byte, more):
    payload = bytearray(EXAMPLE.to_bytes()[24:])
    payload[at % len(payload)] = byte
    malformed = seal(3, bytes(payload[: cut or len(payload)]) + more)
    try:
        snapshot = KeyGroupSnapshot.from_bytes(malformed)
    except ValueError:
        return
    assert snapshot.to_bytes() == malformed


@given(timers=st.lists(st.binary(max_size=20), min_size=1, max_size=3))
def test_malformed_timers_raise_when_their_service_is_requested(timers):
    data = KeyGroupSnapshot(0, 1, [ServiceSnapshot("a", "any", "any", timers, [])]).to_bytes()
    operator = Operator([], max_parallelism=1)
    operator.manager.restore({0: data})
    try:
        operator.services["a"] = operator.get("a")
    except (TypeError, ValueError, OverflowError):
        assert operator.manager.snapshot() == {0: data}
    else:
        assert len(timers_of(operator)) == len(set(timers))
