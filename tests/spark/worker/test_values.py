"""Values of states and results are read back unchanged, and values of the wrong type raise."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import VariantType, VariantVal

from timerheap._values import Misfit, checker, local_leaf, reader
from timerheap.spark._worker.column_casts import cast, column_of
from timerheap.types import arrow_type

UTC = datetime.UTC
D = decimal.Decimal
LEAVES = {
    "boolean": st.booleans(),
    "tinyint": st.integers(-128, 127),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, max_value=3e38, min_value=-3e38),
    "double": st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    "binary": st.binary(max_size=5) | st.binary(max_size=5).map(bytearray),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "instant": st.datetimes(timezones=st.sampled_from([UTC, datetime.timezone(datetime.timedelta(hours=5))]),
                            min_value=datetime.datetime(2, 1, 1), max_value=datetime.datetime(9998, 1, 1)),
    "time": st.times(),
    "decimal(10,2)": st.decimals(-(10**6), 10**6, places=2),
}  # fmt: skip


def nested(leaf):
    """Return (DDL, strategy) of lists, maps and rows that contain other types."""
    ddl, values = leaf
    return st.sampled_from([
        (f"array<{ddl}>", st.lists(st.none() | values, max_size=3)),
        (f"map<string,{ddl}>", st.dictionaries(st.text("ab", max_size=2), st.none() | values, max_size=3)),
        (f"struct<a:{ddl},b:bigint>", st.tuples(st.none() | values, st.integers(0, 5))),
        (f"struct<a:{ddl},b:bigint>", st.fixed_dictionaries({"a": st.none() | values})),
    ])  # fmt: skip


TYPED = st.recursive(st.sampled_from(list(LEAVES.items())), lambda inner: inner.flatmap(nested), max_leaves=3)


def single(value):
    """Round a double to the precision of a float."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@given(data=st.data(), typed=TYPED)
def test_stored_values_are_read_back_unchanged(data, typed):
    ddl, values = typed
    type_ = arrow_type(ddl)
    value = data.draw(st.none() | values)
    kept = checker(type_)(value)
    stored = pa.array([kept], type_).to_pylist()[0]
    assert stored == kept, "a function reads the same before and after the save"
    read = reader(type_, Row, local_leaf) or (lambda kept: kept)
    if ddl in LEAVES:
        assert read(kept) == (single(value) if ddl == "float" and value is not None else value)
    elif ddl.startswith("struct") and value is not None:
        assert isinstance(read(kept), Row)
        assert list(read(kept).__fields__) == ["a", "b"]
    elif value is not None:
        assert type(read(kept)) is {"array": list, "map<s": dict}[ddl[:5]]
        assert read(kept) is not read(kept), "the caller's own"
    assert column_of([value, None], type_).to_pylist() == [stored, None]


MOMENT = datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000)  # 1,500 ms after the epoch
AWARE = MOMENT.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        ("timestamp", 1_500, AWARE),
        ("timestamp_ntz", 1_500, MOMENT),
        ("instant", 1_500, AWARE),
        ("instant", -62_135_596_800_000, datetime.datetime(1, 1, 1, tzinfo=UTC)),
        (pa.timestamp("ms"), 1_500, MOMENT),
        (pa.timestamp("s", "UTC"), 2_000, datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)),
        ("array<instant>", [1_500, AWARE, None], [AWARE, AWARE, None]),
        ("map<timestamp,instant>", {1_500: 1_500}, [(AWARE, AWARE)]),
        ("struct<a:bigint,b:struct<c:instant>>", (1_500, {"c": 1_500}), {"a": 1_500, "b": {"c": AWARE}}),
    ],
)
def test_an_int_is_a_timestamp_in_epoch_ms(type_, value, kept):
    type_ = arrow_type(type_)
    assert checker(type_)(value) == kept
    assert column_of([value, None], type_).to_pylist() == [kept, None]
    column = pa.array([kept, None], type_)
    assert cast(column, type_).equals(column)


@pytest.mark.parametrize("made", [pa.int64(), pa.int32(), pa.uint16()])
def test_integers_in_a_column_are_timestamps_in_epoch_ms(made):
    for type_ in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ms")):
        moment = MOMENT.replace(tzinfo=UTC) if type_.tz else MOMENT
        for column in (pa.array([1_500, None], made), pa.chunked_array([[1_500], [None]], made)):
            found = cast(column, type_)
            assert (found.type, found.to_pylist()) == (type_, [moment, None])
        deep = pa.array([{"a": [("k", [1_500])], "n": 7}], pa.struct(
            [("a", pa.map_(pa.string(), pa.list_(made))), ("n", pa.int64())]))  # fmt: skip
        wanted = pa.struct([("a", pa.map_(pa.string(), pa.list_(type_))), ("n", pa.int32())])
        assert cast(deep, wanted).to_pylist() == [{"a": [("k", [moment])], "n": 7}]


