"""Processing-time services: the current time, and callbacks at a given time."""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from timerheap._arguments import int64
from timerheap._native._core import TimerHeap
from timerheap.errors import ArgumentTypeError
from timerheap.timer import MAX_WATERMARK

ProcessingTimeCallback = Callable[[int], object]
"""A function that is called with its scheduled timestamp, epoch milliseconds, even if it runs later."""

_LONGEST_WAIT = 60.0  # seconds, so that a clock that was set or suspended is noticed
_log = logging.getLogger(__name__)


class Cancellable(Protocol):
    """A scheduled callback."""

    def cancel(self) -> bool:
        """Cancel the callback; return False if it is too late."""


class ProcessingTimeService(Protocol):
    """The clock of a timer service."""

    def get_current_processing_time(self) -> int:
        """Return the time, epoch milliseconds."""

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> Cancellable:
        """Schedule one call of ``callback(timestamp)`` at `timestamp`."""

    def is_terminated(self) -> bool:
        """Return whether the service is shut down and accepts no more callbacks."""


class WakeUp:
    """The callback that a clock has for the first of some timers: at most one.

    Parameters
    ----------
    clock : ProcessingTimeService
    first : callable
        Returns the time of the first timer, or None.
    fire : callable
        Called with a time that has passed; fires the timers up to it.
    """

    def __init__(
        self,
        clock: ProcessingTimeService,
        first: Callable[[], int | None],
        fire: Callable[[int], object],
    ) -> None:
        self._clock = clock
        self._first = first
        self._fire = fire
        self._next: Cancellable | None = None

    def for_first(self) -> None:
        """Have the clock call for the first timer, in place of the call that it may have been asked for."""
        first = self._first()
        if first is not None:
            replaced = self._next
            self._next = self._clock.register_timer(first, self._on_processing_time)
            if replaced is not None:
                replaced.cancel()

    def _on_processing_time(self, timestamp: int) -> None:
        self._next = None  # a callback may register a timer that sets it again
        try:
            self._fire(timestamp)
        finally:
            if self._next is None and not self._clock.is_terminated():
                self.for_first()


class _Task(Future[None]):
    """A callback with its due time, and the future that is returned to the caller."""

    def __init__(self, service: SchedulingService, callback: ProcessingTimeCallback, timestamp: int) -> None:
        if not callable(callback):
            raise ArgumentTypeError(f"callback must be callable, got {callback!r}")
        super().__init__()
        self.service = service
        self.callback = callback
        self.timestamp = timestamp
        self.due = self.id = 0

    def cancel(self) -> bool:
        """Cancel the callback unless it has begun, and remove it from the service."""
        cancelled = super().cancel()
        if cancelled:
            self.service._discard(self)
        return cancelled


class SchedulingService(ProcessingTimeService):
    """The scheduled callbacks of a service, independent of its clock."""

    def __init__(self) -> None:
        self._is_terminated = False
        self._changed = threading.Condition()  # guards the fields below; never held while a callback runs
        self._heap = TimerHeap()  # rows of (due, task id)
        self._tasks: dict[int, _Task] = {}
        self._last_id = 0

    def register_timer(self, timestamp: int, callback: ProcessingTimeCallback, /) -> Future[None]:
        """Schedule one call of ``callback(timestamp)``; the class describes when it is due.

        Parameters
        ----------
        timestamp : int
            Epoch milliseconds, int64.
        callback : callable
            Receives `timestamp`, not the time of the call.

        Returns
        -------
        concurrent.futures.Future
            Completes when the callback returns, with None, or raises, with its exception. ``cancel()``
            cancels a callback that has not begun.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `timestamp` is not an int64, or `callback` is not callable.
        RuntimeError
            If the service is shut down.

        Notes
        -----
        Callbacks due at the same millisecond are called in the order of registration. Registering and
        cancelling a callback cost O(log n).
        """
        task = _Task(self, callback, int64("timestamp", timestamp))
        due = self._due(task.timestamp)
        with self._changed:
            if self._is_terminated:
                raise RuntimeError("the processing-time service is shut down")
            self._enqueue(task, due)
        return task

    def shutdown_service(self) -> None:
        """Stop calling callbacks: cancel the scheduled ones, and reject new ones.

        A running callback finishes.
        """
        with self._changed:
            self._is_terminated = True
            waiting = list(self._tasks.values())
            self._tasks.clear()
            self._heap.clear()
            self._changed.notify_all()
        for task in waiting:
            task.cancel()

    def is_terminated(self) -> bool:
        return self._is_terminated

    @abstractmethod
    def _due(self, timestamp: int) -> int:
        """Return the due time of a callback that is registered now for `timestamp`."""

    def _enqueue(self, task: _Task, due: int) -> None:
        self._last_id += 1
        task.due, task.id = min(due, MAX_WATERMARK), self._last_id
        self._heap.push(task.due, task.id)
        self._tasks[task.id] = task
        if self._heap.peek() == (task.due, task.id, 0):  # otherwise the thread waits for an earlier one
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
        """Call a callback; its exception is stored in its future and also raised."""
        if self._is_terminated:
            task.cancel()
        elif task.set_running_or_notify_cancel():
            try:
                task.callback(task.timestamp)
            except BaseException as error:
                task.set_exception(error)
                raise
            task.set_result(None)


