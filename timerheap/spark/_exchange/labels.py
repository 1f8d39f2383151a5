"""Labels of key groups, so that Spark spreads them over its shuffle partitions in equal shares."""

from __future__ import annotations

import numpy as np

__all__ = ["balanced_labels", "partition_of"]


def partition_of(labels: np.ndarray, partitions: int) -> np.ndarray:
    """Give the partition of int labels: Spark's HashPartitioning, ``pmod(murmur3(label, 42), partitions)``.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Values of an int column, 0 or more.
    partitions : int

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    with np.errstate(over="ignore"):
        k = labels.astype(np.uint32) * np.uint32(0xCC9E2D51)
        k = (k << np.uint32(15) | k >> np.uint32(17)) * np.uint32(0x1B873593)
        h = np.uint32(42) ^ k
        h = (h << np.uint32(13) | h >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
        h ^= np.uint32(4)  # bytes hashed
        h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return h.view(np.int32).astype(np.int64) % partitions


def balanced_labels(max_parallelism: int, partitions: int) -> np.ndarray:
    """Give a distinct label for each key group; group g falls on partition ``g % partitions``.

    Plain numbers do not spread: 0 to 127 leave 13 of 64 partitions empty, which a checkpoint can never
    repair. A group's label depends on `partitions` alone, not on how many groups there are.

    Examples
    --------
    >>> labels = balanced_labels(8, 4)
    >>> partition_of(labels, 4).tolist()
    [0, 1, 2, 3, 0, 1, 2, 3]
    """
    rounds = -(-max_parallelism // partitions)
    labels = np.empty((rounds, partitions), np.int32)
    filled = np.zeros(partitions, np.intp)
    start, step = 0, max(1024, 2 * max_parallelism)
    while (filled < rounds).any():
        candidates = np.arange(start, start + step, dtype=np.int32)
        for label, partition in zip(
            candidates.tolist(), partition_of(candidates, partitions).tolist(), strict=True
        ):
            if filled[partition] < rounds:
                labels[filled[partition], partition] = label
                filled[partition] += 1
        start += step
    return labels.ravel()[:max_parallelism]
