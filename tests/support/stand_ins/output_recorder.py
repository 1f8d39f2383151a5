"""An output that records rows, watermarks and status."""

from __future__ import annotations

from typing import Any


class Recorder:
    """Records rows as (value, timestamp), watermarks as numbers, and "idle" and "active", in order."""

    def __init__(self) -> None:
        self.out: list[Any] = []

    def collect(self, value: Any, timestamp: int | None, /) -> None:
        self.out.append((value, timestamp))

    def emit_watermark(self, watermark: int, /) -> None:
        self.out.append(watermark)

    def mark_idle(self) -> None:
        self.out.append("idle")

    def mark_active(self) -> None:
        self.out.append("active")

    def take(self) -> list[Any]:
        """Return the output since the last call, and forget it."""
        taken, self.out = self.out, []
        return taken