class SystemProcessingTimeService(SchedulingService):
    """The processing time of the system clock; a thread of the service calls the callbacks one by one.

    Like a watermark T, processing time T has passed only when the clock shows T + 1. A callback is therefore
    due 1 ms after its timestamp, or immediately if that is in the past.

    Parameters
    ----------
    error_handler : callable, optional
        Receives the exception of a callback, in the thread of the service. By default the exception is
        logged. Other callbacks are not affected.

    Raises
    ------
    ArgumentTypeError
        If `error_handler` is not callable.

    Attributes
    ----------
    lock : threading.RLock
        Held while a callback runs. Hold it when accessing objects that callbacks use too, such as a timer
        service and its current key, since only one thread at a time may use an operator.

    Notes
    -----
    Flink: ``SystemProcessingTimeService``, and the checkpoint lock or mailbox around its callbacks. The
    thread starts with the first callback and ends with `shutdown_service`. As a context manager, the service
    is shut down on exit, which waits for the running callback.

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
            raise ArgumentTypeError(f"error_handler must be callable, got {error_handler!r}")
        super().__init__()
        self.lock = threading.RLock()
        self._error_handler = error_handler
        self._thread: threading.Thread | None = None

    def get_current_processing_time(self) -> int:
        return time.time_ns() // 1_000_000

    def __enter__(self) -> SystemProcessingTimeService:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown_service()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _due(self, timestamp: int) -> int:
        return max(timestamp + 1, self.get_current_processing_time())

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

    def _await_task(self) -> _Task | None:
        with self._changed:
            while not self._is_terminated:
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


class ManualProcessingTimeService(SchedulingService):
    """A processing time that changes only when it is set; callbacks run in the thread that sets it.

    A callback is due when the clock is set to its timestamp or a later time. A callback registered for the
    past also waits until the clock is set.

    Parameters
    ----------
    now : int, default 0
        The initial time, epoch milliseconds.
    jump : bool, default False
        If False, the clock advances from callback to callback and shows the due time of each while it runs.
        If True, the clock shows the new time before the first callback runs.

    Notes
    -----
    Flink: ``TestProcessingTimeService``, which jumps. If a callback raises, `set_current_time` raises; the
    callback is removed, and all others wait for the next call.

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
        return self._now

    def set_current_time(self, timestamp: int) -> None:
        """Set the clock to `timestamp` and call the due callbacks, earliest first.

        Callbacks registered by a callback are called too if they are due by `timestamp`. The clock may be
        set back.

        Raises
        ------
        ArgumentTypeError, ArgumentRangeError
            If `timestamp` is not an int64.
        """
        timestamp = int64("timestamp", timestamp)
        self._now = timestamp if self._jump else min(self._now, timestamp)
        while (task := self._take_due(timestamp)) is not None:
            self._now = max(self._now, task.due)
            self._run(task)
        self._now = max(self._now, timestamp)  # a callback may have set it further

    def advance(self, delta: int) -> None:
        """Advance the clock by `delta` ms, as with `set_current_time`."""
        self.set_current_time(self._now + int64("delta", delta))

    def get_active_timers(self) -> list[tuple[int, int]]:
        """Return the (timestamp, due time) of every scheduled callback, earliest first."""
        tasks = sorted(self._tasks.values(), key=lambda task: (task.due, task.id))
        return [(task.timestamp, task.due) for task in tasks]

    def _due(self, timestamp: int) -> int:
        return timestamp
