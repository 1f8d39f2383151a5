"""The combined watermark of inputs and the multiplexer of outputs, compared with a simple model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from output_multiplexer import WatermarkOutputMultiplexer
from output_recorder import Recorder

from timerheap import MAX_WATERMARK, MIN_WATERMARK
from timerheap.flink.valves import CombinedWatermarkStatus

WATERMARKS = st.integers(-6, 12) | st.sampled_from([MIN_WATERMARK, MAX_WATERMARK])


class Plain:
    """A model of the rules: inputs by id, each with a watermark and whether it is idle, scanned each time."""

    def __init__(self) -> None:
        self.inputs: dict[Any, list[Any]] = {}
        self.combined = MIN_WATERMARK
        self.idle = False

    def set_watermark(self, name: Any, watermark: int) -> bool:
        rises = bool(watermark > self.inputs[name][0])
        self.inputs[name] = [max(watermark, self.inputs[name][0]), False]
        return rises

    def update(self) -> bool:
        if not self.inputs:
            return False
        active = [watermark for watermark, idle in self.inputs.values() if not idle]
        self.idle = not active
        combined = min(active) if active else max(watermark for watermark, _ in self.inputs.values())
        rises = combined > self.combined
        self.combined = max(self.combined, combined)
        return rises


@given(
    n=st.integers(1, 5),
    operations=st.lists(st.tuples(st.integers(0, 4), WATERMARKS | st.booleans()), max_size=40),
)
def test_the_combined_watermark_of_inputs_equals_the_model(n: int, operations: list[tuple[int, int]]) -> None:
    inputs, plain = CombinedWatermarkStatus(range(n)), Plain()
    plain.inputs = {index: [MIN_WATERMARK, False] for index in range(n)}
    for index, value in operations:
        index %= n
        if isinstance(value, bool):
            inputs.set_idle(index, value)
            plain.inputs[index][1] = value
        else:
            assert inputs.set_watermark(index, value) is plain.set_watermark(index, value)
        assert inputs.update_combined_watermark() is plain.update()
        assert (inputs.combined_watermark, inputs.is_idle) == (plain.combined, plain.idle)


def update(plain: Plain, out: list[Any]) -> None:
    if plain.update():
        out.append(plain.combined)
    if plain.idle:
        out.append("idle")


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), WATERMARKS | st.sampled_from(["idle", "active"]))
        | st.tuples(st.sampled_from("abc"), st.just(None), st.just("register"))
        | st.just(("", None, "emit")),
        max_size=40,
    )
)
def test_the_multiplexer_equals_the_model(operations: list[tuple[str, bool | None, Any]]) -> None:
    recorder, plain, out = Recorder(), Plain(), []
    multiplexer = WatermarkOutputMultiplexer(recorder)
    for name, immediate, value in operations:
        if value == "emit":
            multiplexer.on_periodic_emit()
            update(plain, out)
        elif value == "register":  # or unregister
            if plain.inputs.pop(name, None) is None:
                multiplexer.register_new_output(name)
                plain.inputs[name] = [MIN_WATERMARK, False]
            else:
                assert multiplexer.unregister_output(name)
                assert not multiplexer.unregister_output(name)
        elif name in plain.inputs:
            output = (multiplexer.get_immediate_output if immediate else multiplexer.get_deferred_output)(
                name
            )
            if isinstance(value, str):
                output.mark_idle() if value == "idle" else output.mark_active()
                plain.inputs[name][1] = value == "idle"
                if immediate:
                    update(plain, out)
            else:
                output.emit_watermark(value)
                if plain.set_watermark(name, value) and immediate and value > plain.combined:
                    update(plain, out)
        assert recorder.out == out


def test_an_unregistered_output_is_ignored() -> None:
    recorder = Recorder()
    multiplexer = WatermarkOutputMultiplexer(recorder)
    multiplexer.register_new_output("a")
    multiplexer.register_new_output("b")
    gone = multiplexer.get_immediate_output("a")
    multiplexer.get_immediate_output("b").emit_watermark(5)
    multiplexer.unregister_output("a")
    gone.emit_watermark(99)
    gone.mark_active()
    multiplexer.on_periodic_emit()
    assert recorder.out == [5]


def test_an_invalid_watermark_raises_and_changes_nothing() -> None:
    recorder = Recorder()
    multiplexer = WatermarkOutputMultiplexer(recorder)
    multiplexer.register_new_output("a")
    for output in (multiplexer.get_immediate_output("a"), multiplexer.get_deferred_output("a")):
        with pytest.raises(TypeError, match="watermark must be an int"):
            output.emit_watermark(1.5)  # type: ignore[arg-type]
    multiplexer.on_periodic_emit()
    multiplexer.get_immediate_output("a").emit_watermark(1)
    assert recorder.out == [1]


def test_a_registered_or_an_unknown_output_id_raises() -> None:
    multiplexer = WatermarkOutputMultiplexer(Recorder())
    multiplexer.register_new_output("a")
    with pytest.raises(ValueError, match="output_id must be new, got 'a', which is already registered"):
        multiplexer.register_new_output("a")
    for get in (multiplexer.get_immediate_output, multiplexer.get_deferred_output):
        with pytest.raises(KeyError, match="output_id must be a registered output, got 'b'"):
            get("b")
