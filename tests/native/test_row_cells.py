"""Value states in native cells hold what a state of Python objects holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from row_loop_model import Anything, Codec, Native, refuse

from timerheap._native._core import (
    CurrentKey,
    RowCells,
    RowValue,
)


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
    state = RowValue(keys, Codec(), class_, 64 if class_ is int else 0, refuse)
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
    state = RowValue(keys, Codec(), int, 64, refuse)
    state.bind(None, {}, {}, cells)
    keys.current_key = 3
    for error in (ValueError, ZeroDivisionError, RuntimeError):
        with pytest.raises(error):
            state.value()
    assert state.value() == 0
    assert not len(cells.take()[0])
