"""States of an operator without Spark, compared with a model in plain Python, and side outputs."""

import threading
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from timerheap import (
    BatchValueState,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink import KeyContext
from timerheap.flink.memory_states import MemoryRuntimeContext


def test_states_store_and_return_copies():
    keys = KeyContext()
    context = MemoryRuntimeContext(keys)
    keys.current_key = "k"
    value = context.get_state(ValueStateDescriptor("value", Types.LIST(Types.LONG())))
    listed = context.get_list_state(ListStateDescriptor("list", Types.LIST(Types.LONG())))
    mapped = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LIST(Types.LONG())))
    given = [1]
    value.update(given)
    listed.add(given)
    mapped.put(1, given)
    given.append(2)

    def got():
        yield value.value()
        yield from listed
        yield mapped.get(1)
        yield from mapped.values()
        yield from (entry for _, entry in mapped.items())

    for copy in got():
        assert copy == [1]
        copy.append(3)
    assert [copy == [1] for copy in got()] == [True] * 5


def test_a_name_is_used_by_one_state_only():
    context = MemoryRuntimeContext(KeyContext())
    state = context.get_state(ValueStateDescriptor("n", Types.LONG()))
    assert context.get_state(ValueStateDescriptor("n", "bigint")) is state
    with pytest.raises(ValueError, match="already in use as a value state"):
        context.get_state(ValueStateDescriptor("n", Types.INT()))
    with pytest.raises(ValueError, match="already in use as a value state"):
        context.get_list_state(ListStateDescriptor("n", Types.LONG()))
    with pytest.raises(TypeError, match="state_descriptor must be a MapStateDescriptor, got ListState"):
        context.get_map_state(ListStateDescriptor("m", Types.LONG()))
    with pytest.raises(ValueError, match="it cannot also be a reducing state"):
        context.get_reducing_state(ReducingStateDescriptor("n", max, Types.LONG()))
    with pytest.raises(TypeError, match="state_descriptor must be an AggregatingStateDescriptor, got 'n'"):
        context.get_aggregating_state("n")
    with pytest.raises(RuntimeError, match="'n': there is no current key"):
        state.value()
    assert not isinstance(state, BatchValueState)


def test_invalid_values_raise_and_change_nothing():
    keys = KeyContext()
    context = MemoryRuntimeContext(keys)
    keys.current_key = "k"
    listed = context.get_list_state(ListStateDescriptor("list", Types.LONG()))
    mapped = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))
    listed.add(1)
    mapped.put(1, 1)
    for refused in (
        lambda: listed.add(None),
        lambda: listed.add_all([2, None]),
        lambda: listed.update([None]),
    ):
        with pytest.raises(ValueError, match="'list': an element of a list state must not be None"):
            refused()
    with pytest.raises(ValueError, match="'map': a key of a map state must not be None"):
        mapped.put_all({2: 2, None: 3})
    refused_by_any = (TypeError, ValueError)  # without pyarrow it is not checked, and cannot be copied
    with pytest.raises(refused_by_any):
        listed.add_all([3, threading.Lock()])
    with pytest.raises(refused_by_any):
        mapped.put_all({3: 3, 4: threading.Lock()})
    assert list(listed) == [1]
    assert dict(mapped.items()) == {1: 1}


KEYS = st.sampled_from("abc")

SMALL = st.integers(0, 3)

LISTS = st.lists(SMALL, max_size=3)

STATE_OPS = st.lists(
    st.one_of(
        st.tuples(KEYS, st.sampled_from(["clear value", "clear list", "clear map"]), st.none()),
        st.tuples(KEYS, st.just("update value"), st.none() | LISTS),
        st.tuples(KEYS, st.just("add"), SMALL),
        st.tuples(KEYS, st.sampled_from(["add_all", "update list"]), LISTS),
        st.tuples(KEYS, st.just("put"), st.tuples(SMALL, st.none() | LISTS)),
        st.tuples(KEYS, st.just("put_all"), st.dictionaries(SMALL, LISTS, max_size=3)),
        st.tuples(KEYS, st.just("remove"), SMALL),
    ),
    max_size=40,
)


@settings(max_examples=200)
@given(STATE_OPS)
def test_states_equal_a_model_of_python_dicts(ops):
    keys = KeyContext()
    context = MemoryRuntimeContext(keys)
    value = context.get_state(ValueStateDescriptor("value", Types.LIST(Types.LONG())))
    listed = context.get_list_state(ListStateDescriptor("list", Types.LONG()))
    mapped = context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LIST(Types.LONG())))
    model = {key: {"value": None, "list": [], "map": {}} for key in "abc"}
    for key, op, argument in ops:
        keys.current_key = key
        here = model[key]
        before = deepcopy(argument)
        match op.split():
            case ["clear", name]:
                {"value": value, "list": listed, "map": mapped}[name].clear()
                here[name] = {"value": None, "list": [], "map": {}}[name]
            case ["update", "value"]:
                value.update(argument)
                here["value"] = argument
            case ["add"]:
                listed.add(argument)
                here["list"] = [*here["list"], argument]
            case ["add_all"]:
                listed.add_all(iter(argument))
                here["list"] = here["list"] + argument
            case ["update", "list"]:
                listed.update(tuple(argument))
                here["list"] = argument
            case ["put"]:
                mapped[argument[0]] = argument[1]
                here["map"] = here["map"] | {argument[0]: argument[1]}
            case ["put_all"]:
                mapped.put_all(argument)
                here["map"] = here["map"] | argument
            case ["remove"]:
                del mapped[argument]
                here["map"] = {k: v for k, v in here["map"].items() if k != argument}
        assert argument == before
        for key_ in "abc":
            keys.current_key = key_
            expected = model[key_]
            assert value.value() == expected["value"]
            assert list(listed) == list(listed.get()) == expected["list"]
            assert list(mapped.items()) == list(expected["map"].items())
            assert list(mapped) == list(mapped.keys()) == list(expected["map"])
            assert list(mapped.values()) == list(expected["map"].values())
            assert mapped.is_empty() is (not expected["map"])
            for k in range(4):
                assert mapped[k] == expected["map"].get(k)
                assert (k in mapped) is (k in expected["map"])
        kept = sum(
            v is not None if name == "value" else bool(v) for m in model.values() for name, v in m.items()
        )
        assert context.num_keyed_state_entries() == kept
