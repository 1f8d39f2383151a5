"""The watermark of a key group, with the channels that it is made of, and which rows are late."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.errors import CheckpointMismatchError, DamagedCheckpointError
from timerheap.spark._group.stored.watermark_bytes import (
    InputWatermark,
    StoredWatermark,
    decode_watermark,
    encode_watermark,
)
from timerheap.spark._observed import EARLIER, input_of, is_newest
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks import WatermarkGenerator, WatermarkStatus, WatermarkStrategy
from timerheap.watermarks.generators import change, changes
from timerheap.watermarks.strategy import MAX_AHEAD
from timerheap.watermarks.valve import ChannelValve, Explanation, combined

_NEVER = MIN_WATERMARK  # the time of activity of a channel without a clock
_FEW = 100  # channels of an input whose watermarks are metrics
_REPEATED = "repeated"  # begins the run of a micro-batch that an earlier run has begun


def repeated_run(mark: str | None, batch: int) -> str | None:
    """Return the run of a micro-batch if `mark` says that an earlier run has begun it, else None.

    The mark is its number, and "begins" if the earlier run began with it. The time without rows then begins
    again; else it goes on, so that the clock advances the watermark as in the first attempt.
    """
    number, _, begins = (mark or "").partition(" ")
    if number != str(batch):
        return None
    return f"{_REPEATED} {batch}" if begins else _REPEATED


class InputChannels:
    """The channels of one input in a watermark valve, by number; channels are the values of `column`.

    The attribute `column` may be that of the checkpoint, and not the query's.
    """

    def __init__(self, strategy: WatermarkStrategy, column: str | None) -> None:
        self._strategy = strategy
        self._column = column
        # Whether times of more than a day ahead of the clock do not count, since there is no other limit.
        self.guarded = strategy.max_ahead is None
        self.timed = (strategy.idle_timeout, strategy.wall_clock) != (None, None)  # activity is stored
        self._begun_at = self._since = _NEVER
        self._forget()

    def _forget(self) -> None:
        self.column = self._column
        self.valve = ChannelValve()
        self._numbers: dict[str | None, int] = {}
        self._generators = _Generators(self._strategy)
        self._max_timestamps = np.empty(0, np.int64)
        self._active_at = np.empty(0, np.int64)
        self.has_new = False

    def _quiet_since(self, drained: bool) -> np.ndarray:
        """Return since when each channel, or an input without channels, has had no rows; or `_NEVER`."""
        # The time before this run counts only if the sources are `drained`.
        first = self._since if drained else self._begun_at
        return np.maximum(self._active_at, first) if self._numbers else np.array([first])

    def switch(self) -> str | None:
        """Drop the checkpoint's channels if they are of another column; return a notice for the user."""
        if self.column == self._column:
            return None
        was, now = _describe(self.column), _describe(self._column)
        self._forget()
        return f"the checkpoint's watermark was made {was}, and the query's is made {now}"

    def activate(self, names: list[str | None], at: int | None) -> np.ndarray:
        """Record that these channels have rows `at` a time, add new ones, and return the numbers of all."""
        numbers = self._numbers
        if new := [name for name in names if name not in numbers]:
            numbers.update(zip(new, range(len(numbers), len(numbers) + len(new)), strict=True))
            self.valve.add_channels(new)
            self.has_new = True
            self._max_timestamps = np.append(self._max_timestamps, np.full(len(new), MIN_WATERMARK))
            self._active_at = np.append(self._active_at, np.full(len(new), _NEVER))
        channels = np.array([numbers[name] for name in names], np.int64)
        self._active_at[channels] = _NEVER if at is None else at
        self.valve.activate(channels)
        return channels

    def observe(
        self, channels: np.ndarray, max_timestamps: np.ndarray, counts: np.ndarray, now: int | None
    ) -> None:
        """Advance the watermarks of active channels by the rows of a micro-batch.

        The lowest watermark counts first, so that a channel that has to catch up is compared with the
        watermark before the micro-batch. The arrays, int64 and of shape (n,), are distinct channels with
        their largest timestamps and numbers of rows in the micro-batch.
        """
        before = self._max_timestamps[channels]
        watermarks = self._generators.watermarks(channels, before, max_timestamps, counts, now)
        self._max_timestamps[channels] = np.maximum(before, max_timestamps)
        self.valve.input_watermarks(watermarks, channels)

    def deactivate(self, names: Iterable[str]) -> None:
        """Mark those channels as idle that the input has."""
        _, active = self.valve.columns()
        for name in names:
            channel = self._numbers.get(name)
            if channel is not None and active[channel]:
                self.valve.deactivate(channel)

    def begin_run(self, now: int | None) -> None:
        """Begin the time without rows of all channels at `now`."""
        if now is not None:
            self._begun_at = now
            self._since = now if self._since == _NEVER else self._since

    def mark_idle(self, now: int, drained: bool) -> None:
        """Mark channels, or an input without channels, as idle after the idle timeout without rows."""
        timeout = self._strategy.idle_timeout
        if timeout is None:
            return
        since = self._quiet_since(drained)
        for channel in np.flatnonzero(self._may_idle(since) & (since < now - timeout)).tolist():
            if self._numbers:
                self.valve.deactivate(channel)
            else:
                self.valve.mark_idle()

    def _may_idle(self, since: np.ndarray) -> np.ndarray:
        _, active = self.valve.columns()
        if not self._numbers:
            active = np.array([self.valve.status is WatermarkStatus.ACTIVE])
        may: np.ndarray = active & (since != _NEVER)
        return may

    def follow_clock(self, now: int, drained: bool) -> None:
        if self._strategy.wall_clock is None:
            return
        after, lag = self._strategy.wall_clock
        since = self._quiet_since(drained)
        quiet = (since != _NEVER) & (since <= now - after)
        if self._numbers:
            channels = np.flatnonzero(quiet)
            self.valve.input_watermarks(np.full(len(channels), now - lag), channels)
        if quiet.all() and (not self._numbers or self.valve.status is WatermarkStatus.IDLE):
            self.valve.emit(now - lag)

    def next_change(self) -> int | None:
        """Return the time after which the clock alone may change a channel; None: never."""
        times, since = [], self._quiet_since(drained=True)
        if self._strategy.idle_timeout is not None:
            times.append((since[self._may_idle(since)], self._strategy.idle_timeout))
        if self._strategy.wall_clock is not None:
            after, _ = self._strategy.wall_clock
            times.append((since[since != _NEVER], after - 1))
        return min((int(since.min()) + wait for since, wait in times if len(since)), default=None)

    def newest(self) -> int:
        """Return the largest timestamp of all channels, MIN_WATERMARK if there is none."""
        return int(self._max_timestamps.max(initial=MIN_WATERMARK))

    def stored(self) -> InputWatermark:
        """Return what a load needs."""
        watermarks, active = self.valve.columns()
        every = watermarks, self._max_timestamps, active, self._active_at
        marks, newest, active, active_at = (column.copy() for column in every)
        names, idle = list(self._numbers), self.valve.status is WatermarkStatus.IDLE
        columns = names, marks, newest, active, active_at
        begun = self._begun_at, idle, self._since
        return InputWatermark(self.column, self.valve.watermark, *columns, *begun, self._generators.state())

    def restore(self, stored: InputWatermark) -> None:
        n = len(stored.names)
        self.column = stored.column if n else self._column
        self._begun_at, self._since = stored.begun_at, stored.since
        self._numbers = dict(zip(stored.names, range(n), strict=True))
        if len(self._numbers) != n:
            raise DamagedCheckpointError("the watermark's state has two channels of one name")
        self._generators = _Generators(self._strategy, stored.generators)
        self._max_timestamps = stored.max_timestamps.copy()
        self._active_at = stored.active_at.copy()
        self.valve = ChannelValve()
        self.valve.restore(stored.watermark, stored.names, stored.watermarks, stored.active)
        if not n and stored.idle:
            self.valve.mark_idle()


