"""Runs an asynchronous function on a stream, in order or as calls complete."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic

from timerheap._arguments import Length, int64, not_negative, positive_int
from timerheap.async_io.function import IN, OUT, AsyncFunction, Stateless, as_async_function, finished
from timerheap.async_io.retry import NO_RETRY_STRATEGY, AsyncRetryStrategy
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.watermarks.output import StreamRecord, Watermark

QueueElement = StreamRecord[Any] | Watermark

_SHOWN = 500  # the most characters of an element to show in a note


def listed(results: Iterable[OUT]) -> list[OUT]:
    """Return an element's results as a list; raise an ArgumentTypeError if they are not a collection."""
    if isinstance(results, (str, bytes)) or not isinstance(results, Iterable):
        raise ArgumentTypeError(
            f"results must be a list, got {results!r}; return [] where there are no results"
        )
    return list(results)


class PendingElement(Generic[OUT]):
    """An element in a queue, and what is emitted in its place: its results (Flink's ``ResultFuture``)."""

    __slots__ = ("_element", "_on_complete", "released")

    def __init__(self, element: QueueElement, on_complete: Callable[[PendingElement[OUT]], None]) -> None:
        self._element = element
        self._on_complete = on_complete
        # A watermark needs no results; None until there are some.
        self.released: list[QueueElement] | None = [element] if isinstance(element, Watermark) else None

    def complete(self, results: Iterable[OUT]) -> None:
        """Set the element's results, which are emitted with its timestamp."""
        timestamp = self._element.timestamp
        self.released = [StreamRecord(result, timestamp) for result in listed(results)]
        self._on_complete(self)


class _Segment(Generic[OUT]):
    """Records that may overtake each other; or one element alone, which ends what is before it."""

    __slots__ = ("completed", "is_closed", "size")

    def __init__(self, is_closed: bool) -> None:
        self.is_closed = is_closed
        self.size = 0  # with those that have been completed
        self.completed: deque[PendingElement[OUT]] = deque()


class ElementQueue(Generic[OUT]):
    """At most `capacity` records with pending results and watermarks (Flink's ``StreamElementQueue``).

    If it is `ordered`, elements are emitted in arrival order; else records are as they complete, between
    watermarks.
    """

    def __init__(self, capacity: int, ordered: bool) -> None:
        self._capacity = capacity
        self._is_ordered = ordered
        self._size = 0
        self._segments: deque[_Segment[OUT]] = deque()  # none of them is empty

    def try_put(self, element: QueueElement) -> PendingElement[OUT] | None:
        """Add an element, and return the entry that receives its results; None if the queue is full. O(1)."""
        if self._size >= self._capacity:
            return None
        alone = self._is_ordered or isinstance(element, Watermark)
        if alone or not self._segments or self._segments[-1].is_closed:
            self._segments.append(_Segment(alone))
        segment = self._segments[-1]
        segment.size += 1
        self._size += 1
        entry = PendingElement(element, segment.completed.append)
        if entry.released is not None:
            segment.completed.append(entry)
        return entry

    def has_completed_elements(self) -> bool:
        """Return whether an element can be emitted. O(1)."""
        return bool(self._segments) and bool(self._segments[0].completed)

    def emit_completed_element(self) -> list[QueueElement]:
        """Remove the next completed element and return its results; [] if there is none. O(results)."""
        if not self.has_completed_elements():
            return []
        segment = self._segments[0]
        segment.size -= 1
        self._size -= 1
        if not segment.size:
            self._segments.popleft()
        return segment.completed.popleft().released or []

    def __len__(self) -> int:
        return self._size


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
    ArgumentTypeError, ArgumentValueError
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
        timeout: Length | None = None,
        ordered: bool = True,
        retry: AsyncRetryStrategy | None = None,
    ) -> None:
        self._function: AsyncFunction[IN, OUT] = as_async_function(function)
        self._capacity = positive_int("capacity", capacity)
        self._timeout = None if timeout is None else not_negative("timeout", timeout)
        if self._timeout == 0:
            raise ArgumentValueError(
                f"timeout must be 1 ms or more, got {timeout!r}; pass None for no timeout"
            )
        if not isinstance(ordered, bool):
            raise ArgumentTypeError(f"ordered must be True or False, got {ordered!r}")
        self._ordered = ordered
        if retry is not None and not isinstance(retry, AsyncRetryStrategy):
            raise ArgumentTypeError(
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
                queue: ElementQueue[OUT] = ElementQueue(self._capacity, self._ordered)
                yield AsyncInput(self._results, queue, self._capacity, tasks, output)
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
    """The input of a running `AsyncWaitOperator` (Flink: ``Input``). Created by `AsyncWaitOperator.open`."""

    def __init__(
        self,
        call: Callable[[IN], Awaitable[Iterable[OUT]]],
        queue: ElementQueue[OUT],
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

    async def _put(self, element: QueueElement) -> PendingElement[OUT]:
        await self._room.acquire()
        entry = self._queue.try_put(element)
        assert entry is not None
        return entry

    async def _complete(self, entry: PendingElement[OUT], value: IN) -> None:
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
