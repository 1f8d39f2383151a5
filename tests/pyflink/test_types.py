"""The Arrow types of Flink's Types, of DDL, and of Spark's and Arrow's types."""

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark_types

from timerheap import Types
from timerheap.types import LOCAL, arrow_type

LIST = pa.list_(pa.field("element", pa.int64()))
FLINK = [
    (Types.STRING(), pa.string()),
    (Types.CHAR(), pa.string()),
    (Types.BOOLEAN(), pa.bool_()),
    (Types.BYTE(), pa.int8()),
    (Types.SHORT(), pa.int16()),
    (Types.INT(), pa.int32()),
    (Types.LONG(), pa.int64()),
    (Types.FLOAT(), pa.float32()),
    (Types.DOUBLE(), pa.float64()),
    (Types.BIG_INT(), pa.decimal128(38, 0)),
    (Types.BIG_DEC(), pa.decimal128(38, 18)),
    (Types.SQL_DATE(), pa.date32()),
    (Types.SQL_TIME(), pa.time64("us")),
    (Types.SQL_TIMESTAMP(), pa.timestamp("us", LOCAL)),
    (Types.INSTANT(), pa.timestamp("us", "UTC")),
    (Types.LIST(Types.LONG()), LIST),
    (Types.BASIC_ARRAY(Types.LONG()), LIST),
    (Types.PRIMITIVE_ARRAY(Types.LONG()), LIST),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), pa.binary()),
    (Types.MAP(Types.STRING(), Types.LIST(Types.LONG())), pa.map_(pa.string(), LIST)),
    (Types.TUPLE([Types.LONG(), Types.STRING()]), pa.struct([("f0", pa.int64()), ("f1", pa.string())])),
    (Types.ROW_NAMED(["a b", "c:d"], [Types.INT(), Types.ROW([Types.BYTE()])]),
     pa.struct([("a b", pa.int32()), ("c:d", pa.struct([("f0", pa.int8())]))])),
]  # fmt: skip


@pytest.mark.parametrize(("type_", "arrow"), FLINK, ids=lambda value: str(value))
@pytest.mark.promises(
    "PyFlink",
    "supported",
    "Types.STRING",
    "Types.CHAR",
    "Types.BOOLEAN",
    "Types.BYTE",
    "Types.SHORT",
    "Types.INT",
    "Types.LONG",
    "Types.FLOAT",
    "Types.DOUBLE",
    "Types.BIG_INT",
    "Types.BIG_DEC",
    "Types.SQL_DATE",
    "Types.SQL_TIME",
    "Types.SQL_TIMESTAMP",
    "Types.INSTANT",
    "Types.LIST",
    "Types.BASIC_ARRAY",
    "Types.OBJECT_ARRAY",
    "Types.PRIMITIVE_ARRAY",
    "Types.MAP",
    "Types.ROW_NAMED",
    "Types.ROW",
    "Types.TUPLE",
)
@pytest.mark.promises("PyFlink", "added", "TypeInformation.ddl")
def test_flinks_types_have_arrow_types(type_, arrow):
    assert arrow_type(type_) == arrow
    assert arrow_type(type_.ddl) == arrow
    assert arrow_type(arrow) is arrow


@pytest.mark.parametrize(
    ("ddl", "arrow"),
    [
        ("BIGINT", pa.int64()),
        (" long ", pa.int64()),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("numeric(12, 3)", pa.decimal128(12, 3)),
        ("struct<a: int, b string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("map<string, array<bigint>>", pa.map_(pa.string(), LIST)),
        ("timestamp_ntz", pa.timestamp("us")),
    ],
)
def test_ddl_is_parsed_to_arrow_types(ddl, arrow):
    assert arrow_type(ddl) == arrow


@pytest.mark.parametrize(
    ("type_", "arrow"),
    [
        (spark_types.TimestampType(), pa.timestamp("us", LOCAL)),
        (spark_types.TimestampNTZType(), pa.timestamp("us")),
        (spark_types.DayTimeIntervalType(), pa.duration("us")),
        (spark_types.ArrayType(spark_types.LongType(), containsNull=False), LIST),
        (
            spark_types.StructType()
            .add("my field", spark_types.MapType(spark_types.StringType(), spark_types.TimestampType()))
            .add("n", "long", nullable=False),
            pa.struct([("my field", pa.map_(pa.string(), pa.timestamp("us", LOCAL))), ("n", pa.int64())]),
        ),
    ],
    ids=str,
)
def test_spark_types_have_arrow_types(type_, arrow):
    assert arrow_type(type_) == arrow
    assert arrow_type(spark_types.ArrayType(type_)).value_type == arrow


def test_nullability_is_ignored():
    assert arrow_type("struct<a: int not null, b: string NOT NULL>") == arrow_type(
        "struct<a: int, b: string>"
    )


def test_any_name_of_a_field_is_kept():
    names = ["a`b", "`", "c d", "ü", "not null"]
    type_ = arrow_type(Types.ROW_NAMED(names, [Types.INT()] * len(names)))
    assert [field.name for field in type_] == names


@pytest.mark.parametrize(
    "type_",
    [
        Types.ROW_NAMED(["a", "b", "a"], [Types.INT()] * 3),
        "array<struct<a:int,a:string>>",
        spark_types.StructType().add("a", "integer").add("a", "string"),
        spark_types.CalendarIntervalType(),
    ],
    ids=str,
)
def test_a_type_that_cannot_be_stored_raises(type_):
    with pytest.raises(ValueError, match=r"state 'x': the type must be one that timerheap can store, got"):
        arrow_type(type_, "state 'x'")


INVALID_DDL = (
    "|int int|array<|array<int|map<int>|struct<a>|decimal(39)|decimal(3,5)|varchar|long long|struct<>"
)


@pytest.mark.parametrize("ddl", INVALID_DDL.split("|"))
def test_invalid_ddl_raises_an_error_that_names_it(ddl):
    with pytest.raises(
        ValueError, match=r"state 'x': the type must be one that timerheap can store, got"
    ) as error:
        arrow_type(ddl, "state 'x'")
    assert repr(ddl) in str(error.value)


@given(st.text("arymapstucdeinlog<>(),:`19 ", max_size=20))
def test_any_text_is_a_type_or_raises_a_value_error(ddl):
    with contextlib.suppress(ValueError):
        assert isinstance(arrow_type(ddl), pa.DataType)


@pytest.mark.parametrize("value", [int, 5, b"int"])
def test_a_value_that_is_not_a_type_raises(value):
    with pytest.raises(TypeError, match=r"state 'x': the type must be one of Types"):
        arrow_type(value, "state 'x'")


def test_types_are_equal_by_value():
    assert Types.LIST(Types.LONG()) == Types.LIST(Types.LONG())
    assert hash(Types.LONG()) == hash(Types.LONG())
    assert Types.LONG() != Types.INT()


@pytest.mark.promises(
    "PyFlink",
    "refused",
    "Types.PICKLED_BYTE_ARRAY",
    note="write the type of the values: nothing pickled is kept in a checkpoint",
)
def test_the_type_of_pickles_raises():
    with pytest.raises(
        NotImplementedError, match=r"PICKLED_BYTE_ARRAY is not supported, .* use the type of the value"
    ):
        Types.PICKLED_BYTE_ARRAY()


def test_more_types_than_names_raise():
    with pytest.raises(
        ValueError, match="field_names must have one name per field type, got 1 names for 2 field_types"
    ):
        Types.ROW_NAMED(["a"], [Types.INT(), Types.INT()])