class _Generators:
    """The generators of channels: a delay for all of them, or one for each, made when it is first used.

    `state` is what the method of that name returned before, also with another strategy.
    """

    def __init__(self, strategy: WatermarkStrategy, state: str | None = None) -> None:
        self._strategy = strategy
        self._of_channels: dict[int, WatermarkGenerator] = {}
        self._kept: dict[int, dict[str, Any]] = {}  # what a generator differs in from a new one, by channel
        if state is not None and strategy._delay is None:
            try:
                class_, *channels = json.loads(state)
                kept = {int(channel): dict(found) for channel, found in channels}
            except (TypeError, ValueError) as e:
                raise DamagedCheckpointError(
                    f"the watermark's state has no state of generators: {e}"
                ) from None
            self._kept = kept if class_ == self._class() else {}

    def _class(self) -> str:
        return type(self._strategy.create_watermark_generator()).__name__

    def state(self) -> str | None:
        """Return the state of the generators, None for none; equal states, equal texts."""
        if self._of_channels:
            new = self._strategy.create_watermark_generator()
            self._kept |= {channel: changes(each, new) for channel, each in self._of_channels.items()}
        if not self._kept:
            return None
        return json.dumps([self._class(), *sorted(self._kept.items())], sort_keys=True)

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
        if delay is not None:
            furthest: np.ndarray = np.maximum(np.maximum(before, max_timestamps), MIN_WATERMARK + delay + 1)
            return furthest - delay - 1
        rows = zip(*(c.tolist() for c in (channels, before, max_timestamps, counts)), strict=True)
        marks = [self._generator(at, first).on_batch(most, count, now) for at, first, most, count in rows]
        return np.array(marks, np.int64)

    def _generator(self, channel: int, before: int) -> WatermarkGenerator:
        generator = self._of_channels.get(channel)
        if generator is None:
            generator = self._of_channels[channel] = self._strategy.create_watermark_generator()
            if channel in self._kept:
                change(generator, self._kept[channel])
            elif before > MIN_WATERMARK:
                generator.on_batch(before, 1, None)
        return generator


