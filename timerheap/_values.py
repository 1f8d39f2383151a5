"""Values of functions and states: checked against a type, copied, and compared as they are stored.

pyarrow is imported where a type is looked at, since the core of the package needs NumPy alone.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from decimal import Decimal
from types import GeneratorType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from timerheap._moments import EPOCH, local_time, moment_of
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.row import Row
from timerheap.types import LOCAL, arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = (GeneratorType, list)
_TABLE = "__arrow_c_stream__"  # an attribute of the tables and columns of pyarrow, pandas and others
_TIMES = {datetime.date, datetime.datetime, datetime.timedelta}
_CONSTANT = {type(None), bool, int, float, str, bytes, Decimal} | _TIMES

Convert = Callable[[Any], Any]
RowClass = Callable[..., Callable[..., tuple[Any, ...]]]
"""Takes the names of the fields and returns what takes their values: ``pyspark.sql.Row``."""

_LEVELS = 56  # of lists, maps and structs; Arrow reads 64, with those around a value

_NUMPY_TIMES = (np.datetime64, np.timedelta64)


def records(method: str, returned: object) -> Iterable[Any]:
    """Return an iterable of the records that a method returned or yields; None stands for no records."""
    # A single record raises TypeError, because iterating over it would produce its parts instead: the
    # characters of a string, the keys of a dict, the fields of a tuple or Row, or the columns of a table.
    if type(returned) in _PLAIN:  # most are; the checks below take a microsecond
        return cast(Iterable[Any], returned)
    if returned is None or (isinstance(returned, tuple) and not returned):
        return ()
    one = isinstance(returned, str | bytes | bytearray | Mapping | tuple | Row) or hasattr(returned, _TABLE)
    if one or not isinstance(returned, Iterable):
        shown = " ".join(repr(returned).split())
        raise ArgumentTypeError(
            f"{method} must yield records or return an iterable of them, got "
            f"{shown if len(shown) <= 80 else shown[:77] + '...'} ({type(returned).__name__}); yield it, "
            "or return [it]"
        )
    return returned


def detached(value: Any) -> Any:
    """Return a value that later changes of `value` do not reach: itself if nothing in it can change."""
    fixed = isinstance(value, tuple) and not hasattr(value, "__setitem__")
    if type(value) in _CONSTANT or (fixed and all(type(each) in _CONSTANT for each in value)):
        return value
    return deepcopy(value)


def local_reader(type_: pa.DataType) -> Convert | None:
    """Return the function that makes the local time of a kept moment, None for another type; see `reader`."""
    import pyarrow.types as is_

    if not is_.is_timestamp(type_) or type_.tz is None:
        return None
    return lambda kept: None if kept is None else local_time(kept)


def local_leaf(type_: pa.DataType) -> Convert | None:
    """Return `local_reader` of a type whose values Python has in local time."""
    return local_reader(type_) if getattr(type_, "tz", None) == LOCAL else None


class Misfit(ValueError):
    """A value that does not fit its type."""


def is_timed(type_: pa.DataType) -> bool:
    """Return whether a type is one of `ArrowTypes.timed`; users' fields may always be null."""
    return type_.num_fields == 2 and type_.field(1).name == "at" and not type_.field(1).nullable


def expect_shallow(type_: pa.DataType, what: str) -> None:
    """Raise an ArgumentValueError that names `what` if a type has more levels than Arrow can read."""
    levels, level = 0, [type_]
    while level := [each.field(i).type for each in level for i in range(each.num_fields)]:
        levels += 1
    if levels > _LEVELS:
        raise ArgumentValueError(
            f"{what} must be nested at most {_LEVELS} levels deep (a map counts twice), got {levels} levels; "
            "flatten it, or keep the inner part as a string of JSON"
        )


