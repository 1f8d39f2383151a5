"""Flink's key groups, which assign keys to parallel instances.

Flink splits the keys of an operator into ``max_parallelism`` key groups, ``murmur(key.hashCode()) %
max_parallelism``, and assigns a range of them to each parallel instance. Snapshots are split by key group,
and rescaling moves key groups, so the numbers equal Flink's: ``KeyGroupRangeAssignment``, ``KeyGroupRange``
and Java's ``hashCode``, as in Flink 2.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from timerheap._arguments import integer, integer_within
from timerheap._murmur import murmur_hash
from timerheap.hashing import java_hash_code

__all__ = [
    "KeyGroupRange",
    "assign_key_to_parallel_operator",
    "assign_to_key_group",
    "compute_default_max_parallelism",
    "compute_key_group_for_key_hash",
    "compute_key_group_range_for_operator_index",
    "compute_operator_index_for_key_group",
]

_MAX_PARALLELISM_LIMIT = 1 << 15
_DEFAULT_MAX_PARALLELISM = 1 << 7


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
    ValueError
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
            raise ValueError(f"end_key_group must not be below start_key_group={start}, got {end}")

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
    TypeError, ValueError, OverflowError
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
    """Compute the key group from the low 32 bits of a key's Java hash code.

    Examples
    --------
    >>> compute_key_group_for_key_hash(java_hash_code("key"), 128)
    72
    """
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
    ValueError
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
    """Compute which parallel instance owns `key_group`.

    Raises
    ------
    ValueError
        If not ``parallelism <= max_parallelism <= 32768`` or not ``0 <= key_group < max_parallelism``.

    Examples
    --------
    >>> [compute_operator_index_for_key_group(10, 3, key_group) for key_group in range(10)]
    [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    """
    _parallelisms(max_parallelism, parallelism)
    return integer_within("key_group", key_group, 0, max_parallelism - 1) * parallelism // max_parallelism


def compute_default_max_parallelism(parallelism: int) -> int:
    """Compute Flink's default maximum parallelism of an operator.

    It is 1.5 times `parallelism`, rounded up to a power of two, at least 128 and at most 32768.

    Examples
    --------
    >>> compute_default_max_parallelism(4), compute_default_max_parallelism(100)
    (128, 256)
    """
    parallelism = _parallelism("parallelism", parallelism)
    rounded_up = 1 << (parallelism + parallelism // 2 - 1).bit_length()
    return min(max(rounded_up, _DEFAULT_MAX_PARALLELISM), _MAX_PARALLELISM_LIMIT)


def _parallelism(name: str, value: SupportsIndex) -> int:
    return integer_within(name, value, 1, _MAX_PARALLELISM_LIMIT)


def _parallelisms(max_parallelism: int, parallelism: int) -> None:
    integer_within("parallelism", parallelism, 1, _parallelism("max_parallelism", max_parallelism))
