"""The watermark of a key group, combined from the channels of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.flink import Explanation, IndexedCombinedWatermarkStatus, StatusWatermarkValve
from timerheap.spark._group.clock_bytes import InputClock, StoredClock, decode_clock, encode_clock
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks import WatermarkGenerator, WatermarkStatus, WatermarkStrategy

__all__ = ["WatermarkState"]


class _Input:
    """The channels of one input in a watermark valve, by number; channels are the values of `column`."""

    def __init__(self, strategy: WatermarkStrategy, column: str | None) -> None:
        self._strategy = strategy
        self._column = column  # of the query; `self.column` may be that of the checkpoint
        self._forget()

    def _forget(self) -> None:
        self.column = self._column
        self.valve = StatusWatermarkValve()
        self._numbers: dict[str | None, int] = {}
        self._generators: list[WatermarkGenerator | None] = []  # None: restored and not used since
        self._max_timestamps: list[int] = []
        self._active_at: list[int | None] = []

    def switch(self) -> str | None:
        """Drop the checkpoint's channels if they belong to another column, since they get no more rows.

        Returns
        -------
        str or None
            A notice for the user; None if nothing was dropped.
        """
        if self.column == self._column:
            return None
        was, now = _describe(self.column), _describe(self._column)
        self._forget()
        return f"the checkpoint's watermark was made {was}, and the query's is made {now}"

    def activate(self, name: str | None, now: int | None) -> None:
        """Record that a channel has rows, and add it if it is new."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self.valve.add_channel(name)
            self._generators.append(self._strategy.create_watermark_generator())
            self._max_timestamps.append(MIN_WATERMARK)
            self._active_at.append(now)
        self._active_at[number] = now
        self.valve.input_watermark_status(WatermarkStatus.ACTIVE, number)

    def observe(self, rows: list[dict[str, Any]], now: int | None) -> None:
        """Advance the watermarks of active channels by the rows of a micro-batch.

        The lowest watermark is applied first, so that a channel that has to catch up is compared with the
        watermark before the micro-batch.
        """
        watermarks = []
        for row in rows:
            number, max_timestamp = self._numbers[row["channel"]], row["max_timestamp"]
            if max_timestamp is not None:
                generator = self._generator(number)
                self._max_timestamps[number] = max(self._max_timestamps[number], max_timestamp)
                watermarks.append((generator.on_batch(max_timestamp, row["count"], now), number))
        for watermark, number in sorted(watermarks):
            self.valve.input_watermark(watermark, number)

    def _generator(self, number: int) -> WatermarkGenerator:
        generator = self._generators[number]
        if generator is None:
            generator = self._generators[number] = self._strategy.create_watermark_generator()
            if self._max_timestamps[number] > MIN_WATERMARK:
                generator.on_batch(self._max_timestamps[number], 1, None)
        return generator

    def begin_run(self, now: int | None) -> None:
        """Restart the idle timeout of all channels at `now`."""
        self._active_at = [now] * len(self._active_at)

    def mark_idle(self, now: int) -> None:
        """Mark channels without rows for longer than the idle timeout as idle."""
        for deadline, number in self._deadlines():
            if now > deadline:
                self._active_at[number] = None
                self.valve.input_watermark_status(WatermarkStatus.IDLE, number)

    def next_idle(self) -> int | None:
        """Return the time after which the next channel becomes idle; None: never."""
        return min((deadline for deadline, _ in self._deadlines()), default=None)

    def _deadlines(self) -> Iterator[tuple[int, int]]:
        timeout = self._strategy.idle_timeout
        if timeout is not None:
            for number, active_at in enumerate(self._active_at):
                if active_at is not None:
                    yield active_at + timeout, number

    @property
    def timed(self) -> bool:
        """Whether a load needs the times of activity."""
        return self._strategy.idle_timeout is not None

    def clock(self) -> InputClock:
        """Return what a load needs."""
        watermarks, active = self.valve._columns()
        active_at = None
        if self.timed:
            active_at = np.array([MIN_WATERMARK if at is None else at for at in self._active_at], np.int64)
        return InputClock(
            self.column,
            self.valve.watermark,
            list(self._numbers),
            np.array(watermarks, np.int64),
            np.array(self._max_timestamps, np.int64),
            np.array(active, bool),
            active_at,
        )

    def restore(self, clock: InputClock) -> None:
        """Restore the channels of `clock`."""
        n = len(clock.names)
        self.column = clock.column
        self._numbers = {name: number for number, name in enumerate(clock.names)}
        self._generators = [None] * n
        self._max_timestamps = clock.max_timestamps.tolist()
        self._active_at = [None] * n
        if clock.active_at is not None:
            self._active_at = [None if at == MIN_WATERMARK else at for at in clock.active_at.tolist()]
        self.valve = StatusWatermarkValve._of_columns(
            clock.watermark, clock.names, clock.watermarks.tolist(), clock.active.tolist()
        )


