"""What a stateful processor sees of its states and timers, by Spark's rules, without Spark's JVM."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from processor_stage import Stage
from promises import promises_of
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming import stateful_processor
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from timerheap.spark._processors.processor_states import DeclaredState
from timerheap.spark._processors.state_codec import StructCodec

ROWS = T.StructType().add("k", T.StringType()).add("ops", T.StringType())
RESULT = T.StructType().add("k", T.StringType()).add("what", T.StringType())
N = T.StructType().add("n", T.IntegerType())
K = T.StructType().add("k", T.StringType())


class Scripted(StatefulProcessor):
    """Evaluates the commands of its rows; the timer at 10 deletes one, registers another and its own."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", N, 100)
        self.list = handle.getListState("list", N, 100)
        self.map = handle.getMapState("map", K, N, 100)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            for command in row.ops.split(";"):
                yield Row(k=key[0], what=self._run(command))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield Row(k=key.k, what=f"{at} {list(self.handle.listTimers())}")
        if at == 10:
            self.handle.deleteTimer(20)
            self.handle.registerTimer(5)
            self.handle.registerTimer(10)

    def close(self) -> None:
        pass

    def _run(self, command: str) -> str:
        found = eval(command, {"v": self.value, "l": self.list, "m": self.map, "h": self.handle})
        return repr(list(found) if hasattr(found, "__next__") else found)


class Timed(Scripted):
    value = list = map = None

    def init(self, handle: Any) -> None:
        self.handle = handle


STATES = {
    "value": DeclaredState("value", (N,), 100),
    "list": DeclaredState("list", (N,), 100),
    "map": DeclaredState("map", (K, N), 100),
}


def scripted() -> Stage:
    return Stage(Scripted, ROWS, RESULT, "ProcessingTime", **STATES)


def run(stage: Stage, ops: str, now: int) -> list[str]:
    return [what for _, what in stage.batch([("a", ops)], now)]


def test_every_method_of_sparks_classes_is_promised() -> None:
    classes = [
        *(stateful_processor.StatefulProcessor, stateful_processor.StatefulProcessorHandle),
        *(stateful_processor.ValueState, stateful_processor.ListState, stateful_processor.MapState),
        *(stateful_processor.TimerValues, stateful_processor.ExpiredTimerInfo),
    ]
    methods = {f"{of.__name__}.{name}" for of in classes for name in vars(of) if name[0] != "_"}
    promised = promises_of("StatefulProcessor").keys()
    assert methods == {name for name in promised if "." in name and not name.startswith("GroupedData")}


def test_a_value_expires_when_the_time_to_live_has_passed_since_it_was_written() -> None:
    stage = scripted()
    run(stage, "v.update((1,))", now=1000)
    assert run(stage, "v.get()", now=1099) == ["(1,)"]
    assert run(stage, "v.get();v.exists()", now=1100) == ["None", "False"]


def test_a_new_write_prolongs_a_value_and_a_read_does_not() -> None:
    stage = scripted()
    run(stage, "v.update((1,))", now=1000)
    run(stage, "v.update((2,))", now=1050)
    assert run(stage, "v.get()", now=1120) == ["(2,)"]
    assert run(stage, "v.get()", now=1150) == ["None"]


def test_each_element_and_each_entry_expires_on_its_own() -> None:
    stage = scripted()
    run(stage, "l.appendValue((1,));m.updateValue(('a',),(1,))", now=1000)
    run(stage, "l.appendValue((2,));m.updateValue(('b',),(2,))", now=1050)
    assert run(stage, "l.get();m.keys()", now=1100) == ["[(2,)]", "[('b',)]"]
    assert run(stage, "m.containsKey(('a',));m.getValue(('b',))", now=1149) == ["False", "Row(n=2)"]
    assert run(stage, "l.exists();m.exists()", now=1150) == ["False", "False"]


