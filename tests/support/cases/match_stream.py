"""Runs the function of MATCH_RECOGNIZE in micro-batches without Spark: its state and timers are dicts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.spark._patterns import MatchRows
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK


class _State:
    def __init__(self, type_: pa.DataType, kept: dict[int, Any]) -> None:
        self._type, self.kept = type_, kept

    def values(self, ids: np.ndarray) -> pa.Array:
        return pa.array([self.kept.get(int(one)) for one in ids], self._type)

    def update_many(self, ids: np.ndarray, values: pa.Array) -> None:
        assert values.type == self._type, (values.type, self._type)
        for one, value in zip(ids.tolist(), values.to_pylist(), strict=True):
            if value is None:
                self.kept.pop(one, None)
            else:
                self.kept[one] = value


class MatchStream:
    """One query; `micro_batch` runs rows by key and time up to a watermark, and restarts it each time."""

    def __init__(self, plan: Any) -> None:
        self._plan = plan
        self.kept: dict[int, Any] = {}
        self.timers: dict[int, int] = {}
        self.watermark = MIN_WATERMARK

    def micro_batch(
        self, batch: pa.RecordBatch, ids: Sequence[int], times: Sequence[int], watermark: int = MAX_WATERMARK
    ) -> list[dict[str, Any]]:
        """Return the results."""
        self.watermark, function = watermark, MatchRows(self._plan)
        function.open(SimpleNamespace(get_state=lambda descriptor: _State(_type_of(descriptor), self.kept)))
        found: list[Any] = []
        if len(batch):
            context = self._context(np.array(ids), np.array(times))
            found += function.process_batch(batch, context)
        if due := sorted((at, key) for key, at in self.timers.items() if at <= watermark):
            for _, key in due:
                del self.timers[key]
            context = self._context(np.array([key for _, key in due]), np.array([at for at, _ in due]))
            found += function.on_timers(SimpleNamespace(ids=context.ids), context)
        return [row for one in found for row in one.to_pylist()]

    def _context(self, ids: np.ndarray, times: np.ndarray) -> Any:
        service = SimpleNamespace(
            current_watermark=lambda: self.watermark,
            register_event_time_timers=self._register,
            delete_event_time_timers=lambda ids, name: [self.timers.pop(one, None) for one in ids.tolist()],
        )
        return SimpleNamespace(
            ids=ids,
            timestamps=times,
            timer_service=lambda: service,
            keys=lambda ids: pa.record_batch([pa.array(ids)], names=["k"]),
        )

    def _register(self, ids: np.ndarray, timestamps: np.ndarray, name: str) -> None:
        assert (timestamps > self.watermark).all()
        self.timers |= dict(zip(ids.tolist(), timestamps.tolist(), strict=True))


def _type_of(descriptor: Any) -> pa.DataType:
    return descriptor.type_info
