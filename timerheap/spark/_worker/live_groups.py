"""The live key groups of a worker, which it keeps between micro-batches."""

from __future__ import annotations

import time
from typing import NamedTuple, cast

from timerheap.spark._group.checkpoint import ChunkStore, Stored
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.manifest import Manifest
from timerheap.spark._group.query import Query
from timerheap.spark._group.watermark import WatermarkState

__all__ = ["Cache", "LiveGroups", "Owner"]


class Owner(NamedTuple):
    """The operator, within its query, that owns a live group."""

    query: str | None
    operator: str


class _Turn(NamedTuple):
    """The last micro-batch of an operator on this worker, with the run of its query and its start time."""

    run: str | None
    batch: int
    began: float


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
        self._groups: dict[tuple[Owner, int], tuple[bytes, int, object]] = {}
        self._turns: dict[Owner, _Turn] = {}

    def begin(self, owner: Owner, run: str | None, batch: int) -> None:
        """Record that a micro-batch of an operator begins, and drop the groups that are out of date."""
        before = self._turns.get(owner)
        if before is not None and (before.run, before.batch) == (run, batch):
            return
        now = time.monotonic()
        self._turns[owner] = _Turn(run, batch, now)
        self._turns = {
            other: turn
            for other, turn in self._turns.items()
            if turn.began > now - self._IDLE and (other.query != owner.query or turn.run == run)
        }
        self._groups = {
            at: held
            for at, held in self._groups.items()
            if at[0] in self._turns and held[1] >= self._turns[at[0]].batch - self._KEEP
        }

    def take(self, owner: Owner, label: int, token: bytes) -> object | None:
        """Remove the group of `label` and return it if it has this token, else return None."""
        found = self._groups.pop((owner, label), None)
        return found[2] if found is not None and found[0] == token else None

    def put(self, owner: Owner, label: int, token: bytes, group: object) -> None:
        """Store a group that has just been saved under `token`."""
        self._groups[owner, label] = (token, self._turns[owner].batch, group)


_cache = Cache()


class LiveGroups:
    """The key groups of one operator: each is loaded for a micro-batch, saved, and kept for the next one.

    Parameters
    ----------
    query : Query
    store : ChunkStore
        The state of the group that Spark has made current.
    owner : Owner
    """

    def __init__(self, query: Query, store: ChunkStore, owner: Owner) -> None:
        self._query = query
        self._store = store
        self._owner = owner

    def begin(self, run: str | None, batch: int) -> None:
        """Begin a task of a micro-batch."""
        _cache.begin(self._owner, run, batch)

    def load(self, label: int) -> tuple[KeyGroup, Stored]:
        """Return the current key group, live or from the store."""
        query = self._query
        manifest = self._store.read_manifest()
        if manifest is None:
            return KeyGroup(query), Stored(Manifest(query.max_parallelism))
        manifest.check(query.max_parallelism)
        cached = _cache.take(self._owner, label, manifest.token)
        if cached is not None:
            return cast(tuple[KeyGroup, Stored], cached)
        group = KeyGroup(query)
        stored = Stored.load(self._store, manifest, group.part, query.drop_state)
        clock = stored.read_clock(self._store)
        group.watermark_state = WatermarkState.from_bytes(clock, query.watermarks, query.channels)
        group.late_rows, group.wake_up = manifest.late_rows, manifest.wake_up
        return group.loaded(), stored

    def save(self, label: int, group: KeyGroup, stored: Stored) -> None:
        """Save the current key group, and keep it live."""
        clock = group.watermark_state.to_bytes()
        stored.save(self._store, group.parts(), clock, group.late_rows, group.wake_up)
        _cache.put(self._owner, label, stored.manifest.token, (group, stored))
