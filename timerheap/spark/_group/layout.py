"""What the key groups of a query hold, and the own parts that a feature adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from timerheap.spark._group.row_buffer import RowOrder
from timerheap.spark._group.stored.parts import CheckpointedPart
from timerheap.spark._memory.blocks import Memory
from timerheap.spark._settling.settling_parts import OwnSettling


class OwnPart(CheckpointedPart, Protocol):
    """What the key groups of a query have besides keys, timers, rows and states; it has timers of its own."""

    @property
    def settling(self) -> OwnSettling | None:
        """What leaves memory when keys settle; None if nothing can, so that no key of the group settles."""

    def head(self) -> Sequence[Any]:
        """Return the JSON values from which another process continues."""

    def loaded(self, watermark: int) -> None:
        """Finish a load at a watermark, after all chunks have been replayed."""

    def ids(self) -> np.ndarray:
        """Return the ids of the keys that it keeps alive."""

    def count_losses(self) -> int:
        """Return how much has been removed so far."""

    def pending(self, event_time: bool) -> tuple[int, int | None]:
        """Return the number of timers of a time domain, and when the next is due."""

    def misfit(self, stored: str) -> ValueError:
        """Return the error for a checkpoint whose part has another name: a CheckpointMismatchError."""


class OwnLayout(Protocol):
    """What an `OwnPart` is made of; groups whose layouts have the same names have the same parts."""

    @property
    def name(self) -> str:
        """Describe the part; a checkpoint records it."""

    def part(self, memory: Memory, head: Sequence[Any]) -> OwnPart:
        """Return the part of one key group; see `KeyGroup`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupLayout:
    """What the key groups of a query hold.

    A live group outlives the task that has loaded it, so it must not refer to the query, whose function may
    have made large objects.
    """

    key_fields: list[pa.Field]
    rows: pa.Schema  # of rows that may wait
    order: RowOrder
    event_time: str | None = None  # the column by which rows follow each other, more exactly than in ms
    ties: tuple[str, ...] = ()  # columns that order the rows of one key and time
    own: tuple[OwnLayout, ...] = ()  # of distinct kinds of chunks
    drop_state: tuple[str, ...]  # names of states that a load leaves out
    rename_state: dict[str, str]  # the new names of states by the old ones
    drop_below: tuple[str, ...] = ()  # how names of other states begin that a load leaves out
    expected: tuple[str, ...] = ()  # names of states or fields, among both, that a stored group must have
    encrypted: bool = False  # Spark encrypts local files, so that live groups must stay in memory

    def drops(self, state: str) -> bool:
        """Return whether a load leaves out the state of this name."""
        return state in self.drop_state or state.startswith(self.drop_below)
