"""Runs an asynchronous function on a stream: its queues, in order or as calls complete."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Generic, TypeVar

from timerheap._arguments import int64, not_negative, positive_int
from timerheap._elements import StreamRecord, Watermark
from timerheap.async_io.function import AsyncFunction, Stateless, as_async_function, finished
from timerheap.async_io.retry import NO_RETRY_STRATEGY, AsyncRetryStrategy

OUT = TypeVar("OUT")

QueueElement = StreamRecord[Any] | Watermark
"""An element of a queue."""


def listed(results: Iterable[OUT]) -> list[OUT]:
    """Return an element's results as a list; raise a TypeError if they are not a collection."""
    if isinstance(results, (str, bytes)) or not isinstance(results, Iterable):
        raise TypeError(f"results must be a list, got {results!r}; return [] where there are no results")
    return list(results)


class ResultFuture(Generic[OUT]):
    """An element in a queue and its pending results; `StreamElementQueue.try_put` creates it.

    Attributes
    ----------
    element : StreamRecord or Watermark
        The element.
    """

    __slots__ = ("_on_complete", "_released", "element")

    def __init__(self, element: QueueElement, on_complete: Callable[[ResultFuture[OUT]], None]) -> None:
        self.element = element
        self._on_complete = on_complete
        # The elements to emit; a watermark needs no results.
        self._released: list[QueueElement] | None = [element] if isinstance(element, Watermark) else None

    def is_done(self) -> bool:
        """Return whether the element can be emitted. O(1)."""
        return self._released is not None

    def complete(self, results: Iterable[OUT]) -> None:
        """Set the element's results, once.

        Parameters
        ----------
        results : iterable
            0 or more results; each is emitted with the element's timestamp.

        Raises
        ------
        TypeError
            If `results` is not a collection, such as None or a single string. The element remains pending.
        RuntimeError
            If the element already has results, or is a watermark.
        """
        if self._released is not None:
            raise RuntimeError(f"results of {self.element!r} must be set once; it is already complete")
        timestamp = self.element.timestamp
        self._released = [StreamRecord(result, timestamp) for result in listed(results)]
        self._on_complete(self)

    def release(self) -> list[QueueElement]:
        """Return the elements to emit; `is_done` must be true."""
        assert self._released is not None
        return self._released


class StreamElementQueue(ABC, Generic[OUT]):
    """A queue of records with pending results and of watermarks; Flink's interface of that name.

    Parameters
    ----------
    capacity : int
        The maximum number of elements, including watermarks; 1 or more.

    Raises
    ------
    TypeError, ValueError
        If `capacity` is not an int, or is less than 1.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = positive_int("capacity", capacity)
        self._size = 0

    def try_put(self, element: QueueElement) -> ResultFuture[OUT] | None:
        """Add an element if there is capacity. O(1).

        Parameters
        ----------
        element : StreamRecord or Watermark
            A record, whose results are pending, or a watermark, which is complete.

        Returns
        -------
        ResultFuture or None
            The entry that receives the results; None if the queue is full.

        Raises
        ------
        TypeError
            If `element` is neither; the queue is then unchanged.
        """
        if not isinstance(element, (StreamRecord, Watermark)):
            raise TypeError(f"element must be a StreamRecord or a Watermark, got {element!r}")
        if self._size >= self._capacity:
            return None
        entry = self._add(element)
        self._size += 1
        return entry

    def emit_completed_element(self) -> list[QueueElement]:
        """Remove the next completed element and return its results. O(results).

        Returns
        -------
        list of StreamRecord, or of one Watermark
            Empty if the element has no results, or if no element can be emitted (`has_completed_elements`).
        """
        if not self.has_completed_elements():
            return []
        self._size -= 1
        return self._take().release()

    @abstractmethod
    def has_completed_elements(self) -> bool:
        """Return whether an element can be emitted. O(1)."""

    @abstractmethod
    def values(self) -> list[QueueElement]:
        """Return the elements in the queue, complete or not, for a snapshot. O(n)."""

    def __len__(self) -> int:
        return self._size

    @abstractmethod
    def _add(self, element: QueueElement) -> ResultFuture[OUT]: ...

    @abstractmethod
    def _take(self) -> ResultFuture[OUT]: ...


class OrderedStreamElementQueue(StreamElementQueue[OUT]):
    """A queue that emits elements in arrival order; Flink's class of that name.

    Parameters
    ----------
    capacity : int
        The maximum number of elements, including watermarks; 1 or more.

    Examples
    --------
    >>> queue = OrderedStreamElementQueue(capacity=2)
    >>> first, second = queue.try_put(StreamRecord("N1", 10)), queue.try_put(StreamRecord("N2", 20))
    >>> queue.try_put(Watermark(20)) is None  # full
    True
    >>> second.complete(["Boeing"])
    >>> queue.has_completed_elements()
    False
    >>> first.complete(["Airbus", "A320"])
    >>> queue.emit_completed_element()
    [StreamRecord(value='Airbus', timestamp=10), StreamRecord(value='A320', timestamp=10)]
    >>> queue.emit_completed_element()
    [StreamRecord(value='Boeing', timestamp=20)]
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._entries: deque[ResultFuture[OUT]] = deque()

    def has_completed_elements(self) -> bool:
        """Return whether the first element is complete. O(1)."""
        return bool(self._entries) and self._entries[0].is_done()

    def values(self) -> list[QueueElement]:
        """Return the elements in the queue, in order, for a snapshot. O(n)."""
        return [entry.element for entry in self._entries]

    def _add(self, element: QueueElement) -> ResultFuture[OUT]:
        entry: ResultFuture[OUT] = ResultFuture(element, lambda entry: None)  # completing moves no element
        self._entries.append(entry)
        return entry

    def _take(self) -> ResultFuture[OUT]:
        return self._entries.popleft()


