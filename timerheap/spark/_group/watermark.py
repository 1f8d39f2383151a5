"""The watermark of a key group, combined from the channels of its inputs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap.spark._group.channels import InputChannels
from timerheap.spark._group.clock_bytes import StoredClock, decode_clock, encode_clock
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import WatermarkStatus, WatermarkStrategy
from timerheap.watermarks.combine import IndexedCombinedWatermarkStatus
from timerheap.watermarks.explanation import Explanation

__all__ = ["WatermarkState"]


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
        self._inputs = [InputChannels(*pair) for pair in zip(strategies, columns, strict=True)]
        self._combined = IndexedCombinedWatermarkStatus(len(strategies))

    @property
    def has_new_channels(self) -> bool:
        """Whether `observe` has added channels."""
        return any(input_.has_new for input_ in self._inputs)

    def observe(self, observed: pa.Table, now: int | None, run: str | None, at: int | None = None) -> int:
        """Advance the watermark by the rows of a micro-batch and return it.

        The watermark never falls. New and returning channels become active before any watermark advances,
        so that within a micro-batch no channel overtakes another; channels become idle, or follow the clock,
        last. If the query has another channel column than the checkpoint, the old channels count until the
        input has rows and are then dropped.

        Parameters
        ----------
        observed : pyarrow.Table
            Count and largest timestamp of the rows of each channel.
        now : int or None
            Time of the micro-batch, epoch ms, in a query with a clock.
        run : str or None
            Run of the query. The time between two runs does not count as time without rows.
        at : int, optional
            Time of the micro-batch in a query without a clock.
        """
        at = at if now is None else now
        if run != self._run:
            self._run = run
            for input_ in self._inputs:
                input_.begin_run(now)
        inputs = observed.column("input").to_numpy()
        self._switch(set(inputs.tolist()))
        names = observed.column("channel").to_pylist()
        channels = np.empty(len(names), np.int64)  # the number of each row's in its input
        for number, input_ in enumerate(self._inputs):
            rows = np.flatnonzero(inputs == number)
            channels[rows] = input_.activate([names[row] for row in rows.tolist()], at)
        self._combine()
        timed = observed.column("max_timestamp").is_valid().to_numpy()
        max_timestamps = observed.column("max_timestamp").fill_null(0).to_numpy()
        counts = observed.column("count").to_numpy()
        for number, input_ in enumerate(self._inputs):
            rows = np.flatnonzero(timed & (inputs == number))
            input_.observe(channels[rows], max_timestamps[rows], counts[rows], now)
        self._combine()
        if now is not None:
            for input_ in self._inputs:
                input_.mark_idle(now)
                input_.follow_clock(now)
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

    def next_change(self) -> int | None:
        """Return the time after which the watermark may change without rows; None: never."""
        times = [input_.next_change() for input_ in self._inputs]
        return min((time for time in times if time is not None), default=None)

    def newest(self) -> int:
        """Return the largest event time so far, MIN_WATERMARK before the first."""
        return max(input_.newest() for input_ in self._inputs)

    def explain(self) -> list[Explanation]:
        """Explain for each input which channels hold its watermark back."""
        return [input_.valve.explain() for input_ in self._inputs]

    def follow(self, watermark: int) -> int:
        """Advance to a watermark from outside and return the result, which never falls."""
        self.watermark = max(self.watermark, watermark)
        return self.watermark

    def to_bytes(self) -> bytes:
        """Return what a load needs (see `timerheap.spark._group.clock_bytes`); equal states, equal bytes."""
        run = self._run if any(input_.timed for input_ in self._inputs) else None
        return encode_clock(StoredClock(self.watermark, run, [input_.clock() for input_ in self._inputs]))

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        strategies: tuple[WatermarkStrategy, ...],
        columns: tuple[str | None, ...],
        stale: bool = False,
    ) -> WatermarkState:
        """Return the state that `to_bytes` returned; raise ValueError for any other bytes.

        The channels of a `stale` state may have had rows since: all of them count as active, and as having
        caught up.
        """
        clock = decode_clock(data)
        state = cls(strategies, columns)
        state._run = clock.run
        for number, input_ in enumerate(clock.inputs):
            if number >= len(strategies):
                if not input_.names:  # it had no rows
                    continue
                raise ValueError(
                    f"the query must have the inputs of the checkpoint, which has an input {number}, "
                    f"got {len(strategies)} inputs; start a new checkpoint"
                )
            if stale:
                input_.active = np.ones(len(input_.names), bool)
                input_.watermarks = np.maximum(input_.watermarks, input_.watermark)
            state._inputs[number].restore(input_)
        state._combine()
        state.watermark = max(state.watermark, clock.watermark)
        return state
