"""How far time has come in a key group: channels, inputs, and the watermark that they make together."""

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
        ("channel", pa.binary()),  # null: the one over all of an input
        ("max_timestamp", pa.int64()),
        ("count", pa.int64()),
        ("run", pa.string()),
        ("input", pa.int8()),  # null: no channel has been seen yet
        ("column", pa.string()),  # that the input's channels are values of; null: its one channel is over all
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
    """The channels of one input, in a valve; `column`: the column that they are values of."""

    def __init__(self, strategy: WatermarkStrategy, column: str | None) -> None:
        self._strategy = strategy
        self._column = column  # the query's
        self._forget()

    def _forget(self) -> None:
        self.column = self._column
        self.valve = StatusWatermarkValve()
        self.channels: dict[str | None, _Channel] = {}

    def switch(self) -> str | None:
        """Forget channels that a checkpoint has of another column: no row of theirs will come.

        Return what to tell the user, None where nothing was forgotten.
        """
        if self.column == self._column:
            return None
        was, now = _made(self.column), _made(self._column)
        self._forget()
        return f"the checkpoint's watermark was made {was}, and the query's is made {now}"

    def turn_up(self, name: str | None, now: int | None) -> None:
        """A channel has rows."""
        channel = self.channels.get(name)
        if channel is None:
            number = self.valve.add_channel(name)
            channel = _Channel(number, name, self._strategy.create_watermark_generator())
            self.channels[name] = channel
        channel.active_at = now
        self.valve.input_watermark_status(WatermarkStatus.ACTIVE, channel.number)

    def observe(self, rows: list[dict[str, Any]], now: int | None) -> None:
        """Take what channels that have turned up have seen.

        The lowest watermark goes first: a channel that has yet to catch up is then measured by where the
        watermark stood before the micro-batch.
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
        """Let all channels be idle from now on at the earliest."""
        for channel in self.channels.values():
            channel.active_at = now

    def let_idle(self, now: int) -> None:
        """Take the channels that have been without rows for too long out of the reckoning."""
        for deadline, channel in self._deadlines():
            if now > deadline:
                channel.active_at = None
                self.valve.input_watermark_status(WatermarkStatus.IDLE, channel.number)

    def next_idle(self) -> int | None:
        """Give the time after which the next channel is idle."""
        return min((deadline for deadline, _ in self._deadlines()), default=None)

    def _deadlines(self) -> Iterator[tuple[int, _Channel]]:
        timeout = self._strategy.idle_timeout
        if timeout is not None:
            for channel in self.channels.values():
                if channel.active_at is not None:
                    yield channel.active_at + timeout, channel

    def restore(self, rows: list[dict[str, Any]]) -> None:
        """Take back the channels of `WatermarkState.snapshot`."""
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


def _made(column: str | None) -> str:
    return "over all rows" if column is None else f"by column {column!r}"


class WatermarkState:
    """The watermark of a key group, and what it was made from.

    Every key group is told the same of all channels, so all have the same watermark.

    Parameters
    ----------
    strategies : tuple of WatermarkStrategy
        Of each input.
    columns : tuple of (str or None)
        Of each input, the column of its channels.
    """

    kind = CLOCK
    name = ""
    schema = _SCHEMA

    def __init__(self, strategies: tuple[WatermarkStrategy, ...], columns: tuple[str | None, ...]) -> None:
        self.notices: set[str] = set()  # for the user, about what a checkpoint held
        self.watermark = MIN_WATERMARK
        self.late_rows = 0
        self.wake_up: int | None = None
        self._run: str | None = None
        self._inputs = [_Input(*pair) for pair in zip(strategies, columns, strict=True)]
        self._combined = IndexedCombinedWatermarkStatus(len(strategies))
        self._saved: object = None

    def observe(self, observed: pa.Table, now: int | None, run: str | None) -> int:
        """Advance by what a micro-batch has seen, and return the watermark.

        It never falls. Channels that turn up or come back do so before any watermark moves, so that in one
        micro-batch none overtakes another; idleness comes last. Where the query's channels are values of
        another column than the checkpoint's, these hold until the input has rows, and are then forgotten.

        Parameters
        ----------
        observed : pyarrow.Table
        now : int or None
            The micro-batch's time, epoch ms.
        run : str or None
            The query's run: while it was stopped no channel was idle.
        """
        if run != self._run:
            self._run = run
            for input_ in self._inputs:
                input_.begin_run(now)
        rows = observed.to_pylist()
        self._switch({row["input"] for row in rows})
        for row in rows:
            self._inputs[row["input"]].turn_up(row["channel"], now)
        self._combine()
        for number, input_ in enumerate(self._inputs):
            input_.observe([row for row in rows if row["input"] == number], now)
        self._combine()
        if now is not None:
            for input_ in self._inputs:
                input_.let_idle(now)
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
        """Give the time after which a channel is idle if it stays without rows; None: never."""
        times = [input_.next_idle() for input_ in self._inputs]
        return min((time for time in times if time is not None), default=None)

    def explain(self) -> list[Explanation]:
        """Tell of each input who holds its watermark back."""
        return [input_.valve.explain() for input_ in self._inputs]

    def follow(self, watermark: int) -> int:
        """Take a watermark that somebody else makes; it never falls."""
        self.watermark = max(self.watermark, watermark)
        return self.watermark

    def finish(self) -> int:
        """End of a bounded input: no row will ever come."""
        self.watermark = MAX_WATERMARK
        return self.watermark

    # The checkpoint's view (see `CheckpointedPart`): always the whole, one row for each channel.

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
        """Give the clock where it has moved since the last call."""
        if self._values() == self._saved:
            return None
        self._saved = self._values()
        return self.snapshot()

    def snapshot(self) -> pa.RecordBatch:
        """Give the clock."""
        columns = zip(*self._values(), strict=True)
        arrays = [pa.array(column, f.type) for column, f in zip(columns, _SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    def replay(self, batch: pa.RecordBatch) -> None:
        """Take back what `snapshot` gave."""
        if batch.schema != _SCHEMA or not batch.num_rows:
            raise ValueError(f"a chunk of kind {CLOCK} is no clock: {batch.schema}")
        rows = batch.to_pylist()
        self.late_rows, self.wake_up = rows[0]["late_rows"], rows[0]["wake_up"]
        self._run = rows[0]["run"]
        channels = [row for row in rows if row["input"] is not None]
        for number in sorted({row["input"] for row in channels}):
            if not 0 <= number < len(self._inputs):
                raise ValueError(
                    f"the checkpoint's query has an input {number}, this one has {len(self._inputs)}; "
                    "start a new checkpoint"
                )
            self._inputs[number].restore([row for row in channels if row["input"] == number])
        self._combine()
        self.watermark = max(self.watermark, rows[0]["watermark"])
        self._saved = self._values()

    def nbytes(self) -> int:
        """Give nothing: a clock is always written anew."""
        return 0
