"""Murmur3 of 32-bit integers, of one or of many: Flink's hash of a key's hash code, and Spark's of an int."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["murmur_hash", "murmur_hashes", "spark_hashes", "spark_preimages"]

_U32 = 0xFFFFFFFF


def murmur_hash(code: int) -> int:
    """Compute Flink's ``MathUtils.murmurHash``: the absolute value of murmur3 with seed 0.

    Parameters
    ----------
    code : int
        The hash code of a key; only its low 32 bits are used.

    Returns
    -------
    int
        ``0 <= hash < 2**31``; 0 for the one hash whose absolute value does not fit.

    Examples
    --------
    >>> murmur_hash(7), murmur_hashes(np.array([7], np.uint32))[0]
    (1343918321, np.uint32(1343918321))
    """
    code = code * 0xCC9E2D51 & _U32
    code = (code << 15 | code >> 17) * 0x1B873593 & _U32
    code = (code << 13 | code >> 19) * 5 + 0xE6546B64 & _U32
    code ^= 4  # the number of bytes hashed
    code = (code ^ code >> 16) * 0x85EBCA6B & _U32
    code = (code ^ code >> 13) * 0xC2B2AE35 & _U32
    code ^= code >> 16
    if code < 0x80000000:
        return code
    return 0 if code == 0x80000000 else 0x100000000 - code


def murmur_hashes(codes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Compute `murmur_hash` of each hash code: shape (n,)."""
    signed = _murmur3(codes, seed=0)
    return np.where(signed == np.int32(-(1 << 31)), np.int32(0), np.abs(signed)).view(np.uint32)


def spark_hashes(values: NDArray[Any]) -> NDArray[np.int32]:
    """Compute Spark SQL's ``hash(value)`` of the values of an int column, murmur3 with seed 42: shape (n,).

    Examples
    --------
    >>> spark_hashes(np.array([0, 7]))
    array([ 933211791, 1079293707], dtype=int32)
    """
    return _murmur3(values.astype(np.uint32), seed=42)


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


def _murmur3(codes: NDArray[np.uint32], seed: int) -> NDArray[np.int32]:
    codes = codes * np.uint32(0xCC9E2D51)
    codes = (codes << np.uint32(15) | codes >> np.uint32(17)) * np.uint32(0x1B873593)
    codes ^= np.uint32(seed)
    codes = (codes << np.uint32(13) | codes >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    codes ^= np.uint32(4)  # the number of bytes hashed
    codes = (codes ^ codes >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    codes = (codes ^ codes >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return (codes ^ codes >> np.uint32(16)).view(np.int32)
