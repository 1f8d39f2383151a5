"""Moments in Python's local time: the hour that is repeated in autumn, and the first and last year."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from timerheap import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    ValueStateDescriptor,
)
from timerheap._values import ArrowTypes, local_time, micros_of
from timerheap.spark._slices import PartialColumns, WindowSpec, input_column, objects
from timerheap.spark._window_operator import _element_type
from timerheap.spark._worker.processor_states import StructCodec
from timerheap.testing import ProcessTester
from timerheap.tvf import GlobalWindowAggregate, PythonAggregate, TumblingSliceAssigner
from timerheap.types import arrow_type

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"]
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
            assert micros_of(self.instant.value()) == micros_of(value.at)
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
    assert local_time(micros_of(LAST)) == LAST


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
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=micros)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        found = local_time(micros)
        assert micros_of(found) == micros
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
    assert exact(input_column(column, np.dtype(object)).tolist()) == exact([{"a": [at]}])
    spec = WindowSpec(TumblingSliceAssigner(1), [PythonAggregate(Latest(), "at")], {}, "")
    spec.object_types["at"] = arrow_type("struct<a:array<timestamp>>")
    windows = GlobalWindowAggregate(spec.assigner, spec.aggregates)
    values = np.ma.masked_array(objects([{"a": [at]}]), [False])
    windows.add(np.array([1]), np.array([0]), {"at": values})
    columns = PartialColumns(spec)
    stored = pa.RecordBatch.from_arrays(columns.to_arrow(windows.snapshot()), schema=columns.schema)
    assert stored.column(stored.num_columns - 1).to_pylist() == [{"a": [moment]}]
    *_, (kept,) = columns.aggregation.columns(columns.from_arrow(stored)).values()
    assert exact(kept) == exact({"a": [at]})
    elements = _element_type(pa.schema([("at", pa.timestamp("us", "UTC"))]))
    codec = ArrowTypes(Row).codec(elements, "an element")
    assert exact(codec.decode(codec.encode((at,)))) == exact((at,))
