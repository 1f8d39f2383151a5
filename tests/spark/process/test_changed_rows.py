"""Rows that a function changes, as PyFlink's ``Row`` allows; states and results do not change with them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
)
from timerheap.flink import KeyContext
from timerheap.flink.memory_states import MemoryRuntimeContext
from timerheap.spark._python_rows import changeable_row
from timerheap.testing import ProcessTester

NUMBERED = Types.ROW_NAMED(["word", "n", "seen"], [Types.STRING(), Types.LONG(), Types.LIST(Types.LONG())])


class Documented(KeyedProcessFunction):
    """The process function of PyFlink's documentation, with the type of its state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(
            ValueStateDescriptor("my_state", Types.ROW([Types.STRING(), Types.LONG()]))
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        current = self.state.value()
        if current is None:
            self.state.update((value.word, 0))
            current = self.state.value()
        current[1] += 1
        self.state.update(current)
        yield current[0], current[1]


def test_the_function_of_pyflinks_documentation_runs() -> None:
    tester = ProcessTester(Documented(), "word", "word string", "word string, n bigint")
    assert tester.push([("x",), ("y",), ("x",)]) == [("x", 1), ("y", 1), ("x", 2)]


def test_rows_of_flinks_operators_can_be_changed() -> None:
    keys: KeyContext[str] = KeyContext()
    keys.current_key = "a"
    state = MemoryRuntimeContext(keys).get_state(ValueStateDescriptor("state", NUMBERED))
    state.update(("x", 1, []))
    current = state.value()
    current[1] += 1
    current["word"] = "y"
    assert (current, state.value()) == (("y", 2, []), ("x", 1, []))
    state.update(current)
    assert (state.value(), state.value().n) == (("y", 2, []), 2)


class Changing(KeyedProcessFunction):
    """Changes each row that it gets of a state, and its input; nothing that it has not stored may change."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", NUMBERED))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", NUMBERED))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), NUMBERED))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", self.add, NUMBERED))

    @staticmethod
    def add(kept: Any, value: Any) -> Any:
        kept["n"] += value[1]
        return kept

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        row = (value.word, value.n, [value.n])
        if value.n == 0:
            self.value.update(row)
            self.list.update([row, row])
        self.sum.add(row)
        rows = [self.value.value(), *self.list.get(), self.sum.get()]
        total = rows[-1].n
        for each in rows:
            each["n"] = -1
            each[0] = "changed"
            each.seen.append(-1)
        assert self.value.value() == ("a", 0, [0])
        assert list(self.list.get()) == [("a", 0, [0])] * 2
        assert self.sum.get()[:2] == ("a", total)
        yield value
        value["word"], value[-1] = "b", 100 + value.n
        assert (value.word, value["n"]) == ("b", 100 + row[1])
        assert ctx.get_current_key() == "a", "the key is that of the row as it came"
        yield value
        yield value.word, total


def test_a_changed_row_changes_neither_state_nor_results_nor_the_key() -> None:
    tester = ProcessTester(Changing(), "word", "word string, n bigint", "word string, n bigint")
    found = tester.push([("a", 0), ("a", 1)]) + tester.push([("a", 2)])
    assert found == [
        ("a", 0), ("b", 100), ("b", 0),
        ("a", 1), ("b", 101), ("b", 1),
        ("a", 2), ("b", 102), ("b", 3),
    ]  # fmt: skip


def test_items_are_set_like_those_of_pyflinks_row() -> None:
    row: Any = changeable_row("a", "b", "c")(1, 2, [3])
    hashed = hash(row[:2])
    same, deep = copy.copy(row), copy.deepcopy(row)
    row["a"], row[1], row[-1] = 10, 20, 30
    assert row == (10, 20, 30)
    assert (row.a, row["b"], row.asDict()) == (10, 20, {"a": 10, "b": 20, "c": 30})
    assert hash(row) == hash((10, 20, 30)), "as in PyFlink, the hash of the values"
    row[:2] = ["x", "y"]
    assert row == ("x", "y", 30)
    assert hash(row[:2]) != hashed
    deep[2].append(4)
    same[0] = 0
    assert (same, deep) == ((0, 2, [3]), (1, 2, [3, 4]))
    for item, error in [
        (3, IndexError),
        (-4, IndexError),
        ("d", KeyError),
        (1.0, TypeError),
        (slice(0, 3), ValueError),
    ]:
        with pytest.raises(error):
            row[item] = [1]
    with pytest.raises(AttributeError, match=r"a field must be set as row\['a'\] = value, got row.a = 5"):
        row.a = 5
    assert row == ("x", "y", 30)


def test_keys_of_a_map_cannot_be_changed() -> None:
    class Keys(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.map = runtime_context.get_map_state(MapStateDescriptor("map", "struct<a:int>", "int"))

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            self.map.put((1,), 1)
            (key,) = self.map.keys()
            with pytest.raises(TypeError):
                key[0] = 2

    ProcessTester(Keys(), "k", "k string", "k string").push([("a",)])
