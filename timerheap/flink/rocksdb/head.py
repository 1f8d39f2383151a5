"""A sorted set of byte strings on disk, with its first entries cached in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from timerheap.flink.rocksdb.store import FIRST, Store

__all__ = ["CachedHead"]

_CACHED = 1_024  # entries to read at a time
_MOST_CACHED = 2 * _CACHED
_RANGE = 1_000  # remove at least this many as one range; many small ranges would slow RocksDB down


class CachedHead:
    """A cache of the first entries of a store.

    The cache holds every entry up to `_through`, or all entries if `_through` is None. Flink:
    ``RocksDBCachingPriorityQueueSet`` and its ``TreeOrderedSetCache``.

    A failing write leaves the store unchanged and empties the cache, which is then read again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.forget()

    def forget(self) -> None:
        """Empty the cache."""
        self._cache: list[bytes] = []
        self._through: bytes | None = FIRST
        self._beyond: int | None = None  # the number of entries that are not cached, or None if unknown

    def first(self) -> bytes | None:
        """Return the first entry, or None."""
        if not self._cache and self._through is not None:
            # Continue where the last read ended; RocksDB would iterate over everything removed since.
            self._cache = next(self.store.scan(self._through, size=_CACHED), [])
            if len(self._cache) < _CACHED:
                self._through, self._beyond = None, 0
            else:
                self._through = self._cache[-1]
                if self._beyond is not None:
                    self._beyond -= _CACHED
        return self._cache[0] if self._cache else None

    def add(self, entry: bytes) -> bytes | None:
        """Add an entry unless it is present; return the previous first entry."""
        first = self._cache[0] if self._cache else self.first()
        if self._through is not None and entry > self._through:
            self.store.add(entry)
            self._beyond = None  # whether the entry was present is unknown
            return first
        at = bisect_left(self._cache, entry)
        if self._cache[at : at + 1] == [entry]:
            return first
        try:
            self._cache.insert(at, entry)
            self.store.add(entry)
        except BaseException:
            self.forget()
            raise
        self._shorten()
        return first

    def add_many(self, entries: Sequence[bytes]) -> None:
        """Add the entries that are not present; on an error, add none."""
        entries = sorted(entries)
        self.first()
        near = len(entries) if self._through is None else bisect_right(entries, self._through)
        try:
            self.store.add_many(entries)
            self._add_to_cache(entries[:near])
            if near < len(entries):
                self._beyond = None
        except BaseException:
            self.forget()
            raise

    def remove(self, entry: bytes) -> bytes | None:
        """Remove an entry if it is present; return the previous first entry."""
        first = self._cache[0] if self._cache else self.first()
        if self._through is not None and entry > self._through:
            self.store.remove(entry)
            self._beyond = None
            return first
        at = bisect_left(self._cache, entry)
        if self._cache[at : at + 1] == [entry]:
            try:
                del self._cache[at]
                self.store.remove(entry)
            except BaseException:
                self.forget()
                raise
        return first

    def remove_first(self, entries: Sequence[bytes]) -> None:
        """Remove `entries`, which must be the first entries; on an error, remove none."""
        try:
            if len(entries) == 1:
                self.store.remove(entries[0])
            elif len(entries) < _RANGE:
                self.store.remove_many(entries)
            else:
                self.store.remove_range(entries[0], entries[-1])
            if self._through is not None and entries[-1] > self._through:
                if self._beyond is not None:
                    self._beyond -= len(entries) - len(self._cache)
                self._cache, self._through = [], entries[-1]
            else:
                del self._cache[: len(entries)]
        except BaseException:
            self.forget()
            raise

    def before(self, stop: bytes | None, most: int) -> list[bytes]:
        """Return at most `most` entries before `stop`, or of all entries if `stop` is None."""
        first = self.first()
        if first is None or (stop is not None and first >= stop):
            return []
        near = len(self._cache) if stop is None else bisect_left(self._cache, stop)
        if most <= near or self._through is None or (stop is not None and stop <= self._through):
            return self._cache[: min(near, most)]
        found: list[bytes] = []
        for chunk in self.store.scan(first, stop):
            found += chunk[: most - len(found)]
            if len(found) == most:
                break
        return found

    def scan(self) -> Iterator[list[bytes]]:
        """Return an iterator over chunks of the current entries, in order."""
        self.first()
        return iter([self._cache[:]]) if self._through is None else self.store.scan(FIRST)

    def __contains__(self, entry: bytes) -> bool:
        self.first()
        if self._through is not None and entry > self._through:
            return entry in self.store
        at = bisect_left(self._cache, entry)
        return self._cache[at : at + 1] == [entry]

    def __len__(self) -> int:
        self.first()
        if self._beyond is None:
            self._beyond = sum(map(len, self.store.scan((self._through or b"") + b"\0")))
        return len(self._cache) + self._beyond

    def _add_to_cache(self, near: list[bytes]) -> None:
        """Add sorted new entries to the cache, as many as fit."""
        taken = near[:_MOST_CACHED]
        self._cache = sorted({*self._cache, *taken})
        if len(taken) < len(near):
            self._through, self._beyond = taken[-1], None
            del self._cache[bisect_right(self._cache, self._through) :]
        self._shorten()

    def _shorten(self) -> None:
        if len(self._cache) > _MOST_CACHED:
            if self._beyond is not None:
                self._beyond += len(self._cache) - _CACHED
            del self._cache[_CACHED:]
            self._through = self._cache[-1]
