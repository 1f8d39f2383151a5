"""Processing time: what time it is, and callbacks when a time has come.

`SystemProcessingTimeService` follows the machine's clock, `ManualProcessingTimeService` is told the time.
Both are Flink's ``ProcessingTimeService``: alive, then perhaps quiesced, then shut down.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from operator import index
from types import TracebackType
from typing import Protocol

from timerheap._arguments import int64, positive_int
from timerheap._native._heap import TimerHeap
from timerheap.timer import MAX_WATERMARK

__all__ = [
    "ManualProcessingTimeService",
    "ProcessingTimeCallback",
    "ProcessingTimeService",
    "SystemProcessingTimeService",
]

ProcessingTimeCallback = Callable[[int], object]
"""Called with the timestamp it was scheduled for, epoch milliseconds, whatever the time is by then."""

_LONGEST_WAIT = 60.0  # seconds, after which a clock that was set, or slept, is noticed
_log = logging.getLogger(__name__)


class Cancellable(Protocol):
    """A callback that is still to come."""

    def cancel(self) -> bool:
        """Give the callback up; False if it is too late for that."""


class ProcessingTimeService(Protocol):
    """What a timer service asks of a clock."""

    def get_current_processing_time(self) -> int:
        """Return the time, epoch milliseconds."""

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> Cancellable:
        """Have ``callback(timestamp)`` called once, when `timestamp` has come."""

    def is_terminated(self) -> bool:
        """Tell whether the service is shut down, and so takes no more callbacks."""


class _Status(enum.Enum):
    ALIVE = enum.auto()
    QUIESCED = enum.auto()
    SHUT_DOWN = enum.auto()


class _Task(Future[None]):
    """A callback, when it is due, and the future that the caller is given."""

    def __init__(
        self,
        service: _SchedulingService,
        callback: ProcessingTimeCallback,
        timestamp: int,
        period: int | None = None,
    ) -> None:
        if not callable(callback):
            raise TypeError(f"callback must be callable, got {callback!r}")
        super().__init__()
        self.service = service
        self.callback = callback
        self.timestamp = timestamp
        self.period = period
        self.due = self.id = 0

    def cancel(self) -> bool:
        """Give the callback up unless it has begun, and let go of its place."""
        cancelled = super().cancel()
        if cancelled:
            self.service._discard(self)
        return cancelled


class _SchedulingService(ABC):
    """The callbacks that are to come, whatever makes the time go by."""

    def __init__(self) -> None:
        self._status = _Status.ALIVE
        self._changed = threading.Condition()  # guards all below, and is never held while a callback runs
        self._heap = TimerHeap()  # of (due, task's id)
        self._tasks: dict[int, _Task] = {}
        self._last_id = 0

    @abstractmethod
    def get_current_processing_time(self) -> int:
        """Return the time, epoch milliseconds."""

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> Future[None]:
        """Have ``callback(timestamp)`` called once, when `timestamp` has come: the class says when that is.

        Parameters
        ----------
        timestamp : int
            Epoch milliseconds, int64.
        callback : callable
            Takes `timestamp`, not the time at which it is called.

        Returns
        -------
        concurrent.futures.Future
            Done when the callback has returned (None) or raised (its exception); ``cancel()`` gives the
            callback up while it has not begun. Once the service is quiesced, a future that is never done.

        Raises
        ------
        TypeError, OverflowError
            If `timestamp` is no int64, or `callback` cannot be called.
        RuntimeError
            If the service is shut down.

        Notes
        -----
        Callbacks due at one millisecond are called in the order of registration. O(log n), as is
        ``cancel()``.
        """
        task = _Task(self, callback, int64("timestamp", timestamp))
        return self._schedule(task, self._due(task.timestamp))

    def schedule_at_fixed_rate(
        self, callback: ProcessingTimeCallback, initial_delay: int, period: int
    ) -> Future[None]:
        """Have `callback` called after `initial_delay`, then every `period`, until its future is cancelled.

        Calls that came too late are made up for: the rate is fixed, not the pause between two calls. A
        callback that raises is called again all the same.

        Parameters
        ----------
        callback : callable
            Takes the timestamp at which it should have been called: the first is now + `initial_delay`,
            each further one `period` after the one before.
        initial_delay, period : int
            Milliseconds, 0 or more and 1 or more.

        Returns
        -------
        concurrent.futures.Future
            Never done unless it is cancelled: by its ``cancel()``, or because the service has ended or there
            is no next call before the end of time.

        Raises
        ------
        TypeError, ValueError, OverflowError
            If `callback` cannot be called, or a time is no int64 in its range.
        RuntimeError
            If the service is shut down.
        """
        if int64("initial_delay", initial_delay) < 0:
            raise ValueError(f"initial_delay must be 0 ms or more, got {initial_delay}")
        period = positive_int("period", period)
        first = self.get_current_processing_time() + index(initial_delay)
        return self._schedule(_Task(self, callback, first, period), first)

    def quiesce(self) -> Future[None]:
        """Call no further callback; give up those that wait, and take new ones without ever calling them.

        A callback that is running ends; the future of a periodic one is cancelled then.

        Returns
        -------
        concurrent.futures.Future
            Done when no callback is running any more.
        """
        self._end(_Status.QUIESCED)
        return self._quiesced()

    def shutdown_service(self) -> None:
        """Call no further callback: give up those that wait, refuse new ones, let a running one end.

        The future of a periodic callback that is running is cancelled when it ends.
        """
        self._end(_Status.SHUT_DOWN)

    def is_terminated(self) -> bool:
        """Tell whether the service is shut down."""
        return self._status is _Status.SHUT_DOWN

    @abstractmethod
    def _due(self, timestamp: int) -> int:
        """Return when a callback that is registered now for `timestamp` is due."""

    @abstractmethod
    def _quiesced(self) -> Future[None]: ...

    def _schedule(self, task: _Task, due: int) -> Future[None]:
        with self._changed:
            if self._status is _Status.SHUT_DOWN:
                raise RuntimeError("the processing-time service is shut down")
            if self._status is _Status.ALIVE:
                self._enqueue(task, due)
        return task

    def _enqueue(self, task: _Task, due: int) -> None:
        self._last_id += 1
        task.due, task.id = min(due, MAX_WATERMARK), self._last_id
        self._heap.push(task.due, task.id)
        self._tasks[task.id] = task
        if self._heap.peek() == (task.due, task.id, 0):  # else whoever waits, waits for an earlier one
            self._changed.notify_all()

    def _discard(self, task: _Task) -> None:
        with self._changed:
            if self._tasks.pop(task.id, None) is not None:
                self._heap.remove(task.due, task.id)

    def _take_due(self, now: int) -> _Task | None:
        head = self._heap.peek()
        if head is None or head.timestamp > now:
            return None
        self._heap.pop()
        return self._tasks.pop(head.key_hash)

    def _run(self, task: _Task) -> None:
        """Call a callback that has been taken out; what it raises goes into its future and to the caller."""
        if self._status is not _Status.ALIVE:
            task.cancel()
        elif task.period is None:
            if task.set_running_or_notify_cancel():
                try:
                    task.callback(task.timestamp)
                except BaseException as error:
                    task.set_exception(error)
                    raise
                task.set_result(None)
        elif not task.cancelled():
            try:
                task.callback(task.timestamp)
            finally:
                with self._changed:
                    task.timestamp += task.period
                    # Behind the end of time there is no next call.
                    later = task.due + task.period
                    goes_on = self._status is _Status.ALIVE and later <= MAX_WATERMARK
                    if goes_on and not task.cancelled():
                        self._enqueue(task, later)
                if not goes_on:
                    task.cancel()

    def _end(self, status: _Status) -> None:
        with self._changed:
            if self._status is not _Status.SHUT_DOWN:
                self._status = status
            waiting = list(self._tasks.values())
            self._tasks.clear()
            self._heap.clear()
            self._changed.notify_all()
        for task in waiting:
            task.cancel()


class SystemProcessingTimeService(_SchedulingService):
    """Processing time of the machine's clock; one thread of its own calls the callbacks, one after the other.

    A watermark T says that T is over; processing time T is over when the clock shows T + 1. So a callback is
    due 1 ms after its timestamp, and at once where that lies in the past.

    Parameters
    ----------
    error_handler : callable, optional
        Takes the exception that a callback raised, in the service's thread. By default it is logged. The
        other callbacks come all the same.

    Raises
    ------
    TypeError
        If `error_handler` cannot be called.

    Attributes
    ----------
    lock : threading.RLock
        Held while a callback runs. Hold it around whatever the callbacks touch too, such as a timer service
        and its current key: there is one operator, and one thread at a time may be in it.

    Notes
    -----
    Flink: ``SystemProcessingTimeService``, and the checkpoint lock or mailbox around its callbacks. The
    thread starts with the first callback and ends with `quiesce` or `shutdown_service`. Used in a ``with``
    statement, the service is shut down at its end.

    Examples
    --------
    >>> with SystemProcessingTimeService() as clock:
    ...     called = []
    ...     timestamp = clock.get_current_processing_time() + 5
    ...     clock.register_timer(timestamp, called.append).result()
    ...     called == [timestamp], clock.get_current_processing_time() > timestamp
    (True, True)
    """

    def __init__(self, error_handler: Callable[[BaseException], object] | None = None) -> None:
        if error_handler is not None and not callable(error_handler):
            raise TypeError(f"error_handler must be callable, got {error_handler!r}")
        super().__init__()
        self.lock = threading.RLock()
        self._error_handler = error_handler
        self._thread: threading.Thread | None = None
        self._ended: Future[None] = Future()

    def get_current_processing_time(self) -> int:
        """Return the machine's time, epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def __enter__(self) -> SystemProcessingTimeService:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown_service()
        if self._thread is not threading.current_thread():
            self._quiesced().result()

    def _due(self, timestamp: int) -> int:
        return max(timestamp + 1, self.get_current_processing_time())

    def _quiesced(self) -> Future[None]:
        with self._changed:
            if self._thread is None and not self._ended.done():
                self._ended.set_result(None)
        return self._ended

    def _enqueue(self, task: _Task, due: int) -> None:
        super()._enqueue(task, due)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="timerheap-clock", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (task := self._await_task()) is not None:
            try:
                with self.lock:
                    self._run(task)
            except BaseException as error:
                self._report(error)
        self._ended.set_result(None)

    def _await_task(self) -> _Task | None:
        with self._changed:
            while self._status is _Status.ALIVE:
                now = time.time_ns()
                if (task := self._take_due(now // 1_000_000)) is not None:
                    return task
                head = self._heap.peek()
                self._changed.wait(
                    None if head is None else min(head.timestamp / 1e3 - now / 1e9, _LONGEST_WAIT)
                )
        return None

    def _report(self, error: BaseException) -> None:
        try:
            if self._error_handler is not None:
                self._error_handler(error)
            else:
                _log.error("a processing-time callback failed", exc_info=error)
        except BaseException:
            _log.exception("the error handler of a processing-time callback failed")


class ManualProcessingTimeService(_SchedulingService):
    """Processing time that stands still until it is set; callbacks run in the thread that sets it.

    A callback is due when the clock is set to its timestamp or a later time. Nothing runs without that: a
    callback that is registered for the past waits, too.

    Parameters
    ----------
    now : int, default 0
        The time to begin with, epoch milliseconds.
    jump : bool, default False
        False: the clock goes on to each due callback in turn and shows that time while it runs. True: the
        clock shows the new time before the first callback runs.

    Notes
    -----
    Flink: ``TestProcessingTimeService``, which jumps. An exception of a callback ends `set_current_time`; the
    callback is gone, all others wait for the next call.

    Examples
    --------
    >>> clock = ManualProcessingTimeService()
    >>> called = []
    >>> _ = clock.register_timer(5, called.append)
    >>> clock.set_current_time(4); called
    []
    >>> clock.set_current_time(6); called
    [5]
    """

    def __init__(self, now: int = 0, *, jump: bool = False) -> None:
        super().__init__()
        self._now = int64("now", now)
        self._jump = jump

    def get_current_processing_time(self) -> int:
        """Return the time that was set last, epoch milliseconds."""
        return self._now

    def set_current_time(self, timestamp: int) -> None:
        """Set the clock to `timestamp` and call what is due, in the order in which it is due.

        What a callback registers and is due by `timestamp` is called too. The clock may be set back.

        Raises
        ------
        TypeError, OverflowError
            If `timestamp` is no int64.
        """
        timestamp = int64("timestamp", timestamp)
        self._now = timestamp if self._jump else min(self._now, timestamp)
        while (task := self._take_due(timestamp)) is not None:
            self._now = max(self._now, task.due)
            self._run(task)
        self._now = max(self._now, timestamp)  # a callback may have set it further

    def advance(self, delta: int) -> None:
        """Set the clock `delta` ms ahead, as `set_current_time` does."""
        self.set_current_time(self._now + int64("delta", delta))

    def get_active_timers(self) -> list[tuple[int, int]]:
        """Return the (timestamp, time it is due) of every callback that waits, the next one first."""
        tasks = sorted(self._tasks.values(), key=lambda task: (task.due, task.id))
        return [(task.timestamp, task.due) for task in tasks]

    def _due(self, timestamp: int) -> int:
        return timestamp

    def _quiesced(self) -> Future[None]:
        quiesced: Future[None] = Future()
        quiesced.set_result(None)
        return quiesced
