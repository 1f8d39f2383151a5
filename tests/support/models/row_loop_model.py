"""The native loop over rows and a model of it in plain Python, with one interface, and what both run."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from timerheap import TimerHeap
from timerheap._native._core import (
    BITS,
    FIXED,
    FLOAT,
    TEXT,
    ArrayView,
    ColumnReader,
    CurrentKey,
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

READERS = {**dict.fromkeys(["int8", "int16", "int32", "int64"], "integer"), "double": "float"}


def records_of(format: str, validity: Any, offsets: Any, data: Any, n: int) -> list[Any]:
    """Return the values of a column of `RecordColumns`."""
    if format in ("string", "binary"):
        return ColumnReader(format, ArrayView(TEXT, 4, 0, n, validity, offsets, data)).tolist()
    if format == "bool":
        return ColumnReader(format, ArrayView(BITS, 0, 0, n, validity, None, data)).tolist()
    kind, width = (FLOAT, 8) if format == "double" else (FIXED, WIDTHS[format])
    return ColumnReader(READERS[format], ArrayView(kind, width, 0, n, validity, None, data)).tolist()


WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


class Named(tuple[Any, ...]):
    __fields__: list[str]

    def __new__(cls, *_: Any) -> Any:
        raise AssertionError("rows are made without this")


def source(columns: list[Any], key: list[int]) -> RowSource:
    return RowSource(Named, [f"f{k}" for k in range(len(columns))], columns, key)


def timers(keys: CurrentKey) -> tuple[TimerHeap, TimerChanges, RowTimers]:
    heap, changes = TimerHeap(), TimerChanges()
    return heap, changes, RowTimers(heap, changes, keys, SimpleNamespace(known={}))


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


def refuse() -> None:
    raise AttributeError


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
        self.columns = RecordColumns([("integer", 1), lambda value: value], 50, str)
        self.gathered: list[Any] = []
        self.found = 0
        self.known, self.seen = KnownKeys(), KnownKeys()
        self.loop.begin(self, self.known, self.seen, self.find)

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
