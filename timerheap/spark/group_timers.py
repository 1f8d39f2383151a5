"""`GroupTimers`: timers in the state of a function for ``applyInPandasWithState``."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import BinaryType, StructType

from timerheap.spark._stored_timers import FIELD, Heap, StoredTimers
from timerheap.timer import Timer

__all__ = ["GroupTimers"]


class GroupTimers(StoredTimers):
    """A timer heap in the state of a function for ``applyInPandasWithState``.

    Inside its ``with`` block it has all methods of `TimerHeap` (push, remove, reschedule, peek, pop,
    push_many, pop_due, ``len``, ``in`` and the rest), and `due`. Leaving the block saves the timers and sets
    the group's timeout: Spark calls again, with or without rows, in the first micro-batch whose watermark has
    reached the first timer. An exception in the block leaves the state unchanged.

    Parameters
    ----------
    state : pyspark.sql.streaming.state.GroupState
        The state that Spark passes to the function. The last field of its schema must be ``timers binary``;
        the other fields belong to the function and are available as `state`. Do not update the state or set
        the timeout yourself: leaving the block does both.
    one_timer_per_key : bool, default False
        If True, use a `KeyTimerHeap`, where a push replaces the timer of the same key_hash and namespace.

    Raises
    ------
    TypeError
        If `state` is not a GroupState, or its schema does not end in ``timers binary``.
    ValueError
        If the query has no timeouts, so that no timer would ever fire. On entering the block: if the bytes in
        the state are not such a heap.
    RuntimeError
        If timers are used outside the block, if blocks are nested, or, on leaving the block, if the state was
        updated directly.

    Notes
    -----
    A timer is due when timestamp <= watermark with ``EventTimeTimeout``, and when timestamp <= the
    micro-batch's processing time with ``ProcessingTimeTimeout``. If due timers stay in the heap, Spark calls
    again once that clock has advanced. The group is the key; key_hash and namespace distinguish its timers.

    Any state store works. Timers and state are one value, which is read and written as a whole at each call,
    with 24 bytes per timer.

    Examples
    --------
    Report planes that have not been seen for an hour:

    >>> import pandas as pd
    >>> def overdue(key, batches, state):
    ...     with GroupTimers(state, one_timer_per_key=True) as timers:
    ...         (seen,) = timers.state or (0,)
    ...         for batch in batches:
    ...             if len(batch):  # empty on a timeout
    ...                 seen = max(seen, int(batch["at"].max()))
    ...                 timers.push(seen + 3_600_000, key_hash=0)
    ...         due = timers.due()
    ...         timers.state = (seen,) if timers else None
    ...     yield pd.DataFrame({"plane": key[0], "since": due.timestamps - 3_600_000})
    >>> df.withWatermark("time", "5 minutes").groupBy("plane").applyInPandasWithState(
    ...     overdue, "plane string, since bigint", "seen bigint, timers binary", "append", "EventTimeTimeout"
    ... )  # doctest: +SKIP
    """

    def __init__(self, state: GroupState, *, one_timer_per_key: bool = False) -> None:
        super().__init__(state, one_timer_per_key)
        if not isinstance(state, GroupState):
            raise TypeError(f"state must be the GroupState that Spark hands to the function, got {state!r}")
        if state._timeout_conf == GroupStateTimeout.NoTimeout:
            raise ValueError(
                "timeoutConf must be GroupStateTimeout.EventTimeTimeout or ProcessingTimeTimeout, got "
                "NoTimeout, with which no timer would ever fire; pass one to applyInPandasWithState"
            )
        self._group = state
        self._names = _own_fields(state._value_schema)
        self._before: tuple[Any, ...] | None = None
        self._state: tuple[Any, ...] | None = None

    @property
    def state(self) -> tuple[Any, ...] | None:
        """The values of the fields before ``timers``, as a tuple; None without state. Can be set.

        A state with only nulls counts as None. A group with neither state nor timers is removed.
        """
        self._opened()
        return self._state

    @state.setter
    def state(self, value: tuple[Any, ...] | None) -> None:
        self._opened()
        wanted = f"state must be None or a tuple ({', '.join(self._names)})"
        if value is not None and not isinstance(value, tuple | list):
            raise TypeError(f"{wanted}, got {value!r}")
        if value is not None and len(value) != len(self._names):
            raise ValueError(f"{wanted}, got {value!r}")
        self._state = _none_if_empty(value)

    def _now(self) -> int:
        if self._group._timeout_conf == GroupStateTimeout.ProcessingTimeTimeout:
            return self._group.getCurrentProcessingTimeMs()
        return self._group.getCurrentWatermarkMs()

    def _load(self) -> bytes | None:
        self._before = self._group.getOption
        if self._before is None:
            self._state = None
            return None
        self._state = _none_if_empty(self._before[:-1])
        data: bytes | None = self._before[-1]
        return data

    def _save(self, heap: Heap) -> None:
        if self._group.getOption != self._before:
            raise RuntimeError("state must not be updated inside the block; set `timers.state` instead")
        if heap or self._state is not None:
            fields = self._state or (None,) * len(self._names)
            self._group.update((*fields, heap.to_bytes() if heap else None))
        elif self._group.exists:
            self._group.remove()
        self._set_timeout(heap.peek())

    def _keep(self) -> None:
        self._set_timeout(self._first)  # each call discards the previous timeout

    def _set_timeout(self, head: Timer | None) -> None:
        group = self._group
        group._timeout_timestamp = group.NO_TIMESTAMP
        if head is None:
            return
        # Spark calls when its clock is past the timeout; a timer is due when the clock has reached it.
        timeout = head.timestamp - 1
        if group._timeout_conf == GroupStateTimeout.ProcessingTimeTimeout:
            group.setTimeoutDuration(max(timeout - self._now(), 1))
        else:
            group.setTimeoutTimestamp(max(timeout, self._now(), 1))


def _own_fields(schema: StructType) -> list[str]:
    if schema.names[-1:] != [FIELD] or not isinstance(schema.fields[-1].dataType, BinaryType):
        raise TypeError(
            f"stateStructType must end in a field '{FIELD} binary', which stores the timers, "
            f"got {schema.simpleString()}"
        )
    return schema.names[:-1]


def _none_if_empty(state: tuple[Any, ...] | list[Any] | None) -> tuple[Any, ...] | None:
    return None if state is None or all(value is None for value in state) else tuple(state)
