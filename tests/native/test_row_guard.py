"""What guarded row loops, timers and values of the compiled module keep of a call, and put back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from timerheap import OutputTag
from timerheap._native._core import (
    CurrentKey,
    NamedTimerHeap,
    RecordColumns,
    RowCells,
    RowTimers,
    RowTimerService,
    RowValue,
    TimerChanges,
)


class Names:
    """Numbers names from 1 on."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def new(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known) + 1)

    def find(self, name: str) -> int:
        return self.known.get(name, 0)


def undo(steps: list[tuple[Any, ...]]) -> None:
    for call, *arguments in steps[::-1]:
        call(*arguments)
    steps.clear()


def test_find_many_has_the_times_of_timers_with_and_without_names() -> None:
    heap = NamedTimerHeap()
    heap.push_many([5, 6, 7], [1, 1, 2], [0, 3, 3])
    at, found = heap.find_many([5, 6, 0, 0, 0], [1, 1, 1, 2, 9], [0, 0, 3, 3, 3])
    assert found.tolist() == [True, False, True, True, False]
    assert at.tolist() == [5, 0, 6, 7, 0]


def test_records_go_back_to_a_number() -> None:
    columns = RecordColumns([("integer", 8), ("string", 0), lambda value: value], 10, OutputTag)
    for n in range(4):
        assert columns.append((n, str(n), [n]))
    columns.rewind(2, False)
    assert columns.append((9, "nine", [9]))
    (_, _, numbers), (_, bounds, text), lists = columns.take()
    assert np.frombuffer(numbers, np.int64).tolist() == [0, 1, 9]
    assert bytes(text[: bounds[3]]) == b"01nine"
    assert lists == [[0], [1], [9]]
    with pytest.raises(ValueError, match=r"n must be at most 0, the number of records, got 1"):
        columns.rewind(1, False)


@pytest.mark.parametrize("seed", range(50))
def test_timers_and_values_are_as_before(seed: int) -> None:
    choice, keys, names = np.random.default_rng(seed), CurrentKey(), Names()
    heap, changes = NamedTimerHeap(), TimerChanges()
    timers, service = RowTimers(heap, changes, keys, names), RowTimerService()
    service.bind(timers, timers, 0, 0)
    codec = SimpleNamespace(encode=lambda value: value)  # only of None
    values = RowValue(keys, codec, int, 64, lambda: None)
    cells = RowCells(keys.numbers, int, lambda ids: (np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)))
    values.bind(None, {}, {}, cells)
    steps: list[tuple[Any, ...]] = []
    journal = NamedTimerHeap()  # as the journal of changes leaves it
    for call in range(40):
        fails = call % 3 == 1
        timers.steps = values.steps = steps
        before = seen(heap, keys, values)
        for _ in range(6):
            keys.current_key = int(choice.integers(3))
            what, at = choice.integers(6), int(choice.integers(20))
            name = [None, "a", "b"][choice.integers(3)]
            if what < 3:
                service.register_event_time_timer(at, name=name)
            elif what == 3:
                service.delete_event_time_timer(at if name is None else None, name=name)
            elif what == 4:
                values.update(at)
            else:
                values.clear()
        if fails:
            undo(steps)
            assert seen(heap, keys, values) == before
        steps.clear()
        if call % 5 == 4:
            for op, at, key, namespace in changes.take()[0].tolist():
                (journal.push if op == 0 else journal.remove)(at, key, namespace)
            assert rows_of(journal) == rows_of(heap)


def rows_of(heap: Any) -> list[tuple[int, ...]]:
    columns = heap.timestamps, heap.key_hashes, heap.namespaces
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def seen(heap: Any, keys: CurrentKey, values: RowValue) -> tuple[Any, ...]:
    found = []
    for key in range(3):
        keys.current_key = key
        found.append(values.value())
    return rows_of(heap), found
