"""Microbenchmarks beside heapq + set: every operation at 1e4 and 1e6 timers, ours and the peer's in turn.

$ python -m pytest bench/test_heap.py --benchmark-json=heap.json && python bench/report.py heap.json
"""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from operations import MEMORY, OPERATIONS, random, timers

PEER = "heapq + set"
SIDES = [(operation, side) for operation in OPERATIONS for side in (*OPERATIONS[operation].ours, PEER)]


@pytest.mark.benchmark(timer=time.process_time)  # hardly affected by other processes
@pytest.mark.parametrize("n", [10**4, 10**6])
@pytest.mark.parametrize(("operation", "side"), SIDES)
def test_operation(benchmark: Any, operation: str, side: str, n: int) -> None:
    ours, peers, share, _ = OPERATIONS[operation]
    start, run, _ = (ours | peers)[side]
    data = timers(random, n)
    benchmark.group = f"{operation}, n = {n:.0e}"
    benchmark.extra_info.update(operation=operation, n=n, timers=round(n * share))
    benchmark.extra_info.update(side=side, ours=side in ours)

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        gc.collect()
        return (data, start(data)), {}

    gc.disable()  # like timeit
    try:
        benchmark.pedantic(run, setup=setup, rounds=5 if n > 10**5 else 20, warmup_rounds=1)
    finally:
        gc.enable()


@pytest.mark.parametrize("side", ["timerheap", PEER])
@pytest.mark.parametrize("n", [10**4, 10**6])
def test_bytes_a_timer(benchmark: Any, n: int, side: str) -> None:
    held = benchmark.pedantic(MEMORY[side], args=(n,), rounds=1)
    benchmark.extra_info.update(operation="bytes a timer", n=n, ours=side != PEER, bytes=held)
    benchmark.extra_info["side"] = PEER if side == PEER else "bytes a timer"
