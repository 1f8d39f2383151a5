"""Chooses where a timer queue keeps its timers."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, Literal, overload

from timerheap.flink.key_groups import KeyGroupRange
from timerheap.flink.rocksdb_queue import RocksDBTimerQueue
from timerheap.flink.timer_bytes import TypeSerializer
from timerheap.flink.timer_queue import TimerQueue
from timerheap.hashing import java_hash_code


@overload
def create_timer_queue(
    backend: Literal["heap"] = "heap",
    *,
    max_parallelism: int = 128,
    key_group_range: KeyGroupRange | None = None,
    hash_code: Callable[[Any], int] = java_hash_code,
) -> TimerQueue[Any, Any]: ...


@overload
def create_timer_queue(
    backend: Literal["rocksdb"],
    *,
    max_parallelism: int = 128,
    key_group_range: KeyGroupRange | None = None,
    hash_code: Callable[[Any], int] = java_hash_code,
    path: str | PathLike[str] | None = None,
    key_serializer: str | TypeSerializer = "any",
    namespace_serializer: str | TypeSerializer = "any",
    sync: bool = False,
) -> RocksDBTimerQueue[Any, Any]: ...


@overload
def create_timer_queue(
    backend: str,
    *,
    max_parallelism: int = 128,
    key_group_range: KeyGroupRange | None = None,
    hash_code: Callable[[Any], int] = java_hash_code,
    **rocksdb: Any,
) -> TimerQueue[Any, Any] | RocksDBTimerQueue[Any, Any]: ...


def create_timer_queue(
    backend: str = "heap",
    *,
    max_parallelism: int = 128,
    key_group_range: KeyGroupRange | None = None,
    hash_code: Callable[[Any], int] = java_hash_code,
    **rocksdb: Any,
) -> TimerQueue[Any, Any] | RocksDBTimerQueue[Any, Any]:
    """Create a timer queue in memory or on disk.

    Parameters
    ----------
    backend : {"heap", "rocksdb"}
        The storage: ``heap`` is a `TimerQueue` in memory; ``rocksdb`` is a `RocksDBTimerQueue` on disk, which
        requires the extra ``timerheap[rocksdb]``.
    max_parallelism, key_group_range, hash_code
        As in `TimerQueue`.
    path, key_serializer, namespace_serializer, sync
        As in `RocksDBTimerQueue`, for ``rocksdb`` only. The queue holds the timers stored in `path`.

    Raises
    ------
    TypeError, ValueError
        If `backend` is unknown, or an argument is invalid or not a parameter of that queue.
    ImportError
        If `backend` is ``rocksdb`` and rocksdict is not installed.
    OSError
        If `path` cannot be opened.

    Examples
    --------
    >>> create_timer_queue("heap", max_parallelism=16)
    <TimerQueue of 0 timers, head None, KeyGroupRange(start_key_group=0, end_key_group=15)>

    Keep the event-time timers of a timer service on disk, where they survive the end of the process:

    >>> import tempfile
    >>> from timerheap.flink import InternalTimerService, ManualProcessingTimeService
    >>> class Alarm:
    ...     def on_event_time(self, timer):
    ...         print(timer)
    ...     def on_processing_time(self, timer): ...
    >>> path = tempfile.mkdtemp()
    >>> with create_timer_queue("rocksdb", path=path) as queue:
    ...     service = InternalTimerService(Alarm(), ManualProcessingTimeService(), event_time_timers=queue)
    ...     service.key_context.current_key = "N14228"
    ...     service.register_event_time_timer("departure", 1_000)
    >>> with create_timer_queue("rocksdb", path=path) as queue:
    ...     service = InternalTimerService(Alarm(), ManualProcessingTimeService(), event_time_timers=queue)
    ...     service.advance_watermark(2_000)
    InternalTimer(timestamp=1000, key='N14228', namespace='departure')
    """
    if backend == "rocksdb":
        return RocksDBTimerQueue(
            max_parallelism=max_parallelism, key_group_range=key_group_range, hash_code=hash_code, **rocksdb
        )
    if backend != "heap":
        raise ValueError(f"backend must be one of heap, rocksdb, got {backend!r}")
    if rocksdb:
        raise TypeError(f"{', '.join(rocksdb)} must be used with backend 'rocksdb' only, got backend 'heap'")
    return TimerQueue(max_parallelism, key_group_range, hash_code)
