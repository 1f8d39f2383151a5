"""Flink's multiplexer of watermark outputs, whose traces show how watermarks are combined."""

from __future__ import annotations

from collections.abc import Hashable

from timerheap._arguments import int64
from timerheap.flink.valves import CombinedWatermarkStatus
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import WatermarkOutput


class _Partials(CombinedWatermarkStatus):
    """A varying set of inputs; unknown ones are ignored."""

    def add(self, partial: Hashable) -> None:
        """Add an input, which is active and has no watermark."""
        self._watermarks[partial] = MIN_WATERMARK

    def remove(self, partial: Hashable) -> None:
        self._watermarks.pop(partial, None)

    def set_watermark(self, partial: Hashable, watermark: int) -> bool:
        return partial in self._watermarks and super().set_watermark(partial, watermark)


class WatermarkOutputMultiplexer:
    """Combines the watermarks of several outputs into one (Flink's ``WatermarkOutputMultiplexer``).

    The rule is that of `CombinedWatermarkStatus`. The underlying output receives the combined watermark when
    it rises, and is marked idle if all outputs are.
    """

    def __init__(self, underlying_output: WatermarkOutput) -> None:
        self._underlying_output = underlying_output
        self._combined = _Partials()
        self._partials: dict[str, Hashable] = {}

    def register_new_output(self, output_id: str) -> None:
        """Register an output with a new id, which is active and has no watermark."""
        if output_id in self._partials:
            raise ValueError(f"output_id must be new, got {output_id!r}, which is already registered")
        # A new object, because unregistered outputs with this id may still be in use.
        self._partials[output_id] = partial = object()
        self._combined.add(partial)

    def unregister_output(self, output_id: str) -> bool:
        """Unregister an output; return False if there is none with this id. Nothing is emitted yet."""
        partial = self._partials.pop(output_id, None)
        if partial is None:
            return False
        self._combined.remove(partial)
        return True

    def get_immediate_output(self, output_id: str) -> WatermarkOutput:
        """Return the output whose watermarks are combined immediately."""
        return _ImmediateOutput(self, self._partial(output_id))

    def get_deferred_output(self, output_id: str) -> WatermarkOutput:
        """Return the output whose watermarks are combined at the next `on_periodic_emit`."""
        return _DeferredOutput(self, self._partial(output_id))

    def on_periodic_emit(self) -> None:
        """Combine the watermarks of all outputs and emit the result."""
        if self._combined.update_combined_watermark():
            self._underlying_output.emit_watermark(self._combined.combined_watermark)
        if self._combined.is_idle:
            self._underlying_output.mark_idle()

    def _partial(self, output_id: str) -> Hashable:
        if output_id not in self._partials:
            raise KeyError(f"output_id must be a registered output, got {output_id!r}")
        return self._partials[output_id]


class _DeferredOutput:
    """Records watermarks and status in the multiplexer."""

    def __init__(self, multiplexer: WatermarkOutputMultiplexer, partial: Hashable) -> None:
        self._multiplexer = multiplexer
        self._combined = multiplexer._combined
        self._partial = partial

    def emit_watermark(self, watermark: int, /) -> None:
        self._combined.set_watermark(self._partial, int64("watermark", watermark))

    def mark_idle(self) -> None:
        self._combined.set_idle(self._partial, True)

    def mark_active(self) -> None:
        self._combined.set_idle(self._partial, False)


class _ImmediateOutput(_DeferredOutput):
    """Records watermarks and status in the multiplexer, and emits the combined watermark."""

    def emit_watermark(self, watermark: int, /) -> None:
        if self._combined.set_watermark(self._partial, int64("watermark", watermark)):
            self._multiplexer.on_periodic_emit()

    def mark_idle(self) -> None:
        super().mark_idle()
        self._multiplexer.on_periodic_emit()

    def mark_active(self) -> None:
        super().mark_active()
        self._multiplexer.on_periodic_emit()