def test_what_is_kept_expires_by_the_time_to_live_it_was_written_with() -> None:
    stage = scripted()
    run(stage, "v.update((1,));l.appendValue((1,));m.updateValue(('a',),(1,))", now=1000)
    longer = {name: replace(state, ttl=500) for name, state in STATES.items()}
    again = Stage(Scripted, ROWS, RESULT, "ProcessingTime", **longer)
    again.group = stage.group
    run(again, "l.appendValue((2,));m.updateValue(('b',),(2,))", now=1050)
    assert run(again, "v.get();l.get();m.keys()", now=1100) == ["None", "[(2,)]", "[('b',)]"]
    assert run(again, "l.exists();m.exists()", now=1549) == ["True", "True"]
    stage.batch([], now=1550)
    assert [len(table) for table in stage.group.states.values()] == [0, 0, 0]


def test_what_expires_after_the_largest_timestamp_never_does() -> None:
    longest = {name: replace(state, ttl=(1 << 63) - 1) for name, state in STATES.items()}
    stage = Stage(Scripted, ROWS, RESULT, "ProcessingTime", **longest)
    run(stage, "v.update((1,));l.appendValue((1,));m.updateValue(('a',),(1,))", now=1000)
    assert run(stage, "v.get();l.get();m.keys()", now=1 << 60) == ["(1,)", "[(1,)]", "[('a',)]"]
    assert stage.group.next_due(event_time=False) is None


def test_what_has_expired_is_removed_at_the_end_of_a_micro_batch() -> None:
    stage = scripted()
    run(stage, "v.update((1,));l.put([(1,),(2,)]);m.updateValue(('a',),(1,))", now=1000)
    run(stage, "v.update((2,))", now=1001)
    assert all(len(table) == 1 for table in stage.group.states.values())
    stage.batch([], now=1100)
    assert [len(table) for table in stage.group.states.values()] == [1, 0, 0]
    stage.batch([], now=1101)
    assert [len(table) for table in stage.group.states.values()] == [0, 0, 0]
    assert not len(stage.group.processing_timers)


def test_the_processor_does_not_see_the_timers_of_its_expiries() -> None:
    stage = scripted()
    run(stage, "v.update((1,));h.registerTimer(5000)", now=1000)
    assert run(stage, "h.listTimers()", now=1001) == ["[5000]"]
    assert stage.batch([], now=1200) == []


def test_timers_that_are_due_fire_once_each_whatever_the_calls_do() -> None:
    stage = Stage(Timed, ROWS, RESULT, "EventTime")
    stage.batch([("a", "h.registerTimer(10)"), ("b", "h.registerTimer(15)"), ("a", "h.registerTimer(20)")])
    fired = stage.batch([], watermark=20)
    assert fired == [("a", "10 [10, 20]"), ("b", "15 [15]"), ("a", "20 [5]")]
    assert stage.batch([], watermark=20) == [("a", "5 [5]")]
    assert stage.batch([], watermark=10_000) == []


