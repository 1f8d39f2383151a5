"""Timers as bytes: round trips, errors, and the equality of single and bulk methods."""

from __future__ import annotations

import enum
import math
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap.flink import InternalTimer, TypeSerializer, assign_to_key_group, java_hash_code
from timerheap.flink.key_groups import KeyGroupRange, OwnedKeyGroups
from timerheap.flink.timer_bytes import TimerSerializer

int64s = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(), max_size=20) | st.text("ab\0\x7f\x80\ud800\U0001f600", max_size=200)
TYPES = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": int64s,
    "double": st.floats(allow_nan=False),
    "string": texts,
    "bytes": st.binary(max_size=200),
    "void": st.none(),
    "time_window": st.tuples(int64s, int64s),
}
anything = st.recursive(
    st.none() | st.booleans() | int64s | st.floats(allow_nan=False) | texts | st.binary(),
    lambda values: st.lists(values, max_size=3).map(tuple),
)
TYPES["any"] = anything


@st.composite
def typed_timers(draw: Any, size: int = 40) -> Any:
    key, namespace = draw(st.sampled_from(sorted(TYPES))), draw(st.sampled_from(sorted(TYPES)))
    timer = st.builds(InternalTimer, int64s, TYPES[key], TYPES[namespace])
    return TimerSerializer(key, namespace), draw(st.lists(timer, max_size=size))


def types_of(value: Any) -> Any:
    return type(value), tuple(map(types_of, value)) if isinstance(value, tuple) else None


@given(typed_timers())
def test_a_deserialized_timer_equals_the_serialized_one(case: Any) -> None:
    serializer, timers = case
    for timer in timers:
        back = serializer.deserialize(serializer.serialize(timer))
        assert back == timer
        assert types_of(back) == types_of(timer)


@given(typed_timers(2), st.data())
def test_bytes_sort_by_timestamp_and_identify_timers(case: Any, data: Any) -> None:
    serializer, timers = case
    for one in timers:
        for other in timers:
            first, second = serializer.serialize(one), serializer.serialize(other)
            assert one.timestamp == other.timestamp or (first < second) == (one.timestamp < other.timestamp)
            assert one == other or first != second


@given(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES)), st.binary(max_size=60))
def test_random_bytes_raise_or_are_the_only_form_of_a_timer(key: str, namespace: str, data: bytes) -> None:
    serializer = TimerSerializer(key, namespace)
    with suppress(ValueError):
        timer = serializer.deserialize(data)
        if "nan" not in repr(timer):  # NaN has many forms
            assert serializer.serialize(timer) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", ""),
        (bytes(8), ""),
        (bytes(8) + b"q", "type tag must be"),
        (bytes(8) + b"b\2n\0", "boolean"),
        (bytes(8) + b"n\1n\0", "void"),
        (bytes(8) + b"y\xff\xff\xff\xffn\0", "bytes"),
        (bytes(8) + b"y\x7f\xff\xff\xffn\0", "the bytes left"),
        (bytes(8) + b"t\xff\xff\xff\xffn\0", "fields"),
        (bytes(8) + b"t\x7f\xff\xff\xffn\0", ""),
        (bytes(8) + b"s\0n\0", "null"),
        (bytes(8) + b"s\x02\xff\xff\xff\xff\xff\x01n\0", "32 bits"),
        (bytes(8) + b"s\x02\xff\xff\x7fn\0", "too big"),
        (bytes(8) + b"s\x02\x80\0n\0", "nonzero group"),
        (bytes(8) + b"s\xff\xff\xff\xff\x07n\0", ""),
        (bytes(8) + b"t\0\0\0\1" * 100_000, ""),
    ],
)
def test_malformed_bytes_raise(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"data must be a timer of.*{message}"):
        TimerSerializer().deserialize(data)


class Plane(NamedTuple):
    number: str
    seats: int


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value", [Plane("N14228", 149), Colour.RED, np.int64(-7), np.float64(0.5), np.str_("a")]
)
def test_a_value_of_a_subclass_is_read_as_its_base_type(value: Any) -> None:
    serializer = TimerSerializer()
    back = serializer.deserialize(serializer.serialize((np.int64(1), value, value)))
    assert back == (1, value, value)
    assert type(back.timestamp) is int
    assert type(back.key) in (int, float, str, tuple)


deep: Any = ()
for _ in range(100_000):
    deep = (deep,)


