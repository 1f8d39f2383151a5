"""Flink's key groups, which assign keys to parallel instances, and the groups that an instance owns.

Flink splits the keys of an operator into ``max_parallelism`` key groups, ``murmur(key.hashCode()) %
max_parallelism``, and assigns a range of them to each parallel instance. Snapshots are split by key group,
and rescaling moves key groups, so the numbers equal Flink's: ``KeyGroupRangeAssignment``, ``KeyGroupRange``
and Java's ``hashCode``, as in Flink 2.3.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from timerheap._arguments import instance, integer, integer_within
from timerheap.errors import ArgumentValueError
from timerheap.flink.java_hashes import java_hash_code, murmur_hash, murmur_hashes

_MAX_PARALLELISM_LIMIT = 1 << 15
_DEFAULT_MAX_PARALLELISM = 1 << 7
_MIN, _MAX = -(1 << 63), (1 << 63) - 1
_U32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups of one parallel instance: `start_key_group` to `end_key_group`, both included.

    A range is a set of ints: it supports ``in``, ``len`` and iteration. ``KeyGroupRange(0, -1)`` is the empty
    range.

    Parameters
    ----------
    start_key_group, end_key_group : int
        The first and the last key group, ``0 <= start_key_group <= end_key_group < 32768``.

    Raises
    ------
    ArgumentValueError
        If the range is invalid.

    Notes
    -----
    Flink: ``org.apache.flink.runtime.state.KeyGroupRange``. Every operation except iteration is O(1).

    Examples
    --------
    >>> owned = KeyGroupRange(64, 127)
    >>> 64 in owned, 63 in owned, len(owned)
    (True, False, 64)
    >>> owned.intersection(KeyGroupRange(100, 200))
    KeyGroupRange(start_key_group=100, end_key_group=127)
    """

    start_key_group: int
    end_key_group: int

    def __post_init__(self) -> None:
        start = integer_within("start_key_group", self.start_key_group, 0, _MAX_PARALLELISM_LIMIT - 1)
        end = integer_within("end_key_group", self.end_key_group, -1, _MAX_PARALLELISM_LIMIT - 1)
        if end < start and (start, end) != (0, -1):
            raise ArgumentValueError(f"end_key_group must not be below start_key_group={start}, got {end}")

    def __contains__(self, key_group: object) -> bool:
        try:
            return self.start_key_group <= index(key_group) <= self.end_key_group  # type: ignore[arg-type]
        except TypeError:
            return False

    def __len__(self) -> int:
        return self.end_key_group - self.start_key_group + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start_key_group, self.end_key_group + 1))

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange:
        """Return the key groups in both ranges; the empty range if there are none."""
        start = max(self.start_key_group, other.start_key_group)
        end = min(self.end_key_group, other.end_key_group)
        return KeyGroupRange(start, end) if start <= end else KeyGroupRange(0, -1)


def assign_to_key_group(key: object, max_parallelism: int, java_type: str | None = None) -> int:
    """Assign a key to its key group: the murmur hash of its Java hash code, modulo `max_parallelism`.

    Parameters
    ----------
    key : object
        A key that :func:`java_hash_code` supports.
    max_parallelism : int
        The number of key groups, 1 to 32768.
    java_type : str, optional
        The key's Java type, as in :func:`java_hash_code`.

    Returns
    -------
    int
        ``0 <= key group < max_parallelism``.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError, ArgumentRangeError
        If the key has no such Java type, or `max_parallelism` is out of range.

    Notes
    -----
    Flink: ``KeyGroupRangeAssignment.assignToKeyGroup``. O(length of the key).

    Examples
    --------
    >>> assign_to_key_group("key", 128), assign_to_key_group(-1, 128), assign_to_key_group(-1, 128, "int")
    (72, 94, 80)
    """
    return compute_key_group_for_key_hash(java_hash_code(key, java_type), max_parallelism)


def compute_key_group_for_key_hash(key_hash: int, max_parallelism: int) -> int:
    """Compute the key group from the low 32 bits of a key's Java hash code."""
    return murmur_hash(integer("key_hash", key_hash)) % _parallelism("max_parallelism", max_parallelism)


def assign_key_to_parallel_operator(
    key: object, max_parallelism: int, parallelism: int, java_type: str | None = None
) -> int:
    """Assign a key to the parallel instance that owns it.

    Examples
    --------
    >>> assign_key_to_parallel_operator("key", max_parallelism=128, parallelism=4)
    2
    """
    key_group = assign_to_key_group(key, max_parallelism, java_type)
    return compute_operator_index_for_key_group(max_parallelism, parallelism, key_group)


