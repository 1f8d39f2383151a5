"""`async_map`: calls an asynchronous function for the rows of a Spark DataFrame, many at a time."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from itertools import chain
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from timerheap._values import detached
from timerheap.async_io import AsyncFunction, AsyncInput, AsyncRetryStrategy, AsyncWaitOperator, StreamRecord
from timerheap.async_io.function import as_async_function, finished
from timerheap.async_io.operator import QueueElement
from timerheap.errors import ArgumentTypeError
from timerheap.functions import RuntimeContext
from timerheap.output_tag import OutputTag
from timerheap.spark._columns import LETTERS
from timerheap.spark._flows import in_flows
from timerheap.spark._functions.guarded.dead_letters import (
    DeadLetters,
    Failures,
    Guard,
    guard_of,
    letter_texts,
)
from timerheap.spark._row_objects import row_source
from timerheap.spark._worker.output import ResultBuffer

_LATENCY = 0.05  # seconds that a result waits for others, to be sent in one record batch
_MAX_ROWS = 1_000  # per record batch
_TAG = OutputTag(LETTERS, "null")  # the type is that of the rows


@in_flows
def async_map(
    df: DataFrame,
    function: AsyncFunction[Row, Any] | Callable[[Row], Awaitable[Any]],
    output_schema: str | StructType | None = None,
    *,
    capacity: int = 100,
    timeout: int | timedelta | str | None = None,
    ordered: bool = True,
    retry: AsyncRetryStrategy | None = None,
    errors: str | DeadLetters = "raise",
) -> DataFrame:
    """Call an asynchronous function for each row of a streaming or batch DataFrame, many rows at a time.

    Use it for calls that mostly wait, for example for a model server, a database or a lookup service. Each
    task runs its own event loop in its Python worker, reads rows only while it has capacity, and returns
    results as soon as they are complete.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    function : coroutine function, or AsyncFunction
        Receives a ``pyspark.sql.Row`` and returns an output row (a tuple, a Row or a dict) or a list of
        output rows, which may be empty. If the output has one column, a plain value is a row. The function
        must not block the event loop; run clients without asyncio support in ``asyncio.to_thread``. It is
        sent to the workers with cloudpickle. Create shared resources, such as a client session, in the
        ``open`` of a `timerheap.async_io.AsyncFunction` and release them in its ``close``; both run once per
        task, in the event loop. A task without rows does not call ``open``.
    output_schema : str or pyspark.sql.types.StructType, optional
        Schema of the result; by default the schema of `df`.
    capacity : int, default 100
        Maximum number of rows in progress per task. The maximum for the query is this times the number of
        concurrent tasks.
    timeout : int, timedelta or str, optional
        Maximum time for one row in ms, including all attempts and the waits between them. After it the call
        is cancelled. The ``timeout`` method of an AsyncFunction may then return rows; otherwise the query
        fails.
    ordered : bool, default True
        If True, the results of each partition are in the order of its rows. If False, they are in the order
        of completion, so that a slow call delays no other row.
    retry : AsyncRetryStrategy, optional
        Which failed calls are repeated, and when. Predicates on results receive the list of output rows.
    errors : {"raise", "emit"} or DeadLetters, default "raise"
        What becomes of a row for which the function, or its ``timeout``, raises an exception after all
        retries. "raise": the query fails. "emit": `timerheap.spark.dead_letters` returns it; a `DeadLetters`
        also says how many end the query, of one task and in the order of completion.

    Returns
    -------
    pyspark.sql.DataFrame

    Raises
    ------
    ArgumentError
        If an argument is invalid, before the query starts. An exception of the function, a timeout, or
        output that does not fit `output_schema` fails the query, with a note that shows the row.

    Notes
    -----
    **Side effects happen at least once.** Spark repeats a failed task, repeats a micro-batch after a restart,
    and computes a DataFrame again for each action; each time the function is called again for the same rows.
    The results of the query are as exact as those of any Spark map. Calls to other systems are not, so make
    them idempotent, for example with a key of the row.

    The event-time column is kept like all columns, and with the default `output_schema` so is Spark's own
    watermark on it. Another schema drops the watermark: call ``withWatermark`` on the result, not on `df`.

    The semantics are those of Flink's operator (`timerheap.async_io.AsyncWaitOperator`). Rows in progress are
    not part of a checkpoint: a micro-batch ends when all its calls have ended.

    Examples
    --------
    ::

        async def weather(row):
            reader, writer = await asyncio.open_connection("weather.example", 7000)
            ...
            return row.airport, row.at, temperature

        timerheap.spark.async_map(flights, weather, "airport string, at timestamp, temperature double",
                                  capacity=100, timeout=5_000)

    ``examples/async_http.py`` calls a web server with an AsyncFunction.
    """
    # Here, since workers import this module for `Mapper`.
    from timerheap.spark._compat import to_arrow_type
    from timerheap.spark._functions.guarded.letter_columns import row_letters, with_letter_column
    from timerheap.spark._functions.sendable import sendable
    from timerheap.spark._plan.named_columns import data_frame
    from timerheap.spark._plan.outputs import results_of
    from timerheap.spark._plan.python_stage import map_batches
    from timerheap.spark._plan.schemas import arrow_schema, parsed_schema

    data_frame("df", df)
    arrow_schema("df", df.schema)
    result_type = df.schema if output_schema is None else parsed_schema(output_schema)
    guard, letters = guard_of(errors), row_letters(df.schema)
    mapper = Mapper(
        function,
        df.schema,
        arrow_schema("output_schema", result_type),
        capacity=capacity,
        timeout=timeout,
        ordered=ordered,
        retry=retry,
        guard=guard,
        letters=to_arrow_type(letters),
    )
    sendable(function, object)
    if guard is None:
        return map_batches(df, mapper, result_type)
    return results_of(map_batches(df, mapper, with_letter_column(result_type, letters)))


class Mapper:
    """Maps the rows of one partition, in a task.

    function: maps a row to a row or a list of rows of the result
    row_type: type of the input
    guard, letters: what becomes of calls that raise an exception, and the type of dead letters
    **options: options of `timerheap.async_io.AsyncWaitOperator`
    """

    def __init__(
        self,
        function: AsyncFunction[Row, Any] | Callable[[Row], Awaitable[Any]],
        row_type: StructType,
        schema: pa.Schema,
        guard: Guard | None = None,
        letters: pa.DataType | None = None,
        **options: Any,
    ) -> None:
        called = _RowFunction(function, schema)
        self._operator: AsyncWaitOperator[Row, Any] = (
            AsyncWaitOperator(called, **options) if guard is None else _Guarded(guard, called, **options)
        )
        self._row_type = row_type
        self._schema = schema
        self._letters = [] if guard is None else [pa.field(LETTERS, letters)]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the results of a partition; read more rows only when all previous rows are in progress."""
        read = filter(None, map(self._rows, batches))
        first = next(read, None)
        if first is None:
            return
        with closing(_Passage(self._operator).through(chain([first], read))) as parts:
            for results in parts:
                output = ResultBuffer(self._schema, self._letters)
                for result in results:
                    if isinstance(result, _Letter):
                        output.side(_TAG, result)
                    else:
                        output.rows([result], "function")
                yield from output.table().to_batches()

    def _rows(self, batch: pa.RecordBatch) -> list[Row]:
        return row_source(batch, self._row_type).tolist()


