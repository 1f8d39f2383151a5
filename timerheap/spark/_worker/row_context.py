"""What a KeyedProcessFunction is handed on Spark: its context, its timer service and its value states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, cast

from timerheap._arguments import int64
from timerheap._native._heap import CurrentKey, RowContext, RowTimerService, RowValue
from timerheap._state_contents import Codec, KeyedContents
from timerheap._state_handles import ValueHandle
from timerheap._values import ArrowCodec
from timerheap.functions import KeyedCoProcessFunction, TimerService
from timerheap.output_tag import OutputTag
from timerheap.spark._group.journalled_timers import KeyTimers
from timerheap.spark._group.state_table import StateTable

__all__ = ["KeyTimerService", "KeyValueState", "RowFunctionContext", "no_processing_time"]


def no_processing_time() -> NoReturn:
    """Raise the error for processing time in a query without it."""
    raise RuntimeError(
        "processing_time must be True for a function that uses it, got False; processing-time timers need "
        "process(..., processing_time=True)"
    )


class RowFunctionContext(RowContext, KeyedCoProcessFunction.OnTimerContext):
    """One object for all calls, as in PyFlink; the loop sets it for each row and timer.

    Attributes
    ----------
    send : callable
        Receives the values of side outputs.
    """

    send: Callable[[OutputTag, Any], None]

    def output(self, tag: OutputTag, value: Any) -> None:
        """See `timerheap.KeyedProcessFunction.Context`."""
        self.send(tag, value)

    def set_output_timestamp(self, timestamp: int | None) -> None:
        """See `timerheap.KeyedProcessFunction.Context`."""
        if timestamp is not None:
            int64("timestamp", timestamp)


class KeyTimerService(RowTimerService, TimerService):
    """The timer service of the current key of a key group."""

    _domains: tuple[KeyTimers, KeyTimers]

    def bind_group(self, event: KeyTimers, processing: KeyTimers, watermark: int, now: int | None) -> None:
        """Use these timers from now on; `now` is the processing time, or None in a query without it."""
        self._domains = event, processing
        self.bind(event, processing, watermark, now)

    def event_time_timers(self) -> list[int]:
        """See `timerheap.TimerService`."""
        return self._domains[0].timestamps()

    def processing_time_timers(self) -> list[int]:
        """See `timerheap.TimerService`."""
        return self._domains[1].timestamps()

    def next_event_time_timer(self) -> int | None:
        """See `timerheap.TimerService`."""
        return next(iter(self.event_time_timers()), None)

    def next_processing_time_timer(self) -> int | None:
        """See `timerheap.TimerService`."""
        return next(iter(self.processing_time_timers()), None)

    def delete_all_timers(self) -> int:
        """See `timerheap.TimerService`."""
        return sum(timers.delete_all() for timers in self._domains)

    def _no_processing_time(self) -> NoReturn:
        no_processing_time()


class KeyValueState(RowValue, ValueHandle):
    """The `ValueState` of the current key of a key group."""

    _codec: ArrowCodec
    _contents: KeyedContents

    def __init__(self, contents: KeyedContents, name: str, codecs: Sequence[Codec]) -> None:
        ValueHandle.__init__(self, contents, name, codecs)
        assert isinstance(contents.keys, CurrentKey)
        RowValue.__init__(self, contents.keys, self._codec, *self._codec.exact, contents.key)

    def bind_table(self) -> StateTable | None:
        """Use the table of the contents from now on; return it if its values are in native cells."""
        table: StateTable = self._contents.table
        cells = table.cells(cast(CurrentKey, self._contents.keys).numbers)
        self.bind(table, *table.at_hand(), cells)
        return None if cells is None else table
