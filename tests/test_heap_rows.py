"""The native loop over rows equals a plain Python model: calls, results, states, journal and errors."""

from __future__ import annotations

import gc
import random
import struct
import sys
from typing import Any

import numpy as np
import pytest

from timerheap import OutputTag, TimerHeap, Types
from timerheap._native._heap import (
    BITS,
    FIXED,
    FLOAT,
    TEXT,
    ArrayView,
    ColumnReader,
    CurrentKey,
    KeyNumbers,
    KnownKeys,
    RecordColumns,
    RowCells,
    RowContext,
    RowLoop,
    RowSource,
    RowTimers,
    RowTimerService,
    RowValue,
    TimerChanges,
)

# ---- Columns


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
READERS = {**dict.fromkeys(["int8", "int16", "int32", "int64"], "integer"), "double": "float"}
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


# ---- Rows


def records_of(format: str, validity: Any, offsets: Any, data: Any, n: int) -> list[Any]:
    """Return the values of a column of `RecordColumns`."""
    if format in ("string", "binary"):
        return ColumnReader(format, ArrayView(TEXT, 4, 0, n, validity, offsets, data)).tolist()
    if format == "bool":
        return ColumnReader(format, ArrayView(BITS, 0, 0, n, validity, None, data)).tolist()
    kind, width = (FLOAT, 8) if format == "double" else (FIXED, WIDTHS[format])
    return ColumnReader(READERS[format], ArrayView(kind, width, 0, n, validity, None, data)).tolist()


WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


def record_columns(formats: list[str | None], most: int = 10_000) -> RecordColumns:
    pairs = [None if f is None else (READERS.get(f, f), WIDTHS.get(f, 0)) for f in formats]
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


class Named(tuple[Any, ...]):
    __fields__: list[str]

    def __new__(cls, *_: Any) -> Any:
        raise AssertionError("rows are made without this")


def source(columns: list[Any], key: list[int]) -> RowSource:
    return RowSource(Named, [f"f{k}" for k in range(len(columns))], columns, key)


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


# ---- Timers


def timers(keys: CurrentKey) -> tuple[TimerHeap, TimerChanges, RowTimers]:
    heap, changes = TimerHeap(), TimerChanges()
    return heap, changes, RowTimers(heap, changes, keys)


def test_a_change_is_journalled_where_it_was_made() -> None:
    keys = CurrentKey()
    heap, changes, event = timers(keys)
    service = RowTimerService()
    service.bind(event, timers(keys)[2], -5, 7)
    keys.current_key = -(2**63)
    service.register_event_time_timer(2**63 - 1)
    service.register_event_time_timer(np.int32(5))
    service.delete_event_time_timer(6)
    service.delete_event_time_timer(5)
    assert list(heap) == [(2**63 - 1, -(2**63), 0)]
    wanted = [[0, 2**63 - 1, -(2**63), 0], [0, 5, -(2**63), 0], [1, 5, -(2**63), 0]]
    assert (len(changes), taken(changes)) == (3, (wanted, None, 0))
    assert (len(changes), taken(changes)) == (0, ([], None, 0))
    assert (service.current_watermark(), service.current_processing_time()) == (-5, 7)


def taken(changes: TimerChanges) -> tuple[list[list[int]], int | None, int]:
    journal, until, gone = changes.take()
    return journal.tolist(), until, gone


def replayed(timers: set[tuple[int, int]], journal: list[list[int]]) -> set[tuple[int, int]]:
    """Return the timers after a journal, whose operations must make sense."""
    timers = set(timers)
    for op, timestamp, key, namespace in journal:
        assert namespace == 0
        if op == 0:
            timers.add((timestamp, key))
        else:
            assert op == 1
            timers.remove((timestamp, key))
    return timers


def test_a_numbered_key_that_moves_its_timer_has_two_changes() -> None:
    keys = CurrentKey()
    _, changes, event = timers(keys)
    service = RowTimerService()
    service.bind(event, event, 0, 0)
    for keys.current_key in (1, 2):
        service.register_event_time_timer(0)
    changes.take()
    cells = RowCells(keys.numbers, int, _raise)
    for step in range(100):
        for keys.current_key in (1, 2):
            service.delete_event_time_timer(step)
            service.register_event_time_timer(step + 1)
    assert taken(changes)[0] == [[1, 0, 1, 0], [0, 100, 1, 0], [1, 0, 2, 0], [0, 100, 2, 0]]
    keys.current_key = 3
    service.register_event_time_timer(7)
    service.delete_event_time_timer(7)
    assert (len(changes), taken(changes), len(changes)) == (1, ([], None, 0), 0)
    assert cells.numbers is keys.numbers


