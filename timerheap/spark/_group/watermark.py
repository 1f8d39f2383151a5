"""The watermark of a key group, combined from the channels of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from timerheap.flink import (
    ChannelState,
    Explanation,
    IndexedCombinedWatermarkStatus,
    StatusWatermarkValve,
    ValveState,
)
from timerheap.spark._group.chunks import CLOCK
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK
from timerheap.watermarks import WatermarkGenerator, WatermarkStatus, WatermarkStrategy

__all__ = ["WatermarkState"]

_SCHEMA = pa.schema(
    [
        ("watermark", pa.int64()),
        ("late_rows", pa.int64()),
        ("wake_up", pa.int64()),
        ("channel", pa.binary()),  # null: the input has a single channel
        ("max_timestamp", pa.int64()),
        ("count", pa.int64()),
        ("run", pa.string()),
        ("input", pa.int8()),  # null: no channel has been seen yet
        ("column", pa.string()),  # the input's channel column; null: a single channel for all rows
        ("input_watermark", pa.int64()),
        ("channel_watermark", pa.int64()),
        ("active", pa.bool_()),
        ("aligned", pa.bool_()),
        ("active_at", pa.int64()),
    ]
)


@dataclass(slots=True)
class _Channel:
    number: int  # in its valve
    name: str | None
    generator: WatermarkGenerator
    max_timestamp: int = MIN_WATERMARK
    count: int = 0
    active_at: int | None = None


class _Input:
    """The channels of one input in a watermark valve; channels are the values of `column`."""

    def __init__(self, strategy: WatermarkStrategy, column: str | None) -> None:
        self._strategy = strategy
        self._column = column  # of the query; `self.column` may be that of the checkpoint
        self._forget()

    def _forget(self) -> None:
        self.column = self._column
        self.valve = StatusWatermarkValve()
        self.channels: dict[str | None, _Channel] = {}

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
        channel = self.channels.get(name)
        if channel is None:
            number = self.valve.add_channel(name)
            channel = _Channel(number, name, self._strategy.create_watermark_generator())
            self.channels[name] = channel
        channel.active_at = now
        self.valve.input_watermark_status(WatermarkStatus.ACTIVE, channel.number)

    def observe(self, rows: list[dict[str, Any]], now: int | None) -> None:
        """Advance the watermarks of active channels by the rows of a micro-batch.

        The lowest watermark is applied first, so that a channel that has to catch up is compared with the
        watermark before the micro-batch.
        """
        watermarks = []
        for row in rows:
            channel, count, max_timestamp = self.channels[row["channel"]], row["count"], row["max_timestamp"]
            channel.count += count
            if max_timestamp is not None:
                channel.max_timestamp = max(channel.max_timestamp, max_timestamp)
                watermarks.append((channel.generator.on_batch(max_timestamp, count, now), channel.number))
        for watermark, number in sorted(watermarks):
            self.valve.input_watermark(watermark, number)

    def begin_run(self, now: int | None) -> None:
        """Restart the idle timeout of all channels at `now`."""
        for channel in self.channels.values():
            channel.active_at = now

    def mark_idle(self, now: int) -> None:
        """Mark channels without rows for longer than the idle timeout as idle."""
        for deadline, channel in self._deadlines():
            if now > deadline:
                channel.active_at = None
                self.valve.input_watermark_status(WatermarkStatus.IDLE, channel.number)

    def next_idle(self) -> int | None:
        """Return the time after which the next channel becomes idle; None: never."""
        return min((deadline for deadline, _ in self._deadlines()), default=None)

    def _deadlines(self) -> Iterator[tuple[int, _Channel]]:
        timeout = self._strategy.idle_timeout
        if timeout is not None:
            for channel in self.channels.values():
                if channel.active_at is not None:
                    yield channel.active_at + timeout, channel

    def restore(self, rows: list[dict[str, Any]]) -> None:
        """Restore the channels from rows of `WatermarkState.snapshot`."""
        self.column = rows[0]["column"]
        states = []
        for number, row in enumerate(rows):
            name = None if row["channel"] is None else row["channel"].decode()
            generator = self._strategy.create_watermark_generator()
            channel = _Channel(number, name, generator, row["max_timestamp"], row["count"], row["active_at"])
            if channel.max_timestamp > MIN_WATERMARK:
                generator.on_batch(channel.max_timestamp, channel.count, None)
            self.channels[name] = channel
            states.append(ChannelState(name, row["channel_watermark"], row["active"], row["aligned"]))
        active = any(state.active for state in states)
        self.valve = StatusWatermarkValve.restore(ValveState(rows[0]["input_watermark"], active, states))


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

    kind = CLOCK
    name = ""
    schema = _SCHEMA

    def __init__(self, strategies: tuple[WatermarkStrategy, ...], columns: tuple[str | None, ...]) -> None:
        self.notices: set[str] = set()  # for the user, about the restored checkpoint
        self.watermark = MIN_WATERMARK
        self.late_rows = 0
        self.wake_up: int | None = None
        self._run: str | None = None
        self._inputs = [_Input(*pair) for pair in zip(strategies, columns, strict=True)]
        self._combined = IndexedCombinedWatermarkStatus(len(strategies))
        self._saved: object = None

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

    # The methods of `CheckpointedPart`. Every chunk holds the whole state, one row per channel.

    def _values(self) -> list[tuple[Any, ...]]:
        mine = self.watermark, self.late_rows, self.wake_up
        rows: list[tuple[Any, ...]] = []
        for number, input_ in enumerate(self._inputs):
            state = input_.valve.state()
            for channel, kept in zip(input_.channels.values(), state.channels, strict=True):
                name = None if channel.name is None else channel.name.encode()
                seen = name, channel.max_timestamp, channel.count
                valve = state.watermark, kept.watermark, kept.active, kept.aligned, channel.active_at
                rows.append((*mine, *seen, self._run, number, input_.column, *valve))
        return rows or [(*mine, None, MIN_WATERMARK, 0, self._run, *[None] * 7)]

    def changes(self) -> pa.RecordBatch | None:
        """Return the state if it changed since the last call, else None."""
        if self._values() == self._saved:
            return None
        self._saved = self._values()
        return self.snapshot()

    def snapshot(self) -> pa.RecordBatch:
        """Return the state."""
        columns = zip(*self._values(), strict=True)
        arrays = [pa.array(column, f.type) for column, f in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    def replay(self, batch: pa.RecordBatch) -> None:
        """Restore the state of `snapshot`."""
        if batch.schema != _SCHEMA or not batch.num_rows:
            raise ValueError(
                f"a chunk of kind {CLOCK} must have rows with the columns {_SCHEMA}, got {batch.num_rows} "
                f"rows with {batch.schema}"
            )
        rows = batch.to_pylist()
        self.late_rows, self.wake_up = rows[0]["late_rows"], rows[0]["wake_up"]
        self._run = rows[0]["run"]
        channels = [row for row in rows if row["input"] is not None]
        for number in sorted({row["input"] for row in channels}):
            if not 0 <= number < len(self._inputs):
                raise ValueError(
                    f"the query must have the inputs of the checkpoint, which has an input {number}, "
                    f"got {len(self._inputs)} inputs; start a new checkpoint"
                )
            self._inputs[number].restore([row for row in channels if row["input"] == number])
        self._combine()
        self.watermark = max(self.watermark, rows[0]["watermark"])
        self._saved = self._values()

    def nbytes(self) -> int:
        """Return 0, since the watermark is always rewritten."""
        return 0
