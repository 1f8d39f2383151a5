"""Labels of key groups, which Spark spreads evenly over its shuffle partitions."""

from __future__ import annotations

import numpy as np

from timerheap._murmur import spark_hashes

__all__ = ["balanced_labels", "partition_of"]


def partition_of(labels: np.ndarray, partitions: int) -> np.ndarray:
    """Return the shuffle partition of each label, ``pmod(hash(label), partitions)`` in Spark.

    Parameters
    ----------
    labels : ndarray of int, shape (n,)
        Values of an int column, 0 or more.
    partitions : int
        The number of shuffle partitions.

    Returns
    -------
    ndarray of int64, shape (n,)
    """
    return spark_hashes(labels).astype(np.int64) % partitions


def balanced_labels(max_parallelism: int, partitions: int) -> np.ndarray:
    """Return a distinct label for each key group, such that group g falls on partition ``g % partitions``.

    Spark does not spread plain numbers evenly: 0 to 127 leave 13 of 64 partitions empty, and the labels in
    a checkpoint cannot be changed. A group's label depends on `partitions`, not on the number of groups.

    Returns
    -------
    ndarray of int32, shape (max_parallelism,)

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