class Yields(Timed):
    """Yields the rows that the commands make."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            yield eval(row.ops, {"Row": Row, "row": row})


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("Row(k='a', what='x')", ("a", "x")),
        ("Row(what='x', k='a')", ("a", "x")),
        ("Row('what', 'k')('x', 'a')", ("a", "x")),
        ("Row('k', 'what')('a')", ("a", None)),
        ("Row(more=1, k='a')", ("a", None)),
        ("Row(k=row.k, what=None)", ("b", None)),
    ],
)
def test_results_are_found_by_name(made: str, found: tuple[Any, ...]) -> None:
    assert Stage(Yields, ROWS, RESULT).batch([("b", made), ("c", "Row(k='c', what='c')")]) == [
        found,
        ("c", "c"),
    ]


@pytest.mark.parametrize(("made", "error"), [("('a', 'x')", AttributeError), ("Row('a', 'x')", TypeError)])
def test_results_without_names_raise_the_error_of_pyspark(made: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Stage(Yields, ROWS, RESULT).batch([("b", made)])


def test_timers_of_one_timestamp_fire_in_the_order_of_sparks_bytes() -> None:
    stage = Stage(Timed, ROWS, RESULT, "EventTime")
    keys = ["ccc", "aa", None, "b", ""]
    stage.batch([(key, f"h.registerTimer({at})") for key in keys for at in (10, 12)])
    fired = [key for key, _ in stage.batch([], watermark=10)]
    assert fired == ["", None, "b", "aa", "ccc"]


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "order across keys",
    note="is by key, or by timer, in each partition, as in Spark; but the partitions have different keys",
)
def test_keys_come_in_their_order_nulls_first() -> None:
    stage = Stage(Timed, ROWS, RESULT, "EventTime")
    rows = [(key, f"'{number}'") for number, key in enumerate(["b", None, "a", "b"])]
    assert stage.batch(rows) == [(None, "'1'"), ("a", "'2'"), ("b", "'0'"), ("b", "'3'")]


def test_timers_and_map_keys_are_listed_in_the_order_of_sparks_bytes() -> None:
    stage = Stage(Timed, ROWS, RESULT, "EventTime")
    for at in (11_000, 20_000, 11_500):
        stage.batch([("a", f"h.registerTimer({at})")])
    assert stage.batch([("a", "h.listTimers()")]) == [("a", "[20000, 11500, 11000]")]
    stage = scripted()
    for key in ("'ccc'", "None", "'b'", "''", "'a'"):
        run(stage, f"m.updateValue(({key},),(1,))", now=1)
    assert run(stage, "m.keys()", now=1) == ["[('',), (None,), ('a',), ('b',), ('ccc',)]"]


@pytest.mark.parametrize(
    ("ops", "text"),
    [
        ("l.appendList([])", r"\[ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE\].* for StateName list\."),
        ("v.update((1,2))", r"\[STRUCT_ARRAY_LENGTH_MISMATCH\].* 1 fields are required while 2 values"),
        ("h.getValueState('w', 'n int')", r"operation=get_value_state with invalid handle state=INITIALIZED"),
    ],
)
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "calls that Spark refuses",
    note="raise Spark's error at the call; in Spark the task then also loses its state server",
)
def test_calls_that_spark_refuses_raise_its_error(ops: str, text: str) -> None:
    with pytest.raises(PySparkRuntimeError, match=text):
        run(scripted(), ops, now=1)


def test_a_deleted_state_raises_the_error_of_spark() -> None:
    class Deleting(Scripted):
        def init(self, handle: Any) -> None:
            super().init(handle)
            handle.deleteIfExists("value")

    stage = Stage(Deleting, ROWS, RESULT, "ProcessingTime", **STATES)
    with pytest.raises(PySparkRuntimeError, match=r"Error checking value state exists"):
        run(stage, "v.exists()", now=1)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        ("default", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        (" x", "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"),
        ("$x", "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"),
    ],
)
@pytest.mark.promises("StatefulProcessor", "supported", "names of states that Spark refuses")
def test_a_name_that_spark_refuses_raises_its_error(name: str, error: str) -> None:
    class Naming(Timed):
        def init(self, handle: Any) -> None:
            handle.getListState("x$", N)
            handle.getListState(name, N)

    stage = Stage(Naming, ROWS, RESULT, **{"x$": DeclaredState("list", (N,), None)})
    with pytest.raises(
        PySparkRuntimeError, match=rf"Error initializing list state: \[{error}\].* name={re.escape(name)}\."
    ):
        stage.batch([("a", "")])


@pytest.mark.promises("StatefulProcessor", "supported", "timeMode")
def test_timers_need_a_time_mode() -> None:
    with pytest.raises(PySparkRuntimeError, match=r"operation=register_timer with invalid timeMode=NoTime"):
        Stage(Timed, ROWS, RESULT).batch([("a", "h.registerTimer(1)")])


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        ("integer", True, None),
        ("integer", 2**40, 0),
        ("integer", 1.5, None),
        ("integer", "1", None),
        ("integer", np.int32(5), 5),
        ("byte", 300, 44),
        ("long", 2**70, None),
        ("double", 1, None),
        ("double", np.float32(1.5), 1.5),
        ("float", 1e300, math.inf),
        ("string", 1, "1"),
        ("string", False, "false"),
        ("string", 1e10, "1.0E10"),
        ("string", [1, None, "a"], "[1, null, a]"),
        ("string", {"a": 1}, "{a=1}"),
        ("binary", "a", b"a"),
        ("boolean", 1, None),
        ("decimal(10,2)", Decimal("1.255"), Decimal("1.26")),
        ("decimal(10,2)", 1, None),
        ("decimal(10,2)", Decimal("-0.001"), Decimal("0.00")),
        ("string", Decimal("-0.00"), "0.00"),
        ("string", [Decimal("-0")], "[0]"),
        ("date", date(2020, 1, 2), date(2020, 1, 2)),
        ("timestamp", datetime(2020, 1, 2, 3, tzinfo=UTC), "local"),
        ("array<int>", [1, "a", 2**40], [1, None, 0]),
        ("array<int>", b"a\xff", [97, -1]),
        ("array<string>", bytearray(b"a\xff"), ["97", "-1"]),
        ("array<boolean>", b"a", [None]),
        ("array<int not null>", [1, None], [1, 0]),
        ("map<string,int>", {"a": "x"}, {"a": None}),
        ("map<int,string>", {"a": 1}, {0: "1"}),
        ("map<double,string>", {"a": 1}, {0.0: "1"}),
        ("map<string,int not null>", {"a": "x"}, {"a": 0}),
        ("struct<a:int,b:string>", (1, 2), Row(a=1, b="2")),
        ("integer not null", None, 0),
    ],
)
@pytest.mark.promises("StatefulProcessor", "supported", "values of other types than the state's")
def test_values_are_coerced_as_by_sparks_jvm(type_: str, value: Any, kept: Any) -> None:
    codec = StructCodec(T.StructType([field(type_)]))
    (found,) = codec.decode(codec.encode((value,)))
    if kept == "local":
        assert found == value.astimezone().replace(tzinfo=None)
    else:
        assert repr(found) == repr(kept)


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "fields of a state that must not be null",
    note="a null is zero, or an error for text, as in Spark without Avro; in Spark with Avro, an error",
)
def test_a_null_in_a_field_that_must_not_be_null_raises_the_error_of_spark() -> None:
    codec = StructCodec(T.StructType().add("name", "string", nullable=False))
    with pytest.raises(
        PySparkRuntimeError, match=r"\[EXPRESSION_DECODING_FAILED\].* the field name must not"
    ):
        codec.encode((None,))
    codec = StructCodec(T.StructType([field("map<string,int>")]))
    with pytest.raises(PySparkRuntimeError, match=r"\[EXPRESSION_DECODING_FAILED\].* the field key must not"):
        codec.encode(({None: 1},))


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "the entries of a dict inside a value",
    note="keep their order; in Spark they have that of a Java HashMap",
)
def test_the_entries_of_a_dict_in_a_value_keep_their_order() -> None:
    codec = StructCodec(T.StructType([field("map<string,int>")]))
    (found,) = codec.decode(codec.encode(({"up": 1, "down": 2, "": 3},)))
    assert list(found) == ["up", "down", ""]


def field(ddl: str) -> T.StructField:
    names = {
        "array<int>": T.ArrayType(T.IntegerType()),
        "array<string>": T.ArrayType(T.StringType()),
        "array<boolean>": T.ArrayType(T.BooleanType()),
        "array<int not null>": T.ArrayType(T.IntegerType(), containsNull=False),
        "map<string,int>": T.MapType(T.StringType(), T.IntegerType()),
        "map<int,string>": T.MapType(T.IntegerType(), T.StringType()),
        "map<double,string>": T.MapType(T.DoubleType(), T.StringType()),
        "map<string,int not null>": T.MapType(T.StringType(), T.IntegerType(), valueContainsNull=False),
        "struct<a:int,b:string>": T.StructType().add("a", "integer").add("b", "string"),
        "decimal(10,2)": T.DecimalType(10, 2),
    }
    plain, null = ddl.removesuffix(" not null"), not ddl.endswith(" not null")
    type_ = names[plain] if plain in names else T.StructType().add("x", plain)["x"].dataType
    return T.StructField("x", type_, null)


class Logged(StatefulProcessor):
    """Records its calls in a list that its copies share."""

    calls: list[str] = []  # noqa: RUF012

    def init(self, handle: Any) -> None:
        self.calls.append("init")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        self.calls.append(f"rows of {key[0]}")
        return iter([])

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "StatefulProcessor.init",
    "StatefulProcessor.close",
    note="runs only in partitions with rows or due timers, and once on the driver; in Spark, in all",
)
def test_a_processor_is_opened_and_closed_around_the_keys_of_a_partition() -> None:
    stage = Stage(Logged, ROWS, RESULT)
    Logged.calls.clear()
    stage.batch([("a", ""), ("b", "")])
    assert Logged.calls == ["init", "rows of a", "rows of b", "close"]
