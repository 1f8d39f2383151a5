"""`async_map`: an asynchronous function on a Spark DataFrame, many calls at a time."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from itertools import chain
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from timerheap.async_io import (
    AsyncFunction,
    AsyncRetryStrategy,
    AsyncWaitOperator,
    QueueElement,
    StreamRecord,
)
from timerheap.async_io.function import as_async_function, finished
from timerheap.functions import RuntimeContext
from timerheap.spark._plan.arguments import arrow_schema, data_frame, parsed_schema, sendable
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.rows import rows_of

__all__ = ["async_map"]

_LATENCY = 0.05  # seconds that a result waits for others, so that they leave in one record batch
_MOST_ROWS = 1_000  # of a record batch


def async_map(
    df: DataFrame,
    function: AsyncFunction[Row, Any] | Callable[[Row], Awaitable[Any]],
    output_schema: str | StructType | None = None,
    *,
    capacity: int = 100,
    timeout: int | timedelta | None = None,
    ordered: bool = True,
    retry: AsyncRetryStrategy | None = None,
) -> DataFrame:
    """Call an asynchronous function for each row of a streaming or batch DataFrame, many rows at a time.

    For calls that spend their time waiting: for a model server, a database, a lookup service. Each task has
    an event loop of its own in its Python worker, takes rows only while there is room for them, and gives
    results as they come.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
    function : coroutine function, or AsyncFunction
        It is called with a ``pyspark.sql.Row`` and returns an output row (a tuple, a Row or a dict) or a list
        of them, which may be empty; an only column's value may stand for its row. It must not block the event
        loop: ``asyncio.to_thread`` is for clients that know no asyncio. It travels to the workers by
        cloudpickle. Make what serves many calls, such as a client session, in the ``open`` of a
        `timerheap.async_io.AsyncFunction` and release it in its ``close``: once for each task, in the event
        loop. A task without rows opens nothing.
    output_schema : str or pyspark.sql.types.StructType, optional
        Of the result; by default that of `df`.
    capacity : int, default 100
        How many rows of a task are under way at most. Over all, that many times the tasks that run at once.
    timeout : int or timedelta, optional
        How long a row's calls may take, in ms, all attempts and the waits between them included. Then the
        call is cancelled; ``timeout`` of an AsyncFunction gives the rows instead, or else the query ends.
    ordered : bool, default True
        True: each partition's results are in the order of its rows. False: as they come, so that a slow call
        holds nobody up.
    retry : AsyncRetryStrategy, optional
        Which failed calls are made again, and when. Predicates on results receive the list of output rows.

    Returns
    -------
    pyspark.sql.DataFrame

    Raises
    ------
    TypeError, ValueError
        Anything that does not fit is named before the query starts. An exception of the function, a timeout,
        and output that does not fit `output_schema` end the query, with a note that shows the row.

    Notes
    -----
    **Side effects happen at least once.** Spark runs a task again when it has failed, and a micro-batch again
    after a restart, and a DataFrame again for each action: the function is then called again for rows that it
    has been called for. Results are as exact as Spark makes those of any map; effects elsewhere are not, so
    let the far side recognise a call that it has seen, by a key of the row for instance.

    Event time passes as all columns do, and with the default `output_schema` so does Spark's own watermark on
    it. With another schema the watermark is lost: call ``withWatermark`` on the result, and not on `df`.

    The semantics are those of Flink's operator (`timerheap.async_io.AsyncWaitOperator`). Rows whose calls are
    running are in no checkpoint: a micro-batch ends when all its calls have ended.

    Examples
    --------
    ::

        async def weather(row):
            reader, writer = await asyncio.open_connection("weather.example", 7000)
            ...
            return row.airport, row.at, temperature

        timerheap.spark.async_map(flights, weather, "airport string, at timestamp, temperature double",
                                  capacity=100, timeout=5_000)

    ``python -m timerheap._demo.async_http`` calls a web server with an AsyncFunction.
    """
    data_frame("df", df)
    arrow_schema("df", df.schema)
    result_type = df.schema if output_schema is None else parsed_schema(output_schema)
    mapper = Mapper(
        function,
        df.schema,
        arrow_schema("output_schema", result_type),
        capacity=capacity,
        timeout=timeout,
        ordered=ordered,
        retry=retry,
    )
    sendable(function, object)
    numbered = df.toDF(*(f"c{i}" for i in range(len(df.columns))))  # mapInArrow() takes no dots in names
    return numbered.mapInArrow(lambda batches: mapper(batches), result_type)  # Spark wants a function


class Mapper:
    """What a task does with its partition.

    Parameters
    ----------
    function : coroutine function, or AsyncFunction
        Row -> row or list of rows of the result.
    row_type : pyspark.sql.types.StructType
        Of the input.
    schema : pyarrow.Schema
        Of the result.
    **options
        Of `timerheap.async_io.AsyncWaitOperator`.
    """

    def __init__(
        self,
        function: AsyncFunction[Row, Any] | Callable[[Row], Awaitable[Any]],
        row_type: StructType,
        schema: pa.Schema,
        **options: Any,
    ) -> None:
        self._operator = AsyncWaitOperator(_RowFunction(function, schema), **options)
        self._row_type = row_type
        self._schema = schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the results of a partition, reading on only when all rows so far are under way."""
        read = filter(None, map(self._rows, batches))
        first = next(read, None)
        if first is None:
            return
        with closing(_Passage(self._operator).through(chain([first], read))) as parts:
            for results in parts:
                output = ResultBuffer(self._schema)
                output.rows(results, "function")
                yield from output.table().to_batches()

    def _rows(self, batch: pa.RecordBatch) -> list[Row]:
        table = pa.Table.from_batches([batch]).rename_columns(self._row_type.names)
        return rows_of(table, self._row_type)  # type: ignore[no-any-return]


