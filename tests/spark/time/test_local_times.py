"""Moments in Python's local time: the hour that is repeated in autumn, and the first and last year."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from timerheap import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BatchProcessFunction,
    DueTimers,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    ValueStateDescriptor,
)
from timerheap._values import ArrowTypes
from timerheap.flink import KeyedProcessOperator
from timerheap.spark._processors.state_codec import StructCodec
from timerheap.spark._tvf.sliced_rows import PartialColumns, SlicedRows, WindowSpec
from timerheap.testing import ProcessTester
from timerheap.tvf import GlobalWindowAggregate, TumblingSliceAssigner
from timerheap.tvf.aggregates import PythonAggregate
from timerheap.types import LOCAL, arrow_type

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
FIRST, LAST = datetime.datetime(1, 1, 1), datetime.datetime.max
SENT = OutputTag("sent", "struct<at:timestamp>")
TYPES = "at timestamp, s struct<at:timestamp>, a array<timestamp>, m map<string,timestamp>"


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that sets the time zone of this process."""

    def set_(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_
    monkeypatch.undo()
    time.tzset()


def exact(value: Any) -> Any:
    """A value with the offsets of its datetimes, which `==` of datetimes without a zone ignores."""
    if isinstance(value, datetime.datetime):
        return value, value.fold
    if isinstance(value, dict):
        return {key: exact(each) for key, each in value.items()}
    return [exact(each) for each in value] if isinstance(value, list | tuple) else value


def since_epoch(at: datetime.datetime) -> datetime.timedelta:
    """How long after the epoch a local time is; Python has the offset of a day in the years 2 to 9998."""
    days = datetime.timedelta(days={1: 2, 9999: -2}.get(at.year, 0))
    offset = (at + days if days else at).astimezone().utcoffset()
    assert offset is not None
    return at.replace(tzinfo=datetime.UTC) - EPOCH - offset


class Latest(AggregateFunction):
    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_b


class Keep(KeyedProcessFunction):
    """Keeps the time of a row in each kind of state, and passes on the row and what was kept."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", "timestamp"))
        self.instant = runtime_context.get_state(ValueStateDescriptor("instant", "instant"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", "struct<at:timestamp>"))
        self.map = runtime_context.get_map_state(
            MapStateDescriptor("map", "timestamp", "struct<m:map<timestamp,timestamp>>")
        )
        self.latest = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("latest", Latest(), "timestamp")
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        if (kept := self.value.value()) is not None:
            (listed,), ((key, row),) = self.list.get(), self.map.items()
            times = [kept, listed.at, key, *row.m, *row.m.values(), self.latest.get(), *self.map]
            assert exact(times) == [exact(value.at)] * 7
            assert self.instant.value() - EPOCH == since_epoch(value.at)
            assert self.map.contains(value.at)
        self.value.update(value.at)
        self.instant.update(value.at)
        self.list.update([(value.at,)])
        self.map.put(value.at, ({value.at: value.at},))
        self.latest.add(value.at)
        ctx.output(SENT, (value.at,))
        yield value.at, value.s, value.a, value.m


def passed(moment: datetime.datetime) -> Any:
    """A moment, of which there is a datetime in UTC or in local time, after a function has had it thrice."""
    tester = ProcessTester(Keep(), "k", f"k timestamp, {TYPES}", TYPES, side_outputs=[SENT])
    row = (moment, moment, (moment,), [moment], {"x": moment})
    (first,) = tester.push([row])
    tester.push([row])
    tester.restore(tester.snapshot())
    (again,) = tester.push([row])
    assert exact(again) == exact(first)
    assert exact([sent.at for sent in tester.side_output(SENT)]) == exact([first.at] * 3)
    assert exact(first) == exact([first.at, [first.at], [first.at], {"x": first.at}])
    return first.at


@pytest.mark.parametrize("hour", [0, 1])
def test_each_pass_through_the_repeated_hour_stays_itself(hour: int, zone: Any) -> None:
    zone("Europe/Berlin")
    moment = datetime.datetime(2026, 10, 25, hour, 30, tzinfo=datetime.UTC)
    found = passed(moment)
    assert exact(found) == (datetime.datetime(2026, 10, 25, 2, 30), hour)
    assert found.timestamp() == moment.timestamp()
    assert exact(passed(found)) == exact(found), "without a zone it is local time, with its fold"


def test_both_passes_are_keys_of_one_map(zone: Any) -> None:
    zone("Europe/Berlin")

    class Both(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.map = runtime_context.get_map_state(MapStateDescriptor("map", "timestamp", "bigint"))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
            self.map.put(value.at, value.at.fold)
            yield ([(at.fold, fold) for at, fold in self.map.items()],)

    tester = ProcessTester(Both(), "k", "k string, at timestamp", "x array<struct<a:int,b:int>>")
    times = [datetime.datetime(2026, 10, 25, 2, 30, fold=fold) for fold in (0, 1)]
    *_, last = tester.push([("a", at) for at in times])
    assert last.x == [(0, 0), (1, 1)]


@pytest.mark.parametrize("name", ZONES)
def test_the_first_and_the_last_moment_pass(name: str, zone: Any) -> None:
    zone(name)
    for moment in (FIRST, FIRST.replace(hour=12), LAST, LAST.replace(hour=0)):
        assert passed(moment) == moment


def test_a_moment_that_is_no_local_time_names_column_and_value(zone: Any) -> None:
    zone("America/New_York")
    with pytest.raises(ValueError, match=r"column 'k' must be in the years 1 to 9999 of local.*0001-.*Z"):
        passed(FIRST.replace(tzinfo=datetime.UTC))
    zone("UTC")
    late = LAST.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-5)))
    with pytest.raises(ValueError, match=r"column 'k'.*outside the years 1 to 9999"):
        passed(late)


@given(
    name=st.sampled_from(ZONES),
    micros=st.integers(-62_135_510_400_000_000, 253_402_214_400_000_000) | st.integers(0, 4 * 10**15),
)
def test_local_times_are_those_of_the_zone(name: str, micros: int) -> None:
    moment = EPOCH + datetime.timedelta(microseconds=micros)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        found = passed(moment)
        assert since_epoch(found) == moment - EPOCH
    time.tzset()
    assert exact(found) == exact(moment.astimezone(ZoneInfo(name)).replace(tzinfo=None))


@pytest.mark.parametrize("hour", [0, 1])
def test_states_of_a_processor_keep_the_pass(hour: int, zone: Any) -> None:
    from pyspark.sql.types import ArrayType, StructType, TimestampType

    zone("Europe/Berlin")
    schema = StructType().add("at", TimestampType()).add("a", ArrayType(TimestampType()))
    codec = StructCodec(schema)
    at = datetime.datetime(2026, 10, 25, 2, 30, fold=hour)
    kept = codec.encode((at, [at]))
    assert kept["at"] == datetime.datetime(2026, 10, 25, hour, 30, tzinfo=datetime.UTC)
    assert exact(codec.decode(kept)) == exact((at, [at]))


@pytest.mark.parametrize("hour", [0, 1])
def test_python_aggregates_and_window_contents_keep_the_pass(hour: int, zone: Any) -> None:
    zone("Europe/Berlin")
    at = datetime.datetime(2026, 10, 25, 2, 30, fold=hour)
    moment = datetime.datetime(2026, 10, 25, hour, 30, tzinfo=datetime.UTC)
    column = pa.array([{"a": [moment]}], pa.struct([("a", pa.list_(pa.timestamp("us", "UTC")))]))
    spec = WindowSpec(TumblingSliceAssigner(1), [PythonAggregate(Latest(), "at")], {}, "")
    spec.object_types["at"] = arrow_type("struct<a:array<timestamp>>")
    windows = GlobalWindowAggregate(spec.assigner, spec.aggregates)
    values = np.ma.masked_array(np.fromiter([{"a": [at]}], object, 1), [False])
    windows.add(np.array([1]), np.array([0]), {"at": values})
    columns = PartialColumns(spec)
    stored = pa.RecordBatch.from_arrays(columns.to_arrow(windows.snapshot()), schema=columns.schema)
    assert stored.column(stored.num_columns - 1).to_pylist() == [{"a": [moment]}]
    rows = pa.RecordBatch.from_pydict({"time": pa.array([0]), "at": column})
    sliced = SlicedRows(spec, [], "time", {"at": np.dtype(object)})
    sliced.add(rows, np.zeros(1, np.int64))
    assert sliced.drain().column(stored.schema.names[-1]).to_pylist() == [{"a": [moment]}]
    *_, (kept,) = columns.from_arrow(stored).fields
    assert exact(kept) == exact({"a": [at]})
    elements = pa.struct([("at", pa.timestamp("us", LOCAL))])
    codec = ArrowTypes(Row, Row).codec(elements, "an element")
    assert exact(codec.decode(codec.encode((at,)))) == exact((at,))


class Promise(KeyedProcessFunction):
    """Registers a timer at the time in a row, and two that it deletes again."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.promised)
        timers.register_event_time_timer(value.promised + datetime.timedelta(hours=1))
        timers.delete_event_time_timer(value.promised + datetime.timedelta(hours=1))
        timers.register_processing_time_timer(value.promised, name="clock")
        again = pd.Timestamp(value.promised.astimezone(datetime.UTC) - datetime.timedelta(microseconds=1))
        timers.register_processing_time_timer(again)
        timers.delete_processing_time_timer(value.promised.astimezone(datetime.UTC))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield (timestamp,)


class Promises(BatchProcessFunction):
    """Does the same in columns."""

    def process_batch(self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context) -> None:
        timers, promised = ctx.timer_service(), batch.column("promised")
        assert timers.register_event_time_timers(ctx.ids, promised).all()
        later = [at + datetime.timedelta(hours=1) for at in promised.to_pylist()]
        assert timers.register_event_time_timers(ctx.ids, later).all()
        assert timers.delete_event_time_timers(ctx.ids, np.array(later, object)).all()
        timers.register_processing_time_timers(
            ctx.ids, later[0].astimezone().replace(tzinfo=None), name="clock"
        )
        timers.register_processing_time_timers(ctx.ids, promised.to_numpy(zero_copy_only=False), name="clock")

    def on_timers(self, due: DueTimers, ctx: BatchProcessFunction.Context) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"at": due.timestamps})


