"""The channels of one input, in columns: a micro-batch costs what its own channels cost."""

from __future__ import annotations

import numpy as np

from timerheap.spark._group.clock_bytes import InputClock
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import WatermarkGenerator, WatermarkStatus, WatermarkStrategy
from timerheap.watermarks.valve import StatusWatermarkValve

__all__ = ["InputChannels"]

_NEVER = MIN_WATERMARK  # the time of activity of a channel without a clock


class InputChannels:
    """The channels of one input in a watermark valve, by number; channels are the values of `column`.

    Parameters
    ----------
    strategy : WatermarkStrategy
    column : str or None
        The query's channel column; the attribute `column` may be that of the checkpoint.
    """

    def __init__(self, strategy: WatermarkStrategy, column: str | None) -> None:
        self._strategy = strategy
        self._column = column
        self._begun_at = _NEVER
        self._forget()

    def _forget(self) -> None:
        self.column = self._column
        self.valve = StatusWatermarkValve()
        self._numbers: dict[str | None, int] = {}
        self._generators = _Generators(self._strategy)
        self._max_timestamps = np.empty(0, np.int64)
        self._active_at = np.empty(0, np.int64)
        self.has_new = False

    @property
    def _quiet_since(self) -> np.ndarray:
        """Since when each channel has had no rows, or the input, if it has no channel yet; or `_NEVER`."""
        return self._active_at if self._numbers else np.array([self._begun_at])

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

    def activate(self, names: list[str | None], at: int | None) -> np.ndarray:
        """Record that these channels have rows `at` a time, add new ones, and return the numbers of all."""
        numbers = self._numbers
        channels = np.fromiter((numbers.get(name, -1) for name in names), np.int64, len(names))
        unknown = channels < 0
        if new := [names[row] for row in np.flatnonzero(unknown).tolist()]:
            channels[unknown] = np.arange(len(numbers), len(numbers) + len(new))
            numbers.update(zip(new, range(len(numbers), len(numbers) + len(new)), strict=True))
            self.valve._add_channels(new)
            self.has_new = True
            self._max_timestamps = np.append(self._max_timestamps, np.full(len(new), MIN_WATERMARK))
            self._active_at = np.append(self._active_at, np.full(len(new), _NEVER))
        self._active_at[channels] = _NEVER if at is None else at
        self.valve._activate_many(channels)
        return channels

    def observe(
        self, channels: np.ndarray, max_timestamps: np.ndarray, counts: np.ndarray, now: int | None
    ) -> None:
        """Advance the watermarks of active channels by the rows of a micro-batch.

        The lowest watermark counts first, so that a channel that has to catch up is compared with the
        watermark before the micro-batch.

        Parameters
        ----------
        channels, max_timestamps, counts : ndarray of int64, shape (n,)
            Distinct channels, and their largest timestamps and numbers of rows in the micro-batch.
        now : int or None
        """
        before = self._max_timestamps[channels]
        watermarks = self._generators.watermarks(channels, before, max_timestamps, counts, now)
        self._max_timestamps[channels] = np.maximum(before, max_timestamps)
        self.valve._input_watermarks(watermarks, channels)

    def begin_run(self, now: int | None) -> None:
        """Begin the time without rows of all channels at `now`."""
        if now is not None:
            self._begun_at = now
            self._active_at[:] = now

    def mark_idle(self, now: int) -> None:
        """Mark channels, or an input without channels, as idle after the idle timeout without rows."""
        timeout = self._strategy.idle_timeout
        if timeout is None:
            return
        for channel in np.flatnonzero(self._may_idle & (self._quiet_since < now - timeout)).tolist():
            if self._numbers:
                self.valve.input_watermark_status(WatermarkStatus.IDLE, channel)
            else:
                self.valve.status = WatermarkStatus.IDLE

    @property
    def _may_idle(self) -> np.ndarray:
        _, active = self.valve._columns()
        if not self._numbers:
            active = np.array([self.valve.status is WatermarkStatus.ACTIVE])
        found: np.ndarray = active & (self._quiet_since != _NEVER)
        return found

    def follow_clock(self, now: int) -> None:
        """Advance the watermarks of quiet channels by the clock."""
        if self._strategy.wall_clock is None:
            return
        after, lag = self._strategy.wall_clock
        quiet = (self._quiet_since != _NEVER) & (self._quiet_since <= now - after)
        if self._numbers:
            channels = np.flatnonzero(quiet)
            self.valve._input_watermarks(np.full(len(channels), now - lag), channels)
        if quiet.all() and (not self._numbers or self.valve.status is WatermarkStatus.IDLE):
            self.valve._emit(now - lag)

    def next_change(self) -> int | None:
        """Return the time after which the clock alone changes a channel; None: never."""
        times = []
        if self._strategy.idle_timeout is not None:
            times.append((self._quiet_since[self._may_idle], self._strategy.idle_timeout))
        if self._strategy.wall_clock is not None:
            after, _ = self._strategy.wall_clock
            times.append((self._quiet_since[self._quiet_since != _NEVER], after - 1))
        return min((int(since.min()) + wait for since, wait in times if len(since)), default=None)

    def newest(self) -> int:
        """Return the largest timestamp of all channels, MIN_WATERMARK if there is none."""
        return int(self._max_timestamps.max(initial=MIN_WATERMARK))

    @property
    def timed(self) -> bool:
        """Whether a load needs the times of activity."""
        return (self._strategy.idle_timeout, self._strategy.wall_clock) != (None, None)

    def clock(self) -> InputClock:
        """Return what a load needs."""
        watermarks, active = self.valve._columns()
        return InputClock(
            self.column,
            self.valve.watermark,
            list(self._numbers),
            watermarks.copy(),
            self._max_timestamps.copy(),
            active.copy(),
            self._active_at.copy(),
            self._begun_at,
            self.valve.status is WatermarkStatus.IDLE,
        )

    def restore(self, clock: InputClock) -> None:
        """Restore the channels of `clock`."""
        n = len(clock.names)
        self.column = clock.column if n else self._column
        self._begun_at = clock.begun_at
        self._numbers = dict(zip(clock.names, range(n), strict=True))
        if len(self._numbers) != n:
            raise ValueError("the watermark's state has two channels of one name")
        self._generators = _Generators(self._strategy)
        self._max_timestamps = clock.max_timestamps.copy()
        self._active_at = clock.active_at.copy()
        self.valve = StatusWatermarkValve._of_columns(
            clock.watermark, clock.names, clock.watermarks, clock.active
        )
        if not n and clock.idle:
            self.valve.status = WatermarkStatus.IDLE