def _describe(column: str | None) -> str:
    return "over all rows" if column is None else f"by column {column!r}"


class WatermarkState:
    """The watermark of a key group and the state of its channels.

    Every key group observes the rows of all channels, so all key groups have the same watermark.

    Parameters
    ----------
    strategies : tuple of WatermarkStrategy
        The strategy of each input.
    columns : tuple of (str or None)
        The channel column of each input.
    """

    def __init__(self, strategies: tuple[WatermarkStrategy, ...], columns: tuple[str | None, ...]) -> None:
        self.notices: set[str] = set()  # for the user, about the restored checkpoint
        self.watermark = MIN_WATERMARK
        self._run: str | None = None
        self._inputs = [_Input(*pair) for pair in zip(strategies, columns, strict=True)]
        self._combined = IndexedCombinedWatermarkStatus(len(strategies))

    def observe(self, observed: pa.Table, now: int | None, run: str | None) -> int:
        """Advance the watermark by the rows of a micro-batch and return it.

        The watermark never falls. New and returning channels become active before any watermark advances,
        so that within a micro-batch no channel overtakes another; channels become idle last. If the query
        has another channel column than the checkpoint, the old channels count until the input has rows and
        are then dropped.

        Parameters
        ----------
        observed : pyarrow.Table
            Count and largest timestamp of the rows of each channel.
        now : int or None
            Time of the micro-batch, epoch ms.
        run : str or None
            Run of the query. The time between two runs does not count as idle.
        """
        if run != self._run:
            self._run = run
            for input_ in self._inputs:
                input_.begin_run(now)
        rows = observed.to_pylist()
        self._switch({row["input"] for row in rows})
        for row in rows:
            self._inputs[row["input"]].activate(row["channel"], now)
        self._combine()
        for number, input_ in enumerate(self._inputs):
            input_.observe([row for row in rows if row["input"] == number], now)
        self._combine()
        if now is not None:
            for input_ in self._inputs:
                input_.mark_idle(now)
            self._combine()
        return self.watermark

    def _switch(self, inputs: set[int]) -> None:
        for number in inputs:
            notice = self._inputs[number].switch()
            if notice is not None:
                argument = "right_channel" if number else "channel"
                self.notices.add(
                    f"{argument}: {notice}; it goes on from where it was, without the old channels"
                )
                self._combined = IndexedCombinedWatermarkStatus(len(self._inputs))

    def _combine(self) -> None:
        for number, input_ in enumerate(self._inputs):
            self._combined.update_watermark(number, input_.valve.watermark)
            self._combined.update_status(number, input_.valve.status is WatermarkStatus.IDLE)
        self.watermark = max(self.watermark, self._combined.combined_watermark)

    def next_idle(self) -> int | None:
        """Return the time after which the next channel without rows becomes idle; None: never."""
        times = [input_.next_idle() for input_ in self._inputs]
        return min((time for time in times if time is not None), default=None)

    def explain(self) -> list[Explanation]:
        """Explain for each input which channels hold its watermark back."""
        return [input_.valve.explain() for input_ in self._inputs]

    def follow(self, watermark: int) -> int:
        """Advance to a watermark from outside and return the result, which never falls."""
        self.watermark = max(self.watermark, watermark)
        return self.watermark

    def finish(self) -> int:
        """Advance to the maximum watermark at the end of a bounded input, and return it."""
        self.watermark = MAX_WATERMARK
        return self.watermark

    def to_bytes(self) -> bytes:
        """Return what a load needs (see `timerheap.spark._group.clock_bytes`); equal states, equal bytes."""
        run = self._run if any(input_.timed for input_ in self._inputs) else None
        return encode_clock(StoredClock(self.watermark, run, [input_.clock() for input_ in self._inputs]))

    @classmethod
    def from_bytes(
        cls, data: bytes, strategies: tuple[WatermarkStrategy, ...], columns: tuple[str | None, ...]
    ) -> WatermarkState:
        """Return the state that `to_bytes` returned; raise ValueError for any other bytes."""
        clock = decode_clock(data)
        state = cls(strategies, columns)
        state._run = clock.run
        for number, input_ in enumerate(clock.inputs):
            if not input_.names:  # it had no rows
                continue
            if number >= len(strategies):
                raise ValueError(
                    f"the query must have the inputs of the checkpoint, which has an input {number}, "
                    f"got {len(strategies)} inputs; start a new checkpoint"
                )
            state._inputs[number].restore(input_)
        state._combine()
        state.watermark = max(state.watermark, clock.watermark)
        return state
