"""One suite of state operations and refusals over both backends: memory, and a key group of Spark."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from queries import query_of

from timerheap import (
    AggregateFunction,
    AggregatingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink import KeyContext
from timerheap.flink.memory_states import MemoryRuntimeContext
from timerheap.spark._functions.state_handles import GroupRuntimeContext
from timerheap.spark._group.key_group import KeyGroup


class Silent(KeyedProcessFunction):
    def process_element(self, value, ctx):
        return None


KEY = StructType().add("k", "string")
QUERY = query_of(Silent(), KEY, KEY, event_time=None, order="arrival", max_parallelism=4)
ROW = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.STRING())])


def memory(keys):
    return MemoryRuntimeContext(keys, 4)


def key_group(keys):
    context = GroupRuntimeContext(keys, 4)
    context.bind(KeyGroup(QUERY.layout))
    return context


BACKENDS = [memory, key_group]
backends = pytest.mark.parametrize("backend", BACKENDS)


class Opened:
    """Three states of the current key, 5."""

    def __init__(self, backend, type_=ROW, key_type="string"):
        self.keys = KeyContext()
        self.context = backend(self.keys)
        self.value = self.context.get_state(ValueStateDescriptor("value", type_))
        self.log = self.context.get_list_state(ListStateDescriptor("log", type_))
        self.book = self.context.get_map_state(MapStateDescriptor("book", key_type, type_))
        self.keys.current_key = 5

    def contents(self):
        return self.value.value(), list(self.log), list(self.book.items())


@backends
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "State.clear",
    "ValueState.value",
    "ValueState.update",
    "ListState.get",
    "ListState.add",
    "ListState.add_all",
    "MapState.get",
    "MapState.put",
    "MapState.put_all",
    "MapState.is_empty",
)
def test_states_belong_to_the_current_key(backend):
    opened = Opened(backend, "bigint")
    opened.value.update(1)
    opened.log.add_all([1, 2])
    opened.book.put_all({"a": 1, "b": None})
    opened.keys.current_key = 6
    assert opened.contents() == (None, [], [])
    assert opened.book.is_empty()
    opened.log.add(7)
    opened.keys.current_key = 5
    assert opened.contents() == (1, [1, 2], [("a", 1), ("b", None)])
    for state in (opened.value, opened.log, opened.book):
        state.clear()
    assert opened.contents() == (None, [], [])
    opened.keys.current_key = 6
    assert opened.contents() == (None, [7], [])


class Average(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


@pytest.mark.promises(
    "PyFlink",
    "supported",
    "RuntimeContext.get_reducing_state",
    "RuntimeContext.get_aggregating_state",
    "AggregatingStateDescriptor",
    "ReducingState.get",
    "ReducingState.add",
    "AggregatingState.get",
    "AggregatingState.add",
)
@backends
def test_reducing_and_aggregating_states_combine_what_is_added(backend):
    keys = KeyContext()
    context = backend(keys)
    largest = context.get_reducing_state(ReducingStateDescriptor("largest", max, Types.LONG()))
    sums = Types.TUPLE([Types.LONG(), Types.LONG()])
    average = context.get_aggregating_state(AggregatingStateDescriptor("average", Average(), sums))
    for key in (5, 6):
        keys.current_key = key
        assert (largest.get(), average.get()) == (None, None)
        for value in (key, key + 3, key + 1):
            largest.add(value)
            average.add(value)
    keys.current_key = 5
    assert (largest.get(), average.get()) == (8, 19 / 3)
    for wrong in (None, "9", 1 << 63):
        with pytest.raises((TypeError, ValueError)):
            largest.add(wrong)
    assert largest.get() == 8
    largest.clear()
    average.clear()
    assert (largest.get(), average.get()) == (None, None)
    keys.current_key = 6
    assert (largest.get(), average.get()) == (9, 22 / 3)


@backends
@pytest.mark.promises("PyFlink", "supported", "ListState.update", "MapState.remove", "MapState.contains")
def test_an_emptied_list_or_map_is_no_state(backend):
    opened = Opened(backend, "bigint")
    opened.log.add(1)
    opened.log.update([])
    opened.book["a"] = 1
    opened.book.remove("a")
    opened.book.remove("a")
    opened.book.put_all({})
    opened.log.add_all([])
    assert opened.contents() == (None, [], [])


@backends
def test_all_nans_are_one_key_of_a_map(backend):
    for key_type in ("double", Types.ROW([Types.DOUBLE()])):
        opened = Opened(backend, "bigint", key_type)
        nans = [float("nan"), -float("nan"), np.float64("nan")]
        nans = nans if key_type == "double" else [(nan,) for nan in nans]
        for value, nan in enumerate(nans):
            opened.book[nan] = value
        assert len(list(opened.book)) == 1
        assert opened.book[nans[1]] == 2
        opened.book.remove(nans[0])
        assert opened.book.is_empty()


@backends
def test_an_iterator_over_a_list_is_not_changed_by_what_follows(backend):
    opened = Opened(backend, "bigint")
    opened.log.add_all([1, 2])
    before = iter(opened.log)
    opened.log.add(3)
    longer = iter(opened.log)
    opened.log.update([4])
    assert (list(before), list(longer), list(opened.log)) == ([1, 2], [1, 2, 3], [4])


@backends
@pytest.mark.promises("PyFlink", "supported", "MapState.items", "MapState.keys", "MapState.values")
def test_a_map_is_iterated_in_the_order_of_insertion(backend):
    opened = Opened(backend, "bigint")
    opened.book.put_all({"a": 1, "b": 2, "c": 3})
    opened.book["b"] = 4
    opened.book.remove("a")
    opened.book["a"] = 5
    assert list(opened.book.items()) == [("b", 4), ("c", 3), ("a", 5)]


@backends
def test_a_struct_is_returned_as_a_row_of_the_callers_own(backend):
    opened = Opened(backend)
    given = {"a": 1, "b": ["x"]}
    opened.value.update(given)
    opened.log.add((1, ["x"]))
    opened.book["k"] = given
    given["b"].append("y")
    for row in (opened.value.value(), *opened.log, opened.book["k"]):
        assert (row, row.a, row["b"], row[0], row.asDict()) == ((1, ["x"]), 1, ["x"], 1, {"a": 1, "b": ["x"]})
        assert "a" in row
        assert "c" not in row
        with pytest.raises(AttributeError):
            _ = row.c
        row["a"] = 2
        row.b.append("z")
    assert opened.contents() == ((1, ["x"]), [(1, ["x"])], [("k", (1, ["x"]))])
    opened.value.update({"a": 2})
    assert opened.value.value() == (2, None)


@backends
def test_a_struct_may_be_the_key_of_a_map(backend):
    opened = Opened(backend, "bigint", Types.ROW([Types.LONG(), Types.STRING()]))
    opened.book[1, "x"] = 5
    opened.book[2, None] = 6
    assert [*opened.book] == [(1, "x"), (2, None)]
    assert [key.f0 for key in opened.book] == [1, 2]
    assert (1, "x") in opened.book
    del opened.book[1, "x"]
    assert list(opened.book.items()) == [((2, None), 6)]


MOMENT = datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000)


@backends
@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        ("timestamp", 1_500, MOMENT),
        ("float", 0.1, float(np.float32(0.1))),
        ("bigint", np.int32(5), 5),
        ("binary", bytearray(b"a"), b"a"),
        ("array<bigint>", range(2), [0, 1]),
        ("map<string,timestamp>", {"a": 1_500}, {"a": MOMENT}),
        (pa.uint8(), 255, 255),
        ("decimal(5,2)", decimal.Decimal("1.5"), decimal.Decimal("1.50")),
    ],
)
def test_a_value_is_kept_as_its_type(backend, type_, value, kept):
    opened = Opened(backend, type_)
    opened.value.update(value)
    opened.log.add(value)
    opened.book["k"] = value
    for found in (opened.value.value(), *opened.log, *opened.book.values()):
        assert found == kept
        assert type(found) is type(kept)


# What is refused: an operation, and what its error says.
REFUSED = [
    ("bigint", lambda o: o.value.update("5"), "state 'value': '5' (str) does not fit int64"),
    ("bigint", lambda o: o.value.update(True), "state 'value': True (bool) does not fit int64"),
    ("bigint", lambda o: o.value.update(2**63), "state 'value': 9223372036854775808 (int) does not fit"),
    ("int", lambda o: o.log.add(2.5), "state 'log', an element: 2.5 (float) does not fit int32"),
    ("int", lambda o: o.log.add_all([1, "a"]), "state 'log', an element: 'a' (str) does not fit int32"),
    ("int", lambda o: o.log.add(None), "state 'log': an element of a list state must not be None"),
    ("int", lambda o: o.log.update([1, None]), "state 'log': an element of a list state must not be None"),
    ("int", lambda o: o.book.put(5, 5), "state 'book', a key: 5 (int) does not fit string"),
    ("int", lambda o: o.book.get(5), "state 'book', a key: 5 (int) does not fit string"),
    ("int", lambda o: o.book.put_all({"a": 1, "b": "c"}), "state 'book', a value: 'c' (str) does not fit"),
    ("int", lambda o: o.book.put(None, 5), "state 'book': a key of a map state must not be None"),
    (ROW, lambda o: o.value.update({"c": 5}), "state 'value': {'c': 5} (dict) does not fit struct<a: "),
    (ROW, lambda o: o.value.update(object), "state 'value': <class 'object'> (type) does not fit struct"),
    ("date", lambda o: o.value.update(MOMENT), f"state 'value': {MOMENT!r} (datetime) does not fit date32"),
    ("int", lambda o: o.context.get_state("n"), "state_descriptor must be a ValueStateDescriptor, got 'n'"),
    (
        "int",
        lambda o: o.context.get_list_state(ValueStateDescriptor("n", "int")),
        "state_descriptor must be a ListStateDescriptor, got ValueStateDescriptor('n', 'int')",
    ),
    (
        "int",
        lambda o: o.context.get_state(ValueStateDescriptor("value", "bigint")),
        "state 'value' is already in use as a value state of int32; it cannot also be a value state of int64",
    ),
    (
        "int",
        lambda o: o.context.get_map_state(MapStateDescriptor("log", "int", "string")),
        "state 'log' is already in use as a list state of list<element: int32>; it cannot also be a map "
        "state of map<int32, string>",
    ),
    (
        "int",
        lambda o: o.context.get_map_state(MapStateDescriptor("m", "array<int>", "int")),
        "state 'm': the type of a map's keys must be hashable, got list<element: int32>",
    ),
    (
        "int",
        lambda o: o.context.get_state(ValueStateDescriptor("n", "long long")),
        "state 'n': the type must be one that timerheap can store, got 'long long': ",
    ),
    ("int", lambda o: o.context.get_state(ValueStateDescriptor("n", int)), "state 'n': the type must be one"),
]  # fmt: skip


@backends
@pytest.mark.parametrize(("type_", "refused", "message"), REFUSED, ids=[row[2][:60] for row in REFUSED])
def test_refusals_have_one_text_and_change_nothing(backend, type_, refused, message):
    opened = Opened(backend, type_)
    good = {"bigint": 1, "int": 1, ROW: (1, ["x"]), "date": datetime.date(2024, 1, 1)}[type_]
    opened.value.update(good)
    opened.log.add(good)
    opened.book["k"] = good
    with pytest.raises((TypeError, ValueError)) as caught:
        refused(opened)
    assert str(caught.value).startswith(message)
    assert opened.contents() == (good, [good], [("k", good)])


@backends
def test_state_without_a_current_key_raises(backend):
    opened = Opened(backend, "int")
    opened.keys.current_key = None
    for use in (opened.value.value, lambda: opened.value.update(5), opened.log.clear, opened.book.is_empty):
        with pytest.raises(
            RuntimeError, match=r"state '\w+': there is no current key; use state in the calls"
        ):
            use()


@backends
@pytest.mark.promises("PyFlink", "supported", "StateDescriptor.get_name")
def test_descriptors_of_equal_types_return_one_handle(backend):
    opened = Opened(backend, "bigint")
    for same in (Types.LONG(), pa.int64()):
        assert opened.context.get_state(ValueStateDescriptor("value", same)) is opened.value


@backends
def test_both_zeros_are_one_key_of_a_map(backend):
    opened = Opened(backend, "string", "double")
    opened.book.put(-0.0, "a")
    opened.book.put(0.0, "b")
    assert repr(list(opened.book.items())) == "[(0.0, 'b')]"
    opened.book.remove(-0.0)
    assert opened.book.is_empty()


@backends
def test_both_zeros_in_a_row_are_one_key_of_a_map(backend):
    opened = Opened(backend, "string", "struct<x:double,n:int>")
    opened.book.put((-0.0, 1), "a")
    assert repr([tuple(key) for key in opened.book.keys()]) == "[(0.0, 1)]"  # noqa: SIM118


@pytest.mark.parametrize(
    "descriptor",
    [
        MapStateDescriptor("book", "struct<a:array<int>>", Types.LONG()),
        MapStateDescriptor("book", "string", "map<array<int>,int>"),
        ValueStateDescriptor("book", "array<struct<m:map<struct<a:map<int,int>>,int>>>"),
        ListStateDescriptor("book", Types.MAP(Types.LIST(Types.LONG()), Types.LONG())),
    ],
    ids=lambda descriptor: str(descriptor.type_info),
)
def test_maps_whose_keys_cannot_be_hashed_raise(descriptor):
    context = key_group(KeyContext())
    get = {MapStateDescriptor: "get_map_state", ListStateDescriptor: "get_list_state"}
    with pytest.raises(ValueError, match="state 'book': the type of a map's keys must be hashable, got"):
        getattr(context, get.get(type(descriptor), "get_state"))(descriptor)