class _Segment(Generic[OUT]):
    """The records between two watermarks, or one watermark."""

    __slots__ = ("completed", "incomplete")

    def __init__(self) -> None:
        self.incomplete: dict[ResultFuture[OUT], None] = {}  # a set that keeps the order
        self.completed: deque[ResultFuture[OUT]] = deque()

    def complete(self, entry: ResultFuture[OUT]) -> None:
        del self.incomplete[entry]
        self.completed.append(entry)

    def is_empty(self) -> bool:
        return not (self.incomplete or self.completed)


class UnorderedStreamElementQueue(StreamElementQueue[OUT]):
    """A queue that emits records as they complete, between watermarks; Flink's class of that name.

    Parameters
    ----------
    capacity : int
        The maximum number of elements, including watermarks; 1 or more.

    Examples
    --------
    >>> queue = UnorderedStreamElementQueue(capacity=10)
    >>> first, second = queue.try_put(StreamRecord("N1", 10)), queue.try_put(StreamRecord("N2", 20))
    >>> barrier, third = queue.try_put(Watermark(20)), queue.try_put(StreamRecord("N3", 30))
    >>> third.complete(["Cessna"])
    >>> second.complete(["Boeing"])
    >>> queue.emit_completed_element()  # overtakes N1; N3 has to wait for the watermark, which waits for N1
    [StreamRecord(value='Boeing', timestamp=20)]
    >>> queue.has_completed_elements()
    False
    >>> first.complete([])
    >>> while queue.has_completed_elements():
    ...     print(queue.emit_completed_element())
    []
    [Watermark(timestamp=20)]
    [StreamRecord(value='Cessna', timestamp=30)]
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Only the last segment may be empty; the next record is added to it.
        self._segments: deque[_Segment[OUT]] = deque([_Segment()])

    def has_completed_elements(self) -> bool:
        """Return whether an element before the first watermark, or that watermark, is complete. O(1)."""
        return bool(self._segments[0].completed)

    def values(self) -> list[QueueElement]:
        """Return the elements in the queue; those between two watermarks are in any order. O(n)."""
        entries = (entry for segment in self._segments for entry in (*segment.completed, *segment.incomplete))
        return [entry.element for entry in entries]

    def _add(self, element: QueueElement) -> ResultFuture[OUT]:
        if isinstance(element, Watermark):
            return self._add_watermark(element)
        segment = self._segments[-1]
        entry: ResultFuture[OUT] = ResultFuture(element, segment.complete)
        segment.incomplete[entry] = None
        return entry

    def _add_watermark(self, watermark: Watermark) -> ResultFuture[OUT]:
        if not self._segments[-1].is_empty():
            self._segments.append(_Segment())
        segment = self._segments[-1]
        entry: ResultFuture[OUT] = ResultFuture(watermark, segment.complete)
        segment.completed.append(entry)
        self._segments.append(_Segment())
        return entry

    def _take(self) -> ResultFuture[OUT]:
        segment = self._segments[0]
        entry = segment.completed.popleft()
        if len(self._segments) > 1 and segment.is_empty():
            self._segments.popleft()
        return entry


IN = TypeVar("IN")

_SHOWN = 500  # the most characters of an element to show in a note


class AsyncWaitOperator(Generic[IN, OUT]):
    """Calls an asynchronous function for many elements at a time; Flink's class of that name.

    Parameters
    ----------
    function : AsyncFunction, or coroutine function
        The function, from an element to 0 or more results.
    capacity : int, default 100
        The maximum number of elements and watermarks in progress: called, waiting for a retry, or complete
        and waiting for earlier ones. Adding another one waits.
    timeout : int, timedelta or str, optional
        The maximum duration of an element's calls in ms, including all attempts and the waits between them.
        After it the call is cancelled, and `AsyncFunction.timeout` returns the results or raises the error.
        By default there is no timeout.
    ordered : bool, default True
        If True, results are emitted in the order of their elements. If False, they are emitted as they
        complete, but do not pass a watermark.
    retry : AsyncRetryStrategy, optional
        Defines which failed attempts are retried, and when; by default none.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.

    Notes
    -----
    An operator holds no connection and no event loop until `open`, and can be opened repeatedly.

    Two things differ from Flink. A call that has timed out is cancelled; Flink lets it run and drops its
    results. At the end of the input, Flink makes all waiting retries immediately and allows no more; here
    the end of the input has no effect on retries, as in PyFlink, because every Spark micro-batch has one.

    Examples
    --------
    >>> async def look_up(plane):
    ...     await asyncio.sleep(0.01 if plane == "N1" else 0)
    ...     return [plane.lower()]
    >>> async def main(ordered):
    ...     out = []
    ...     async with AsyncWaitOperator(look_up, capacity=2, ordered=ordered).open(out.append) as stream:
    ...         await stream.process_element("N1", timestamp=10)
    ...         await stream.process_element("N2", timestamp=20)
    ...         await stream.process_watermark(20)  # waits until one of the two is done
    ...         await stream.process_element("N3", timestamp=30)
    ...     return out
    >>> asyncio.run(main(ordered=False))  # N2 overtakes N1, N3 does not overtake the watermark
    [StreamRecord(value='n2', timestamp=20),
     StreamRecord(value='n1', timestamp=10),
     Watermark(timestamp=20),
     StreamRecord(value='n3', timestamp=30)]
    """

    def __init__(
        self,
        function: AsyncFunction[IN, OUT] | Callable[[IN], Awaitable[Iterable[OUT]]],
        *,
        capacity: int = 100,
        timeout: int | timedelta | str | None = None,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
    ) -> None:
        self._function: AsyncFunction[IN, OUT] = as_async_function(function)
        self._capacity = positive_int("capacity", capacity)
        self._timeout = None if timeout is None else not_negative("timeout", timeout)
        if self._timeout == 0:
            raise ValueError(f"timeout must be 1 ms or more, got {timeout!r}; pass None for no timeout")
        if not isinstance(ordered, bool):
            raise TypeError(f"ordered must be True or False, got {ordered!r}")
        self._ordered = ordered
        if retry is not None and not isinstance(retry, AsyncRetryStrategy):
            raise TypeError(
                f"retry must be an AsyncRetryStrategy, got {retry!r}; pass AsyncRetryStrategy.fixed_delay"
                "(max_attempts=3, backoff_time_millis=100, exception_predicate=has_exception_predicate)"
            )
        self._retry = NO_RETRY_STRATEGY if retry is None else retry

    @asynccontextmanager
    async def open(self, output: Callable[[QueueElement], object]) -> AsyncIterator[AsyncInput[IN, OUT]]:
        """Open the function for a stream, in an ``async with`` block.

        The end of the block is the end of the input: it waits for all elements in progress. If a call or the
        block fails, or the task is cancelled, all calls are cancelled and awaited, and the first error is
        raised. The function is always closed.

        Parameters
        ----------
        output : callable
            Receives each result, a StreamRecord with its element's timestamp, and each Watermark, in order.

        Returns
        -------
        async context manager of AsyncInput
            The input for elements; only the task that entered the block may use it.
        """
        await finished(self._function.open(Stateless()))
        try:
            async with _one_error(asyncio.TaskGroup()) as tasks:
                queue = OrderedStreamElementQueue if self._ordered else UnorderedStreamElementQueue
                yield AsyncInput(self._results, queue(self._capacity), self._capacity, tasks, output)
        finally:
            await finished(self._function.close())

    async def _results(self, value: IN) -> Iterable[OUT]:
        """Return an element's results, after any retries or after its timeout."""
        deadline = asyncio.timeout(None if self._timeout is None else self._timeout / 1000)
        try:
            async with deadline:
                results = await self._attempts(value)
        except Exception:
            if not deadline.expired():
                raise
        if deadline.expired():  # even if the cancelled call returned results
            return await finished(self._function.timeout(value))
        return results

    async def _attempts(self, value: IN) -> list[OUT]:
        predicate = self._retry.get_retry_predicate()
        on_result, on_exception = predicate.result_predicate(), predicate.exception_predicate()
        attempts = 1
        while True:
            try:
                results = await self._function.async_invoke(value)
            except Exception as e:
                if on_exception is None or not on_exception(e) or not self._may_retry(attempts):
                    raise
            else:
                given = listed(results)
                if on_result is None or not on_result(given) or not self._may_retry(attempts):
                    return given
            await asyncio.sleep(self._retry.get_backoff_time_millis(attempts) / 1000)
            attempts += 1

    def _may_retry(self, attempts: int) -> bool:
        return not _is_being_cancelled() and self._retry.can_retry(attempts)