class ArrowTypes:
    """The types of state as Arrow types, with the checks of their values; every backend uses it.

    row_class: makes the rows that a state returns
    key_class: makes those that are keys of maps, which must not change
    """

    def __init__(self, row_class: RowClass, key_class: RowClass) -> None:
        self._row_class = row_class
        self._key_class = key_class

    def resolve(self, type_info: object, argument: str) -> pa.DataType:
        """Return the Arrow type of a descriptor's type; see `timerheap.types.arrow_type`."""
        type_ = arrow_type(type_info, argument)
        expect_shallow(type_, argument)
        for key in _key_types(type_):
            _expect_hashable(key, argument)
        return type_

    def resolve_key(self, type_info: object, argument: str) -> pa.DataType:
        type_ = arrow_type(type_info, argument)
        _expect_hashable(type_, argument)
        return type_

    def timed(self, type_: pa.DataType) -> pa.DataType:
        import pyarrow as pa

        return pa.struct([("value", type_), pa.field("at", pa.int64(), nullable=False)])

    def codec(self, type_: pa.DataType, what: str) -> ArrowCodec:
        return ArrowCodec(type_, what, self._row_class)

    def key_codec(self, type_: pa.DataType, what: str) -> KeyCodec:
        return KeyCodec(type_, what, self._key_class)


