"""Java's hashCode compared with its definition."""

import enum
import math
import struct
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timerheap.flink import java_hash_code


def int32(number):
    return struct.unpack("<i", struct.pack("<I", number % 2**32))[0]


@given(st.text(st.characters(), max_size=50))
def test_a_string_hashes_to_a_polynomial_over_its_utf16_units(text):
    units = struct.unpack(
        f"<{len(text.encode('utf-16-le', 'surrogatepass')) // 2}H", text.encode("utf-16-le", "surrogatepass")
    )
    assert java_hash_code(text) == int32(sum(unit * 31**i for i, unit in enumerate(reversed(units))))


def test_known_hash_codes_equal_javas():
    # Long.hashCode(-1) and Integer.hashCode(-1) differ, so the Java type of a Python int matters.
    assert java_hash_code(-1) == java_hash_code(-1, "long") == 0
    assert java_hash_code(-1, "int") == -1
    assert java_hash_code(-1, "short") == java_hash_code(-1, "byte") == -1
    assert java_hash_code("polygenelubricants") == -(2**31)  # known for this hash code
    assert java_hash_code("a", "char") == 97
    assert java_hash_code(0.0) == 0
    assert java_hash_code(-0.0) == -(2**31)
    assert java_hash_code(1.0) == 1072693248
    assert java_hash_code(1.0, "float") == 1065353216
    assert java_hash_code(math.nan) == 2146959360
    assert java_hash_code(math.nan, "float") == 2143289344
    assert java_hash_code(math.inf) == 2146435072
    assert java_hash_code(3, "double") == java_hash_code(3.0)
    assert java_hash_code((None, "a")) == 97
    assert java_hash_code((1, None)) == 31
    assert java_hash_code(((1, "a"), 2), "tuple2<tuple2<long,string>,int>") == 31 * 128 + 2


def test_all_nans_have_the_same_hash():
    quiet, noisy = struct.unpack("<dd", struct.pack("<QQ", 0xFFF8000000000001, 0x7FF8000000000123))
    assert java_hash_code(quiet) == java_hash_code(noisy) == java_hash_code(math.nan)


class Colour(enum.IntEnum):
    RED = -3


class Pair(NamedTuple):
    number: int
    name: str


def test_subclasses_and_numpy_scalars_hash_like_their_base_types():
    assert java_hash_code(Colour.RED) == java_hash_code(-3)
    assert java_hash_code(np.int32(-3)) == java_hash_code(-3)
    assert java_hash_code(np.float64(2.5)) == java_hash_code(2.5)
    assert java_hash_code(np.str_("key")) == java_hash_code("key")
    assert java_hash_code(Pair(1, "a")) == java_hash_code((1, "a"))


@pytest.mark.parametrize(
    ("key", "java_type", "error", "message"),
    [
        (None, None, TypeError, "key must be a bool, int, float, str or a tuple of these"),
        (b"a", None, TypeError, "key must be a bool"),
        ([1], None, TypeError, "key must be a bool"),
        (2**63, None, OverflowError, "Java long, which has 64 bits, got 9223372036854775808"),
        (2**31, "int", OverflowError, "Java int, which has 32 bits, got 2147483648"),
        (-129, "byte", OverflowError, "Java byte"),
        (True, "long", TypeError, "Java long, got True"),
        (1, "boolean", TypeError, "Java boolean, got 1"),
        (1.0, "long", TypeError, "Java long, got 1.0"),
        ("1", "double", TypeError, "Java double, got '1'"),
        (1, "string", TypeError, "Java string, got 1"),
        ("ab", "char", ValueError, "one UTF-16 unit"),
        ("\U0001f600", "char", ValueError, "one UTF-16 unit"),
        (1, "tuple2<long,string>", TypeError, "tuple2<long,string>, got 1"),
        ((1,), "tuple2<long,string>", ValueError, "2 fields"),
        ((1, 2), "tuple2<long,string>", TypeError, "Java string, got 2"),
        (1, "Long", ValueError, "java_type must be one of boolean, .*got 'Long'"),
        (1, "", ValueError, "java_type must be"),
        ((1, 2), "tuple3<long,long>", ValueError, "java_type must be"),
        ((1, 2), "tuple2<long,what>", ValueError, "java_type must be"),
    ],
)
def test_an_invalid_key_or_java_type_raises(key, java_type, error, message):
    with pytest.raises(error, match=message):
        java_hash_code(key, java_type)
