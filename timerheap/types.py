"""Types of state and output, with PyFlink's names or as DDL strings."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any

from timerheap.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError

if TYPE_CHECKING:
    import pyarrow as pa

LOCAL = "+00:00"
"""Time zone of the Arrow type of moments that Python has in local time; those in UTC have "UTC"."""

# Spark's type names, and factories of the Arrow types that represent their values exactly.
_PRIMITIVES: dict[str, Callable[[Any], Any]] = {
    "boolean": lambda pa: pa.bool_(),
    "tinyint": lambda pa: pa.int8(),
    "smallint": lambda pa: pa.int16(),
    "int": lambda pa: pa.int32(),
    "bigint": lambda pa: pa.int64(),
    "float": lambda pa: pa.float32(),
    "double": lambda pa: pa.float64(),
    "string": lambda pa: pa.string(),
    "binary": lambda pa: pa.binary(),
    "date": lambda pa: pa.date32(),
    "time": lambda pa: pa.time64("us"),
    "timestamp": lambda pa: pa.timestamp("us", LOCAL),
    "timestamp_ntz": lambda pa: pa.timestamp("us"),
    "instant": lambda pa: pa.timestamp("us", "UTC"),
}
_ALIASES = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "instant",
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[A-Za-z_][A-Za-z_0-9]*|\d+|[<>(),:])")

_DAY_TIME = re.compile(r"interval (day|hour|minute|second)")  # how Spark writes a DayTimeIntervalType


class _Subscripted:
    """A class that can be subscripted in annotations and in the bases of a class; the types are not used."""

    __slots__ = ()

    def __class_getitem__(cls, types: object) -> GenericAlias:
        return GenericAlias(cls, types)


class TypeInformation:
    """The type of a value in state, written as Spark DDL. Types with equal DDL are equal.

    `Types` creates it; a DDL string, a Spark type or a pyarrow type can be used instead.
    """

    __slots__ = ("ddl",)

    def __init__(self, ddl: str) -> None:
        self.ddl = ddl

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and other.ddl == self.ddl

    def __hash__(self) -> int:
        return hash(self.ddl)

    def __repr__(self) -> str:
        return f"TypeInformation({self.ddl!r})"


def _factory(name: str, ddl: str, doc: str) -> staticmethod[[], TypeInformation]:
    def make() -> TypeInformation:
        return TypeInformation(ddl)

    make.__name__, make.__qualname__, make.__doc__ = name, f"Types.{name}", doc
    return staticmethod(make)


class Types:
    """Flink's type factories (``pyflink.common.Types``), each of which returns a `TypeInformation`.

    Values of BYTE, SHORT, INT and LONG are int; of BIG_DEC Decimal(38, 18); of SQL_DATE and SQL_TIME
    ``datetime`` objects; of SQL_TIMESTAMP a datetime without a time zone, in local time; of INSTANT a
    datetime in UTC; of PRIMITIVE_ARRAY(BYTE()) bytes; of ROW, ROW_NAMED and TUPLE a ``pyspark.sql.Row``,
    which is a tuple.

    Examples
    --------
    >>> Types.MAP(Types.STRING(), Types.LONG())
    TypeInformation('map<string,bigint>')
    """

    STRING = _factory("STRING", "string", "Return the type of strings.")
    CHAR = _factory("CHAR", "string", "Return the type of single characters, stored as strings.")
    BOOLEAN = _factory("BOOLEAN", "boolean", "Return the type of booleans.")
    BYTE = _factory("BYTE", "tinyint", "Return the type of signed 8-bit integers.")
    SHORT = _factory("SHORT", "smallint", "Return the type of signed 16-bit integers.")
    INT = _factory("INT", "int", "Return the type of signed 32-bit integers.")
    LONG = _factory("LONG", "bigint", "Return the type of signed 64-bit integers.")
    FLOAT = _factory("FLOAT", "float", "Return the type of 32-bit floats.")
    DOUBLE = _factory("DOUBLE", "double", "Return the type of 64-bit floats.")
    BIG_INT = _factory("BIG_INT", "decimal(38,0)", "Return the type of integers of up to 38 decimal digits.")
    BIG_DEC = _factory(
        "BIG_DEC",
        "decimal(38,18)",
        "Return the type of decimals with 18 fractional digits, Flink's default scale.",
    )
    SQL_DATE = _factory("SQL_DATE", "date", "Return the type of ``datetime.date``.")
    SQL_TIME = _factory("SQL_TIME", "time", "Return the type of ``datetime.time``.")
    SQL_TIMESTAMP = _factory(
        "SQL_TIMESTAMP",
        "timestamp",
        "Return the type of ``datetime.datetime`` without a time zone, in local time.",
    )
    INSTANT = _factory("INSTANT", "instant", "Return the type of ``datetime.datetime`` in UTC.")

    @staticmethod
    def LIST(element_type: TypeInformation) -> TypeInformation:
        """Return the type of lists."""
        return TypeInformation(f"array<{element_type.ddl}>")

    BASIC_ARRAY = OBJECT_ARRAY = LIST

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """Return the type of lists of numbers; of BYTE, the type of bytes."""
        return TypeInformation("binary") if element_type.ddl == "tinyint" else Types.LIST(element_type)

    @staticmethod
    def MAP(key_type: TypeInformation, value_type: TypeInformation) -> TypeInformation:
        """Return the type of dicts."""
        return TypeInformation(f"map<{key_type.ddl},{value_type.ddl}>")

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Return the type of rows with named fields."""
        if len(field_names) != len(field_types):
            raise ArgumentValueError(
                f"field_names must have one name per field type, got {len(field_names)} names for "
                f"{len(field_types)} field_types"
            )
        names = ["`" + name.replace("`", "``") + "`" for name in field_names]
        fields = ",".join(f"{n}:{t.ddl}" for n, t in zip(names, field_types, strict=True))
        return TypeInformation(f"struct<{fields}>")

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> TypeInformation:
        """Return the type of rows with the fields f0, f1, ..."""
        return Types.ROW_NAMED([f"f{i}" for i in range(len(field_types))], field_types)

    TUPLE = ROW

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Raise UnsupportedError: state is never pickled."""
        raise UnsupportedError(
            "Types.PICKLED_BYTE_ARRAY is not supported, because state is never pickled; use the type of the "
            "value, such as Types.DOUBLE(), Types.STRING() or Types.TUPLE([Types.STRING(), Types.LONG()])"
        )


def arrow_type(type_: object, argument: str = "type") -> pa.DataType:
    """Return the Arrow type of a `TypeInformation`, a DDL string, a Spark type or an Arrow type.

    ArgumentTypeError, ArgumentValueError: if `type_` is not a type, or not valid DDL; the message starts
    with `argument`
    """
    import pyarrow as pa

    if isinstance(type_, pa.DataType):
        return type_
    if isinstance(type_, TypeInformation | str):
        return _Parser(type_ if isinstance(type_, str) else type_.ddl, argument).parse()
    if callable(getattr(type_, "jsonValue", None)):  # a Spark DataType, without importing pyspark
        return _of_spark(type_.jsonValue(), argument)  # type: ignore[attr-defined]
    if type_ is None:
        raise ArgumentTypeError(
            f"{argument}: the type must be given, since values are never pickled, got None; pass the type of "
            "the value, such as Types.LONG(), Types.STRING() or Types.TUPLE([Types.STRING(), Types.LONG()])"
        )
    raise ArgumentTypeError(
        f"{argument}: the type must be one of Types.*, a DDL string such as 'bigint', a Spark type or a "
        f"pyarrow type, got {type_!r}"
    )


def composite(
    types: Sequence[object],
    of_ddl: Callable[..., TypeInformation],
    of_arrow: Callable[..., pa.DataType],
    argument: str = "type",
) -> object:
    """Return a type of others: as DDL, which needs no pyarrow, or by ``of_arrow(pyarrow, *types)``."""
    infos = [TypeInformation(type_) if isinstance(type_, str) else type_ for type_ in types]
    if all(isinstance(info, TypeInformation) for info in infos):
        return of_ddl(*infos)
    import pyarrow as pa

    return of_arrow(pa, *(arrow_type(info, argument) for info in infos))


def list_of(type_: object, argument: str = "type") -> object:
    """Return the type of lists of one type."""
    return composite([type_], Types.LIST, lambda pa, each: pa.list_(pa.field("element", each)), argument)


def _of_spark(json: Any, argument: str) -> pa.DataType:
    """Return the Arrow type of a Spark type's ``jsonValue()``; nullability is ignored."""
    import pyarrow as pa

    if isinstance(json, str):
        if _DAY_TIME.match(json):
            return pa.duration("us")
        return _Parser("time" if json.startswith("time(") else json, argument).parse()
    if json["type"] == "array":
        return pa.list_(pa.field("element", _of_spark(json["elementType"], argument)))
    if json["type"] == "map":
        return pa.map_(_of_spark(json["keyType"], argument), _of_spark(json["valueType"], argument))
    if json["type"] == "struct":
        fields = [pa.field(field["name"], _of_spark(field["type"], argument)) for field in json["fields"]]
        if twice := _twice(fields):
            raise _unstorable(argument, json["type"], f"the field {twice!r} occurs twice")
        return pa.struct(fields)
    raise _unstorable(argument, json["type"], "no state can hold it")