class _Letter(NamedTuple):
    """A row for which the function has raised an exception, among the results."""

    row: Row
    error: str
    trace: str


class _Guarded(AsyncWaitOperator[Row, Any]):
    """Has a `_Letter` in place of the results of a row whose calls have raised an exception."""

    def __init__(self, guard: Guard, function: _RowFunction, **options: Any) -> None:
        super().__init__(function, **options)
        self._bound = guard.bound

    @asynccontextmanager
    async def open(self, output: Callable[[QueueElement], object]) -> AsyncIterator[AsyncInput[Row, Any]]:
        self._failures, self._returned = Failures(self._bound), 0
        async with super().open(output) as stream:
            yield stream

    async def _results(self, value: Row) -> Iterable[Any]:
        try:
            results = await super()._results(value)
        except Exception as error:
            self._failures.add(error, "async_invoke", self._returned)
            return [_Letter(value, *letter_texts(error))]
        self._returned += 1
        return results


class _Passage:
    """Connects Spark's thread, which reads rows and writes results, with the thread of the event loop.

    The loop runs in its own thread, so that calls and their timeouts proceed while Spark's thread is busy.
    """

    def __init__(self, operator: AsyncWaitOperator[Row, Any]) -> None:
        self._operator = operator
        self._rows: asyncio.Queue[list[Row] | None] = asyncio.Queue()
        # Orders to Spark's thread: a list of results to write, None to read rows, a Future at the end.
        self._orders: queue.SimpleQueue[list[Any] | Future[None] | None] = queue.SimpleQueue()
        self._results: list[Any] = []

    def through(self, read: Iterator[list[Row]]) -> Generator[list[Any], None, None]:
        """Yield lists of results; runs in Spark's thread."""
        with asyncio.Runner() as runner, ThreadPoolExecutor(1, "timerheap async_map") as thread:
            self._loop = runner.get_loop()
            running = thread.submit(runner.run, self._run())
            running.add_done_callback(self._orders.put)
            try:
                while not isinstance(order := self._orders.get(), Future):
                    if order is not None:
                        yield order
                    else:
                        self._loop.call_soon_threadsafe(self._rows.put_nowait, next(read, None))
            finally:
                self._loop.call_soon_threadsafe(self._task.cancel)  # no effect after its end
            order.result()

    async def _run(self) -> None:
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        async with self._operator.open(self._take) as stream:
            while (rows := await self._more()) is not None:
                for row in rows:
                    await stream.process_element(row)
        self._hand_over()

    async def _more(self) -> list[Row] | None:
        self._hand_over()  # before the next read, which may take long
        self._orders.put(None)
        return await self._rows.get()

    def _take(self, result: QueueElement) -> None:
        assert isinstance(result, StreamRecord)
        if not self._results:
            self._loop.call_later(_LATENCY, self._hand_over)
        self._results.append(result.value)
        if len(self._results) >= _MAX_ROWS:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._results:
            self._orders.put(self._results)
            self._results = []


class _RowFunction(AsyncFunction[Row, Any]):
    """Wraps the user's function so that it returns a list of output rows."""

    def __init__(
        self, function: AsyncFunction[Row, Any] | Callable[[Row], Awaitable[Any]], schema: pa.Schema
    ) -> None:
        self._function = as_async_function(function)
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._schema = schema

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:
        return self._function.open(runtime_context)

    def close(self) -> Awaitable[None] | None:
        return self._function.close()

    async def async_invoke(self, value: Row) -> list[Any]:
        return self._rows(await self._function.async_invoke(value))

    async def timeout(self, value: Row) -> list[Any]:
        return self._rows(await finished(self._function.timeout(value)))

    def _rows(self, result: Any) -> list[Any]:
        if result is None:
            raise ArgumentTypeError(
                f"{self._name} must return a row or a list of rows, got None; return [] for no rows"
            )
        rows = list(map(detached, result if isinstance(result, list) else [result]))
        ResultBuffer(self._schema).rows(rows, self._name)  # checked here, where the input row is known
        return rows
