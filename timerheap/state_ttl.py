"""The time to live of keyed state, with PyFlink's names."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Self, TypeVar

from timerheap._arguments import Length, positive, positive_int
from timerheap.errors import ArgumentTypeError

E = TypeVar("E", bound=Enum)


class _UpdateType(Enum):
    Disabled = 0
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class _StateVisibility(Enum):
    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


class _TtlTimeCharacteristic(Enum):
    ProcessingTime = 0
    EventTime = 1


class StateTtlConfig:
    """The time to live of a state, for ``descriptor.enable_time_to_live(config)``.

    A value, each element of a list and each entry of a map has a time of its own. It expires when `ttl` has
    passed since it was written or, with ``OnReadAndWrite``, read, and a timer on the heap removes it then.
    The accumulator of a reducing or aggregating state counts as one value.

    ``TtlTimeCharacteristic.ProcessingTime`` is the time of the micro-batch, and needs
    ``processing_time=True`` on a stream; in a batch DataFrame it does not advance, and nothing expires.
    ``EventTime``, which PyFlink does not have, is the time of the row or timer that is processed, but at
    least the watermark.

    Notes
    -----
    PyFlink: ``pyflink.datastream.state.StateTtlConfig``.

    Examples
    --------
    >>> from timerheap import Time, Types, ValueStateDescriptor
    >>> config = (
    ...     StateTtlConfig.new_builder(Time.hours(1))
    ...     .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
    ...     .never_return_expired()
    ...     .build()
    ... )
    >>> descriptor = ValueStateDescriptor("last", Types.LONG())
    >>> descriptor.enable_time_to_live(config)
    """

    UpdateType = _UpdateType
    StateVisibility = _StateVisibility
    TtlTimeCharacteristic = _TtlTimeCharacteristic

    def __init__(
        self,
        update_type: _UpdateType,
        state_visibility: _StateVisibility,
        ttl_time_characteristic: _TtlTimeCharacteristic,
        ttl: Length,
    ) -> None:
        self._update_type = _member("update_type", update_type, _UpdateType)
        self._state_visibility = _member("state_visibility", state_visibility, _StateVisibility)
        self._characteristic = _member(
            "ttl_time_characteristic", ttl_time_characteristic, _TtlTimeCharacteristic
        )
        self._ttl = positive("ttl", ttl)

    @staticmethod
    def new_builder(ttl: Length) -> StateTtlConfig.Builder:
        """Return a builder; `ttl` is a duration of more than 0 ms."""
        return StateTtlConfig.Builder(ttl)

    def get_update_type(self) -> _UpdateType:
        """Return what prolongs the time to live."""
        return self._update_type

    def get_state_visibility(self) -> _StateVisibility:
        """Return whether expired state that has not been removed is returned."""
        return self._state_visibility

    def get_ttl_time_characteristic(self) -> _TtlTimeCharacteristic:
        """Return the clock of the time to live."""
        return self._characteristic

    def get_ttl(self) -> timedelta:
        """Return the time to live, or the longest timedelta if it is longer."""
        longest = timedelta.max // timedelta(milliseconds=1)
        return timedelta(milliseconds=min(self._ttl, longest))

    def is_enabled(self) -> bool:
        """Return whether state expires."""
        return self._update_type is not _UpdateType.Disabled

    def __repr__(self) -> str:
        return (
            f"StateTtlConfig({self._update_type.name}, {self._state_visibility.name}, "
            f"{self._characteristic.name}, {self._ttl} ms)"
        )

    class Builder:
        """Builds a `StateTtlConfig`.

        By default a write prolongs the time to live, expired state is never returned, and the clock is
        processing time. The cleanup strategies of Flink's backends are accepted and have no effect, because
        a timer removes state when it expires.
        """

        def __init__(self, ttl: Length) -> None:
            positive("ttl", ttl)
            self._ttl = ttl
            self._update_type = _UpdateType.OnCreateAndWrite
            self._state_visibility = _StateVisibility.NeverReturnExpired
            self._characteristic = _TtlTimeCharacteristic.ProcessingTime

        def set_update_type(self, update_type: _UpdateType) -> Self:
            """Set what prolongs the time to live."""
            self._update_type = _member("update_type", update_type, _UpdateType)
            return self

        def update_ttl_on_create_and_write(self) -> Self:
            """Let writes prolong the time to live."""
            return self.set_update_type(_UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> Self:
            """Let reads and writes prolong the time to live."""
            return self.set_update_type(_UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: _StateVisibility) -> Self:
            """Set whether expired state that has not been removed is returned."""
            self._state_visibility = _member("state_visibility", state_visibility, _StateVisibility)
            return self

        def return_expired_if_not_cleaned_up(self) -> Self:
            """Have expired state returned until it is removed."""
            return self.set_state_visibility(_StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> Self:
            """Have expired state never returned."""
            return self.set_state_visibility(_StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(self, ttl_time_characteristic: _TtlTimeCharacteristic) -> Self:
            """Set the clock of the time to live."""
            self._characteristic = _member(
                "ttl_time_characteristic", ttl_time_characteristic, _TtlTimeCharacteristic
            )
            return self

        def use_processing_time(self) -> Self:
            """Have the time to live follow processing time."""
            return self.set_ttl_time_characteristic(_TtlTimeCharacteristic.ProcessingTime)

        def cleanup_full_snapshot(self) -> Self:
            """Return the builder; a timer removes expired state."""
            return self

        disable_cleanup_in_background = cleanup_full_snapshot

        def cleanup_incrementally(self, cleanup_size: int, run_cleanup_for_every_record: bool) -> Self:
            """Return the builder; a timer removes expired state."""
            positive_int("cleanup_size", cleanup_size)
            return self

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int, periodic_compaction_time: object = None
        ) -> Self:
            """Return the builder; a timer removes expired state."""
            return self

        def set_ttl(self, ttl: Length) -> Self:
            """Set the time to live."""
            positive("ttl", ttl)
            self._ttl = ttl
            return self

        def build(self) -> StateTtlConfig:
            """Return the configuration."""
            return StateTtlConfig(self._update_type, self._state_visibility, self._characteristic, self._ttl)


def _member(argument: str, value: E, class_: type[E]) -> E:
    if not isinstance(value, class_):
        raise ArgumentTypeError(f"{argument} must be a StateTtlConfig.{class_.__name__[1:]}, got {value!r}")
    return value
