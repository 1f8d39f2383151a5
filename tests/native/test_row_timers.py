"""Timers of the current key, and their journal, in native code."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from row_loop_model import refuse, replayed, taken, timers

from timerheap._native._core import (
    CurrentKey,
    KeyNumbers,
    RowCells,
    RowContext,
    RowLoop,
    RowTimers,
    RowTimerService,
    RowValue,
)


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


def test_a_numbered_key_that_moves_its_timer_has_two_changes() -> None:
    keys = CurrentKey()
    _, changes, event = timers(keys)
    service = RowTimerService()
    service.bind(event, event, 0, 0)
    for keys.current_key in (1, 2):
        service.register_event_time_timer(0)
    changes.take()
    cells = RowCells(keys.numbers, int, refuse)
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
            RowCells(keys.numbers, int, refuse)
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
        RowContext: lambda: empty.get_current_key() or refuse(),
    }
    with pytest.raises((AttributeError, TypeError)):
        calls[class_]()


def _registered(timers: RowTimers) -> None:
    service = RowTimerService()
    service.bind(timers, timers, 0, 0)
    service.register_event_time_timer(1)


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
