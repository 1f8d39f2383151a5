"""State with a time to live, on the code that runs it on Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import Row
from pyspark.sql.types import StructType

from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    TimeDomain,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from timerheap._expiry import ExpiringValue, ExpiryClock
from timerheap.flink.operators import KeyedProcessOperator
from timerheap.spark._functions.function_kinds import work_of
from timerheap.spark._group.growing_state import GrowingState
from timerheap.spark._query import Query
from timerheap.testing import PendingTimer, ProcessTester

EVENT_TIME = StateTtlConfig.TtlTimeCharacteristic.EventTime
LONG = Types.LONG()
FAR = 10_000


def ttl() -> StateTtlConfig.Builder:
    return StateTtlConfig.new_builder(Time.milliseconds(100))


def descriptors() -> dict[str, Any]:
    return {
        "value": ValueStateDescriptor("value", LONG),
        "list": ListStateDescriptor("list", LONG),
        "map": MapStateDescriptor("map", LONG, LONG),
        "sum": ReducingStateDescriptor("sum", lambda a, b: a + b, LONG),
    }


class States(KeyedProcessFunction):
    """Row by row, "set" adds to all states, "get" yields what is in them, "clear" clears them."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        found = descriptors()
        for descriptor in found.values():
            descriptor.enable_time_to_live(self.ttl)
        self.value = runtime_context.get_state(found["value"])
        self.list = runtime_context.get_list_state(found["list"])
        self.map = runtime_context.get_map_state(found["map"])
        self.sum = runtime_context.get_reducing_state(found["sum"])

    def process_element(self, value: Any, ctx: Any) -> Any:
        _, do, n, _ = value
        if do == "set":
            self.value.update(n)
            self.list.add(n)
            self.map.put(n, -n)
            self.sum.add(n)
        elif do == "timer":
            ctx.timer_service().register_event_time_timer(n)
        elif do == "clear":
            for state in (self.value, self.list, self.map, self.sum):
                state.clear()
        else:
            assert all(time >= FAR for time in ctx.timer_service().event_time_timers())
            assert ctx.timer_service().processing_time_timers() == []
            yield self.value.value(), list(self.list), dict(self.map.items()), self.sum.get()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        assert timestamp >= FAR, "only the function's own timers fire"


def made(ttl: StateTtlConfig, **options: Any) -> ProcessTester:
    return ProcessTester(
        States(ttl),
        "k",
        "k string, do string, n long, at long",
        "value long, list array<long>, map map<long, long>, sum long",
        "at",
        **options,
    )


def contents(test: ProcessTester) -> dict[str, Any]:
    return {name: test.state(name) for name in descriptors()}


EMPTY: dict[str, Any] = {name: {} for name in descriptors()}


