"""The live key groups of an operator: from the last micro-batch, or from the state store."""

from __future__ import annotations

from timerheap.spark._group.checkpoint import ChunkStore, Stored
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.manifest import Manifest
from timerheap.spark._group.query import Query
from timerheap.spark._group.watermark import WatermarkState
from timerheap.spark._worker.hand_overs import Counts, HandOvers
from timerheap.spark._worker.live_cache import Cache, Owner

__all__ = ["LiveGroups", "Owner"]

_cache = Cache()


class LiveGroups:
    """The key groups of one operator: each is loaded for a micro-batch, saved, and kept for the next one.

    Parameters
    ----------
    query : Query
    store : ChunkStore
        The state of the group that Spark has made current.
    owner : Owner
    hand_overs : HandOvers
        Receives where each group came from.
    """

    def __init__(self, query: Query, store: ChunkStore, owner: Owner, hand_overs: HandOvers) -> None:
        self._query = query
        self._store = store
        self._owner = owner
        self._hand_overs = hand_overs

    def begin(self, run: str | None, batch: int) -> None:
        """Begin a task of a micro-batch."""
        _cache.begin(self._owner, run, batch)

    def load(self, label: int) -> tuple[KeyGroup, Stored]:
        """Return the current key group."""
        held = _cache.take(self._owner, label)
        manifest = self._store.read_manifest()
        if manifest is None:
            self._hand_overs.add(Counts(new=1))
            return KeyGroup(self._query), Stored(Manifest(self._query.max_parallelism))
        manifest.check(self._query.max_parallelism)
        if held is not None and held.token == manifest.token:
            self._hand_overs.add(Counts(continued=1))
            return held.group, held.stored
        del held
        return self._loaded(manifest)

    def save(self, label: int, group: KeyGroup, stored: Stored) -> None:
        """Save the current key group, and keep it live."""
        clock = group.watermark_state.to_bytes()
        stored.save(self._store, group.parts(), clock, group.late_rows, group.wake_up)
        _cache.put(self._owner, label, group, stored)

    def _loaded(self, manifest: Manifest) -> tuple[KeyGroup, Stored]:
        """Load a group from the state store."""
        self._hand_overs.add(Counts(loaded=1))
        query = self._query
        group = KeyGroup(query)
        stored = Stored.load(self._store, manifest, group.part, query.drop_state)
        clock = stored.read_clock(self._store)
        group.watermark_state = WatermarkState.from_bytes(clock, query.watermarks, query.channels)
        group.late_rows, group.wake_up = manifest.late_rows, manifest.wake_up
        return group.loaded(), stored