def _key_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of the keys of the maps in a type, at every depth."""
    import pyarrow.types as is_

    if is_.is_map(type_):
        yield type_.key_type
        yield from _key_types(type_.item_type)
    elif is_.is_list(type_):
        yield from _key_types(type_.value_type)
    elif is_.is_struct(type_):
        for field in type_:
            yield from _key_types(field.type)


def _expect_hashable(type_: pa.DataType, argument: str) -> None:
    import pyarrow.types as is_

    if is_.is_list(type_) or is_.is_map(type_):
        raise ArgumentValueError(f"{argument}: the type of a map's keys must be hashable, got {type_}")
    if is_.is_struct(type_):
        for field in type_:
            _expect_hashable(field.type, argument)


class ArrowCodec:
    """Converts the values of one type between the user and a state.

    what: named in errors, e.g. "state 'last'".
    row_class: makes the rows that `decode` returns
    exact: the class whose values are kept as they are, except NaN, and for integers their bits
    """

    def __init__(self, type_: pa.DataType, what: str, row_class: RowClass) -> None:
        self.what = what
        self.exact = self._class, bits = exact_class(type_)
        self._integers = range(-(1 << bits - 1), 1 << bits - 1) if bits else None
        self._check = checker(type_)
        self._read = reader(type_, row_class, local_leaf)

    def encode(self, value: Any) -> Any:
        """Return what is kept of `value`; raise ArgumentValueError if it does not fit."""
        fits = type(value) is self._class and (self._integers is None or value in self._integers)
        if fits and value == value:  # is not NaN
            return value
        try:
            return self._check(value)
        except Misfit as e:
            raise ArgumentValueError(f"{self.what}: {e}") from None

    def decode(self, kept: Any) -> Any:
        return kept if self._read is None else self._read(kept)


class KeyCodec(ArrowCodec):
    """Converts the keys of a map, of which equal ones are kept alike: -0.0 becomes 0.0."""

    def __init__(self, type_: pa.DataType, what: str, row_class: RowClass) -> None:
        super().__init__(type_, what, row_class)
        self._hashable = reader(type_, row_class) or unchanged
        if LOCAL not in str(type_):  # then it is what the user receives
            self._read = None

    def encode(self, value: Any) -> Any:
        """Return what is kept of `value`, hashable; raise ArgumentValueError if it does not fit."""
        return self._hashable(_with_positive_zeros(super().encode(value)))


def _with_positive_zeros(kept: Any) -> Any:
    if isinstance(kept, float):
        return kept or 0.0
    if isinstance(kept, dict):
        return {name: _with_positive_zeros(field) for name, field in kept.items()}
    return kept


def checker(type_: pa.DataType) -> Convert:
    """Return the function that checks a value of `type_` and copies it into plain Python objects."""
    # Nothing is coerced: a float does not become an int, nor an int a string. The function raises `Misfit`
    # for a value that does not fit; None fits. An int stands for a timestamp, in epoch ms.
    check = _checker(type_)

    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return check(value)
        except Misfit:
            plain = value.item() if isinstance(value, np.generic) else value
            if plain is value or (isinstance(plain, int) and isinstance(value, _NUMPY_TIMES)):
                raise  # a count of nanoseconds, or beyond Python's years
            return None if plain is None else check(plain)

    return checked


def _checker(type_: pa.DataType) -> Convert:
    import pyarrow.types as is_

    if is_.is_signed_integer(type_):
        return _integer(type_)
    if is_.is_float32(type_) or is_.is_float64(type_):
        return _floating(type_, is_.is_float32(type_))
    if is_.is_string(type_):
        return _scalar(type_, (str,), str)
    if is_.is_binary(type_):
        return _scalar(type_, (bytes, bytearray), bytes)
    if is_.is_boolean(type_):
        return _scalar(type_, (bool,), bool)
    if is_.is_date32(type_):
        return _scalar(type_, (datetime.date,), unchanged)
    if is_.is_timestamp(type_):
        return _to_timestamp(type_)
    if is_.is_list(type_):
        return _list(type_, checker(type_.value_type))
    if is_.is_map(type_):
        return _map(type_, checker(type_.key_type), checker(type_.item_type))
    if is_.is_struct(type_):
        return _to_row(type_)
    return _by_arrow(type_)


def exact_class(type_: pa.DataType) -> tuple[type | None, int]:
    """Return the class whose values are kept as they are, except NaN, and for integers their bits."""
    import pyarrow.types as is_

    if is_.is_signed_integer(type_):
        return int, type_.bit_width
    classes = [
        (is_.is_float64, float),
        (is_.is_string, str),
        (is_.is_binary, bytes),
        (is_.is_boolean, bool),
        (is_.is_date32, datetime.date),
    ]
    return next((class_ for is_type, class_ in classes if is_type(type_)), None), 0


def _integer(type_: pa.DataType) -> Convert:
    bound = 1 << (type_.bit_width - 1)

    def integer(value: Any) -> int:
        if type(value) is not int or not -bound <= value < bound:
            raise Misfit(f"{_show(value)} does not fit {type_}")
        return value

    return integer


def _scalar(type_: pa.DataType, classes: tuple[type, ...], convert: Convert) -> Convert:
    first = classes[0]

    def scalar(value: Any) -> Any:
        if type(value) is first:
            return value
        # a datetime is a date in Python, and is refused
        if not isinstance(value, classes) or isinstance(value, (bool, datetime.datetime)):
            raise Misfit(f"{_show(value)} does not fit {type_}")
        return convert(value)

    return scalar


def _floating(type_: pa.DataType, single: bool) -> Convert:
    def floating(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (float, int)):
            raise Misfit(f"{_show(value)} does not fit {type_}")
        try:
            kept = float(value)
            if single:
                kept = struct.unpack("<f", struct.pack("<f", kept))[0]  # as a checkpoint restores it
        except OverflowError:
            raise Misfit(f"{_show(value)} does not fit {type_}: it is too large") from None
        if isinstance(value, int) and kept != value:
            raise Misfit(f"{_show(value)} does not fit {type_}: it would become {kept!r}")
        return kept if kept == kept else math.nan  # one object, so that it is one key of a map

    return floating


def _to_timestamp(type_: pa.DataType) -> Convert:
    exact = unchanged if type_.unit == "us" else _by_arrow(type_)

    def timestamp(value: Any) -> Any:
        try:
            if type(value) is int:
                moment = EPOCH + datetime.timedelta(milliseconds=value)
                return moment if type_.tz is not None else moment.replace(tzinfo=None)
            if not isinstance(value, datetime.datetime):
                raise Misfit(f"{_show(value)} does not fit {type_}: pass a datetime, or epoch ms as an int")
            if type(value) is not datetime.datetime:
                value = _plain_datetime(value, type_)
            if type_.tz is not None:  # as in PySpark, a datetime without a zone is local time
                value = moment_of(value)
            elif value.tzinfo is not None:
                raise Misfit(f"{_show(value)} has a time zone, and {type_} has none")
        except OverflowError:
            raise Misfit(
                f"{_show(value)} does not fit {type_}: it is outside the years 1 to 9999 that Python's "
                "datetime can represent (an int is epoch ms)"
            ) from None
        return exact(value)

    return timestamp


def _plain_datetime(value: datetime.datetime, type_: pa.DataType) -> datetime.datetime:
    """Return an instance of a subclass, such as pandas' Timestamp, as a datetime."""
    nanosecond: int = getattr(value, "nanosecond", 0)
    if value != value or nanosecond:  # NaT
        raise Misfit(f"{_show(value)} does not fit {type_}: pass a datetime of microseconds, or None")
    return datetime.datetime.combine(value.date(), value.timetz())