@pytest.mark.parametrize(
    ("key_type", "key", "error", "message"),
    [
        ("long", "7", TypeError, "value must be an int, got '7' of type str"),
        ("long", True, TypeError, "got True"),
        ("long", 2**63, OverflowError, "64 bits.*9223372036854775808"),
        ("int", 2**31, OverflowError, "32 bits"),
        ("double", "a", TypeError, "a float, got 'a'"),
        ("boolean", 1, TypeError, "a bool, got 1"),
        ("string", b"a", TypeError, "a str, got b'a'"),
        ("bytes", "a", TypeError, "bytes, got 'a'"),
        ("void", 0, TypeError, "None, got 0"),
        ("time_window", (1, 2, 3), TypeError, r"a window \(start, end\)"),
        ("time_window", (1, 2**63), OverflowError, "64 bits"),
        ("any", {1}, TypeError, "None, a bool, int, float, str, bytes or a tuple of these.*set"),
        ("any", (1, [2]), TypeError, "list"),
        ("any", 2**63, OverflowError, "64 bits"),
        ("any", deep, ValueError, "recursion"),
    ],
)
def test_a_value_of_the_wrong_type_raises(
    key_type: str, key: Any, error: type[Exception], message: str
) -> None:
    for part, serializer, timer in [
        ("key", TimerSerializer(key_type, "void"), (0, key, None)),
        ("namespace", TimerSerializer("long", key_type), (0, 0, key)),
    ]:
        pattern = f"{part} must be what the serializer '{key_type}' takes.*{message}"
        with pytest.raises(error, match=pattern):
            serializer.serialize(timer)


@pytest.mark.parametrize(
    ("timer", "error", "message"),
    [
        ((1.5, 1, None), TypeError, r"timestamp.*1\.5"),
        ((True, 1, None), TypeError, "timestamp.*True"),
        ((2**63, 1, None), OverflowError, "timestamp.*9223372036854775808"),
        ((-(2**63) - 1, 1, None), OverflowError, "timestamp"),
    ],
)
def test_an_invalid_timestamp_raises(timer: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TimerSerializer().serialize(timer)


def test_a_custom_serializer_is_used() -> None:
    class Hex(TypeSerializer):
        name = "hex"

        def serialize(self, value: str) -> bytes:
            return bytes([len(value) // 2]) + bytes.fromhex(value)

        def deserialize(self, data: bytes, start: int) -> tuple[str, int]:
            end = start + 1 + data[start]
            return data[start + 1 : end].hex(), end

    serializer = TimerSerializer(Hex(), "void")
    timers = [InternalTimer(i, f"{i:06x}", None) for i in range(50)]
    assert [serializer.deserialize(serializer.serialize(timer)) for timer in timers] == timers
    with pytest.raises(ValueError, match="key must be what the serializer 'hex' takes"):
        serializer.serialize((0, "xyz", None))


def test_an_unknown_serializer_raises() -> None:
    with pytest.raises(ValueError, match=r"key_serializer must be one of any, boolean.*, got 'Long'"):
        TimerSerializer("Long")
    with pytest.raises(TypeError, match="namespace_serializer must be a serializer's name"):
        TimerSerializer("long", int)


@given(
    st.integers(1, 32768),
    st.lists(int64s)
    | st.lists(st.text("az09 \0\x7f", max_size=40))
    | st.lists(texts | int64s | st.booleans()),
)
def test_bulk_key_groups_equal_single_ones(max_parallelism: int, keys: list[Any]) -> None:
    owned = OwnedKeyGroups(max_parallelism, None, java_hash_code)
    expected = [assign_to_key_group(key, max_parallelism) for key in keys]
    assert owned.of_many(keys).tolist() == expected
    assert [owned.of(key) for key in keys] == expected
    codes = [java_hash_code(key) % (1 << 32) for key in keys]
    assert [owned.hash_code(key) for key in keys] == codes


@pytest.mark.parametrize(
    "keys", [["key"], [-1], [(1, "a")], [2**63], [math.nan], [None], ["a", "key"], [1.5, "key"], ["\u00e9"]]
)
def test_a_key_outside_the_owned_key_groups_raises(keys: list[Any]) -> None:
    owned = OwnedKeyGroups(128, KeyGroupRange(0, 0), java_hash_code)
    with pytest.raises((ValueError, TypeError, OverflowError), match="key must"):
        owned.of_many(keys)
    for of_one in (owned.of, owned.hash_code):
        with pytest.raises((ValueError, TypeError, OverflowError), match="key must"):
            list(map(of_one, keys))


def test_a_nan_key_raises_and_a_custom_hash_code_is_used() -> None:
    with pytest.raises(ValueError, match="equal itself"):
        OwnedKeyGroups(128, None, java_hash_code).of(math.nan)
    owned = OwnedKeyGroups(128, None, lambda key: -1)
    assert owned.of_many(["a", 7]).tolist() == [assign_to_key_group(-1, 128, "int")] * 2
