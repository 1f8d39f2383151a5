"""An output that writes down what it was told."""

from __future__ import annotations

from typing import Any


class Recorder:
    """Rows as (value, timestamp), watermarks as numbers, "idle" and "active", in order."""

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
        """What came since it was last asked."""
        taken, self.out = self.out, []
        return taken
