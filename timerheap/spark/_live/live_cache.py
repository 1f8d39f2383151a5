"""Which key groups a worker keeps as objects, and how long."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.layout import GroupLayout
from timerheap.spark._group.saving import Stored
from timerheap.spark._live.live_file import LiveFile
from timerheap.spark._live.live_store import LiveStore

_MOST = 128  # groups in files, since each keeps a few file descriptors


class Owner(NamedTuple):
    """The operator, within its query, that owns a live group."""

    query: str | None
    operator: str


class Held(NamedTuple):
    """A live group, as it was saved under a token in a micro-batch."""

    token: bytes
    batch: int
    group: KeyGroup
    stored: Stored


class Turn(NamedTuple):
    """The last micro-batch of an operator on this worker.

    run: the run of the query
    began: when it began, in seconds
    files: the files of the query; None if the executor has told no local directory
    layout: that of the first micro-batch, so that a worker keeps one copy of it, and of aggregates in Python
    """

    run: str | None
    batch: int
    began: float
    files: LiveStore | None
    layout: GroupLayout


class Cache:
    """The live groups of this worker, each valid only while its token matches the one in the store.

    A group is taken out before it is modified, so a group whose batch failed is never reused. A group that
    was not requested in the last `_KEEP` micro-batches has moved to another worker and is dropped. The
    groups of a query that has not run here for `_IDLE` seconds are dropped too. When a query is restarted,
    the groups of its earlier runs are dropped, so each query has the groups of at most one run.
    """

    _KEEP = 8
    _IDLE = 600.0

    def __init__(self) -> None:
        self._groups: dict[tuple[Owner, int], Held] = {}
        self._turns: dict[Owner, Turn] = {}

    def begin(self, owner: Owner, layout: GroupLayout, run: str | None, batch: int) -> Turn:
        """Record that a micro-batch of an operator begins, and drop the groups that are out of date."""
        before = self._turns.get(owner)
        if before is not None and (before.run, before.batch) == (run, batch):
            return before
        now = time.monotonic()
        kept = layout if before is None else before.layout
        self._turns[owner] = turn = Turn(
            run, batch, now, None if layout.encrypted else _files_of(owner.query), kept
        )
        self._turns = {
            other: turn
            for other, turn in self._turns.items()
            if turn.began > now - self._IDLE and (other.query != owner.query or turn.run == run)
        }
        self._groups = {
            at: held
            for at, held in self._groups.items()
            if at[0] in self._turns and held.batch >= self._turns[at[0]].batch - self._KEEP
        }
        return turn

    def take(self, owner: Owner, label: int) -> Held | None:
        """Remove the group of `label` and return it, whatever its token."""
        return self._groups.pop((owner, label), None)

    def put(self, owner: Owner, label: int, group: KeyGroup, stored: Stored) -> None:
        """Store a group that has just been saved."""
        self._groups[owner, label] = Held(stored.manifest.token, self._turns[owner].batch, group, stored)
        if len(self._groups) > _MOST:
            mapped = [at for at, held in self._groups.items() if isinstance(held.group.memory, LiveFile)]
            for at in mapped[:-_MOST]:
                del self._groups[at]


def _files_of(query: str | None) -> LiveStore | None:
    directories = os.environ.get("SPARK_LOCAL_DIRS")
    if not directories or query is None:
        return None
    files = LiveStore(directories.split(","), query)
    files.sweep()
    return files
