"""Run a billion bulk and single operations on both heaps and check that the memory is bounded: `make soak`.

An operation is one timer pushed, moved, removed, looked up or popped. The heaps fill to a quarter of a
million timers and drain, and are copied, stored, restored and pickled in between. The timers are random, but
the sizes are the same in each cycle, so that all cycles need the same memory. The first tenth of the
operations is the warm-up; after it, the resident set may grow by at most 2 %.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import os
import pickle
import resource
import sys
import time
from pathlib import Path

import numpy as np

from timerheap import KeyTimerHeap, TimerHeap

Heap = TimerHeap | KeyTimerHeap
BATCH = 50_000
CYCLE = 10  # rounds
ALLOWED = 1.02


def resident() -> int:
    """Return the resident set of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Soak:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.default_rng(seed)
        self.done = 0

    def bulk(self, heap: Heap) -> None:
        rng = self.rng
        n = int(self.sizes.integers(1, BATCH))
        timestamps, keys = self.now + rng.integers(0, 10**6, n), rng.integers(0, 10**5, n)
        heap.push_many(timestamps, keys, rng.integers(0, 3, n))
        heap.push_many(timestamps[: n // 2] + 1, keys[: n // 2])
        chosen = rng.integers(0, len(heap), n // 2)
        ts, key, ns = heap.timestamps[chosen], heap.key_hashes[chosen], heap.namespaces[chosen]
        if isinstance(heap, TimerHeap):
            heap.reschedule_many(ts, ts + 5, key, ns)
            heap.remove_many(ts + 5, key, ns)
        else:
            heap.timestamps_of(key, ns)
            heap.remove_many(key, ns)
        self.done += n + n // 2 + 2 * (n // 2)
        before = len(heap)
        heap.remove_keys(keys[:10])
        heap.pop_due(self.now, int(self.sizes.integers(0, n)))
        if len(heap) > 5 * BATCH:
            self.now = int(np.median(heap.timestamps))
            heap.pop_due(self.now)
        self.done += before - len(heap)

    def single(self, heap: Heap) -> None:
        keys = self.rng.integers(0, 10**5, 200).tolist()
        for key in keys:
            heap.push(self.now + key, key)
            if isinstance(heap, TimerHeap):
                heap.reschedule(self.now + key, self.now + key + 7, key)
                heap.remove(self.now + key + 7, key)
            else:
                heap.timestamp_of(key)
                heap.remove(key)
            heap.peek()
        for _ in range(min(100, len(heap))):
            heap.push(heap.pop().timestamp + 10**6, 7)
        self.done += 4 * len(keys) + 2 * min(100, len(heap))

    def elsewhere(self, heap: Heap, way: int) -> Heap:
        if way == 0:
            return heap.copy()
        if way == 1:
            return copy.deepcopy(heap)
        if way == 2:
            return type(heap).from_bytes(heap.to_bytes())
        if way == 3:
            again: Heap = pickle.loads(pickle.dumps(heap))
            return again
        if way == 4:
            heap.reserve(int(self.sizes.integers(0, 10 * BATCH)))
        elif way == 5:
            heap.clear()
        else:
            next(iter(heap), None)
        return heap

    def refused(self, heap: Heap) -> None:
        """Make calls that raise, which must not leak memory either."""
        for call in (
            lambda: heap.push_many(np.arange(100), np.arange(99)),
            lambda: heap.push_many(np.arange(100), np.ones(100)),
            lambda: heap.push(2**63, 1),
            lambda: heap.from_bytes(heap.to_bytes()[:-1]),
        ):
            try:
                call()
            except (TypeError, ValueError, OverflowError):
                continue
            raise AssertionError("the call must raise")

    def cycle(self) -> int:
        """Run one cycle and return the largest resident set in it."""
        largest = 0
        self.sizes = np.random.default_rng(self.seed)
        self.heaps: list[Heap] = [TimerHeap(), KeyTimerHeap()]
        self.now = 0
        for _ in range(CYCLE):
            for place, heap in enumerate(self.heaps):
                for _ in range(10):
                    self.bulk(heap)
                    self.single(heap)
                    largest = max(largest, resident())
                self.refused(heap)
                heap._check()
                self.heaps[place] = self.elsewhere(heap, int(self.sizes.integers(0, 8)))
        return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    arguments = parser.parse_args()
    # Each column gets its own mapping, which is freed immediately, so that the resident set does not
    # depend on the fragmentation of the allocator.
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD
    soak, total = Soak(arguments.seed), int(arguments.operations)
    print(f"{total:,} operations, seed {arguments.seed}", flush=True)
    start, tenths, largest = time.monotonic(), [], 0
    while len(tenths) < 10:
        largest = max(largest, soak.cycle())
        if soak.done >= total * (len(tenths) + 1) // 10:
            tenths.append(largest)
            seconds = time.monotonic() - start
            print(
                f"{soak.done:,} operations in {seconds:.0f} s, {seconds / soak.done * 1e9:.0f} ns each; "
                f"resident at most {largest / 2**20:.1f} MiB in this tenth",
                flush=True,
            )
            largest = 0
    warm, most = tenths[0], max(tenths[1:])
    growth = most / warm
    print(f"resident: {warm / 2**20:.1f} MiB warm, later {most / 2**20:.1f} at most, {growth - 1:+.2%}")
    if growth > ALLOWED:
        sys.exit("memory grew by more than 2 %")


if __name__ == "__main__":
    main()
