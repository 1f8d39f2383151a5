"""What a KeyedProcessFunction must yield, found the slow way: dicts, a set of timers, one loop.

Written from Flink's rules and DESIGN.md alone: it shares no code with what it judges.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from timerheap import KeyedProcessFunction, TimeDomain

NO_WATERMARK = -(2**63)
END = 2**63 - 1


class _State:
    def __init__(self, reference: Reference, empty: Any) -> None:
        self._reference = reference
        self._contents: dict[Any, Any] = {}
        self._empty = empty

    def _get(self) -> Any:
        return self._contents.get(self._reference.key, copy.copy(self._empty))

    def _set(self, contents: Any) -> None:
        self._contents[self._reference.key] = contents

    def clear(self) -> None:
        self._contents.pop(self._reference.key, None)


class _Value(_State):
    def value(self) -> Any:
        return copy.deepcopy(self._get())

    def update(self, value: Any) -> None:
        self._set(copy.deepcopy(value))


class _List(_State):
    def get(self) -> Iterator[Any]:
        return iter(list(self._get()))

    __iter__ = get

    def add(self, value: Any) -> None:
        self._set([*self._get(), value])

    def add_all(self, values: Iterable[Any]) -> None:
        self._set([*self._get(), *values])

    def update(self, values: Iterable[Any]) -> None:
        self._set(list(values))


class _Map(_State):
    def get(self, key: Any) -> Any:
        return self._get().get(key)

    def put(self, key: Any, value: Any) -> None:
        self._set({**self._get(), key: value})

    def put_all(self, entries: dict[Any, Any]) -> None:
        self._set({**self._get(), **entries})

    def remove(self, key: Any) -> None:
        self._set({k: v for k, v in self._get().items() if k != key})

    def contains(self, key: Any) -> bool:
        return key in self._get()

    def is_empty(self) -> bool:
        return not self._get()

    def keys(self) -> Iterator[Any]:
        return iter(list(self._get()))

    def values(self) -> Iterator[Any]:
        return iter(list(self._get().values()))

    def items(self) -> Iterator[Any]:
        return iter(list(self._get().items()))

    __iter__, __getitem__, __setitem__, __delitem__, __contains__ = keys, get, put, remove, contains


class Reference:
    """One function and its whole state; it is its own context, timer service and runtime context.

    Watermarks are bounded out-of-orderness with `delay`.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        key: str | Sequence[str],
        event_time: str,
        delay: int,
        order: str,
    ) -> None:
        self._function = function
        self._key_of = key
        self._event_time = event_time
        self._delay = delay
        self._order = order
        self._timers: set[tuple[int, Any]] = set()
        self._waiting: list[Any] = []
        self._newest = NO_WATERMARK
        self.watermark = NO_WATERMARK
        self.key: Any = None
        self.at = 0
        self.output: list[tuple[Any, ...]] = []
        function.open(self)

    # What the function sees.

    def get_state(self, descriptor: Any) -> _Value:
        return _Value(self, None)

    def get_list_state(self, descriptor: Any) -> _List:
        return _List(self, [])

    def get_map_state(self, descriptor: Any) -> _Map:
        return _Map(self, {})

    def get_current_key(self) -> Any:
        return self.key

    def timestamp(self) -> int:
        return self.at

    def time_domain(self) -> TimeDomain:
        return TimeDomain.EVENT_TIME

    def timer_service(self) -> Reference:
        return self

    def current_watermark(self) -> int:
        return self.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._timers.add((timestamp, self.key))

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._timers.discard((timestamp, self.key))

    # What drives it: whole micro-batches, each a list of Rows.

    def run(self, batches: Iterable[Sequence[Any]], ends: bool = False) -> list[tuple[Any, ...]]:
        """Process micro-batches and return the sorted output; `ends` if the only batch is a bounded input."""
        for batch in batches:
            self._arrive(batch, ends)
        return sorted(self.output, key=repr)

    def _arrive(self, batch: Sequence[Any], ends: bool) -> None:
        """Process all rows of a batch, or let them wait, and then advance the watermark."""
        if self._order == "event_time":
            self._waiting += [row for row in batch if row[self._event_time] > self.watermark]
        else:
            for row in batch:
                self._process(row)
        self._newest = max([self._newest, *(row[self._event_time] for row in batch)])
        if batch:
            self._advance(END if ends else max(self.watermark, self._newest - self._delay - 1))

    def _advance(self, watermark: int) -> None:
        if self._order == "arrival":
            self._fire(watermark)
            return
        due = [row for row in self._waiting if row[self._event_time] <= watermark]
        self._waiting = [row for row in self._waiting if row[self._event_time] > watermark]
        for row in sorted(due, key=lambda row: row[self._event_time]):
            self._step_to(row[self._event_time] - 1)
            self._process(row)
        self._step_to(watermark)

    def _step_to(self, watermark: int) -> None:
        """Fire with the watermark at each timer's own timestamp."""
        while due := [timer for timer in self._timers if timer[0] <= watermark]:
            self._fire(max(min(timestamp for timestamp, _ in due), self.watermark))
        self.watermark = max(self.watermark, watermark)

    def _fire(self, watermark: int) -> None:
        self.watermark = max(self.watermark, watermark)
        while due := [timer for timer in self._timers if timer[0] <= watermark]:
            timer = min(due, key=lambda timer: timer[0])
            self._timers.remove(timer)
            self.at, self.key = timer
            self.output += self._function.on_timer(self.at, self) or ()

    def _process(self, row: Any) -> None:
        single = isinstance(self._key_of, str)
        self.key = row[self._key_of] if single else tuple(row[name] for name in self._key_of)
        self.at = row[self._event_time]
        self.output += self._function.process_element(row, self) or ()
