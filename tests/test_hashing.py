"""Java's hashCode and Spark's xxhash64 compared with their definitions; tests/spark compares with Spark."""

import datetime
import enum
import math
import struct
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from timerheap.flink import java_hash_code
from timerheap.hashing import spark_xxhash64

UTC = datetime.UTC


def int32(number):
    return struct.unpack("<i", struct.pack("<I", number % 2**32))[0]


# ---- Java ----


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
    assert spark_xxhash64([quiet], ["double"]) == spark_xxhash64([math.nan], ["double"])


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


# ---- Spark ----


def chained(*parts):
    """Compute XXH64 of each part with the xxhash package; each hash is the seed of the next."""
    seed = 42
    for part in parts:
        seed = xxhash.xxh64_intdigest(part, seed)
    return struct.unpack("<q", struct.pack("<Q", seed))[0]


ints = st.integers(-(2**31), 2**31 - 1)
longs = st.integers(-(2**63), 2**63 - 1)


@given(ints, longs, st.text(), st.binary())
def test_the_hash_of_each_value_is_the_seed_of_the_next(i, n, text, binary):
    expected = chained(struct.pack("<i", i), struct.pack("<q", n), text.encode(), binary)
    assert spark_xxhash64([i, n, text, binary], ["int", "bigint", "string", "binary"]) == expected
    assert (
        spark_xxhash64([(i, (n, text)), binary], ["struct<a:int,b:struct<c:bigint,d:string>>", "binary"])
        == expected
    )
    assert (
        spark_xxhash64(
            [None, i, None, n, text, bytearray(binary)], ["int", "int", "string", "long", "string", "binary"]
        )
        == expected
    )
    assert spark_xxhash64([[text, None, text]], ["array<string>"]) == chained(text.encode(), text.encode())


def test_a_row_of_nulls_hashes_to_the_seed():
    assert spark_xxhash64([], []) == 42
    assert spark_xxhash64([None, None], ["string", "struct<a:int>"]) == 42
    assert spark_xxhash64([[]], ["array<int>"]) == spark_xxhash64([(None,)], ["struct<a:int>"]) == 42


def test_small_integers_hash_as_ints_and_both_zeros_are_equal():
    for narrow in ("tinyint", "byte", "smallint", "short", "integer", "INT", " int "):
        assert spark_xxhash64([-5], [narrow]) == chained(struct.pack("<i", -5))
    assert spark_xxhash64([True], ["boolean"]) == chained(struct.pack("<i", 1))
    for real, size in (("float", 4), ("double", 8)):
        assert spark_xxhash64([-0.0], [real]) == spark_xxhash64([0.0], [real]) == chained(bytes(size))


def test_dates_timestamps_and_decimals_hash_as_numbers():
    day = datetime.date(1969, 12, 31)
    assert spark_xxhash64([day], ["date"]) == spark_xxhash64([-1], ["date"]) == chained(struct.pack("<i", -1))
    moment = datetime.datetime(1970, 1, 1, 1, 0, 0, 5, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    micros = chained(struct.pack("<q", -3_600_000_000 + 5))
    assert (
        spark_xxhash64([moment], ["timestamp"])
        == spark_xxhash64([-3_600_000_000 + 5], ["timestamp"])
        == micros
    )
    assert spark_xxhash64([moment.astimezone(UTC).replace(tzinfo=None)], ["timestamp_ntz"]) == micros
    assert spark_xxhash64([Decimal("-1.5")], ["decimal(10,2)"]) == chained(struct.pack("<q", -150))
    for number, written in (
        (-128, b"\x80"),
        (128, b"\0\x80"),
        (-129, b"\xff\x7f"),
        (0, b"\0"),
        (10**37, None),
    ):
        written = written or number.to_bytes(16, "big")
        assert spark_xxhash64([Decimal(number)], ["decimal(38,0)"]) == chained(written)


@pytest.mark.parametrize(
    ("values", "types", "error", "message"),
    [
        ([1], ["what"], ValueError, "types must be boolean, .* got 'what'"),
        ([1], ["map<int,int>"], ValueError, "types must be"),
        ([1], ["int<int>"], ValueError, "types must be"),
        ([1, 2], ["int"], ValueError, "shorter"),
        ([1], ["int", "int"], ValueError, "longer"),
        ([2**31], ["int"], OverflowError, "value must be a Spark int, which has 32 bits, got 2147483648"),
        ([2**63], ["bigint"], OverflowError, "64 bits"),
        ([128], ["tinyint"], OverflowError, "8 bits"),
        (["1"], ["int"], TypeError, "value must be a Spark int, got '1'"),
        ([True], ["int"], TypeError, "got True"),
        ([1], ["string"], TypeError, "value must be a Spark string, got 1"),
        (["a"], ["binary"], TypeError, "value must be a Spark binary"),
        (["a"], ["array<string>"], TypeError, "value must be a Spark array"),
        ([[1]], ["struct<a:int>"], TypeError, "value must be a Spark struct"),
        ([(1, 2)], ["struct<a:int>"], ValueError, "1 fields"),
        ([datetime.datetime(2020, 1, 1)], ["timestamp"], ValueError, "must have a time zone"),
        (
            [datetime.datetime(2020, 1, 1, tzinfo=UTC)],
            ["timestamp_ntz"],
            ValueError,
            "must have no time zone",
        ),
        ([datetime.datetime(2020, 1, 1)], ["date"], TypeError, "Spark date"),
        ([1.5], ["decimal(3,1)"], TypeError, "Spark decimal"),
        ([Decimal("1.55")], ["decimal(3,1)"], ValueError, "decimal"),
        ([Decimal(100)], ["decimal(3,1)"], ValueError, "decimal"),
        ([Decimal("NaN")], ["decimal(3,1)"], ValueError, "decimal"),
    ],
)
def test_an_invalid_value_or_spark_type_raises(values, types, error, message):
    with pytest.raises(error, match=message):
        spark_xxhash64(values, types)
