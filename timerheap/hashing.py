"""Spark's murmur3, by which it partitions rows, and the way back from a hash to its int.

They must be equal to Spark's to the bit; otherwise the timers of a key would not be found.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def spark_hashes(values: NDArray[Any]) -> NDArray[np.int32]:
    """Compute Spark SQL's ``hash(value)``, murmur3 with seed 42, of an int column: shape (n,)."""
    return murmur3(values.astype(np.uint32), seed=42)


def spark_preimages(hashes: NDArray[Any]) -> NDArray[np.int32]:
    """Compute the int values whose `spark_hashes` these are: shape (n,). Each int is the hash of one int.

    Examples
    --------
    >>> spark_hashes(spark_preimages(np.array([0, 7, -1])))
    array([ 0,  7, -1], dtype=int32)
    """
    codes = hashes.astype(np.uint32)  # the steps of _murmur3, backwards
    codes = (codes ^ codes >> np.uint32(16)) * _inverse(0xC2B2AE35)
    codes ^= codes >> np.uint32(13) ^ codes >> np.uint32(26)
    codes *= _inverse(0x85EBCA6B)
    codes ^= codes >> np.uint32(16) ^ np.uint32(4)
    codes = (codes - np.uint32(0xE6546B64)) * _inverse(5)
    codes = (codes >> np.uint32(13) | codes << np.uint32(19)) ^ np.uint32(42)
    codes *= _inverse(0x1B873593)
    codes = codes >> np.uint32(15) | codes << np.uint32(17)
    return (codes * _inverse(0xCC9E2D51)).view(np.int32)


def _inverse(factor: int) -> np.uint32:
    return np.uint32(pow(factor, -1, 1 << 32))


def murmur3(codes: NDArray[np.uint32], seed: int) -> NDArray[np.int32]:
    """Compute the murmur3 hash of each 32-bit int: shape (n,)."""
    codes = codes * np.uint32(0xCC9E2D51)
    codes = (codes << np.uint32(15) | codes >> np.uint32(17)) * np.uint32(0x1B873593)
    codes ^= np.uint32(seed)
    codes = (codes << np.uint32(13) | codes >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    codes ^= np.uint32(4)  # the number of bytes hashed
    codes = (codes ^ codes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    codes = (codes ^ codes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return (codes ^ codes >> np.uint32(16)).view(np.int32)