def _twice(fields: list[pa.Field]) -> str | None:
    """Return a name that several fields have."""
    names = [field.name for field in fields]
    return next((name for at, name in enumerate(names) if name in names[:at]), None)


def _unstorable(argument: str, type_: str, why: str) -> ArgumentValueError:
    return ArgumentValueError(
        f"{argument}: the type must be one that timerheap can store, got {type_!r}: {why}"
    )


def arrow_columns(ddl: str, argument: str) -> pa.Schema:
    """Return the Arrow schema of the columns of a DataFrame, given as Spark DDL.

    As in Spark, a ``timestamp`` is a moment, and a ``timestamp_ntz`` is not; types of state call them
    ``instant`` and ``timestamp``. Errors start with `argument`.
    """
    return _ColumnsParser(ddl, argument).columns()


class _Parser:
    """A recursive descent parser for Spark's type DDL; workers have no JVM to parse it."""

    def __init__(self, ddl: str, argument: str) -> None:
        self.ddl = ddl
        self.argument = argument
        self.tokens: list[str] = []
        at, text = 0, ddl.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f"cannot read {text[at:]!r}")
            self.tokens.append(match.group(1))
            at = match.end()

    def error(self, why: str) -> ArgumentValueError:
        return _unstorable(self.argument, self.ddl, why)

    def parse(self) -> pa.DataType:
        type_ = self.type()
        if self.tokens:
            raise self.error(f"unexpected {self.tokens[0]!r}")
        return type_

    def next(self, expected: str | None = None) -> str:
        token = self.tokens.pop(0) if self.tokens else ""
        if not token or (expected is not None and token != expected):
            raise self.error(f"expected {expected or 'a type'!r}, found {token or 'the end'!r}")
        return token

    def type(self) -> pa.DataType:
        import pyarrow as pa

        token = self.next()
        name = _ALIASES.get(token.lower(), token.lower())
        if name in _PRIMITIVES:
            return _PRIMITIVES[name](pa)
        if name in ("decimal", "dec", "numeric"):
            return self.decimal()
        if name == "array":
            self.next("<")
            element = self.type()
            self.next(">")
            return pa.list_(pa.field("element", element))
        if name == "map":
            self.next("<")
            key = self.type()
            self.next(",")
            value = self.type()
            self.next(">")
            return pa.map_(key, value)
        if name == "struct":
            return self.struct()
        raise self.error(f"unknown type {token!r}")

    def decimal(self) -> pa.DataType:
        import pyarrow as pa

        precision, scale = 10, 0
        if self.tokens and self.tokens[0] == "(":
            self.next("(")
            precision = self.number()
            if self.tokens and self.tokens[0] == ",":
                self.next(",")
                scale = self.number()
            self.next(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise self.error(f"decimal({precision},{scale}) is out of range")
        return pa.decimal128(precision, scale)

    def number(self) -> int:
        token = self.next()
        if not token.isdigit():
            raise self.error(f"expected a number, found {token!r}")
        return int(token)

    def struct(self) -> pa.DataType:
        import pyarrow as pa

        self.next("<")
        fields: list[pa.Field] = []
        while True:
            fields.append(self.field().with_nullable(True))
            if twice := _twice(fields):
                raise self.error(f"the field {twice!r} occurs twice")
            if self.next() == ">":
                return pa.struct(fields)

    def field(self) -> pa.Field:
        import pyarrow as pa

        name = self.next()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self.tokens and self.tokens[0] == ":":
            self.next(":")
        type_, nullable = self.type(), True
        if [token.lower() for token in self.tokens[:2]] == ["not", "null"]:
            del self.tokens[:2]
            nullable = False
        return pa.field(name, type_, nullable)


class _ColumnsParser(_Parser):
    """Parses the columns of a DataFrame."""

    def error(self, why: str) -> ArgumentValueError:
        return ArgumentValueError(
            f"{self.argument} must be a DDL string such as 'plane string, at bigint', got {self.ddl!r}: {why}"
        )

    def type(self) -> pa.DataType:
        import pyarrow as pa

        name = self.tokens[0].lower() if self.tokens else ""
        if name in ("timestamp", "timestamp_ltz"):
            self.next()
            return pa.timestamp("us", "UTC")
        return super().type()

    def columns(self) -> pa.Schema:
        import pyarrow as pa

        fields = []
        while True:
            fields.append(self.field())
            if not self.tokens:
                return pa.schema(fields)
            self.next(",")
