"""What a PyFlink program imports and writes at the top of its file works as it stands."""

import copy
import pickle
from collections.abc import Iterable

import pytest

import timerheap
import timerheap.spark
import timerheap.windows
from timerheap import (
    AggregateFunction,
    CountWindow,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    ReduceFunction,
    Row,
    TimeWindow,
    Trigger,
    Types,
    ValueState,
    ValueStateDescriptor,
    WindowFunction,
)
from timerheap._values import ArrowTypes
from timerheap.flink import KeyContext
from timerheap.flink.memory_states import MemoryRuntimeContext, NamedRow


def test_functions_and_contexts_can_be_subscripted():
    class Counted(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
        def process(
            self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
        ) -> Iterable[tuple]:
            yield key, len(list(elements))

    class Summed(WindowFunction[tuple, tuple, str, CountWindow]):
        def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]):
            yield key, sum(value for _, value in inputs)

    assert list(Counted().process("hi", None, [1, 2])) == [("hi", 2)]
    assert list(Summed().apply("hi", CountWindow(0), [("hi", 3)])) == [("hi", 3)]


@pytest.mark.parametrize(
    "generic",
    [
        AggregateFunction,
        KeyedCoProcessFunction.OnTimerContext,
        KeyedProcessFunction,
        KeyedProcessFunction.Context,
        ReduceFunction,
        Trigger,
        Trigger.OnMergeContext,
        Trigger.TriggerContext,
        ValueState,
    ],
)
def test_a_subscript_names_types_and_is_still_the_class(generic):
    assert generic[int, str].__origin__ is generic
    assert issubclass(type("Mine", (generic,), {}), generic)


def test_all_names_of_windows_can_be_imported_from_timerheap():
    for name in timerheap.windows.__all__:
        assert getattr(timerheap, name) is getattr(timerheap.windows, name), name
    with pytest.raises(AttributeError, match="no attribute 'Sliding'"):
        timerheap.Sliding  # noqa: B018


@pytest.mark.promises(
    "PyFlink",
    "refused",
    "BroadcastProcessFunction",
    note="use `process_broadcast` with a key, or join the rules to the rows",
)
@pytest.mark.promises(
    "PyFlink",
    "refused",
    "MapFunction",
    "FlatMapFunction",
    "FilterFunction",
    "ProcessFunction",
    note="use the DataFrame's own operations, or a KeyedProcessFunction",
)
@pytest.mark.promises(
    "PyFlink",
    "refused",
    "CoProcessFunction",
    "CoMapFunction",
    "CoFlatMapFunction",
    note="write a KeyedCoProcessFunction",
)
@pytest.mark.promises(
    "PyFlink",
    "refused",
    "AllWindowFunction",
    "ProcessAllWindowFunction",
    note="write a ProcessWindowFunction, and pass a key column that is the same in all rows",
)
@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("BroadcastProcessFunction", "pass a KeyedBroadcastProcessFunction"),
        ("MapFunction", "use the DataFrame's own operations"),
        ("CoProcessFunction", "write a KeyedCoProcessFunction"),
        ("ProcessAllWindowFunction", "write a ProcessWindowFunction"),
        ("StreamExecutionEnvironment", "sources, sinks and jobs are Spark's"),
    ],
)
def test_what_has_no_key_is_refused_by_name(name, instead):
    with pytest.raises(ImportError, match=f"timerheap has no {name}: {instead}"):
        getattr(timerheap, name)


@pytest.mark.parametrize(
    ("ask", "descriptor"),
    [
        ("get_state", ValueStateDescriptor("last")),
        ("get_list_state", ListStateDescriptor("last")),
        ("get_map_state", MapStateDescriptor("last", Types.STRING())),
    ],
)
def test_a_state_without_a_type_raises_and_names_types_to_pass(ask, descriptor):
    runtime_context = MemoryRuntimeContext(KeyContext())
    with pytest.raises(TypeError, match=r"state 'last': the type must be given, .* such as Types\.LONG\(\)"):
        getattr(runtime_context, ask)(descriptor)


def test_a_row_is_read_by_position_by_name_and_by_attribute():
    row = Row(plane="N14228", delay=5)  # keywords are sorted, as in PyFlink

    assert (row[0], row["plane"], row.delay, row[:1]) == (5, "N14228", 5, [5])
    assert (len(row), list(row), 5 in row, "plane" in row) == (2, [5, "N14228"], True, False)
    assert row.as_dict() == {"delay": 5, "plane": "N14228"}
    assert Row(at=1, flight=row).as_dict(True)["flight"] == {"delay": 5, "plane": "N14228"}
    assert repr(row) == "Row(delay=5, plane='N14228')"
    assert repr(Row("a", 1)) == "<Row('a', 1)>"


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "Row.as_dict",
    "Row.set_field_names",
    "Row.get_fields_by_names",
)
@pytest.mark.promises("PyFlink", "added", "Row.has_field_names")
def test_a_row_can_be_changed_copied_and_named():
    row = Row("N14228", 5)
    row[1] = 6
    row.set_field_names(["plane", "delay"])
    row["plane"] = "N5EAAA"
    assert row == Row("plane", "delay")("N5EAAA", 6)
    assert row != Row("N5EAAA", 6)
    assert copy.deepcopy(row) == pickle.loads(pickle.dumps(row)) == row
    assert hash(row) == hash(copy.copy(row))
    assert row.get_fields_by_names(["delay", "plane"]) == [6, "N5EAAA"]


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: Row(1, a=2), ValueError, "either values or keywords"),
        (lambda: Row(1).as_dict(), TypeError, "must have field names"),
        (lambda: Row(a=1).b, AttributeError, r"must be one of \['a'\], got 'b'"),
        (lambda: Row(a=1)["b"], KeyError, r"must be one of \['a'\], got 'b'"),
        (lambda: Row(1).set_field_names(["a", "b"]), ValueError, "must have 1 names"),
        (lambda: Row(a=1).get_fields_by_names(["b"]), ValueError, r"must have the fields \['b'\]"),
        (lambda: setattr(Row(a=1), "a", 2), AttributeError, r"row\['a'\] = value"),
        (lambda: Row("a")(1, 2), ValueError, "must have 1 values"),
    ],
)
def test_a_wrong_use_of_a_row_raises(use, error, message):
    with pytest.raises(error, match=message):
        use()


def test_a_row_is_kept_in_state_by_name_or_by_position():
    codec = ArrowTypes(NamedRow.of, NamedRow.of).codec(
        ArrowTypes(NamedRow.of, NamedRow.of).resolve("struct<plane:string,delay:bigint>", "x"), "state 'x'"
    )
    for row in (Row("N14228", 5), Row(plane="N14228", delay=5)):
        assert codec.decode(codec.encode(row)) == ("N14228", 5)
    with pytest.raises(ValueError, match=r"state 'x': .* must have the fields \['plane', 'delay'\]"):
        codec.encode(Row(plane="N14228", late=5))