@pytest.mark.parametrize("hour", [0, 1])
@pytest.mark.parametrize("function", [Promise(), Promises()])
def test_a_timer_may_be_set_for_a_datetime(function: Any, hour: int, zone: Any) -> None:
    zone("Europe/Berlin")
    moment = datetime.datetime(2026, 10, 25, hour, 30, 0, 1_999, tzinfo=datetime.UTC)
    at = int(moment.timestamp() * 1000)
    tester = ProcessTester(function, "k", "k string, promised timestamp", "at bigint", processing_time=True)
    tester.push([("a", moment)])
    assert [(timer.timestamp, timer.name) for timer in tester.timers()] == [(at, None), (at, "clock")]
    assert tester.advance_watermark(at - 1) == tester.advance_clock(at) == []
    assert tester.advance_watermark(at) == tester.advance_clock(at + 1) == [Row(at=at)]


class Moments(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value)
        yield timers.event_time_timers()
        timers.delete_event_time_timer(value)
        yield timers.event_time_timers()


def test_timers_of_an_operator_without_spark_take_datetimes(zone: Any) -> None:
    zone("Europe/Berlin")
    moment = datetime.datetime(2026, 10, 25, 2, 30, fold=1)
    with KeyedProcessOperator(Moments(), key_selector=lambda value: "a") as operator:
        found = [record.value for record in operator.process_element(moment)]  # type: ignore[union-attr]
    assert found == [[1_792_891_800_000], []]


