"""What a BatchProcessFunction is handed: the context of a call, and timers of many keys at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from timerheap._arguments import instance
from timerheap._key_timers import no_processing_time
from timerheap._moments import millis
from timerheap._native._core import (
    THIRTY_YEARS,
    CurrentKey,
)
from timerheap._row_context import WithoutStates
from timerheap.errors import ArgumentTypeError
from timerheap.functions import BatchProcessFunction, BatchTimerService
from timerheap.spark._columns import shown_name
from timerheap.spark._functions.guarded.revocable_states import Steps, restore_timers
from timerheap.spark._functions.staged_timers import StagedTimers
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._group.timers import JournalledTimers
from timerheap.time import TimeDomain


class GroupTimerService(BatchTimerService):
    def __init__(
        self, group: KeyGroup, watermark: int, now: int | None, too_early: Callable[[int, int], None]
    ) -> None:
        self._group = group
        self._too_early = too_early
        self.steps: Steps | None = None  # receives how to undo changes
        self._later: Steps = []  # what is staged when a call returns
        self.times: np.ndarray | None = None  # the event times of the rows or timers of a call
        self.watermark = watermark
        self.watermarks: np.ndarray | None = None  # of each row or timer, in event-time order
        self.staged: StagedTimers | None = None  # while rows are processed in event-time order
        self._now = now

    def current_watermark(self) -> int:
        return self.watermark if self.watermarks is None else int(self.watermarks.min())

    def current_processing_time(self) -> int:
        return no_processing_time() if self._now is None else self._now

    def register_event_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike, *, name: str | None = None
    ) -> np.ndarray:
        namespace, timestamps = self._namespace(name), millis("timestamps", timestamps)
        self._group.keys.expect(ids)
        self._note(self._group.event_timers, timestamps, ids, namespace)
        new = self._group.event_timers.push_many(timestamps, ids, namespace)
        self._check(timestamps, self.times)
        if self.staged is not None:
            self._stage(self.staged.register, timestamps, ids, namespace, new)
        return new

    def _note(self, timers: JournalledTimers, *changed: Any) -> None:
        if self.steps is not None:
            restore_timers(timers, self.steps, changed)

    def _stage(self, stage: Callable[..., None], timestamps: Any, ids: Any, *arguments: Any) -> None:
        """Stage a change of timers, once the call has returned if it may be undone."""
        if self.steps is None:
            stage(timestamps, ids, *arguments)
        else:
            known = ids is self._group.keys.at_hand  # the others may change until then
            self._later.append((stage, np.array(timestamps), ids if known else np.array(ids), *arguments))

    def end_call(self) -> None:
        """Keep what a call has done."""
        for stage, *arguments in self._later:
            stage(*arguments)
        self.forget_call()

    def forget_call(self) -> None:
        self._later.clear()

    def delete_event_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None = None, *, name: str | None = None
    ) -> np.ndarray:
        timestamps = None if timestamps is None else millis("timestamps", timestamps)
        deleted = self._delete(self._group.event_timers, ids, timestamps, name)
        if self.staged is not None and timestamps is not None:
            self._stage(self.staged.delete, timestamps, ids, deleted)
        return deleted

    def register_processing_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike, *, name: str | None = None
    ) -> np.ndarray:
        now = self.current_processing_time()
        namespace, timestamps = self._namespace(name), millis("timestamps", timestamps)
        self._group.keys.expect(ids)
        self._note(self._group.processing_timers, timestamps, ids, namespace)
        new = self._group.processing_timers.push_many(timestamps, ids, namespace)
        self._check(timestamps, np.array([now]))
        return new

    def _check(self, timestamps: npt.ArrayLike, times: np.ndarray | None) -> None:
        """Warn of timers far before the times of the rows, as those in seconds are."""
        if times is not None and len(times) and np.size(timestamps):
            early, latest = int(np.min(timestamps)), int(times.max())
            if 0 < early < latest - THIRTY_YEARS:
                self._too_early(early, latest)

    def delete_processing_time_timers(
        self, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None = None, *, name: str | None = None
    ) -> np.ndarray:
        self.current_processing_time()
        timestamps = None if timestamps is None else millis("timestamps", timestamps)
        return self._delete(self._group.processing_timers, ids, timestamps, name)

    def _namespace(self, name: str | None) -> int:
        if name is None:
            return 0
        instance("name", name, str)
        names = self._group.timer_names
        return names.known[name] if name in names.known else names.new(name)

    def _delete(
        self, timers: JournalledTimers, ids: npt.ArrayLike, timestamps: npt.ArrayLike | None, name: str | None
    ) -> np.ndarray:
        if (timestamps is None) == (name is None):
            raise ArgumentTypeError(
                "timestamps must be those of the timers to delete, got None; leave them out only with a name"
                if timestamps is None
                else f"timestamps must be left out for the timers with the name {name!r}, got {timestamps!r}"
            )
        at, namespace = 0 if timestamps is None else timestamps, self._namespace(name)
        self._note(timers, at, ids, namespace)
        return timers.remove_many(at, ids, namespace)


class BatchContext(WithoutStates, BatchProcessFunction.Context):
    def __init__(self, keys: CurrentKey) -> None:
        self.ids = np.empty(0, np.int64)
        self.timestamps: np.ndarray | None = None
        self.timers: GroupTimerService
        self.domain = TimeDomain.EVENT_TIME
        self.ended = False
        self._keys = keys

    def begin(self, group: KeyGroup, timers: GroupTimerService) -> None:
        self._group, self.timers, self.ended = group, timers, False
        self._one: int | None = None  # the id of `_key`, since a key with many timers is asked for many times
        self._key: pa.RecordBatch

    @property
    def watermarks(self) -> np.ndarray:
        watermarks = self.timers.watermarks
        return np.full(len(self.ids), self.timers.watermark) if watermarks is None else watermarks

    def keys(self, ids: npt.ArrayLike) -> pa.RecordBatch:
        ids = np.asarray(ids, np.int64)
        one = ids.item() if ids.shape == (1,) else None
        if one is None or one != self._one:
            keys = self._group.keys.keys(ids)
            keys = keys.rename_columns([shown_name(name) for name in keys.schema.names])
            if one is None:
                return keys
            self._one, self._key = one, keys
        return self._key

    def set_current_key(self, key_id: int) -> None:
        self._group.keys.expect(key_id)
        self._keys.current_key = int(key_id)

    def timer_service(self) -> BatchTimerService:
        return self.timers

    def time_domain(self) -> TimeDomain:
        return self.domain

    def input_has_ended(self) -> bool:
        return self.ended
