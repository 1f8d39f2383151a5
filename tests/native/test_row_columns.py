"""Columns are read as the values that were written, and results written as columns."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from row_loop_model import READERS, WIDTHS, Named, records_of, source

from timerheap import OutputTag, Types
from timerheap._native._core import (
    BITS,
    FIXED,
    FLOAT,
    TEXT,
    ArrayView,
    ColumnReader,
    RecordColumns,
    RowSource,
)
from timerheap._values import detached


def bits(flags: list[bool]) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()


TEXTS = ["", "a", "é", "\U0001f6e9", "x" * 300]
COLUMNS: dict[str, list[Any]] = {
    "int8": [-128, 127, 0, 5, -1],
    "int16": [-(2**15), 2**15 - 1, 0, 5, -1],
    "int32": [-(2**31), 2**31 - 1, 0, 5, -1],
    "int64": [-(2**63), 2**63 - 1, 0, 5, -1],
    "float": [0.5, -0.0, float("inf"), 2.0**-149, 1.0],
    "double": [0.1, -0.0, float("-inf"), 5e-324, 1.0],
    "bool": [True, False, False, True, True],
    "string": TEXTS,
    "binary": [text.encode() for text in TEXTS],
}
CODES = dict(zip(["int8", "int16", "int32", "int64", "float", "double"], "bhiqfd", strict=True))


def view(format: str, values: list[Any], validity: bytes | None, offset: int, width: int = 8) -> ArrayView:
    def made(kind: int, width: int, *buffers: bytes) -> ArrayView:
        return ArrayView(kind, width, offset, len(values) - offset, validity, *buffers)

    if format == "bool":
        return made(BITS, 0, b"", bits(values))
    if format in CODES:
        data = struct.pack(f"{len(values)}{CODES[format]}", *values)
        return made(FLOAT if format in ("float", "double") else FIXED, len(data) // len(values), b"", data)
    parts = [value.encode() if format == "string" else value for value in values]
    offsets = np.cumsum([0, *map(len, parts)])
    return made(TEXT, width, offsets.astype(f"i{width}").tobytes(), b"".join(parts))


def reader(format: str, *arguments: Any) -> ColumnReader:
    return ColumnReader(READERS.get(format, format), view(format, *arguments))


@pytest.mark.parametrize("format", COLUMNS)
@pytest.mark.parametrize("width", [4, 8])
def test_a_column_is_read_as_the_values_that_were_written(format: str, width: int) -> None:
    values = COLUMNS[format]
    flags = [True, False, True, True, False]
    for offset in range(len(values) + 1):
        read = reader(format, values, None, offset, width).tolist()
        assert list(map(repr, read)) == list(map(repr, values[offset:]))
        held = reader(format, values, bits(flags), offset, width).tolist()
        wanted = [value if flag else None for value, flag in zip(values, flags, strict=True)]
        assert list(map(repr, held)) == list(map(repr, wanted[offset:]))


def test_an_empty_column_needs_no_buffers() -> None:
    empty = {"integer": (FIXED, 8), "float": (FLOAT, 4), "bool": (BITS, 0), "string": (TEXT, 4)}
    for format, (kind, width) in empty.items():
        assert ColumnReader(format, ArrayView(kind, width, 0, 0, None, None, None)).tolist() == []


@pytest.mark.parametrize(
    ("format", "kind", "width", "message"),
    [
        ("int128", FIXED, 8, "format must be one of integer, float"),
        ("integer", FIXED, 16, "view must have the kind and width of a column of 'integer'"),
        ("integer", FLOAT, 8, "view must have the kind"),
        ("string", FIXED, 1, "view must have the kind"),
    ],
)
def test_a_view_of_another_kind_raises(format: str, kind: int, width: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ColumnReader(format, ArrayView(kind, width, 0, 0, None, None, None))


@pytest.mark.parametrize("bounds", [(0, 4), (-1, 2), (2, 1), (2**62, 2**62 + 1)])
def test_offsets_outside_the_values_raise(bounds: tuple[int, int]) -> None:
    column = ColumnReader("binary", ArrayView(TEXT, 8, 0, 1, None, struct.pack("2q", *bounds), b"abc"))
    with pytest.raises(ValueError, match="offsets must rise from 0 to 3, got"):
        column.tolist()


def test_bytes_that_are_not_text_raise() -> None:
    column = ColumnReader("string", ArrayView(TEXT, 8, 0, 1, None, struct.pack("2q", 0, 1), b"\xff"))
    with pytest.raises(UnicodeDecodeError):
        column.tolist()


def record_columns(formats: list[str | None], most: int = 10_000) -> RecordColumns:
    pairs = [detached if f is None else (READERS.get(f, f), WIDTHS.get(f, 0)) for f in formats]
    return RecordColumns(pairs, most, OutputTag)


@pytest.mark.parametrize("format", [format for format in COLUMNS if format != "float"])
@pytest.mark.parametrize("with_none", [False, True])
def test_records_become_the_columns_that_are_read_as_their_values(format: str, with_none: bool) -> None:
    columns = record_columns([format, None])
    for times in (1, 200):
        values = [*COLUMNS[format], *[None] * with_none] * times
        assert all(columns.append((value, [value])) for value in values)
        assert len(columns) == len(values)
        buffers, objects = columns.take()
        assert (buffers[0] is None) == (not with_none)
        read = records_of(format, *buffers, len(values))
        assert list(map(repr, read)) == list(map(repr, values))
        assert objects == [[value] for value in values]
        assert len(columns) == 0


@pytest.mark.parametrize(
    ("format", "value"),
    [
        *(("int8", value) for value in (128, -129, True, 1.0, "1", np.int8(1), 2**70)),
        *(("int16", value) for value in (2**15, -(2**15) - 1)),
        *(("int32", value) for value in (2**31, -(2**31) - 1)),
        *(("int64", value) for value in (2**63, -(2**63) - 1, np.int64(1))),
        *(("double", value) for value in (1, True, np.float64(1))),
        *(("bool", value) for value in (0, 1, "True")),
        *(("string", value) for value in (b"a", 1, "\ud800", np.str_("a"))),
        *(("binary", value) for value in ("a", bytearray(b"a"))),
    ],
)
def test_a_value_of_another_class_or_range_is_refused(format: str, value: Any) -> None:
    columns = record_columns([None, format])
    first = (0, COLUMNS[format][0])
    assert columns.append(first)
    assert not columns.append((1, value))
    assert not columns.append(first), "records stay in their order"
    objects, buffers = columns.take()
    assert (objects, records_of(format, *buffers, 1)) == ([0], [first[1]])
    assert columns.append(first)


def test_what_is_no_record_is_refused_and_changes_nothing() -> None:
    columns = record_columns([None, "int64"], most=2)
    for other in (None, 5, "ab", [0, 1], (0,), (0, 1, 2), (OutputTag("t", Types.LONG()), 1)):
        assert not columns.append(other)
    assert columns.append((0, 1))
    assert columns.append(("a", None))
    assert not columns.append((0, 2)), "there is no more room"
    assert columns.take()[0] == [0, "a"]
    with pytest.raises(ValueError, match="must be records, got none"):
        columns.take()
    assert not record_columns([]).append(())


@pytest.mark.parametrize(
    ("formats", "message"), [([("text", 0)], "got 'text'"), ([("integer", 3)], "width must be 1, 2, 4 or 8")]
)
def test_formats_of_records_that_do_not_exist_raise(formats: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecordColumns(formats, 5, str)


def test_rows_have_the_values_of_all_columns() -> None:
    rows = source([ColumnReader("bool", ArrayView(BITS, 0, 0, 2, None, None, b"\x02")), ["a", None]], [1])
    made = rows.tolist()
    assert [tuple(row) for row in made] == [(False, "a"), (True, None)]
    assert all(type(row) is Named and row.__fields__ == ["f0", "f1"] for row in made)
    assert rows.keys() == ["a", None]
    assert source([[1, 2], [3, 4]], [1, 0]).keys() == [(3, 1), (4, 2)]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((int, ["a"], [[1]], [0]), TypeError),
        ((Named, ["a"], [[1], [2]], [0]), ValueError),
        ((Named, ["a", "b"], [[1], [2, 3]], [0]), ValueError),
        ((Named, ["a"], [[1]], [1]), ValueError),
        ((Named, ["a"], [(1,)], [0]), TypeError),
    ],
)
def test_columns_that_do_not_fit_raise(arguments: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        RowSource(*arguments).tolist()