def test_integers_outside_the_range_of_timestamps_raise():
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        cast(pa.array([2**62]), pa.timestamp("us"))


MISFITS = {
    "bigint": [2.0, "5", True, 2**63, -(2**63) - 1, b"5", D(5), [5]],
    "tinyint": [128, -129],
    "boolean": [1, 0, "true"],
    "float": [1e39, "1.5", True, 2**24 + 1],
    "double": ["1.5", True, 10**400, 2**53 + 1, D(1)],
    "string": [5, b"a", ["a"]],
    "binary": ["a", 5],
    "date": ["2024-01-01", datetime.datetime(2024, 1, 1), 19000],
    "timestamp_ntz": [datetime.date(2024, 1, 1), True, 0.0, datetime.datetime(2024, 1, 1, tzinfo=UTC),
                  "2024-01-01", 2**63 - 1, -62_135_596_800_001, 253_402_300_800_000,
                  np.datetime64("2024-01-01T00", "ns"), np.datetime64("10000-01-01T00:00:00"),
                  np.timedelta64(5, "ms")],
    "instant": [datetime.date(2024, 1, 1), False, 253_402_300_800_000,
                datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-5)))],
    "array<timestamp>": [[0, 2**63]],
    "decimal(5,2)": [D("1.234"), D(1000), D("NaN"), "1.5"],
    "array<bigint>": ["ab", b"ab", {"a": 1}, 5, [1, "2"]],
    "map<string,bigint>": [[("a", 1)], {None: 1}, {1: 1}, {"a": "1"}],
    "struct<a:bigint,b:string>": [(1,), (1, "x", 2), {"a": 1, "c": 2}, 5, "ab", (1, 2)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("ddl", "value"), [(ddl, value) for ddl, values in MISFITS.items() for value in values]
)
def test_a_value_of_the_wrong_type_raises(ddl, value):
    type_ = arrow_type(ddl)
    for check in (checker(type_), lambda value: column_of([None, value], type_)):
        with pytest.raises(Misfit, match=r"does not fit|has a time zone"):
            check(value)


@pytest.mark.parametrize(
    ("ddl", "value", "kept"),
    [("bigint", np.int32(5), 5), ("double", np.float32(0.5), 0.5), ("boolean", np.True_, True),
     ("string", np.str_("a"), "a"), ("timestamp_ntz", np.datetime64("2024-01-01T00:00:00.000001"),
                                     datetime.datetime(2024, 1, 1, 0, 0, 0, 1)),
     ("array<bigint>", np.arange(3), [0, 1, 2]), ("array<double>", (x / 2 for x in range(2)), [0.0, 0.5]),
     ("struct<a:bigint>", {"a": np.int64(1)}, {"a": 1}), ("timestamp", np.int64(1_500), AWARE)],
)  # fmt: skip
def test_numpy_values_and_iterables_are_accepted(ddl, value, kept):
    found = checker(arrow_type(ddl))(value)
    assert found == kept
    assert type(found) is type(kept)


def test_a_timestamp_of_pandas_is_a_datetime():
    stamp = pd.Timestamp("2024-02-29 12:00:00.000123")
    kept = checker(arrow_type("timestamp_ntz"))(stamp)
    assert type(kept) is datetime.datetime
    assert kept == stamp
    assert checker(arrow_type("instant"))(stamp) == stamp.to_pydatetime().astimezone(UTC)
    zoned = stamp.tz_localize("Asia/Tokyo")
    assert checker(arrow_type("instant"))(zoned) == zoned


@pytest.mark.parametrize("value", [pd.Timestamp(1), pd.NaT], ids=str)
@pytest.mark.parametrize("ddl", ["timestamp", "instant"])
def test_a_timestamp_of_pandas_that_no_datetime_holds_raises(ddl, value):
    with pytest.raises(Misfit, match=r"does not fit timestamp.*pass a datetime of microseconds, or None"):
        checker(arrow_type(ddl))(value)


def test_a_variant_is_kept_by_its_bytes():
    type_ = to_arrow_type(VariantType())
    assert checker(type_)(VariantVal(b"\x0c\x01", b"\x01\x00\x00")) == {
        "value": b"\x0c\x01",
        "metadata": b"\x01\x00\x00",
    }
