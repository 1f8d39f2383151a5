"""The native loop over rows equals a plain Python model: calls, results, states, journal and errors."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from row_loop_model import Anything, Codec, Model, Named, Native, replayed, run_batches, source, taken


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
