"""States as Spark's JVM has them: what values become, how keys are sorted, and what it refuses."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import math
import struct
from operator import contains
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as T

from timerheap._values import Convert, exact_class, local_reader, reader, unchanged
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._compat import nullable, to_arrow_type, with_moments

_PLAIN = bool, int, float, str, bytes, datetime.datetime, type(None)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_ZEROS: dict[type[T.DataType], Any] = {
    **dict.fromkeys([*_BITS, T.DateType, T.TimestampType, T.TimestampNTZType], 0),
    **dict.fromkeys([T.FloatType, T.DoubleType], 0.0),
    T.BooleanType: False,
}
LONG = struct.Struct("<q")
_WORDS: dict[type[T.DataType], str] = {
    T.ByteType: "<b7x",
    T.ShortType: "<h6x",
    T.IntegerType: "<i4x",
    T.LongType: "<q",
    T.FloatType: "<f4x",
    T.DoubleType: "<d",
    T.BooleanType: "<q",
}  # the word of a value in an UnsafeRow
_TEXTS = {
    "EXPRESSION_DECODING_FAILED": (
        "Failed to decode a row to a value of the expressions: the field {name} must not be null, got "
        "{value!r}."
    ),
    "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE": (
        "Illegal value provided to the State Store Cannot write empty list values to State Store for "
        "StateName {name}."
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE": (
        "Failed to perform stateful processor operation={operation} with invalid handle state={state}."
    ),
    "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE": (
        "Failed to perform stateful processor operation={operation} with invalid timeMode={mode}"
    ),
    "INTERNAL_ERROR_TWS": "Implicit key not found in state store for stateName={name}",
    "STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED": (
        "State variable with name {name} has already been defined in the StatefulProcessor."
    ),
    "STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL": (
        "Cannot use TTL for state={name} in timeMode={mode}, use TimeMode.ProcessingTime() instead."
    ),
    "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE": (
        "TTL duration must be greater than zero for State store operation={operation} on state={name}."
    ),
    "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS": (
        "Failed to create column family with unsupported starting character and name={name}."
    ),
    "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME": (
        "Failed to perform column family operation=create_col_family with invalid name={name}. Column family "
        "name cannot be empty or include leading/trailing spaces or use the reserved keyword=default"
    ),
    "STRUCT_ARRAY_LENGTH_MISMATCH": (
        "Input row doesn't have expected number of values required by the schema. {expected} fields are "
        "required while {actual} values are provided."
    ),
}
_SQL_STATES = {
    "EXPRESSION_DECODING_FAILED": "42846",
    "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE": "42601",
    "INTERNAL_ERROR_TWS": "XX000",
    "STRUCT_ARRAY_LENGTH_MISMATCH": "2201E",
}  # of the others it is 42802


def refusal(error_class: str, doing: str = "", **parameters: object) -> PySparkRuntimeError:
    """Return the error of a call that Spark's JVM refuses, where Spark itself may lose its state server.

    doing: what PySpark says before the text of the JVM
    **parameters: those of the error class
    """
    before, text = f"Error {doing}: " if doing else "", _TEXTS[error_class].format(**parameters)
    state = _SQL_STATES.get(error_class, "42802")
    return PySparkRuntimeError(f"{before}[{error_class}] {text} SQLSTATE: {state}")


class StructCodec:
    """Converts between what a processor passes or gets, a tuple by position, and what is kept, a dict.

    Spark pickles a value, and the JVM converts it to the schema: a value of another type becomes null, an
    int is cut to its width, and everything becomes a string where the schema has one. Numpy's scalars are
    Python's.
    """

    def __init__(self, schema: T.StructType) -> None:
        self.names = schema.names
        self._n = len(schema)
        self._internal = with_moments(schema).toInternal if any(f.needConversion() for f in schema) else tuple
        self._coerce = [_coercer(field.name, field.dataType, field.nullable) for field in schema]
        self.type: pa.StructType = to_arrow_type(nullable(schema))
        """The Arrow type that values are kept in."""
        types = [field.type for field in self.type]
        exact = list(map(exact_class, types))
        # Most values are of their types: a look at their classes is cheaper than to convert each.
        self._as_they_are = [
            {class_, type(None) if field.nullable else class_}
            for (class_, _), field in zip(exact, schema, strict=True)
        ]
        self._ints = [(at, 1 << (bits - 1)) for at, (_, bits) in enumerate(exact) if bits]
        readers = list(map(reader_of, types))
        self._readers = None if all(read is unchanged for read in readers) else readers

    def encode(self, data: Any) -> dict[str, Any]:
        """Return what is kept of a value, any iterable; raise the error that Spark or its JVM would raise."""
        if isinstance(data, tuple) and self._is_plain(data):
            return dict(zip(self.names, data, strict=True))
        return dict(zip(self.names, self._coerced(data), strict=True))

    def encode_key(self, data: Any) -> tuple[Any, ...]:
        """Return what is kept of the key of a map, hashable if its fields are."""
        if isinstance(data, tuple) and self._is_plain(data):
            return tuple(data)
        return self._coerced(data)

    def _coerced(self, data: Any) -> tuple[Any, ...]:
        values = self._internal(tuple(map(_in_python, data)))
        if len(values) != self._n:
            raise refusal("STRUCT_ARRAY_LENGTH_MISMATCH", expected=self._n, actual=len(values))
        return tuple([coerce(value) for coerce, value in zip(self._coerce, values, strict=True)])

    def _is_plain(self, data: tuple[Any, ...]) -> bool:
        """Return whether all values are of their types, so that they are kept as they are."""
        if len(data) != self._n or not all(map(contains, self._as_they_are, map(type, data))):
            return False
        for at, bound in self._ints:
            value = data[at]
            if value is not None and not -bound <= value < bound:
                return False
        return True

    def decode(self, kept: dict[str, Any]) -> tuple[Any, ...]:
        if self._readers is None:
            return tuple(kept.values())
        return self.decode_key(tuple(kept.values()))

    def decode_key(self, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        if self._readers is None:
            return kept if type(kept) is tuple else tuple(kept)
        return tuple([read(value) for read, value in zip(self._readers, kept, strict=True)])


def _in_python(value: Any) -> Any:
    """Return a value without objects of NumPy and pandas, as PySpark makes it before it pickles it."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, Row) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return type(value)(*map(_in_python, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_in_python, value))
    if isinstance(value, dict):
        return {_in_python(key): _in_python(each) for key, each in value.items()}
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value