@pytest.mark.parametrize("seed", range(20))
def test_the_journal_of_numbered_keys_has_the_effect_of_all_changes(seed: int) -> None:
    draw, keys = random.Random(seed), CurrentKey()
    heap, changes, event = timers(keys)
    service = RowTimerService()
    service.bind(event, event, 0, 0)
    saved: set[tuple[int, int]] = set()
    for _ in range(600):
        if draw.random() < 0.02:
            saved = replayed(saved, taken(changes)[0])
            assert saved == {timer[:2] for timer in heap}
        if draw.random() < 0.02:
            keys.renumber()
        if draw.random() < 0.02:
            RowCells(keys.numbers, int, _raise)
        keys.current_key = draw.choice([-1, 0, 7])
        method = draw.choice(["register", "delete"])
        getattr(service, f"{method}_event_time_timer")(draw.randrange(3))
    assert replayed(saved, taken(changes)[0]) == {timer[:2] for timer in heap}


@pytest.mark.parametrize(
    ("timestamp", "error"), [("7", TypeError), (1.0, TypeError), (True, TypeError), (2**63, OverflowError)]
)
def test_a_timestamp_that_is_not_an_int64_changes_nothing(timestamp: Any, error: type[Exception]) -> None:
    keys = CurrentKey()
    heap, changes, event = timers(keys)
    service = RowTimerService()
    service.bind(event, event, 0, 0)
    for method in ("register_event_time_timer", "delete_event_time_timer", "register_processing_time_timer"):
        with pytest.raises(error, match="timestamp must"):
            getattr(service, method)(timestamp)
    assert not len(heap)
    assert not len(changes)


@pytest.mark.parametrize("class_", [RowTimerService, RowValue, RowContext, RowTimers, RowLoop])
def test_an_object_that_was_not_set_up_raises(class_: Any) -> None:
    empty = class_.__new__(class_)
    calls = {
        RowTimerService: lambda: empty.register_event_time_timer(1),
        RowValue: lambda: empty.value(),
        RowTimers: lambda: RowTimerService().bind(empty, empty, 0, 0) or _registered(empty),
        RowLoop: lambda: empty.advance(0),
        RowContext: lambda: empty.get_current_key() or _raise(),
    }
    with pytest.raises((AttributeError, TypeError)):
        calls[class_]()


def _registered(timers: RowTimers) -> None:
    service = RowTimerService()
    service.bind(timers, timers, 0, 0)
    service.register_event_time_timer(1)


def _raise() -> None:
    raise AttributeError


# ---- The loop


class Codec:
    """Doubles what it is asked to keep, so that a test sees which values it was asked for."""

    def encode(self, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"{value!r} does not fit")
        return None if value is None else ("kept", value)

    def decode(self, kept: Any) -> Any:
        return None if kept is None else ("read", kept)


class Remainders(Codec):
    """What cells can hold of a value."""

    def encode(self, value: Any) -> Any:
        return None if super().encode(value) is None else int(value) % 99


class Table:
    def __init__(self) -> None:
        self.saved: dict[int, Any] = {}
        self.loaded: dict[int, Any] = {}
        self.stored: dict[int, Any] = {}

    def load(self, key: int) -> Any:
        return self.loaded.setdefault(key, self.saved.get(key))

    def store(self, key: int, value: Any) -> None:
        self.stored[key] = value

    def contents(self) -> dict[int, Any]:
        merged = {**self.saved, **self.stored}
        return {key: value for key, value in merged.items() if value is not None}


class ModelTimers:
    def __init__(self) -> None:
        self.timers: set[tuple[int, int]] = set()
        self.journal: list[list[int]] = []
        self.until: int | None = None

    def register(self, timestamp: int, key: int) -> None:
        self.timers.add((timestamp, key))
        self.journal.append([0, timestamp, key, 0])

    def delete(self, timestamp: int, key: int) -> None:
        if (timestamp, key) in self.timers:
            self.timers.remove((timestamp, key))
            self.journal.append([1, timestamp, key, 0])

    def due(self, time: int) -> tuple[int, int] | None:
        first = min(self.timers, default=None)
        return first if first is not None and first[0] <= time else None


