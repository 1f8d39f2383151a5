"""A slab equals a list of what was appended, for any type."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memories import Arena

from timerheap.spark._arrow import wide
from timerheap.spark._memory.slab import Slab

TEXT = st.text(max_size=4)
MOMENTS = st.integers(-(10**16), 10**16)
FIXED: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): MOMENTS,
    pa.duration("us"): MOMENTS,
    pa.time64("ns"): st.integers(0, 86_399 * 10**9),
    pa.decimal128(38, 18): st.integers(-(10**19), 10**19).map(decimal.Decimal),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.null(): st.none(),
}
VARIABLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): st.binary(max_size=4),
}
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def leaves(leaf_types: dict[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[Typed]:
    return st.sampled_from([*leaf_types]).map(lambda type_: (type_, leaf_types[type_]))


def struct_of(fields: list[Typed]) -> Typed:
    names = [f"f{i}" for i in range(len(fields))]
    type_ = pa.struct([pa.field(name, one) for name, (one, _) in zip(names, fields, strict=True)])
    values = [st.none() | values for _, values in fields]
    return type_, st.fixed_dictionaries(dict(zip(names, values, strict=True)))


def list_of(element: Typed) -> Typed:
    return pa.list_(pa.field("element", element[0])), st.lists(st.none() | element[1], max_size=3)


def map_of(key: Typed, item: Typed) -> Typed:
    entries = st.lists(st.tuples(key[1], st.none() | item[1]), max_size=3)
    return pa.map_(key[0], item[0]), entries


KEYS = leaves({pa.string(): TEXT, pa.int64(): FIXED[pa.int64()]})
FIXED_TYPES = st.recursive(
    leaves(FIXED), lambda inner: st.lists(inner, min_size=1, max_size=3).map(struct_of), max_leaves=4
)
TYPES = st.recursive(
    leaves(FIXED | VARIABLE),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(struct_of)
        | inner.map(list_of)
        | st.tuples(KEYS, inner).map(lambda pair: map_of(*pair))
    ),
    max_leaves=4,
)


@st.composite
def arrays(draw: st.DrawFn, typed: Typed, n: int | None = None) -> pa.Array:
    """Draw an array, perhaps a slice of a longer one."""
    type_, values = typed
    before, after = draw(st.integers(0, 9)), draw(st.integers(0, 2))
    count = draw(st.integers(0, 10)) if n is None else n
    nullable = values if draw(st.booleans()) else st.none() | values
    drawn = draw(st.lists(nullable, min_size=before + count + after, max_size=before + count + after))
    return pa.array(drawn, type_).slice(before, count)


def contents(array: pa.Array) -> str:
    """Return the values of a valid array as text, in which equal numbers of different signs differ."""
    array.validate(full=True)
    return dumped(array.to_pylist())


def dumped(values: list[Any]) -> str:
    return json.dumps(values, default=repr)


def attached(column: Slab, memory: Arena) -> Slab:
    """Return the column as another process would see it."""
    return Slab(column.type, memory, json.loads(json.dumps(column.head())))


def append(column: Slab, values: pa.Array) -> None:
    overwrite(column, np.zeros(len(values), np.int64), values, held=False)


def overwrite(column: Slab, places: np.ndarray, values: pa.Array, held: bool = True) -> None:
    values, which = column.fitting(values), np.full(len(values), held)
    column.write(values, column.plan(values, places, which), which)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_column_equals_a_list_of_what_was_appended(data: st.DataObject) -> None:
    typed = data.draw(TYPES)
    memory = Arena()
    column = Slab(typed[0], memory)
    model: list[Any] = []
    taken: list[tuple[pa.Array, Any]] = []
    for array in data.draw(st.lists(arrays(typed), max_size=6)):
        append(column, array)
        model += array.to_pylist()
        anywhere = st.tuples(
            st.integers(0, max(len(model) - 1, 0)), st.booleans() if model else st.just(False)
        )
        drawn = np.array(data.draw(st.lists(anywhere, max_size=12)), np.int64).reshape(-1, 2)
        places, held = drawn[:, 0], drawn[:, 1].astype(bool)
        wanted = [model[place] if each else None for place, each in zip(places, held, strict=True)]
        found = column.take(places, None if held.all() and model else held)
        assert found.type == wide(typed[0])
        assert contents(found) == dumped(wanted)
        taken.append((found, dumped(wanted)))
        if data.draw(st.booleans()):
            column = attached(column, memory)
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(model))] * 2)))
    assert contents(column.values()[start:stop]) == dumped(model[start:stop])
    column.clear()
    assert not memory.blocks, "no block is lost"
    assert len(column) == column.nbytes() == 0
    assert all(contents(array) == was for array, was in taken), "what was taken does not change"


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_values_of_fixed_width_are_overwritten_in_place(data: st.DataObject) -> None:
    typed = data.draw(FIXED_TYPES)
    column = Slab(typed[0], Arena())
    assert column.fixed_width
    append(column, data.draw(arrays(typed, n=20)))
    model = column.values().to_pylist()
    size = column.nbytes()
    for _ in range(3):
        places = data.draw(st.lists(st.integers(0, 19), unique=True))
        values = data.draw(arrays(typed, n=len(places)))
        overwrite(column, np.array(places, np.int64), values)
        for place, value in zip(places, values.to_pylist(), strict=True):
            model[place] = value
        assert contents(column.values()) == dumped(model)
        array = column.values()
        assert array.null_count == sum(value is None for value in model)
        append(column, values.slice(0, 0))
        column = attached(column, column._layout._memory)  # type: ignore[arg-type]
    assert column.nbytes() <= size + 3 * 20, "only bitmaps of nulls are new"


@pytest.mark.parametrize(
    "type_",
    [
        pa.string(),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int8()), ("b", pa.map_(pa.string(), pa.bool_()))]),
    ],
    ids=str,
)
def test_a_type_with_offsets_is_not_of_fixed_width(type_: pa.DataType) -> None:
    assert not Slab(type_).fixed_width


DEEP = pa.struct(
    [("a", pa.list_(pa.struct([("b", pa.string()), ("c", pa.bool_())]))), ("d", pa.decimal128(5))]
)
FIRST = pa.array([{"a": [{"b": "x", "c": True}], "d": decimal.Decimal(1)}] * 3, DEEP)
SECOND = pa.array([None, {"a": [{"b": "y" * 99, "c": None}, None] * 40, "d": None}] * 9, DEEP)


def test_a_failed_allocation_leaves_the_column_as_it_was() -> None:
    for allowed in range(100):
        memory = Arena()
        column = Slab(DEEP, memory)
        append(column, FIRST)
        memory.allowed = allowed
        try:
            append(column, SECOND)
        except MemoryError:
            assert column.values().equals(FIRST.cast(column.type))
            memory.allowed = None
            append(column, SECOND)
        else:
            break
    assert 5 < allowed < 20
    assert column.take(np.arange(len(column))).equals(pa.concat_arrays([FIRST, SECOND]).cast(column.type))


def test_nulls_that_find_no_room_leave_the_column_as_it_was() -> None:
    memory = Arena()
    column = Slab(pa.struct([("a", pa.int64()), ("b", pa.int64())]), memory)
    append(column, pa.array([{"a": 1, "b": 2}] * 3))
    nulls = pa.array([{"a": None, "b": None}], column.type)
    for allowed in range(2):
        memory.allowed = allowed
        with pytest.raises(MemoryError):
            overwrite(column, np.array([1]), nulls)
        assert column.values().to_pylist() == [{"a": 1, "b": 2}] * 3
    memory.allowed = None
    overwrite(column, np.array([1]), nulls)
    assert column.values()[1:3].to_pylist() == [{"a": None, "b": None}, {"a": 1, "b": 2}]


def test_appending_copies_no_old_value() -> None:
    memory = Arena()
    column = Slab(pa.string(), memory)
    append(column, pa.array(["old"] * 1000))
    seen = {*memory.blocks}
    for _ in range(1000):
        append(column, pa.array(["new"]))
        seen |= {*memory.blocks}
    assert len(seen) <= 6, "two blocks, each replaced at most twice"


def test_values_of_another_type_are_cast() -> None:
    column = Slab(pa.timestamp("us"))
    append(column, pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("s")))
    assert column.values()[0].as_py() == datetime.datetime(2020, 1, 1)
    with pytest.raises(pa.ArrowInvalid):
        append(Slab(pa.int8()), pa.array([300]))


def test_a_foreign_head_raises() -> None:
    memory = Arena()
    column = Slab(pa.int64(), memory)
    append(column, pa.array([1]))
    head = column.head()
    head[0][2][1][2] = 1 << 40
    with pytest.raises(ValueError, match="cannot have 1099511627776 in use"):
        Slab(pa.int64(), memory, head)


def test_a_type_that_spark_lacks_raises() -> None:
    with pytest.raises(TypeError, match="type_ must be a type that Spark has, got dictionary"):
        Slab(pa.dictionary(pa.int8(), pa.string()))
