"""An asyncio loop whose clock advances only while all tasks wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class Waits(selectors.DefaultSelector):
    """A selector that advances the simulated clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "all tasks wait, and nothing can wake them"
        self.now += timeout
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop with a simulated clock."""

    def __init__(self) -> None:
        self.waits = Waits()
        super().__init__(self.waits)

    def time(self) -> float:
        return self.waits.now


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


def ms() -> int:
    return round(asyncio.get_running_loop().time() * 1000)