class Model:
    """The loop, its context, its timer service and a value state in plain Python."""

    def __init__(self, function: Any, names: dict[int, str], now: int) -> None:
        self.function = function
        self.names = names
        self.now = now
        self.event, self.processing = ModelTimers(), ModelTimers()
        self.watermark = -(2**63)
        self.values: dict[int, Any] = {}
        self.emitted: list[Any] = []

    # The context, and the service and the state at once.

    def get_current_key(self) -> str:
        return self.names[self.key]

    def timestamp(self) -> int | None:
        return self.at

    def time_domain(self) -> str:
        return self.domain

    def timer_service(self) -> Model:
        return self

    def current_watermark(self) -> int:
        return self.watermark

    def current_processing_time(self) -> int:
        return self.now

    def register_event_time_timer(self, timestamp: int) -> None:
        self.event.register(timestamp, self.key)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self.processing.register(timestamp, self.key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self.event.delete(timestamp, self.key)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self.processing.delete(timestamp, self.key)

    def value(self) -> Any:
        kept = self.values.get(self.key)
        return kept if self.function.exact else self.function.codec.decode(kept)

    def update(self, value: Any) -> None:
        exact = self.function.exact and type(value) is int and -128 <= value < 128
        self.values[self.key] = value if exact else self.function.codec.encode(value)

    def clear(self) -> None:
        self.values[self.key] = None

    # The loop.

    def call(self, method: str, argument: Any, key: int, at: int | None) -> None:
        self.key, self.at = key, at
        try:
            returned = getattr(self.function, method)(argument, self)
            if returned is not None:
                self.emitted += returned
        except Exception as e:
            e.add_note(f"timerheap: in {method}, key {self.names[key]!r}, timestamp {at}")
            raise

    def process(self, rows: list[Any], ids: list[int], times: list[int | None]) -> None:
        for row, id_, at in zip(rows, ids, times, strict=True):
            self.call("process_element", row, id_, at)

    def replay(self, rows: list[Any], ids: list[int], times: list[int], watermark: int) -> None:
        last = None
        for row, id_, at in zip(rows, ids, times, strict=True):
            if at != last:
                self.step_to(at - 1)
            last = at
            self.call("process_element", row, id_, at)
        self.step_to(watermark)

    def step_to(self, watermark: int) -> None:
        while (first := self.event.due(watermark)) is not None:
            self.advance(max(first[0], self.watermark))
        if watermark > self.watermark:
            self.advance(watermark)

    def advance_clock(self, now: int) -> None:
        self.fire(self.processing, now - 1, "processing")

    def advance(self, watermark: int) -> None:
        self.watermark = watermark
        self.fire(self.event, watermark, "event")

    def fire(self, timers: ModelTimers, time: int, domain: str) -> None:
        while (first := timers.due(time)) is not None:
            timers.timers.remove(first)
            timers.until = max(timers.until or first[0], first[0])
            self.domain = domain
            self.call("on_timer", first[0], first[1], first[0])


class Anything:
    """Does with its row, or timer, what a random generator of its own says, and writes down what it sees."""

    def __init__(self, seed: int, exact: bool, in_cells: bool = False) -> None:
        self.random = random.Random(seed)
        self.exact, self.in_cells = exact, in_cells
        self.codec = Remainders() if in_cells else Codec()
        self.seen: list[Any] = []
        self.fails_at: int | None = None

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.step(("row", tuple(value)), ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        return self.step(("timer", timestamp, ctx.time_domain()), ctx)

    def step(self, what: Any, ctx: Any) -> Any:
        draw, timers = self.random, ctx.timer_service()
        self.seen.append((*what, ctx.timestamp(), timers.current_watermark(), self.state.value()))
        if len(self.seen) == self.fails_at:
            raise ZeroDivisionError
        if draw.random() < 0.7:
            self.seen.append(ctx.get_current_key())
        for _ in range(draw.randrange(4)):
            base = timers.current_processing_time() if draw.random() < 0.3 else ctx.timestamp() or 0
            at = base + draw.randrange(-3, 9)
            method = draw.choice(["register", "register", "delete"])
            getattr(timers, f"{method}_{'event' if base else 'processing'}_time_timer")(at)
        if draw.random() < 0.5:
            self.state.update(draw.choice([None, 7, -128, 127, 128, -129, 2**70, 1.5, True]))
        elif draw.random() < 0.2:
            self.state.clear()
        elif draw.random() < 0.1:
            with pytest.raises(ValueError, match="does not fit"):
                self.state.update("text")
        results = [(len(self.seen), *range(draw.randrange(3))) for _ in range(draw.randrange(3))]
        return draw.choice([None, results, iter(results), (result for result in results)])


class Native:
    """The native loop with the interface of the model."""

    def __init__(self, function: Any, names: dict[int, str], now: int) -> None:
        self.names, self.now = names, now
        self.keys = CurrentKey()
        self.heap, self.changes, event = timers(self.keys)
        self.processing_heap, self.processing_changes, processing = timers(self.keys)
        self.service = RowTimerService()
        self.service.bind(event, processing, -(2**63), now)
        self.table = Table()
        exact, bits_ = (int, 8) if function.exact else (None, 0)
        function.state = RowValue(self.keys, function.codec, exact, bits_, self.no_key)
        self.cells = RowCells(self.keys.numbers, int, self.load) if function.in_cells else None
        function.state.bind(self.table, self.table.loaded, self.table.stored, self.cells)
        self.loop = RowLoop(
            function, RowContext(self.service), self.service, self.keys, "event", "processing"
        )
        self.columns = RecordColumns([("integer", 1), None], 50, str)
        self.gathered: list[Any] = []
        self.found = 0
        self.known, self.seen = KnownKeys(), KnownKeys()
        self.loop.begin(self, self.known, self.seen, self.find, self.expire)

    def no_key(self) -> None:
        raise RuntimeError("no current key")

    def load(self, ids: Any) -> Any:
        found = [self.table.saved.get(id_) for id_ in ids.tolist()]
        return np.array([value or 0 for value in found], np.int64), np.array(
            [v is not None for v in found], bool
        )

    def save(self) -> None:
        for id_, value, held in zip(*(column.tolist() for column in self.cells.take()), strict=True):
            self.table.saved[id_] = value if held else None
        assert not any(map(len, self.cells.take()))

    @property
    def emitted(self) -> list[Any]:
        if len(self.columns):
            numbers, objects = self.columns.take()
            self.gathered += zip(records_of("int8", *numbers, len(objects)), objects, strict=True)
        return self.gathered

    def rows(self, returned: Any, method: str) -> None:
        assert method in ("process_element", "on_timer")
        self.emitted.extend(returned)

    def expire(self, namespace: int, id_: int) -> None:
        raise AssertionError("all timers are the function's")

    def find(self, id_: int, timestamp: int) -> str:
        self.found += 1
        if id_:
            known = self.known if id_ % 2 else self.seen
            known.add([id_], source([[None], [self.names[id_]]], [1]))
            assert known[id_] == self.names[id_]
        return self.names[id_]

    def process(self, rows: list[Any], ids: list[int], times: list[int | None]) -> None:
        timed = None if None in times else np.array(times, np.int64)
        self.loop.process(self.source(rows), np.array(ids, np.int64), timed)

    def replay(self, rows: list[Any], ids: list[int], times: list[int], watermark: int) -> None:
        self.loop.replay(self.source(rows), np.array(ids, np.int64), np.array(times, np.int64), watermark)

    def source(self, rows: list[Any]) -> RowSource:
        return source([list(column) for column in zip(*rows, strict=True)] or [[], []], [0])

    def advance(self, watermark: int) -> None:
        self.loop.advance(watermark)

    def advance_clock(self, now: int) -> None:
        self.loop.advance_clock(now)
        if self.cells is not None:
            self.save()
            if len(self.emitted) % 2:
                self.cells.forget()


def run_batches(run: Model | Native, order: str, seed: int) -> list[str]:
    """Run four micro-batches; return the notes of the error that ended them."""
    draw = random.Random(seed)
    try:
        for start in range(1, 80, 20):
            n = draw.randrange(30)
            ids = draw.choices(list(run.names), k=n)
            times: list[Any] = sorted(draw.choices(range(start, start + 25), k=n))
            rows = [(run.names[id_], draw.random()) for id_ in ids]
            if order == "event_time":
                run.replay(rows, ids, times, start + 24)
            else:
                run.process(rows, ids, times if order == "arrival" else [None] * n)
                run.advance(start + 24)
            run.advance_clock(run.now)
    except ZeroDivisionError as e:
        return e.__notes__
    return []


@pytest.mark.parametrize("order", ["arrival", "untimed", "event_time"])
@pytest.mark.parametrize("kept", ["as it is", "by a codec", "in cells"])
def test_random_functions_run_as_in_the_model(order: str, kept: str) -> None:
    for seed in range(40):
        names = {id_: f"key {id_}" for id_ in (-(2**63), -1, 0, 1, 2, 2**63 - 1)}
        functions = [Anything(seed, kept != "by a codec", kept == "in cells") for _ in range(2)]
        if seed % 4 == 0:
            functions[0].fails_at = functions[1].fails_at = 1 + seed
        model, native = Model(functions[0], names, 1_000), Native(functions[1], names, 1_000)
        functions[0].state = model
        assert run_batches(native, order, seed) == run_batches(model, order, seed)
        assert functions[1].seen == functions[0].seen
        assert native.emitted == model.emitted
        for changes, timers_ in (
            (native.changes, model.event),
            (native.processing_changes, model.processing),
        ):
            journal, until, _ = taken(changes)
            if native.cells is None:
                assert journal == timers_.journal
            else:  # where keys have numbers, a push and its removal may be left out
                assert len(journal) <= len(timers_.journal)
            assert until == timers_.until
            after = -(2**63) - 1 if until is None else until
            left = replayed(set(), [change for change in journal if change[1] > after])
            assert left == {timer for timer in timers_.timers if timer[0] > after}
        assert sorted(t[:2] for t in native.heap) == sorted(model.event.timers)
        assert sorted(t[:2] for t in native.processing_heap) == sorted(model.processing.timers)
        if native.cells is not None:
            native.save()
        assert native.table.contents() == {k: v for k, v in model.values.items() if v is not None}
        native.heap._check()


@pytest.mark.parametrize("in_cells", [True, False])
def test_a_state_without_a_current_key_raises(in_cells: bool) -> None:
    function = Anything(0, exact=True, in_cells=in_cells)
    Native(function, {}, 0)
    for call in (function.state.value, function.state.clear, lambda: function.state.update(1)):
        with pytest.raises(RuntimeError, match="no current key"):
            call()


NAN = float("nan")


@pytest.mark.parametrize(
    ("class_", "values"),
    [(int, [-(2**63), 2**63 - 1, 0]), (float, [-0.0, 5e-324, NAN, float("inf")]), (bool, [True, False])],
)
def test_cells_hold_all_values_of_their_class(class_: type, values: list[Any]) -> None:
    def load(ids: Any) -> Any:
        asked.append(ids.tolist())
        return np.arange(len(ids)), np.zeros(len(ids), bool)

    asked: list[list[int]] = []
    keys = CurrentKey()
    state = RowValue(keys, Codec(), class_, 64 if class_ is int else 0, _raise)
    cells = RowCells(keys.numbers, class_, load)
    state.bind(None, {}, {}, cells)
    keys.announce([7, 5, 7])
    for keys.current_key, value in enumerate(values):
        assert state.value() is None
        if value == value:
            state.update(value)
            assert repr(state.value()) == repr(value)
    assert asked == [[7, 5, 0], *([n] for n in range(1, len(values)))]
    state.clear()
    ids, bits_, held = cells.take()
    read = bits_.view(np.float64) if class_ is float else bits_
    wanted = [value for value in values if value == value][:-1]
    assert [ids.tolist()[: len(wanted)], held.tolist()] == [
        [n for n, value in enumerate(values) if value == value][:-1],
        [True] * len(wanted) + [False],
    ]
    assert list(map(class_, read[: len(wanted)])) == wanted
    assert cells.cleared == 1
    with pytest.raises(ValueError, match="does not fit"):
        state.update("text")
    assert not len(cells.take()[0])


def test_cells_whose_values_cannot_be_loaded_stay_as_they_were() -> None:
    answers: list[Any] = [np.zeros(2, np.int64), ZeroDivisionError(), None, np.zeros(1, np.int64)]

    def load(ids: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            cells.forget()
            return np.zeros(1, np.int64), [True]
        return answer, np.ones(len(answer), bool)

    keys = CurrentKey()
    cells = RowCells(keys.numbers, int, load)
    state = RowValue(keys, Codec(), int, 64, _raise)
    state.bind(None, {}, {}, cells)
    keys.current_key = 3
    for error in (ValueError, ZeroDivisionError, RuntimeError):
        with pytest.raises(error):
            state.value()
    assert state.value() == 0
    assert not len(cells.take()[0])


def test_key_ids_are_numbered_in_the_order_in_which_they_come() -> None:
    numbers = KeyNumbers()
    ids = [5, 5, -(2**63), 0, 5, 2**63 - 1]
    assert numbers.number_many(ids).tolist() == [0, 0, 1, 2, 0, 3]
    assert numbers.number_many(np.arange(1_000)).tolist() == [
        2, *range(4, 8), 0, *range(8, 1_002)
    ]  # fmt: skip
    assert len(numbers) == 1_002
    with pytest.raises(TypeError, match="must be an integer"):
        numbers.number_many([1.5])


def test_columns_of_another_length_raise() -> None:
    native = Native(Anything(0, exact=True), {}, 0)
    rows = source([["a"], [1]], [0])
    with pytest.raises(ValueError, match="one value for each of 1 rows"):
        native.loop.process(rows, np.zeros(2, np.int64), None)
    with pytest.raises(ValueError, match="one value for each of 1 rows"):
        native.loop.process(rows, np.zeros(1, np.int64), np.zeros(0, np.int64))
    with pytest.raises(TypeError, match="timestamps must be"):
        native.loop.replay(rows, np.zeros(1, np.int64), None, 0)


def test_a_row_that_a_function_keeps_stays_as_it_was() -> None:
    class Keep:
        exact, in_cells, codec = True, False, Codec()

        def __init__(self) -> None:
            self.rows: list[Any] = []
            self.dicts: list[Any] = []
            self.ids: list[int] = []

        def process_element(self, value: Any, ctx: Any) -> Any:
            key, number = value
            assert (type(value), vars(value)) == (Named, {"__fields__": ["f0", "f1"]})
            assert hash(value) == hash((key, number))  # which tuples remember in some versions
            self.ids.append(id(value))
            if number % 6 == 0:
                self.rows.append((value, number))
            elif number % 6 == 1:
                value.seen = True
            elif number % 6 == 2:
                self.dicts.append(vars(value))
            elif number % 6 == 3:
                value.__fields__ = ["other"]
            elif number % 6 == 4:
                self.rows.append(((part for part in value), number))
            return None

    function = Keep()
    native = Native(function, {}, 0)
    native.process([(f"key {n}", n) for n in range(60)], [1] * 60, list(range(60)))
    assert [(tuple(row), number) for row, number in function.rows] == [
        ((f"key {number}", number), number) for _, number in function.rows
    ]
    assert function.dicts == [{"__fields__": ["f0", "f1"]}] * 10
    assert function.ids[5::6] == [*function.ids[6::6], function.ids[59]]  # the others are filled again


def test_calls_leave_no_references_behind() -> None:
    class Keep:
        exact, in_cells, codec = False, False, Codec()

        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(ctx.timestamp())
            self.state.update(value[1])
            self.state.value()
            yield ctx.get_current_key()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            self.state.clear()
            return [ctx.get_current_key()]

    key, value = "a key " * 3, object()
    counted = [key, value, Named]

    def once() -> None:
        native = Native(Keep(), {1: key}, 0)
        native.process([(key, value)] * 500, [1] * 500, list(range(500)))
        native.advance(1_000)
        assert len(native.emitted) == 1_000

    once()
    gc.collect()
    before, blocks = list(map(sys.getrefcount, counted)), sys.getallocatedblocks()
    once()
    gc.collect()
    assert list(map(sys.getrefcount, counted)) == before
    assert sys.getallocatedblocks() - blocks < 200
