"""Keys made on purpose: their xxhash64 with Spark's seed of 42 is a chosen one."""

from __future__ import annotations

import numpy as np

_P1, _P2, _P3 = (np.uint64(p) for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_P4, _P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_SEED = np.uint64(42)


def _inverse(odd: np.uint64) -> np.uint64:
    return np.uint64(pow(int(odd), -1, 1 << 64))


def _rotl(x: np.ndarray, r: int) -> np.ndarray:
    return x << np.uint64(r) | x >> np.uint64(64 - r)


def _add8(hashes: np.ndarray, x: np.ndarray) -> np.ndarray:
    return _rotl(hashes ^ _rotl(x * _P2, 31) * _P1, 27) * _P1 + _P4


def _add8_back(hashes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return which 8 bytes turn some hashes into the wanted ones."""
    mixed = hashes ^ _rotl((wanted - _P4) * _inverse(_P1), 64 - 27)
    return _rotl(mixed * _inverse(_P1), 64 - 31) * _inverse(_P2)


def _finish(h: np.ndarray) -> np.ndarray:
    h = (h ^ h >> np.uint64(33)) * _P2
    h = (h ^ h >> np.uint64(29)) * _P3
    return h ^ h >> np.uint64(32)


def _finish_back(h: np.ndarray) -> np.ndarray:
    h = (h ^ h >> np.uint64(32)) * _inverse(_P3)
    h = (h ^ h >> np.uint64(29) ^ h >> np.uint64(58)) * _inverse(_P2)
    return h ^ h >> np.uint64(33)


def long_hashes(x: np.ndarray, seed: np.ndarray | np.uint64 = _SEED) -> np.ndarray:
    """Return Spark's hash of bigint values."""
    return _finish(_add8(seed + _P5 + np.uint64(8), x.view(np.uint64))).view(np.int64)


def longs_with(hashes: np.ndarray, seed: np.ndarray | np.uint64 = _SEED) -> np.ndarray:
    """Return the bigint values that have these hashes, of which each has one."""
    start = np.broadcast_to(seed + _P5 + np.uint64(8), hashes.shape)
    return _add8_back(start, _finish_back(hashes.view(np.uint64))).view(np.int64)


def colliding_pairs(n: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n keys of two bigint columns with one hash."""
    first = np.arange(n)
    hashes = np.full(n, wanted, np.int64)
    return first, longs_with(hashes, long_hashes(first).view(np.uint64))


def colliding_texts(n: int, wanted: int) -> list[str]:
    """Return n texts of 16 ASCII characters with one hash."""
    found: list[str] = []
    for start in range(0, 1 << 30, 1 << 18):
        first = np.array([f"{k:08x}".encode() for k in range(start, start + (1 << 18))]).view(np.uint64)
        hashes = _add8(np.full(len(first), _SEED + _P5 + np.uint64(16)), first)
        target = _finish_back(np.full(len(first), wanted, np.int64).view(np.uint64))
        second = _add8_back(hashes, target)
        ascii_ = (second & np.uint64(0x8080808080808080)) == 0
        pairs = np.stack([first[ascii_], second[ascii_]], 1)
        found += [pair.tobytes().decode() for pair in pairs]
        if len(found) >= n:
            break
    return found[:n]
