"""Watermark generators: Flink's, and the base class of custom ones."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn, Self

import numpy as np

from timerheap._arguments import int64, not_negative
from timerheap.errors import ArgumentTypeError
from timerheap.timer import MIN_WATERMARK
from timerheap.watermarks.output import WatermarkOutput

_KINDS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "dict": dict}
_MISSING = object()


class WatermarkGenerator:
    """Generates the watermarks of one channel (Flink's ``WatermarkGenerator``).

    A subclass overrides either `on_event`, `on_periodic_emit` or both, as in Flink, or `on_batch`, which
    processes whole micro-batches, as on Spark. Either kind works both with single rows and with
    micro-batches.

    The attributes of a generator are its state, which Spark keeps in the checkpoint of the query; see
    `WatermarkStrategy.for_generator`.

    Raises
    ------
    ArgumentTypeError
        If a subclass overrides none of the three methods.

    Examples
    --------
    >>> class EveryFlush(WatermarkGenerator):  # punctuated: certain rows contain the watermarks
    ...     def on_event(self, event, timestamp, output):
    ...         if event == "flush":
    ...             output.emit_watermark(timestamp)
    >>> class HalfAMinute(WatermarkGenerator):  # for micro-batches
    ...     def on_batch(self, max_timestamp, count, now):
    ...         return max_timestamp - 30_000
    """

    __watermark = MIN_WATERMARK  # the highest one so far, for the methods that are not overridden

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Check that the class overrides one of the methods."""
        own = [cls.on_event, cls.on_periodic_emit, cls.on_batch]
        base = WatermarkGenerator
        if own == [base.on_event, base.on_periodic_emit, base.on_batch]:
            raise ArgumentTypeError(
                f"{cls.__name__} must override on_event and on_periodic_emit, or on_batch"
            )
        return super().__new__(cls)

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        """Process a row; may emit a watermark immediately.

        Parameters
        ----------
        event : object
            The row. On Spark there is none, and any use of `event` but ``is`` raises ArgumentTypeError.
        timestamp : int
            The event time of the row, epoch milliseconds; on Spark, the largest of the micro-batch.
        output : WatermarkOutput
        """
        if self._takes_batches():
            watermark = int64("watermark of on_batch", self.on_batch(timestamp, 1, None))
            self.__watermark = max(self.__watermark, watermark)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the current watermark; called at every interval, by default 200 ms.

        The generator may emit the same watermark again, because the operator ignores watermarks that do not
        rise.
        """
        if self._takes_batches():
            output.emit_watermark(self.__watermark)

    def on_batch(self, max_timestamp: int, count: int, now: int | None) -> int:
        """Process a micro-batch and return the watermark, in epoch ms.

        The default implementation calls `on_event` once for each row, always with the largest timestamp,
        until a call changes nothing, then `on_periodic_emit`. It returns the highest watermark emitted so
        far, or MIN_WATERMARK.

        Parameters
        ----------
        max_timestamp : int
            The largest event time of the micro-batch on this channel, epoch ms.
        count : int
            The number of rows of the micro-batch on this channel, 1 or more.
        now : int or None
            The processing time of the micro-batch, epoch ms; None if the query does not use it.
        """
        output, before = _Highest(self.__watermark), None
        for number in range(count):
            self.on_event(_NO_ROW, max_timestamp, output)
            if number < min(2, count - 1):  # if the second call changes something, all are needed
                after = _attributes(self), output.watermark
                if before == after:
                    break
                before = after
        self.on_periodic_emit(output)
        self.__watermark = output.watermark
        return self.__watermark

    def _takes_batches(self) -> bool:
        return type(self).on_batch is not WatermarkGenerator.on_batch


class _NoRow:
    """Stands for the row where a generator receives none."""

    def _refuse(self, *arguments: object) -> NoReturn:
        raise ArgumentTypeError(
            "on_event() must not use its event on Spark, where generators receive the largest timestamp and "
            "the number of rows of each micro-batch; use its timestamp, or override on_batch()"
        )

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = __contains__ = __eq__ = __ne__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __str__ = _refuse


_NO_ROW = _NoRow()


def _plain(value: Any) -> Any:
    """Return a JSON value for a number, a text or a container, which JSON shows as its kind and elements."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    kind = type(value).__name__
    if type(value) is deque:
        return [kind, value.maxlen, *map(_plain, value)]
    if type(value) is not _KINDS.get(kind):
        raise TypeError(kind)
    elements = [*map(_plain, value.items() if kind == "dict" else value)]
    return [kind, *(sorted(elements, key=json.dumps) if kind == "set" else elements)]


def _unplain(found: Any) -> Any:
    if not isinstance(found, list):
        return found
    kind, *elements = found
    if kind == "deque":
        return deque(map(_unplain, elements[1:]), elements[0])
    return _KINDS[kind](map(_unplain, elements))


def _attributes(generator: WatermarkGenerator) -> dict[str, Any]:
    """Return the attributes as text where they have a JSON value, else their ids."""
    found: dict[str, Any] = {}
    for name, value in vars(generator).items():
        try:
            found[name] = json.dumps(_plain(value))
        except TypeError:
            found[name] = _attributes(value) if isinstance(value, WatermarkGenerator) else id(value)
    return found


def changes(generator: WatermarkGenerator, new: WatermarkGenerator) -> dict[str, Any]:
    """Return the attributes in which a generator differs from a new one, as JSON values."""
    found: dict[str, Any] = {}
    for name, value in vars(generator).items():
        other = getattr(new, name, _MISSING)
        if isinstance(value, WatermarkGenerator) and type(value) is type(other):
            if inner := changes(value, other):
                found[name] = inner
        elif not _are_equal(value, other):
            try:
                found[name] = _plain(value)
            except TypeError:
                raise ArgumentTypeError(
                    f"{type(generator).__name__}.{name} must be a number, str, bool or None, or a list, "
                    "tuple, set, dict or deque of them, to be kept from one micro-batch to the next, got "
                    f"{value!r}; keep it in attributes of these types, or as an attribute of the class if it "
                    "never changes"
                ) from None
    return found


def _are_equal(value: object, other: object) -> bool:
    try:
        return value is other or (type(value) is type(other) and bool(value == other))
    except ValueError:  # an array
        return False


def change(generator: WatermarkGenerator, found: dict[str, Any]) -> None:
    """Set the attributes that `changes` returned."""
    for name, value in found.items():
        if not isinstance(value, dict):
            setattr(generator, name, _unplain(value))
        elif isinstance(inner := getattr(generator, name, None), WatermarkGenerator):
            change(inner, value)


class _Highest:
    """An output that keeps the highest watermark."""

    def __init__(self, watermark: int) -> None:
        self.watermark = watermark

    def emit_watermark(self, watermark: int, /) -> None:
        self.watermark = max(self.watermark, watermark)

    def mark_idle(self) -> None:
        """Do nothing: with micro-batches, the caller knows which channels had rows."""

    def mark_active(self) -> None:
        """Do nothing; see `mark_idle`."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Emits the largest timestamp - delay in ms - 1 periodically; Flink's class of that name."""

    def __init__(self, max_out_of_orderness: int) -> None:
        self.max_out_of_orderness = not_negative("max_out_of_orderness", max_out_of_orderness)
        self.max_timestamp = MIN_WATERMARK + max_out_of_orderness + 1  # keeps the watermark in int64

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.max_timestamp = max(self.max_timestamp, timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.max_timestamp - self.max_out_of_orderness - 1)


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Emits the largest timestamp - 1, for timestamps that never decrease; Flink's class of that name."""

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarks(WatermarkGenerator):
    """Emits no watermarks (Flink's ``NoWatermarksGenerator``)."""

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None: ...

    def on_periodic_emit(self, output: WatermarkOutput) -> None: ...