def _coercer(name: str, type_: T.DataType, nullable: bool) -> Convert:
    """Return the function that makes what is kept of a value in Spark's internal form."""
    # A null that the named place forbids becomes zero, or is an error, as in the JVM.
    convert, zero = _converter(type_), _ZEROS.get(type(type_))
    default = None if zero is None or nullable else convert(zero)

    def coerce(value: Any) -> Any:
        if isinstance(value, Row) or (isinstance(value, datetime.datetime) and value.tzinfo is not None):
            raise ArgumentTypeError(
                f"Spark cannot send {value!r} to a state; pass a tuple, or a value of its type"
            )
        kept = None if value is None else convert(value)
        if kept is None and not nullable and default is None:
            raise refusal("EXPRESSION_DECODING_FAILED", name=name, value=value)
        return default if kept is None else kept

    return coerce


def _converter(type_: T.DataType) -> Convert:
    """Return the function that converts a value that is not null."""
    match type_:
        case T.ByteType() | T.ShortType() | T.IntegerType() | T.LongType():
            return _only(int, _to_integer(_BITS[type(type_)]))
        case T.BooleanType():
            return _only(bool, bool)
        case T.DoubleType():
            return _only(float, float)
        case T.FloatType():
            return _only(float, lambda value: ctypes.c_float(value).value)  # too large values are infinite
        case T.StringType():
            return _java_text
        case T.BinaryType():
            return _binary
        case T.DateType():
            return _only(int, lambda days: datetime.date.fromordinal(_EPOCH.toordinal() + days))
        case T.TimestampType() | T.TimestampNTZType():
            epoch = _EPOCH if isinstance(type_, T.TimestampType) else _EPOCH.replace(tzinfo=None)
            return _only(int, lambda micros: epoch + datetime.timedelta(microseconds=micros))
        case T.DecimalType():
            return _decimal(type_)
        case T.ArrayType():
            return _to_list(_coercer("element", type_.elementType, type_.containsNull))
        case T.MapType():
            key = _coercer("key", type_.keyType, False)
            item = _coercer("value", type_.valueType, type_.valueContainsNull)
            return _only(dict, lambda value: [(key(k), item(v)) for k, v in value.items()])
        case T.StructType():
            return _to_fields(type_)
    raise ArgumentValueError(
        f"the schema of a state must have types that timerheap can keep, got {type_.simpleString()}; use "
        "another type, such as string or binary"
    )


def _only(class_: type, convert: Convert) -> Convert:
    """Return a function that converts values of a class; others become null."""
    return lambda value: convert(value) if type(value) is class_ else None