class _Generators:
    """The generators of channels: a delay for all of them, or one for each, made when it is first used."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._strategy = strategy
        self._of_channels: dict[int, WatermarkGenerator] = {}

    def watermarks(
        self,
        channels: np.ndarray,
        before: np.ndarray,
        max_timestamps: np.ndarray,
        counts: np.ndarray,
        now: int | None,
    ) -> np.ndarray:
        """Return the watermarks of channels, shape (n,); `before` are their largest timestamps until now."""
        delay = self._strategy._delay
        watermarks: np.ndarray
        if delay is not None:
            furthest = np.maximum(np.maximum(before, max_timestamps), MIN_WATERMARK + delay + 1)
            watermarks = furthest - delay - 1
            return watermarks
        rows = zip(*(c.tolist() for c in (channels, before, max_timestamps, counts)), strict=True)
        watermarks = np.array(
            [
                self._generator(channel, first).on_batch(most, count, now)
                for channel, first, most, count in rows
            ],
            np.int64,
        )
        return watermarks

    def _generator(self, channel: int, before: int) -> WatermarkGenerator:
        generator = self._of_channels.get(channel)
        if generator is None:
            generator = self._of_channels[channel] = self._strategy.create_watermark_generator()
            if before > MIN_WATERMARK:
                generator.on_batch(before, 1, None)
        return generator


def _describe(column: str | None) -> str:
    return "over all rows" if column is None else f"by column {column!r}"