class _Passage:
    """Between two threads: Spark's, which reads rows and writes results, and the event loop's.

    The loop has a thread of its own, so that calls go on, and their time, while Spark's is busy.
    """

    def __init__(self, operator: AsyncWaitOperator[Row, Any]) -> None:
        self._operator = operator
        self._rows: asyncio.Queue[list[Row] | None] = asyncio.Queue()
        # For Spark's thread, in turn: results to write, None where rows are wanted, the end.
        self._orders: queue.SimpleQueue[list[Any] | Future[None] | None] = queue.SimpleQueue()
        self._results: list[Any] = []

    def through(self, read: Iterator[list[Row]]) -> Generator[list[Any], None, None]:
        """Give the results; in Spark's thread."""
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
                self._loop.call_soon_threadsafe(self._task.cancel)  # if it still runs
            order.result()

    async def _run(self) -> None:
        self._task = cast("asyncio.Task[None]", asyncio.current_task())
        async with self._operator.open(self._take) as stream:
            while (rows := await self._more()) is not None:
                for row in rows:
                    await stream.process_element(row)
        self._hand_over()

    async def _more(self) -> list[Row] | None:
        self._hand_over()  # to read may take long
        self._orders.put(None)
        return await self._rows.get()

    def _take(self, result: QueueElement) -> None:
        assert isinstance(result, StreamRecord)
        if not self._results:
            self._loop.call_later(_LATENCY, self._hand_over)
        self._results.append(result.value)
        if len(self._results) >= _MOST_ROWS:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._results:
            self._orders.put(self._results)
            self._results = []


class _RowFunction(AsyncFunction[Row, Any]):
    """The user's function, whose result is a list of rows of the output."""

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
            raise TypeError(f"{self._name} returned None; return a row, a list of rows, or [] for none")
        rows = result if isinstance(result, list) else [result]
        ResultBuffer(self._schema).rows(rows, self._name)  # now, while the input's row is known
        return rows