def _list(type_: pa.DataType, element: Convert) -> Convert:
    def list_(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            raise Misfit(f"{_show(value)} does not fit {type_}")
        return [element(e) for e in value]

    return list_


def _map(type_: pa.DataType, key: Convert, item: Convert) -> Convert:
    def map_(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, Mapping):
            raise Misfit(f"{_show(value)} does not fit {type_}: pass a dict")
        if None in value:
            raise Misfit(f"{_show(value)} does not fit {type_}: a key is None")
        return [(key(k), item(v)) for k, v in value.items()]

    return map_


def _to_row(type_: pa.DataType) -> Convert:
    names = [field.name for field in type_]
    checks = [checker(field.type) for field in type_]

    def row(value: Any) -> dict[str, Any]:
        if isinstance(value, Row):
            try:
                value = value.get_fields_by_names(names)
            except ValueError as e:
                raise Misfit(f"{_show(value)} does not fit {type_}: {e}") from None
        if type(value).__name__ == "VariantVal" and names == ["value", "metadata"]:  # pyspark's
            value = value.value, value.metadata
        if isinstance(value, Mapping):
            unknown = set(value) - set(names)
            if unknown:
                raise Misfit(
                    f"{_show(value)} does not fit {type_}: no field {sorted(map(str, unknown))[0]!r}"
                )
            return {n: check(value.get(n)) for n, check in zip(names, checks, strict=True)}
        if not isinstance(value, (tuple, list)) or len(value) != len(names):
            raise Misfit(
                f"{_show(value)} does not fit {type_}: pass a Row, a tuple of {len(names)} or a dict"
            )
        return {n: check(v) for n, check, v in zip(names, checks, value, strict=True)}

    return row


def _by_arrow(type_: pa.DataType) -> Convert:
    import pyarrow as pa

    def by_arrow(value: Any) -> Any:
        try:
            kept = pa.scalar(value, type_).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
            raise Misfit(f"{_show(value)} does not fit {type_}: {e}") from None
        if kept != value and not isinstance(value, decimal.Decimal):
            raise Misfit(f"{_show(value)} does not fit {type_}: it would become {kept!r}")
        return kept

    return by_arrow


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def reader(
    type_: pa.DataType, row_class: RowClass, leaf: Callable[[pa.DataType], Convert | None] = lambda _: None
) -> Convert | None:
    """Return the function that makes the user's value of a checked one, or None if both are one object."""
    # A struct becomes a row, a map a dict; every list, dict and row is the caller's own. `leaf` returns the
    # reader of another type.
    import pyarrow.types as is_

    def inner(type_: pa.DataType) -> Convert:
        return reader(type_, row_class, leaf) or unchanged

    if is_.is_struct(type_):
        names = [field.name for field in type_]
        row = row_class(*names)
        readers = [inner(field.type) for field in type_]
        return lambda v: None if v is None else row(*(r(v[n]) for r, n in zip(readers, names, strict=True)))
    if is_.is_map(type_):
        key, item = inner(type_.key_type), inner(type_.item_type)
        return lambda v: None if v is None else {key(k): item(i) for k, i in v}
    if is_.is_list(type_):
        element = inner(type_.value_type)
        return lambda v: None if v is None else [element(e) for e in v]
    return leaf(type_)


def unchanged(value: Any) -> Any:
    return value