@pytest.mark.promises(
    "PyFlink",
    "added",
    "StateTtlConfig.TtlTimeCharacteristic.EventTime",
    note="the time of the row or timer, but at least the watermark",
)
@pytest.mark.promises("PyFlink", "supported", "StateDescriptor.enable_time_to_live")
def test_state_of_event_time_expires_and_is_removed_when_it_is_due() -> None:
    test = made(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    test.push(
        [
            ("a", "set", 1, 0),
            ("a", "set", 2, 50),
            ("a", "get", 0, 99),
            ("a", "get", 0, 100),
            ("a", "get", 0, 149),
            ("a", "get", 0, 150),
            ("b", "set", 3, 120),
        ]
    )
    assert test.advance_watermark(149) == [
        Row(value=2, list=[1, 2], map={1: -1, 2: -2}, sum=3),
        Row(value=2, list=[2], map={2: -2}, sum=3),
        Row(value=2, list=[2], map={2: -2}, sum=3),
    ]
    assert test.advance_watermark(150) == [Row(value=None, list=[], map={}, sum=None)]
    assert {*test.state("value")} == {*test.state("list")} == {"b"}
    snapshot = test.snapshot()
    assert test.advance_watermark(220) == []
    assert contents(test) == EMPTY
    assert test.timers() == []
    test.restore(snapshot)
    assert {*test.state("map")} == {"b"}
    assert test.advance_watermark(219) == []
    assert {*test.state("sum")} == {"b"}
    assert test.advance_watermark(220) == []
    assert contents(test) == EMPTY


def test_state_is_shown_with_the_time_of_its_last_access() -> None:
    test = made(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    test.push([("a", "set", 1, 5)])
    test.advance_watermark(5)
    assert contents(test) == {
        "value": {"a": Row(value=1, at=5)},
        "list": {"a": [Row(value=1, at=5)]},
        "map": {"a": {1: Row(value=-1, at=5)}},
        "sum": {"a": Row(value=1, at=5)},
    }


def test_the_timers_of_a_function_are_shown_without_those_of_its_states() -> None:
    test = made(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    test.push([("a", "timer", FAR, 0), ("a", "set", 1, 0), ("b", "set", 2, 50), ("a", "get", 0, 60)])
    test.advance_watermark(60)
    own = [PendingTimer("a", FAR, None, TimeDomain.EVENT_TIME)]
    assert test.timers() == own
    test.restore(test.snapshot())
    assert test.timers() == own
    assert {*test.state("value")} == {"a", "b"}
    test.advance_watermark(FAR - 1)
    assert (test.timers(), contents(test)) == (own, EMPTY)
    test.advance_watermark(FAR)
    assert test.timers() == []


def test_state_of_processing_time_expires_with_the_clock() -> None:
    test = made(ttl().use_processing_time().build(), order="arrival", processing_time=True)
    test.advance_clock(1_000)
    test.push([("a", "set", 1, 0)])
    test.advance_clock(1_099)
    assert test.push([("a", "get", 0, 0)]) == [Row(value=1, list=[1], map={1: -1}, sum=1)]
    test.advance_clock(1_101)
    assert contents(test) == EMPTY
    assert test.push([("a", "get", 0, 0)]) == [Row(value=None, list=[], map={}, sum=None)]


def test_without_a_clock_state_of_processing_time_stays_as_on_a_batch_dataframe() -> None:
    test = made(ttl().build())
    test.push([("a", "set", 1, 0), ("a", "get", 0, 10_000)])
    assert test.finish() == [Row(value=1, list=[1], map={1: -1}, sum=1)]


def test_a_read_prolongs_the_time_to_live_on_read_and_write() -> None:
    builder = ttl().set_ttl_time_characteristic(EVENT_TIME)
    test = made(builder.update_ttl_on_read_and_write().build())
    test.push([("a", "set", 1, 0), ("a", "get", 0, 90), ("a", "get", 0, 180), ("a", "get", 0, 280)])
    there, gone = Row(value=1, list=[1], map={1: -1}, sum=1), Row(value=None, list=[], map={}, sum=None)
    assert test.advance_watermark(290) == [there, there, gone]
    assert contents(test) == EMPTY


def test_expired_state_is_returned_until_it_is_removed_if_asked_for() -> None:
    builder = ttl().set_ttl_time_characteristic(EVENT_TIME)
    test = made(builder.return_expired_if_not_cleaned_up().build(), order="arrival")
    test.push([("a", "set", 1, 0)])
    there, gone = Row(value=1, list=[1], map={1: -1}, sum=1), Row(value=None, list=[], map={}, sum=None)
    assert test.push([("a", "get", 0, 150), ("a", "get", 0, 150)]) == [there, gone]


def test_cleared_and_disabled_state() -> None:
    test = made(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    test.push([("a", "set", 1, 0), ("a", "clear", 0, 10), ("a", "set", 2, 60), ("a", "get", 0, 155)])
    assert test.advance_watermark(159) == [Row(value=2, list=[2], map={2: -2}, sum=2)]
    assert test.advance_watermark(160) == []
    assert contents(test) == EMPTY
    disabled = made(ttl().set_update_type(StateTtlConfig.UpdateType.Disabled).build())
    disabled.push([("a", "set", 1, 0)])
    disabled.advance_watermark(10_000)
    assert disabled.state("value") == {"a": 1}


def test_state_in_memory_expires_when_it_is_used() -> None:
    expiring = States(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    with KeyedProcessOperator(expiring, key_selector=lambda value: value[0]) as operator:
        operator.process_element(("a", "set", 1, 0), timestamp=0)
        (found,) = operator.process_element(("a", "get", 0, 0), timestamp=99)
        assert found.value == (1, [1], {1: -1}, 1)
        (found,) = operator.process_element(("a", "get", 0, 0), timestamp=100)
        assert found.value == (None, [], {}, None)
        assert operator.num_keyed_state_entries() == 0


def test_a_row_after_a_timer_of_the_clock_has_event_time() -> None:
    class Alarmed(States):
        def process_element(self, value: Any, ctx: Any) -> Any:
            if value[1] == "set":
                ctx.timer_service().register_processing_time_timer(0)
            return super().process_element(value, ctx)

        def on_timer(self, timestamp: int, ctx: Any) -> None:
            return None

    expiring = Alarmed(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    with KeyedProcessOperator(expiring, key_selector=lambda value: value[0]) as operator:
        operator.process_element(("a", "set", 1, 0), timestamp=0)
        operator.set_processing_time(1)
        (found,) = operator.process_element(("a", "get", 0, 0), timestamp=100)
        assert found.value == (None, [], {}, None)


class Columns(BatchProcessFunction):
    def open(self, runtime_context: Any) -> None:
        descriptor = ListStateDescriptor("list", LONG)
        descriptor.enable_time_to_live(ttl().build())
        runtime_context.get_list_state(descriptor)

    def process_batch(self, batch: Any, ctx: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: StateTtlConfig.new_builder(0), ValueError, "ttl must be"),
        (
            lambda: ttl().set_update_type("OnRead"),
            TypeError,
            "update_type must be a StateTtlConfig",
        ),
        (
            lambda: ValueStateDescriptor("n", LONG).enable_time_to_live(5),
            TypeError,
            "must be a StateTtlConfig",
        ),
        (
            lambda: ProcessTester(Columns(), "k", "k string", "k string"),
            NotImplementedError,
            "state 'list' of a BatchProcessFunction must be a value state to have a time to live",
        ),
    ],
)
def test_a_wrong_time_to_live_raises(wrong: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        wrong()


def test_a_builder_returns_what_it_was_told() -> None:
    config = (
        StateTtlConfig.new_builder(Time.seconds(1))
        .set_ttl(Time.seconds(2))
        .update_ttl_on_create_and_write()
        .never_return_expired()
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(1000)
        .disable_cleanup_in_background()
        .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
        .build()
    )
    assert config.get_ttl() == Time.seconds(2)
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnCreateAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.NeverReturnExpired
    assert config.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert config.is_enabled()
    assert repr(config) == "StateTtlConfig(OnCreateAndWrite, NeverReturnExpired, ProcessingTime, 2000 ms)"


@pytest.mark.parametrize(
    ("characteristic", "streaming", "message"),
    [
        (EVENT_TIME, False, "event_time must name the event-time column, since the time to live of state"),
        (StateTtlConfig.TtlTimeCharacteristic.ProcessingTime, True, "processing_time must be True, since"),
        (StateTtlConfig.TtlTimeCharacteristic.ProcessingTime, False, None),
    ],
)
def test_a_query_without_the_clock_of_a_time_to_live_raises(
    characteristic: Any, streaming: bool, message: str | None
) -> None:
    rows = StructType().add("k", "string")
    query = Query(
        work=work_of(States(ttl().set_ttl_time_characteristic(characteristic).build())),
        key=["k"],
        rows=rows,
        result=rows,
        event_time=None,
        watermarks=(WatermarkStrategy.no_watermarks(),),
        channels=(None,),
        order="arrival",
        time_mode="None",
        max_parallelism=4,
    )
    with nullcontext() if message is None else pytest.raises(ValueError, match=message):
        query.work.rehearse(query, 4, None, streaming)


def test_writes_do_not_read_the_lists_and_maps_that_they_add_to(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    load = GrowingState._load
    monkeypatch.setattr(GrowingState, "_load", lambda self, key: loaded.append(key) or load(self, key))
    test = made(ttl().set_ttl_time_characteristic(EVENT_TIME).build())
    for at in range(5):
        test.push([("a", "set", 1000 * at + n, at) for n in range(1000)])
        test.advance_watermark(at)
    assert loaded == []
    test.push([("a", "get", 0, 5)])
    (found,) = test.advance_watermark(5)
    assert (len(found.list), len(found.map)) == (5_000, 5_000)
    assert len(loaded) == 2, "the map and the list, once"


def test_a_time_to_live_is_exact_to_the_millisecond() -> None:
    contents = ExpiringValue(None, StateTtlConfig.new_builder(1001).build(), Mock(spec=ExpiryClock))
    kept = {"value": 5, "at": 0}
    assert [contents._expired(kept, now) for now in (1000, 1001)] == [False, True]


class Touches(KeyedProcessFunction):
    """Puts two entries at 0; at 90 does what the row says; at 150 says what is left."""

    def __init__(self, ttl: StateTtlConfig) -> None:
        self.ttl = ttl

    def open(self, runtime_context: Any) -> None:
        descriptor = MapStateDescriptor("map", Types.LONG(), Types.LONG())
        descriptor.enable_time_to_live(self.ttl)
        self.map = runtime_context.get_map_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        touch: dict[str, Any] = {
            "nothing": lambda: None,
            "is_empty": self.map.is_empty,
            "first of items": lambda: next(iter(self.map.items())),
            "first of keys": lambda: next(iter(self.map.keys())),
            "first of values": lambda: next(iter(self.map.values())),
            "items": lambda: list(self.map.items()),
            "contains": lambda: self.map.contains(1),
            "get": lambda: self.map.get(2),
        }
        if value.at == 0:
            self.map.put_all({1: -1, 2: -2})
        elif value.at == 90:
            assert touch[value.do]() is not True, "the map is not empty"
        else:
            yield (sorted(self.map.keys()),)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize(
    ("do", "left"),
    [
        ("nothing", []),
        ("is_empty", []),
        ("first of items", [1]),
        ("first of keys", [1]),
        ("first of values", [1]),
        ("items", [1, 2]),
        ("get", [2]),
    ],
)
def test_only_entries_that_are_visited_are_renewed(do: str, left: list[int], in_memory: bool) -> None:
    config = ttl().update_ttl_on_read_and_write().set_ttl_time_characteristic(EVENT_TIME).build()
    rows = [Row(k="a", do=do, at=at) for at in (0, 90, 150)]
    if in_memory:
        with KeyedProcessOperator(Touches(config), key_selector=lambda value: value.k) as operator:
            found = [each for row in rows for each in operator.process_element(row, row.at)]
            assert [each.value for each in found] == [(left,)]
        return
    test = ProcessTester(Touches(config), "k", "k string, do string, at long", "left array<long>", "at")
    test.push(rows)
    assert test.finish() == [Row(left=left)]


@pytest.mark.parametrize("characteristic", list(StateTtlConfig.TtlTimeCharacteristic))
def test_the_longest_time_to_live_never_ends(characteristic: Any) -> None:
    config = StateTtlConfig.new_builder(2**63 - 1)
    test = made(config.set_ttl_time_characteristic(characteristic).build(), processing_time=True)
    test.advance_clock(1_700_000_000_000)
    test.push([("a", "set", 1, 5), ("a", "get", 0, 2**62)])
    assert test.advance_watermark(2**62) == [Row(value=1, list=[1], map={1: -1}, sum=1)]
    assert [row.value for row in test.state("value").values()] == [1]


def test_a_cleanup_of_no_entries_raises() -> None:
    with pytest.raises(ValueError, match="cleanup_size must be 1 or more, got 0"):
        ttl().cleanup_incrementally(0, True)
    with pytest.raises(OverflowError, match=r"milliseconds must be at most 999,999,999 days, .* pass an int"):
        Time.milliseconds(2**63 - 1)