def _is_being_cancelled() -> bool:
    """Return whether the current task has been cancelled, even if its code caught the cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@asynccontextmanager
async def _one_error(tasks: asyncio.TaskGroup) -> AsyncIterator[asyncio.TaskGroup]:
    """Run a block in a task group; raise its first error instead of an exception group."""
    failed = None
    try:
        async with tasks:
            yield tasks
    except BaseExceptionGroup as errors:
        failed = errors.exceptions[0]
    if failed is not None:
        context = failed.__context__
        try:
            raise failed
        finally:
            failed.__context__ = context  # without the block's cancellation, which the error caused


class AsyncInput(Generic[IN, OUT]):
    """The input of a running `AsyncWaitOperator` (Flink: ``Input``).

    Created by `AsyncWaitOperator.open`.
    """

    def __init__(
        self,
        call: Callable[[IN], Awaitable[Iterable[OUT]]],
        queue: StreamElementQueue[OUT],
        capacity: int,
        tasks: asyncio.TaskGroup,
        output: Callable[[QueueElement], object],
    ) -> None:
        self._call = call
        self._queue = queue
        self._room = asyncio.Semaphore(capacity)
        self._tasks = tasks
        self._output = output

    async def process_element(self, value: IN, timestamp: int | None = None) -> None:
        """Add an element as soon as there is capacity, and start its call.

        Parameters
        ----------
        value : object
            The element, passed to the function.
        timestamp : int, optional
            Event time in epoch ms, which the results inherit.
        """
        entry = await self._put(StreamRecord(value, timestamp))
        self._tasks.create_task(self._complete(entry, value))

    async def process_watermark(self, watermark: int) -> None:
        """Add a watermark, epoch ms, as soon as there is capacity; earlier results are emitted before it."""
        await self._put(Watermark(int64("watermark", watermark)))
        self._emit()

    async def _put(self, element: QueueElement) -> ResultFuture[OUT]:
        await self._room.acquire()
        entry = self._queue.try_put(element)
        assert entry is not None
        return entry

    async def _complete(self, entry: ResultFuture[OUT], value: IN) -> None:
        try:
            entry.complete(await self._call(value))
        except Exception as e:
            _note(e, value)
            raise
        except asyncio.CancelledError as e:
            if _is_being_cancelled():
                raise
            # A task group considers a cancelled task done, which would lose the element.
            error = RuntimeError("an asynchronous call was cancelled by something inside it")
            _note(error, value)
            raise error from e
        self._emit()

    def _emit(self) -> None:
        while self._queue.has_completed_elements():
            elements = self._queue.emit_completed_element()
            self._room.release()
            for element in elements:
                self._output(element)


def _note(error: BaseException, value: object) -> None:
    shown = repr(value)
    error.add_note(f"timerheap: for the element {shown[:_SHOWN]}{'...' * (len(shown) > _SHOWN)}")
