"""The handle of a StatefulProcessor: its states and timers, with Spark's values, order and errors.

Values of states are coerced as Spark's JVM coerces them.
"""

from __future__ import annotations

import ctypes
import datetime
import decimal
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from operator import contains
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)

from timerheap._native._core import CurrentKey
from timerheap._values import exact_class, local_reader, reader
from timerheap.spark._compat import to_arrow_type, with_moments
from timerheap.spark._query import DeclaredState, TimeMode
from timerheap.spark._worker.states import CONTENTS, KeyTimerService
from timerheap.state_ttl import StateTtlConfig

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


Convert = Callable[[Any], Any]

_PLAIN = bool, int, float, str, bytes, datetime.datetime, type(None)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_ZEROS: dict[type[T.DataType], Any] = {
    **dict.fromkeys([*_BITS, T.DateType, T.TimestampType, T.TimestampNTZType], 0),
    **dict.fromkeys([T.FloatType, T.DoubleType], 0.0),
    T.BooleanType: False,
}


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
        self.type: pa.StructType = to_arrow_type(schema._as_nullable())
        """The Arrow type that values are kept in."""
        types = [field.type for field in self.type]
        exact = list(map(exact_class, types))
        self._as_they_are = [
            {class_, type(None) if field.nullable else class_}
            for (class_, _), field in zip(exact, schema, strict=True)
        ]
        self._ints = [(at, 1 << (bits - 1)) for at, (_, bits) in enumerate(exact) if bits]
        readers = list(map(reader_of, types))
        self._readers = None if all(read is _same for read in readers) else readers
        self.decode: Callable[[dict[str, Any]], tuple[Any, ...]] = (
            _values if self._readers is None else self._decoded
        )
        """Returns the value, an object of the caller's own."""

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

    def _decoded(self, kept: dict[str, Any]) -> tuple[Any, ...]:
        return self.decode_key(tuple(kept.values()))

    def decode_key(self, kept: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key of a map."""
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


def _values(kept: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(kept.values())


def _same(value: Any) -> Any:
    return value


def _coercer(name: str, type_: T.DataType, nullable: bool) -> Convert:
    """Return the function that makes what is kept of a value in Spark's internal form.

    A null that the named place forbids becomes zero, or is an error, as in the JVM.
    """
    convert, zero = _converter(type_), _ZEROS.get(type(type_))
    default = None if zero is None or nullable else convert(zero)

    def coerce(value: Any) -> Any:
        if isinstance(value, Row) or (isinstance(value, datetime.datetime) and value.tzinfo is not None):
            raise TypeError(f"Spark cannot send {value!r} to a state; pass a tuple, or a value of its type")
        kept = None if value is None else convert(value)
        if kept is None and not nullable and default is None:
            raise refusal("EXPRESSION_DECODING_FAILED", name=name, value=value)
        return default if kept is None else kept

    return coerce


def _converter(type_: T.DataType) -> Convert:
    if type(type_) in _BITS:
        return _only(int, _integer(_BITS[type(type_)]))
    if type(type_) in _CONVERTERS:
        return _CONVERTERS[type(type_)]
    if isinstance(type_, T.DecimalType):
        return _decimal(type_)
    if isinstance(type_, T.ArrayType):
        return _array(_coercer("element", type_.elementType, type_.containsNull))
    if isinstance(type_, T.MapType):
        key = _coercer("key", type_.keyType, False)
        item = _coercer("value", type_.valueType, type_.valueContainsNull)
        return _only(dict, lambda value: [(key(k), item(v)) for k, v in value.items()])
    if isinstance(type_, T.StructType):
        return _struct(type_)
    raise ValueError(
        f"the schema of a state must have types that timerheap can keep, got {type_.simpleString()}; use "
        "another type, such as string or binary"
    )


def _only(class_: type, convert: Convert) -> Convert:
    """Return a function that converts values of a class; others become null."""
    return lambda value: convert(value) if type(value) is class_ else None


def _integer(bits: int) -> Convert:
    bound, long = 1 << (bits - 1), range(-(1 << 63), 1 << 63)
    return lambda value: (value + bound) % (2 * bound) - bound if value in long else None


def _text(value: Any) -> str:
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
        return f"[{', '.join('null' if v is None else _text(v) for v in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(k)}={_text(v)}' for k, v in value.items())}}}"
    if isinstance(value, str):
        return value
    raise TypeError(f"a state of type string must get a string, got {value!r}; pass str(...)")


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


def _array(element: Convert) -> Convert:
    def elements(value: Any) -> list[Any] | None:
        if isinstance(value, (bytes, bytearray)):  # in Java an array of signed bytes
            value = memoryview(value).cast("b").tolist()
        return list(map(element, value)) if isinstance(value, (list, tuple)) else None

    return elements


_CONVERTERS: dict[type[T.DataType], Convert] = {
    T.BooleanType: _only(bool, bool),
    T.DoubleType: _only(float, float),
    T.FloatType: _only(float, lambda value: ctypes.c_float(value).value),  # too large values are infinite
    T.StringType: _text,
    T.BinaryType: _binary,
    T.DateType: _only(int, lambda days: datetime.date.fromordinal(_EPOCH.toordinal() + days)),
    T.TimestampType: _only(int, lambda micros: _EPOCH + datetime.timedelta(microseconds=micros)),
    T.TimestampNTZType: _only(
        int, lambda micros: _EPOCH.replace(tzinfo=None) + datetime.timedelta(microseconds=micros)
    ),
}


def _struct(type_: T.StructType) -> Convert:
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
    return reader(type_, Row, local_reader) or _same


_LONG = struct.Struct("<q")
_FIXED: dict[type[T.DataType], str] = {
    T.ByteType: "<b7x",
    T.ShortType: "<h6x",
    T.IntegerType: "<i4x",
    T.LongType: "<q",
    T.FloatType: "<f4x",
    T.DoubleType: "<d",
}


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
                data = _LONG.pack(at << 32 | len(text))
                variable.append(text + bytes(-len(text) % 8))
                at += len(variable[-1])
            fixed.append(data)
        row = nulls.to_bytes(8 * words, "little") + b"".join(fixed + variable)
        return len(row).to_bytes(4, "little") + row


def _fixed(type_: T.DataType, value: Any) -> bytes | None:
    """Return the word of a value, or None for one of variable length."""
    if type(type_) in _FIXED:
        return struct.pack(_FIXED[type(type_)], value)
    if isinstance(type_, T.BooleanType):
        return _LONG.pack(value)
    if isinstance(type_, T.DateType):
        return struct.pack("<i4x", value.toordinal() - _EPOCH.toordinal())
    if isinstance(value, datetime.datetime):
        since = value.replace(tzinfo=datetime.UTC) - _EPOCH
        return _LONG.pack(since // datetime.timedelta(microseconds=1))
    if isinstance(type_, T.DecimalType) and type_.precision <= 18:
        return _LONG.pack(int(value.scaleb(type_.scale)))
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


class Group(Protocol):
    """What a key group has.

    service: of the timers of the query's time mode, which it has for both domains
    tables: the contents of the states, by name, without what has expired
    """

    service: KeyTimerService
    tables: dict[str, Any]


class Scope:
    """What all states of a processor share: the current key and its key group.

    keys: the id of the current key, None outside the calls for a key
    group: the key group of the current key. One assignment changes it for all states: keys come in their
        order, so it is mostly another one for each key.
    """

    group: Group

    def __init__(self) -> None:
        self.keys = CurrentKey()


class ProcessorState:
    """One state of a processor.

    type: of a key's contents
    """

    shape: ClassVar[str]

    def __init__(self, name: str, declared: DeclaredState, scope: Scope) -> None:
        self.name = name
        self.deleted = False
        self._scope = scope
        self.ttl = None if declared.ttl is None else StateTtlConfig.new_builder(declared.ttl).build()
        *self._key_codecs, self._codec = map(StructCodec, declared.schemas)
        kept: pa.DataType = self._codec.type
        if declared.ttl is not None:
            kept = pa.struct([("value", kept), ("expires", pa.int64())])
        self.type = CONTENTS[self.shape](*(codec.type for codec in self._key_codecs), kept)

    @property
    def _table(self) -> Any:
        return self._scope.group.tables[self.name]

    def _key(self, doing: str) -> int:
        """Return the current key's id; an error says what was being done, in Spark's words."""
        id_: int | None = self._scope.keys.current_key
        if id_ is not None and not self.deleted:
            return id_
        if self.deleted:
            raise PySparkRuntimeError(
                f"Error {doing}: {self.shape.capitalize()} state {self.name} is not initialized."
            )
        raise refusal("INTERNAL_ERROR_TWS", doing, name=self.name)


class _Value(ProcessorState, ValueState):
    shape = "value"

    def exists(self) -> bool:
        key_id = self._key("checking value state exists")
        return self._table.load(key_id) is not None

    def get(self) -> tuple[Any, ...] | None:
        key_id = self._key("getting value state")
        kept = self._scope.group.tables[self.name].load(key_id)
        return None if kept is None else self._codec.decode(kept)

    def update(self, newValue: Any) -> None:
        key_id = self._key("updating value state")
        self._table.store(key_id, self._codec.encode(newValue))

    def clear(self) -> None:
        key_id = self._key("clearing value state")
        self._table.store(key_id, None)


class _List(ProcessorState, ListState):
    shape = "list"

    def exists(self) -> bool:
        key_id = self._key("checking value state exists")
        return not self._table.is_empty(key_id)

    def get(self) -> Iterator[tuple[Any, ...]]:
        if self.deleted:
            return
        key_id = self._key("getting value state")
        yield from map(self._codec.decode, list(self._table.load(key_id)))

    def put(self, newState: Iterable[Any]) -> None:
        self._write(newState, "replace")

    def appendValue(self, newState: Any) -> None:
        self._write((newState,), "append")

    def appendList(self, newState: Iterable[Any]) -> None:
        self._write(newState, "append")

    def _write(self, values: Iterable[Any], how: str) -> None:
        key_id, kept = self._key("updating value state"), list(map(self._codec.encode, values))
        if not kept:
            raise refusal(
                "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE", "updating value state", name=self.name
            )
        getattr(self._table, how)(key_id, kept)

    def clear(self) -> None:
        key_id = self._key("clearing value state")
        self._table.replace(key_id, [])


class _Map(ProcessorState, MapState):
    shape = "map"

    def __init__(self, name: str, declared: DeclaredState, scope: Scope) -> None:
        super().__init__(name, declared, scope)
        for field in declared.schemas[0]:
            if isinstance(field.dataType, (T.ArrayType, T.MapType, T.StructType)):
                raise ValueError(
                    f"state {name!r}: the fields of a map's keys must be of atomic types, got {field.name!r} "
                    f"of type {field.dataType.simpleString()}; use several fields, or a string"
                )
        (self._keys,) = self._key_codecs
        self._row = Row(*declared.schemas[1].names)
        self._order = UnsafeOrder(declared.schemas[0])

    def exists(self) -> bool:
        key_id = self._key("checking map state exists")
        return not self._table.is_empty(key_id)

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        key_id = self._key("getting value")
        found, kept = self._table.find(key_id, self._keys.encode_key(key))
        return self._row(*self._codec.decode(kept)) if found else None

    def containsKey(self, key: Any) -> bool:
        key_id = self._key("checking if map state contains key")
        found: bool = self._table.find(key_id, self._keys.encode_key(key))[0]
        return found

    def updateValue(self, key: Any, value: Any) -> None:
        key_id = self._key("updating map state value")
        self._table.put(key_id, {self._keys.encode_key(key): self._codec.encode(value)})

    def removeKey(self, key: Any) -> None:
        key_id = self._key("removing key from map state")
        self._table.remove(key_id, self._keys.encode_key(key))

    def clear(self) -> None:
        key_id = self._key("clearing map state")
        self._table.remove_all(key_id)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        for key, kept in self._entries():
            yield self._keys.decode_key(key), self._codec.decode(kept)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        for key, _ in self._entries():
            yield self._keys.decode_key(key)

    def values(self) -> Iterator[tuple[Any, ...]]:
        for _, kept in self._entries():
            yield self._codec.decode(kept)

    def _entries(self) -> list[tuple[tuple[Any, ...], Any]]:
        """Return the entries of now, in the order of Spark's state store."""
        if self.deleted:
            return []
        key_id = self._key("getting map state")
        entries = self._table.load(key_id)
        return sorted(entries.items(), key=lambda entry: self._order.bytes_of(entry[0]))


STATES: dict[str, type[ProcessorState]] = {state.shape: state for state in (_Value, _List, _Map)}
"""The classes of states by shape."""


Schema = T.StructType | str
Declare = Callable[[str, str, tuple[Schema, ...], int | None], DeclaredState]
"""Takes a state's name, shape, schemas as they were passed, and time to live."""

_MODES: dict[TimeMode, str] = {"None": "NoTime", "ProcessingTime": "ProcessingTime", "EventTime": "EventTime"}


class ProcessorHandle(StatefulProcessorHandle):
    """What ``init`` of a processor receives, on the driver and in a task.

    time_mode ({"None", "ProcessingTime", "EventTime"})
    declare: returns the declaration of a state
    stage: Spark's name for how far a task has come
    states: the states, without those that ``deleteIfExists`` has deleted
    deleted: the names of deleted states
    """

    def __init__(self, time_mode: TimeMode, scope: Scope, declare: Declare) -> None:
        self.stage = "CREATED"
        self.states: dict[str, ProcessorState] = {}
        self.deleted: set[str] = set()
        self._mode = time_mode
        self._scope = scope
        self._declare = declare

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ValueState:
        state: ValueState = self._state("value", stateName, (schema,), ttlDurationMs)
        return state

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> ListState:
        state: ListState = self._state("list", stateName, (schema,), ttlDurationMs)
        return state

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> MapState:
        state: MapState = self._state("map", stateName, (userKeySchema, valueSchema), ttlDurationMs)
        return state

    def _state(self, shape: str, name: str, schemas: tuple[Schema, ...], ttl: int | None) -> Any:
        doing = f"initializing {shape} state"
        if self.stage != "CREATED":
            raise self._invalid(doing, f"get_{shape}_state")
        if ttl and self._mode != "ProcessingTime":
            mode = _MODES[self._mode]
            raise refusal("STATEFUL_PROCESSOR_INCORRECT_TIME_MODE_TO_ASSIGN_TTL", doing, name=name, mode=mode)
        if ttl and ttl < 0:
            raise refusal(
                "STATEFUL_PROCESSOR_TTL_DURATION_MUST_BE_POSITIVE", doing, operation="update", name=name
            )
        if name in self.states:
            raise refusal("STATEFUL_PROCESSOR_DUPLICATE_STATE_VARIABLE_DEFINED", doing, name=name)
        if name in ("", "default") or name != name.strip():
            raise refusal("STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME", doing, name=name)
        if name.startswith("$"):
            raise refusal("STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS", doing, name=name)
        declared = self._declare(name, shape, schemas, ttl or None)
        state = self.states[name] = STATES[shape](name, declared, self._scope)
        return state

    def deleteIfExists(self, stateName: str) -> None:
        if self.stage != "CREATED":
            raise self._invalid("deleting state", "delete_if_exists")
        self.deleted.add(stateName)
        if (state := self.states.pop(stateName, None)) is not None:
            state.deleted = True

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._timers("register_timer", "register timer").register_event_time_timer(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers("delete_timer", "deleting timer").delete_event_time_timer(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        found = self._timers("list_timers", "").event_time_timers()
        yield from sorted(found, key=_LONG.pack)  # as Spark lists them

    def _timers(self, operation: str, doing: str) -> KeyTimerService:
        if self._mode == "None":
            raise refusal(
                "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE",
                doing,
                operation=operation,
                mode=_MODES[self._mode],
            )
        if self._scope.keys.current_key is None:
            raise self._invalid(doing, operation)
        return self._scope.group.service

    def _invalid(self, doing: str, operation: str) -> PySparkRuntimeError:
        error = "STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE"
        return refusal(error, doing, operation=operation, state=self.stage)