def _to_integer(bits: int) -> Convert:
    bound, long = 1 << (bits - 1), range(-(1 << 63), 1 << 63)
    return lambda value: (value + bound) % (2 * bound) - bound if value in long else None


def _java_text(value: Any) -> str:
    """Return Java's text of a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, decimal.Decimal):
        return str(_with_one_zero(value))
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, list):
        return f"[{', '.join('null' if v is None else _java_text(v) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_java_text(k)}={_java_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, str):
        return value
    raise ArgumentTypeError(f"a state of type string must get a string, got {value!r}; pass str(...)")


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    digits, exponent = f"{decimal.Decimal(repr(value)).normalize():E}".split("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"


def _binary(value: Any) -> bytes | None:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    return value.encode() if isinstance(value, str) else None


def _decimal(type_: T.DecimalType) -> Convert:
    step = decimal.Decimal(1).scaleb(-type_.scale)
    context = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)

    def number(value: Any) -> decimal.Decimal | None:
        if not isinstance(value, decimal.Decimal) or not value.is_finite():
            return None
        kept = _with_one_zero(value.quantize(step, context=context))
        if len(kept.as_tuple().digits) > type_.precision:
            raise ArithmeticError(
                f"[DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION] {value} does not fit {type_.simpleString()}"
            )
        return kept

    return number


def _with_one_zero(value: decimal.Decimal) -> decimal.Decimal:
    """Return a decimal as in Java, where zero has no sign."""
    return value or value.copy_abs()


def _to_list(element: Convert) -> Convert:
    def elements(value: Any) -> list[Any] | None:
        if isinstance(value, (bytes, bytearray)):  # in Java an array of signed bytes
            value = memoryview(value).cast("b").tolist()
        return list(map(element, value)) if isinstance(value, (list, tuple)) else None

    return elements


def _to_fields(type_: T.StructType) -> Convert:
    names, coerce = type_.names, [_coercer(field.name, field.dataType, field.nullable) for field in type_]

    def fields(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, tuple):
            return None
        if len(value) != len(names):
            raise refusal("STRUCT_ARRAY_LENGTH_MISMATCH", expected=len(names), actual=len(value))
        return {name: one(v) for name, one, v in zip(names, coerce, value, strict=True)}

    return fields


def reader_of(type_: pa.DataType) -> Convert:
    """Return the function that makes the user's value of a kept one."""
    return reader(type_, Row, local_reader) or unchanged


class UnsafeOrder:
    """Sorts the keys of a map as Spark's ``UnsafeRow`` does, whose bytes are compared.

    The row is nested in another one, so its size comes first. Then there is a word for the nulls, and one for
    each field, all little-endian, then text and bytes, padded to words. The word of a text begins with its
    length.
    """

    def __init__(self, schema: T.StructType) -> None:
        self._types = [field.dataType for field in schema]

    def bytes_of(self, values: tuple[Any, ...]) -> bytes:
        """Return the bytes of a key, in the form that states keep."""
        words = -(-len(self._types) // 64)
        nulls, at = 0, 8 * (words + len(self._types))
        fixed, variable = [], []
        for number, (type_, value) in enumerate(zip(self._types, values, strict=True)):
            if value is None:
                nulls |= 1 << number
                fixed.append(bytes(8))
                continue
            data = _fixed(type_, value)
            if data is None:
                text = _variable(value)
                data = LONG.pack(at << 32 | len(text))
                variable.append(text + bytes(-len(text) % 8))
                at += len(variable[-1])
            fixed.append(data)
        row = nulls.to_bytes(8 * words, "little") + b"".join(fixed + variable)
        return len(row).to_bytes(4, "little") + row


def _fixed(type_: T.DataType, value: Any) -> bytes | None:
    """Return the word of a value, or None for one of variable length."""
    if type(type_) in _WORDS:
        return struct.pack(_WORDS[type(type_)], value)
    if isinstance(type_, T.DateType):
        return struct.pack("<i4x", value.toordinal() - _EPOCH.toordinal())
    if isinstance(value, datetime.datetime):
        since = value.replace(tzinfo=datetime.UTC) - _EPOCH
        return LONG.pack(since // datetime.timedelta(microseconds=1))
    if isinstance(type_, T.DecimalType) and type_.precision <= 18:
        return LONG.pack(int(value.scaleb(type_.scale)))
    return None


def _variable(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, decimal.Decimal):
        unscaled = int(value.scaleb(-int(value.as_tuple().exponent)))
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    return repr(value).encode()  # of types such as intervals