def _describe(column: str | None) -> str:
    return "over all rows" if column is None else f"by column {column!r}"


class WatermarkState:
    """The watermark of a key group and the state of its channels.

    Every key group observes the rows of all channels, so all key groups have the same watermark. There is a
    strategy and a channel column, or None, for each input.
    """

    def __init__(self, strategies: tuple[WatermarkStrategy, ...], columns: tuple[str | None, ...]) -> None:
        self.notices: set[str] = set()  # for the user, about the restored checkpoint
        self.watermark = MIN_WATERMARK
        self.ahead: tuple[str | None, int] | None = None  # a channel and time too far ahead, of `observe`
        self._run: str | None = None
        self._inputs = [InputChannels(*pair) for pair in zip(strategies, columns, strict=True)]
        self._own = [each for each, one in zip(self._inputs, strategies, strict=True) if one._is_own]
        follows = any(strategy._follows is not None for strategy in strategies)
        self._limit = MIN_WATERMARK if follows else None  # the watermark of the operators before the query

    @property
    def has_new_channels(self) -> bool:
        return any(input_.has_new for input_ in self._inputs)

    def observe(
        self,
        observed: pa.Table,
        now: int | None,
        run: str | None,
        at: int | None = None,
        drained: bool = False,
        limit: int | None = None,
    ) -> int:
        """Advance the watermark by the rows of a micro-batch and return it.

        The watermark never falls. New and returning channels become active before any watermark advances, so
        that within a micro-batch no channel overtakes another; channels become idle, or follow the clock,
        last. If the query has another channel column than the checkpoint, the old channels count until the
        input has rows and are then dropped.

        `observed` has the count and the largest timestamp of the rows of each channel. The time of the
        micro-batch, epoch ms, is `now` in a query with a clock, else `at`, when a task of it ran.

        A query that follows other operators never passes their watermark, the `limit`; without one it stays.

        The time between two runs counts as time without rows only in a micro-batch that is `drained`: the run
        before it has read all rows that there were. Otherwise some may still have to be read. A micro-batch
        that is repeated, see `repeated_run`, belongs to the run before.
        """
        at = at if now is None else now
        if self._limit is not None and limit is not None:
            self._limit = limit
        observed = self._timely(observed, at)
        if not drained:
            follows_repeated = self._run is not None and self._run.startswith(_REPEATED)
            if follows_repeated or run not in (self._run, _REPEATED):
                for input_ in self._inputs:
                    input_.begin_run(now)
            self._run = run
        inputs = observed.column("input").to_numpy()
        self._switch(set(inputs.tolist()))
        names = observed.column("channel").to_pylist()
        channels = np.empty(len(names), np.int64)  # the number of each row's in its input
        for number, input_ in enumerate(self._inputs):
            rows = np.flatnonzero(inputs == number)
            channels[rows] = input_.activate([names[row] for row in rows.tolist()], at)
        self._combine()  # before any advances, so that within a micro-batch none overtakes another
        timed = observed.column("max_timestamp").is_valid().to_numpy()
        max_timestamps = observed.column("max_timestamp").fill_null(0).to_numpy()
        counts = observed.column("count").to_numpy()
        for number, input_ in enumerate(self._inputs):
            rows = np.flatnonzero(timed & (inputs == number))
            input_.observe(channels[rows], max_timestamps[rows], counts[rows], now)
        self._combine()
        return self._follow_clock(now, drained)

    def _follow_clock(self, now: int | None, drained: bool = False) -> int:
        """Mark inputs as idle, or advance them to the clock; last, since those with rows are not idle."""
        if now is not None:
            for input_ in self._inputs:
                input_.mark_idle(now, drained)
                input_.follow_clock(now, drained)
            self._combine()
        return self.watermark

    def observe_channels(
        self, seen: Sequence[Mapping[str, tuple[int, int]]], now: int | None, run: str | None, at: int
    ) -> int:
        """Advance the watermark as `observe` does, at a fraction of its cost.

        A channel belongs to one input: to each that it is seen in, until it has a timestamp in one of them.

        seen: for each input, the largest timestamp, none of which is too far ahead, and the number of rows of
            each channel; a timestamp of MIN_WATERMARK only makes the channel known
        """
        if run != self._run:
            self._run = run
            for input_ in self._inputs:
                input_.begin_run(now)
        found = [(number, each) for number, each in enumerate(seen) if each]
        if not found:
            return self._follow_clock(now)
        self._switch({number for number, _ in found})
        channels = [self._inputs[n].activate(list(each), at if now is None else now) for n, each in found]
        self._combine()
        for (number, each), at_channels in zip(found, channels, strict=True):
            newest, counts = np.array(list(each.values()), np.int64).T
            timed = newest > MIN_WATERMARK
            if timed.any():
                self._inputs[number].observe(at_channels[timed], newest[timed], counts[timed], now)
                for other in self._inputs:
                    if other is not self._inputs[number]:
                        other.deactivate(compress(each, timed))
        self._combine()
        return self._follow_clock(now)

    def _timely(self, observed: pa.Table, at: int | None) -> pa.Table:
        """Return what was observed of each channel, without the times that are too far ahead of the clock."""
        self.ahead = None
        about = observed.column("input").to_numpy()
        times = observed.column("max_timestamp").fill_null(MIN_WATERMARK).to_numpy()
        newest = is_newest(about)
        of_channels = observed if newest.all() else observed.filter(pa.array(newest))
        if at is None:
            return of_channels
        guarded = np.array([input_.guarded for input_ in self._inputs])[input_of(about)]
        ahead = guarded & (times > at + MAX_AHEAD)
        if not ahead[newest].any():
            return of_channels
        found = observed.set_column(
            2, "max_timestamp", pa.array(times, mask=ahead | (times == MIN_WATERMARK))
        )
        rest = found.filter(pa.array(~newest)).to_pylist()
        earlier = {(row["input"] - EARLIER, row["channel"]): row["max_timestamp"] for row in rest}
        rows = found.filter(pa.array(newest)).to_pylist()
        for row in compress(rows, ahead[newest]):
            row["max_timestamp"] = earlier.get((row["input"], row["channel"]))
        furthest = int(np.where(ahead, times, MIN_WATERMARK).argmax())
        self.ahead = observed.column("channel")[furthest].as_py(), int(times[furthest])
        return pa.Table.from_pylist(rows, of_channels.schema)

    def _switch(self, inputs: set[int]) -> None:
        for number in inputs:
            notice = self._inputs[number].switch()
            if notice is not None:
                argument = "right.channel" if number else "channel"
                self.notices.add(f"{argument}: {notice}; it continues without the old channels")

    def _combine(self) -> None:
        """Advance to the lowest watermark of the active inputs or, without any, to the highest of all."""
        # A processor has no inputs: Spark tells it the watermark. Operators before the query are never idle.
        valves = (input_.valve for input_ in self._own)
        inputs = [(valve.watermark, valve.status is WatermarkStatus.ACTIVE) for valve in valves]
        if self._limit is not None:
            inputs.append((self._limit, True))
        self.watermark = max(self.watermark, combined(inputs))

    def next_change(self) -> int | None:
        """Return the time after which the watermark may change without rows; None: never."""
        times = [input_.next_change() for input_ in self._inputs]
        return min((time for time in times if time is not None), default=None)

    def newest(self) -> int:
        return max(input_.newest() for input_ in self._inputs)

    def channels(self) -> dict[str, int]:
        """Return the watermark of each active channel by name, of inputs that have few of them."""
        return {
            "right." * number + each.label: each.watermark
            for number, input_ in enumerate(self._inputs)
            if input_.column is not None and len(input_.valve) <= _FEW
            for each in input_.valve.explain().channels
            if each.status is WatermarkStatus.ACTIVE and each.watermark > MIN_WATERMARK
        }

    def explain(self) -> list[Explanation]:
        """Explain for each input which channels hold its watermark back."""
        return [input_.valve.explain() for input_ in self._inputs]

    def follow_operators(self, limit: int) -> int:
        """Advance as far as the watermark of the operators before the query allows, and return the result."""
        self._limit = limit
        self._combine()
        return self.watermark

    def follow(self, watermark: int) -> int:
        """Advance to a watermark from outside and return the result, which never falls."""
        self.watermark = max(self.watermark, watermark)
        return self.watermark

    def to_bytes(self) -> bytes:
        """Return what a load needs, for `from_bytes`; equal states, equal bytes."""
        run = self._run if any(input_.timed for input_ in self._inputs) else None
        return encode_watermark(
            StoredWatermark(self.watermark, run, [input_.stored() for input_ in self._inputs])
        )

    @classmethod
    def from_bytes(
        cls,
        data: bytes,
        strategies: tuple[WatermarkStrategy, ...],
        columns: tuple[str | None, ...],
        stale: bool = False,
    ) -> WatermarkState:
        """Return the state that `to_bytes` returned; raise a `CheckpointError` for any other bytes.

        All channels of a `stale` state, which may have had rows since, count as active and as caught up.
        """
        stored = decode_watermark(data)
        state = cls(strategies, columns)
        state._run = stored.run
        for number, input_ in enumerate(stored.inputs):
            if number >= len(strategies):
                if not input_.names:  # it had no rows
                    continue
                raise CheckpointMismatchError(
                    f"the query must have the inputs of the checkpoint, which has an input {number}, "
                    f"got {len(strategies)} inputs; start a new checkpoint"
                )
            if not strategies[number]._is_own:  # it may have been before
                continue
            if stale:
                input_.active = np.ones(len(input_.names), bool)
                input_.watermarks = np.maximum(input_.watermarks, input_.watermark)
            state._inputs[number].restore(input_)
        state._combine()
        state.watermark = max(state.watermark, stored.watermark)
        return state

    @classmethod
    def continued(
        cls, data: bytes, strategies: tuple[WatermarkStrategy, ...], columns: tuple[str | None, ...]
    ) -> WatermarkState:
        """Return the state for a new query that begins where the one ends whose state `to_bytes` returned.

        The watermark is the same until the first micro-batch, and never falls. What it is made of may differ.
        An input goes on with the channels of the stored one that has its channel column. Any other begins
        without channels, so the watermark waits for its rows, or until it is idle.
        """
        stored = decode_watermark(data)
        state = cls(strategies, columns)
        for number, before in _same_inputs(columns, [input_.column for input_ in stored.inputs]):
            if strategies[number]._is_own:
                state._inputs[number].restore(stored.inputs[before])
        state.watermark = stored.watermark
        return state


def _same_inputs(columns: Sequence[str | None], stored: Sequence[str | None]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of inputs and of the stored ones that they are, given the channel columns of both."""
    for column in dict.fromkeys(columns):
        now, before = (
            {number for number, each in enumerate(every) if each == column} for every in (columns, stored)
        )
        if len(before) <= len(now):  # otherwise nobody knows which of them is gone
            yield from zip(now & before, now & before, strict=True)
            yield from zip(sorted(now - before), sorted(before - now), strict=False)
