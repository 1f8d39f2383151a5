"""Outputs of watermarks: combined from the splits of a source, and sent to all receivers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from timerheap._arguments import int64
from timerheap.flink.valves import CombinedWatermarkStatus
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkOutput, WatermarkStatus


class WatermarkOutputMultiplexer:
    """Combines the watermarks of several outputs into one (Flink's ``WatermarkOutputMultiplexer``).

    The watermarks of an immediate output are combined immediately, those of a deferred output at the next
    `on_periodic_emit`. The combined watermark is the minimum of the watermarks of the active outputs or,
    while all are idle, the maximum of all watermarks. It never decreases.

    Parameters
    ----------
    underlying_output : WatermarkOutput
        Receives the combined watermark when it rises, and is marked idle while all outputs are idle.

    Notes
    -----
    Each call costs O(log n) with n outputs, but unregistering the output with the maximum costs O(n).

    Examples
    --------
    >>> class Printer:
    ...     def emit_watermark(self, watermark): print("watermark", watermark)
    ...     def mark_idle(self): print("idle")
    ...     def mark_active(self): print("active")
    >>> multiplexer = WatermarkOutputMultiplexer(Printer())
    >>> multiplexer.register_new_output("partition 0")
    >>> multiplexer.register_new_output("partition 1")
    >>> multiplexer.get_immediate_output("partition 0").emit_watermark(50)
    >>> multiplexer.get_deferred_output("partition 1").emit_watermark(30)
    >>> multiplexer.on_periodic_emit()
    watermark 30
    >>> multiplexer.get_immediate_output("partition 1").mark_idle()
    watermark 50
    """

    def __init__(self, underlying_output: WatermarkOutput) -> None:
        self._underlying_output = underlying_output
        self._combined = CombinedWatermarkStatus()
        self._partials: dict[str, int] = {}
        self._registered = 0

    def register_new_output(self, output_id: str) -> None:
        """Register an output, which is active and has no watermark.

        Raises
        ------
        ValueError
            If an output with this id is already registered.
        """
        if output_id in self._partials:
            raise ValueError(f"output_id must be new, got {output_id!r}, which is already registered")
        self._registered += 1  # a new number, because unregistered outputs with this id may still be in use
        self._partials[output_id] = self._registered
        self._combined.add(self._registered)

    def unregister_output(self, output_id: str) -> bool:
        """Unregister an output and return True, or return False if there is none with this id.

        The combined watermark of the other outputs is emitted at the next `on_periodic_emit`, or when one of
        them rises.
        """
        partial = self._partials.pop(output_id, None)
        if partial is None:
            return False
        self._combined.remove(partial)
        return True

    def get_immediate_output(self, output_id: str) -> WatermarkOutput:
        """Return the output whose watermarks are combined immediately.

        Raises
        ------
        KeyError
            If no output with this id is registered.
        """
        return _ImmediateOutput(self, self._partial(output_id))

    def get_deferred_output(self, output_id: str) -> WatermarkOutput:
        """Return the output whose watermarks are combined at the next `on_periodic_emit`.

        Raises
        ------
        KeyError
            If no output with this id is registered.
        """
        return _DeferredOutput(self, self._partial(output_id))

    def on_periodic_emit(self) -> None:
        """Combine the watermarks of all outputs and emit the result."""
        if self._combined.update_combined_watermark():
            self._underlying_output.emit_watermark(self._combined.combined_watermark)
        if self._combined.is_idle:
            self._underlying_output.mark_idle()

    def _partial(self, output_id: str) -> int:
        if output_id not in self._partials:
            raise KeyError(f"output_id must be a registered output, got {output_id!r}")
        return self._partials[output_id]


class _DeferredOutput:
    """Records watermarks and status in the multiplexer."""

    def __init__(self, multiplexer: WatermarkOutputMultiplexer, partial: int) -> None:
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


class BroadcastingOutput:
    """Sends watermarks, status and rows to all downstream channels.

    While the stream is idle, watermarks are recorded but not sent, because no channel waits for them. The
    status is sent when it changes.

    Parameters
    ----------
    outputs : iterable of Output
        One for each channel; a `WatermarkOutput` is enough for a stream without rows.

    Attributes
    ----------
    current_watermark : int
        The last watermark, even of an idle stream, epoch milliseconds; MIN_WATERMARK before the first.
    status : WatermarkStatus
        The last status that was sent; initially ACTIVE.

    Notes
    -----
    O(channels) for each call. Flink: ``BroadcastingOutputCollector`` with its ``WatermarkGauge``, and
    ``RecordWriterOutput``.

    Examples
    --------
    >>> class Printer:
    ...     def __init__(self, name): self.name = name
    ...     def emit_watermark(self, watermark): print(self.name, watermark)
    ...     def mark_idle(self): print(self.name, "idle")
    ...     def mark_active(self): print(self.name, "active")
    >>> output = BroadcastingOutput([Printer("left"), Printer("right")])
    >>> output.emit_watermark(30)
    left 30
    right 30
    >>> output.mark_idle()
    left idle
    right idle
    >>> output.emit_watermark(50)
    >>> output.current_watermark
    50
    """

    def __init__(self, outputs: Iterable[Any]) -> None:
        self.current_watermark = MIN_WATERMARK
        self.status = WatermarkStatus.ACTIVE
        self._outputs = list(outputs)

    def emit_watermark(self, watermark: int, /) -> None:
        """Send a watermark to every channel, unless the stream is idle.

        Raises
        ------
        TypeError, OverflowError
            If `watermark` is not an int64. Nothing changes then.
        """
        self.current_watermark = watermark = int64("watermark", watermark)
        if self.status is WatermarkStatus.ACTIVE:
            for output in self._outputs:
                output.emit_watermark(watermark)

    def mark_idle(self) -> None:
        """Mark every channel idle, unless the stream already is."""
        if self.status is WatermarkStatus.ACTIVE:
            self.status = WatermarkStatus.IDLE
            for output in self._outputs:
                output.mark_idle()

    def mark_active(self) -> None:
        """Mark every channel active, unless the stream already is."""
        if self.status is WatermarkStatus.IDLE:
            self.status = WatermarkStatus.ACTIVE
            for output in self._outputs:
                output.mark_active()

    def collect(self, value: Any, timestamp: int | None, /) -> None:
        """Send a row to every channel."""
        for output in self._outputs:
            output.collect(value, timestamp)
