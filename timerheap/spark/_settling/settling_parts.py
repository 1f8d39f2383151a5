"""What a key group has to have for its keys to settle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from timerheap._native._core import TimerHeap
from timerheap.spark._memory.blocks import Memory
from timerheap.spark._memory.id_table import IdTable
from timerheap.spark._settling.settled_parts import SettledPart, SettledTimers


class SettlingContents(Protocol):
    """What a state has, of which the contents of keys settle with them.

    Neither what leaves nor what comes back is a change: it stays in the checkpoint.
    """

    settled: SettledPart | None  # what is not in memory

    @property
    def record_type(self) -> pa.DataType:
        """The type of the contents of a key in a record."""

    def entries(self, ids: np.ndarray) -> np.ndarray:
        """Return at least how many entries each key has in memory: int64, shape (n,)."""

    def in_table(self, ids: np.ndarray) -> pa.Array:
        """Return the contents of keys that are in memory, null for a key without any."""

    def take_out(self, ids: np.ndarray) -> None:
        """Remove the contents of keys from memory."""

    def put_back(self, ids: np.ndarray, contents: pa.Array) -> None:
        """Put contents of keys into memory that are saved."""

    def hot_bytes(self) -> float:
        """Return about how many bytes the contents take in memory; O(1)."""


class SettlingTimers(Protocol):
    """Timers of one time domain."""

    settled: SettledTimers | None  # those that are not in `heap`

    @property
    def heap(self) -> TimerHeap: ...

    def __len__(self) -> int: ...


class SettlingKind(NamedTuple):
    """Timers of one kind; those of `contents` come and go with these, which tell them."""

    event_time: bool
    timers: SettlingTimers | None
    of_contents: bool = False


class OwnSettling(NamedTuple):
    """What of an own part settles: contents of keys, and kinds of timers, by any names."""

    contents: Mapping[str, SettlingContents]
    timers: Mapping[str, SettlingKind]


class _Own(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def settling(self) -> OwnSettling | None:
        """What of it settles; None if nothing does, so that all keys stay in memory."""


class _Keys(Protocol):
    type: pa.StructType
    table: IdTable  # of the keys that have not settled
    settled: SettledPart | None

    def are_displaced(self, ids: np.ndarray) -> np.ndarray: ...

    def forget_at_hand(self) -> None: ...

    def __len__(self) -> int: ...


class _Rows(Protocol):
    def ids(self) -> np.ndarray: ...


class SettlingParts(Protocol):
    """A key group."""

    memory: Memory
    watermark: int

    @property
    def keys(self) -> _Keys: ...

    @property
    def rows(self) -> _Rows: ...

    @property
    def event_timers(self) -> SettlingTimers: ...

    @property
    def processing_timers(self) -> SettlingTimers: ...

    def known_expiries(self) -> Sequence[SettlingTimers | None]:
        """Return the expiries by processing time and by event time, None where there were none."""

    def keyed_states(self) -> Mapping[str, SettlingContents]:
        """Return the states of keys, by name."""

    @property
    def own(self) -> Sequence[_Own]: ...
