"""The manager of timer services: order of services and watermarks, snapshots and rescaling."""

import struct
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap._native._heap import seal
from timerheap.flink import (
    InternalTimeServiceManager,
    KeyContext,
    KeyGroupRange,
    ManualProcessingTimeService,
    assign_to_key_group,
    create_timer_queue,
)
from timerheap.flink.serializers import TypeSerializer
from timerheap.flink.snapshot import KeyGroupSnapshot, ServiceSnapshot


class Operator:
    """An operator whose services log the timers that fire and the watermarks emitted downstream."""

    def __init__(self, names, *, clock=None, then=lambda name, timer: None, **options):
        self.log = []
        self.then = then
        self.manager = InternalTimeServiceManager(
            clock or ManualProcessingTimeService(), emit_watermark=self.emit, **options
        )
        self.services = {name: self.get(name) for name in names}

    def get(self, name):
        return self.manager.get_internal_timer_service(name, Named(name, self))

    def emit(self, watermark):
        self.log.append(("downstream", watermark))

    def register(self, name, key, timestamp, namespace=None):
        self.manager.key_context.current_key = key
        self.services[name].register_event_time_timer(namespace, timestamp)


class Named:
    def __init__(self, name, operator):
        self.name = name
        self.operator = operator

    def on_event_time(self, timer):
        self.operator.log.append((self.name, timer.key, timer.timestamp))
        self.operator.then(self.name, timer)

    on_processing_time = on_event_time


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


# ---- drains ----


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


# ---- snapshots ----

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
    timer = service.next_event_time_timer()
    assert (timer, type(timer.namespace)) == ((5, 7, "red"), Colour)


def test_a_snapshot_of_an_unsupported_namespace_raises():
    operator = Operator(["a"])
    operator.register("a", "key", 5, namespace=frozenset({1}))
    with pytest.raises(TypeError, match=r"namespace must be what the serializer 'any' takes.*frozenset"):
        operator.manager.snapshot()
    assert operator.services["a"].num_event_time_timers() == 1


def test_a_custom_queue_is_used():
    made = {}

    def create_queue(name):
        made[name] = create_timer_queue(max_parallelism=4, hash_code=lambda key: 0)
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


def test_queues_on_disk_keep_their_timers_and_their_snapshot_restores_into_memory(tmp_path):
    pytest.importorskip("rocksdict")
    timers = [("a", time, 50, key, None) for time in ("event", "processing") for key in ("x", "y")]
    for attempt in range(2):
        with ExitStack() as stack:
            operator = Operator(
                "a",
                create_queue=lambda name, stack=stack: stack.enter_context(
                    create_timer_queue("rocksdb", path=tmp_path / name)
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


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_service_that_cannot_be_restored_leaves_nothing_in_its_queues(backend):
    operator = Operator("a", max_parallelism=4)
    fill(operator, [("a", "event", 5, 1, None), ("a", "processing", 5, 1, None)])
    queues = {name: create_timer_queue(backend) for name in ("a/event_time", "a/processing_time")}
    queues["a/event_time"].add((7, 2, None))
    clock = ManualProcessingTimeService()
    manager = InternalTimeServiceManager(clock, max_parallelism=4, create_queue=queues.__getitem__)
    manager.restore(operator.manager.snapshot())
    clock.shutdown_service()
    with pytest.raises(RuntimeError, match="shut down"):
        manager.get_internal_timer_service("a", None)
    assert [list(queue) for queue in queues.values()] == [[(7, 2, None)], []]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_parallelism": 0}, ValueError, "max_parallelism must be from 1 to 32768"),
        ({"key_group_range": (0, 3)}, TypeError, "key_group_range must be a KeyGroupRange"),
        ({"key_group_range": KeyGroupRange(0, 200)}, ValueError, "key_group_range must lie below"),
        ({"create_queue": "heap"}, TypeError, "create_queue must be callable, got 'heap'"),
        ({"emit_watermark": 5}, TypeError, "emit_watermark must be callable, got 5"),
    ],
)
def test_an_invalid_constructor_argument_raises(arguments, error, message):
    with pytest.raises(error, match=message):
        InternalTimeServiceManager(ManualProcessingTimeService(), **arguments)


@pytest.mark.parametrize("name", [None, 7, b"a"])
def test_a_service_name_that_is_not_a_str_raises(name):
    with pytest.raises(TypeError, match="name must be a str"):
        Operator([]).get(name)


# ---- bytes ----

EXAMPLE = KeyGroupSnapshot(
    5,
    128,
    [
        ServiceSnapshot("a", "any", "void", [b"12345678n", b""], [b"x" * 300]),
        ServiceSnapshot("Zoë", "long", "any", [], []),
    ],
)


def test_the_snapshot_format_is_as_documented():
    service = b"".join(
        struct.pack("<I", len(part)) + part for part in (b"a", b"any", b"void", b"\2\0\0\0xy\0\0\0\0", b"")
    )
    payload = b"\4\0\0\0\5\0\x80\0" + struct.pack("<I", len(service)) + service
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