class Wrong(KeyedProcessFunction):
    def __init__(self, time: Any) -> None:
        self.time = time

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(self.time)


def test_a_timer_without_a_time_is_refused() -> None:
    for wrong, error in [
        (pd.NaT, "timestamp must be a time, got NaT"),
        (np.datetime64("NaT"), "timestamp must be an integer, got .*NaT"),
        ("2026-01-01", r"timestamp must be an integer, got '2026-01-01' \(str\)"),
        (datetime.date(2026, 1, 1), "timestamp must be an integer, got datetime.date"),
    ]:
        with pytest.raises((TypeError, ValueError), match=error):
            ProcessTester(Wrong(wrong), "k", "k string", "k string").push([("a",)])


class Seconds(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value.at // 1000 if value.at % 2 else 0)


class SecondsInColumns(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchProcessFunction.Context) -> None:
        assert ctx.timestamps is not None
        seconds = np.where(ctx.timestamps % 2, ctx.timestamps // 1000, 0)
        ctx.timer_service().register_event_time_timers(ctx.ids, seconds)


@pytest.mark.parametrize("function", [Seconds(), SecondsInColumns()])
@pytest.mark.parametrize("order", ["arrival", "event_time"])
def test_timers_in_seconds_are_warned_of_once(function: Any, order: Any, caplog: Any) -> None:
    tester = ProcessTester(function, "k", "k string, at bigint", "k string", "at", order=order)
    tester.push([("a", 1_792_891_800_000)])
    tester.advance_watermark(1_792_891_800_000)
    assert not any("30 years" in each for each in caplog.messages), (
        "a timer at 0 is meant to fire with the next watermark"
    )
    tester.push([("a", 1_792_891_800_001), ("b", 1_792_891_800_003)])
    tester.advance_watermark(1_792_891_800_003)
    (message,) = [each for each in caplog.messages if "30 years" in each]
    assert message.startswith("a timer was registered for 1792891800, more than 30 years before 179289180000")
    assert message.endswith("timers are in epoch milliseconds: pass seconds * 1000, or a datetime")
