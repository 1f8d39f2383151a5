"""One output out of many: the splits of a source, each with watermarks of its own."""

from __future__ import annotations

from timerheap._arguments import int64
from timerheap.flink.watermarks.combine import CombinedWatermarkStatus
from timerheap.watermarks.output import WatermarkOutput

__all__ = ["WatermarkOutputMultiplexer"]


class WatermarkOutputMultiplexer:
    """Combines the watermarks of several outputs into one; Flink's class of that name.

    What an immediate output is told goes on at once; what a deferred output is told waits for the next
    `on_periodic_emit`. The combined watermark is the least of the active outputs' watermarks or, while all
    are idle, the greatest of all. It only rises.

    Parameters
    ----------
    underlying_output : WatermarkOutput
        Told the combined watermark when it has risen, and that the whole is idle whenever it is so.

    Notes
    -----
    O(log n) for each call in n outputs; to unregister the furthest one takes O(n).

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
        """Take an output: active, and without a watermark.

        Raises
        ------
        ValueError
            There is one of that id.
        """
        if output_id in self._partials:
            raise ValueError(f"output_id: there is an output {output_id!r} already")
        self._registered += 1  # an output of this id that was there before keeps nothing
        self._partials[output_id] = self._registered
        self._combined.add(self._registered)

    def unregister_output(self, output_id: str) -> bool:
        """Let go of an output; False where there is none of that id.

        The others' watermark goes out with the next `on_periodic_emit`, or when one of them rises.
        """
        partial = self._partials.pop(output_id, None)
        if partial is None:
            return False
        self._combined.remove(partial)
        return True

    def get_immediate_output(self, output_id: str) -> WatermarkOutput:
        """Return the output whose watermarks are combined and sent on at once.

        Raises
        ------
        KeyError
            None of that id is registered.
        """
        return _ImmediateOutput(self, self._partial(output_id))

    def get_deferred_output(self, output_id: str) -> WatermarkOutput:
        """Return the output whose watermarks wait for `on_periodic_emit`.

        Raises
        ------
        KeyError
            None of that id is registered.
        """
        return _DeferredOutput(self, self._partial(output_id))

    def on_periodic_emit(self) -> None:
        """Combine what all outputs were told, and send it on."""
        if self._combined.update_combined_watermark():
            self._underlying_output.emit_watermark(self._combined.combined_watermark)
        if self._combined.is_idle:
            self._underlying_output.mark_idle()

    def _partial(self, output_id: str) -> int:
        if output_id not in self._partials:
            raise KeyError(f"output_id: no output {output_id!r} is registered")
        return self._partials[output_id]


class _DeferredOutput:
    """Remembers."""

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
    """Remembers, and sends on."""

    def emit_watermark(self, watermark: int, /) -> None:
        if self._combined.set_watermark(self._partial, int64("watermark", watermark)):
            self._multiplexer.on_periodic_emit()

    def mark_idle(self) -> None:
        super().mark_idle()
        self._multiplexer.on_periodic_emit()

    def mark_active(self) -> None:
        super().mark_active()
        self._multiplexer.on_periodic_emit()