def compute_key_group_range_for_operator_index(
    max_parallelism: int, parallelism: int, operator_index: int
) -> KeyGroupRange:
    """Compute the key groups that the parallel instance `operator_index` owns.

    Raises
    ------
    ArgumentValueError
        If not ``0 <= operator_index < parallelism <= max_parallelism <= 32768``.

    Examples
    --------
    >>> [compute_key_group_range_for_operator_index(10, 3, i) for i in range(3)]
    [KeyGroupRange(start_key_group=0, end_key_group=3), KeyGroupRange(start_key_group=4, end_key_group=6),
     KeyGroupRange(start_key_group=7, end_key_group=9)]
    """
    _parallelisms(max_parallelism, parallelism)
    operator_index = integer_within("operator_index", operator_index, 0, parallelism - 1)
    start = (operator_index * max_parallelism + parallelism - 1) // parallelism
    end = ((operator_index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def compute_operator_index_for_key_group(max_parallelism: int, parallelism: int, key_group: int) -> int:
    """Compute which parallel instance owns `key_group`."""
    _parallelisms(max_parallelism, parallelism)
    return integer_within("key_group", key_group, 0, max_parallelism - 1) * parallelism // max_parallelism


def compute_default_max_parallelism(parallelism: int) -> int:
    """Compute Flink's default: 1.5 times `parallelism`, up to a power of two, from 128 to 32768."""
    parallelism = _parallelism("parallelism", parallelism)
    rounded_up = 1 << (parallelism + parallelism // 2 - 1).bit_length()
    return min(max(rounded_up, _DEFAULT_MAX_PARALLELISM), _MAX_PARALLELISM_LIMIT)


def _parallelism(name: str, value: SupportsIndex) -> int:
    return integer_within(name, value, 1, _MAX_PARALLELISM_LIMIT)


def _parallelisms(max_parallelism: int, parallelism: int) -> None:
    integer_within("parallelism", parallelism, 1, _parallelism("max_parallelism", max_parallelism))


class OwnedKeyGroups:
    """A range of key groups, by default all, and the function that assigns keys to them."""

    def __init__(
        self, max_parallelism: int, key_group_range: KeyGroupRange | None, hash_code: Callable[[Any], int]
    ) -> None:
        every = compute_key_group_range_for_operator_index(max_parallelism, 1, 0)
        owned = every if key_group_range is None else key_group_range
        instance("key_group_range", owned, KeyGroupRange)
        if owned.intersection(every) != owned:
            raise ArgumentValueError(
                f"key_group_range must lie below max_parallelism={max_parallelism}, got {owned}"
            )
        self.max_parallelism = max_parallelism
        self.range = owned
        self._first, self._last = owned.start_key_group, owned.end_key_group
        self._are_all = owned == every
        self._hash_code = hash_code
        self._hash_code_of_str = lru_cache(1 << 14)(hash_code)  # hashing a str reads every character
        self._is_javas = hash_code is java_hash_code

    def of(self, key: Any) -> int:
        """Compute the key group of a key; raise an ArgumentValueError if the key group is not owned."""
        key_group = murmur_hash(self._code_of(key)) % self.max_parallelism
        if not self._first <= key_group <= self._last:
            raise ArgumentValueError(f"key must belong to {self.range}, got {key!r} of key group {key_group}")
        return key_group

    def of_many(self, keys: Sequence[Any]) -> npt.NDArray[np.uint32]:
        """Compute the key groups of many keys; see `of`."""
        codes = np.fromiter(map(self._code_of, keys), np.uint32, len(keys))
        key_groups = murmur_hashes(codes) % np.uint32(self.max_parallelism)
        strangers = np.flatnonzero((key_groups < self._first) | (key_groups > self._last))
        if len(strangers):
            self.of(keys[strangers[0]])  # raises an error for that key
        return key_groups

    def hash_code(self, key: Any) -> int:
        """Compute the hash code, uint32, of a key in an owned key group; raise the errors of `of`."""
        if not self._are_all:
            self.of(key)
        return self._code_of(key)

    def _code_of(self, key: Any) -> int:
        if type(key) is int and self._is_javas and _MIN <= key <= _MAX:
            return (key ^ key >> 32) & _U32  # equals java_hash_code, in a quarter of its time
        if type(key) is str:
            return index(self._hash_code_of_str(key)) & _U32
        if key != key:
            raise ArgumentValueError(f"key must equal itself to be found again, got {key!r}")
        return index(self._hash_code(key)) & _U32
