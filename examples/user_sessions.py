"""Sessions of clicks: a session ends when its user has been silent for half an hour.

    pip install "timerheap[spark]"
    python examples/user_sessions.py

Each click moves its user's timer. When the timer fires, the session is over and its row is emitted:

+----+-------------------+-------------------+------+
|user|started            |ended              |clicks|
+----+-------------------+-------------------+------+
|ben |2026-03-01 09:05:00|2026-03-01 09:05:00|1     |
|ada |2026-03-01 09:00:00|2026-03-01 09:25:00|3     |
|ada |2026-03-01 10:10:00|2026-03-01 10:10:00|1     |
+----+-------------------+-------------------+------+
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy
from timerheap.spark import ensure_java, settings

MINUTE = 60_000  # milliseconds
GAP = 30 * MINUTE

# One file for each hour; the last click only moves the watermark past the sessions before it.
CLICKS = {
    "09": [("ada", "09:00"), ("ben", "09:05"), ("ada", "09:15"), ("ada", "09:25")],
    "10": [("ada", "10:10")],
    "12": [("cleo", "12:00")],
}


class Sessions(KeyedProcessFunction):
    """Emits user, first click, last click and the number of clicks of each session."""

    def open(self, runtime_context: Any) -> None:
        """Create the state: each user has a value of each."""
        self.started = runtime_context.get_state(ValueStateDescriptor("started", Types.LONG()))
        self.ended = runtime_context.get_state(ValueStateDescriptor("ended", Types.LONG()))
        self.clicks = runtime_context.get_state(ValueStateDescriptor("clicks", Types.LONG()))

    def process_element(self, value: Row, ctx: Any) -> None:
        """Move the user's timer."""
        if self.ended.value() is None:
            self.started.update(ctx.timestamp())
        self.ended.update(ctx.timestamp())
        self.clicks.update((self.clicks.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP, name="end")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        """Emit the session and forget it."""
        started, ended = (datetime.fromtimestamp(s.value() / 1000, UTC) for s in (self.started, self.ended))
        yield ctx.get_current_key(), started, ended, self.clicks.value()
        for state in (self.started, self.ended, self.clicks):
            state.clear()


def write_clicks(folder: Path) -> None:
    """Write one file of JSON lines for each hour."""
    folder.mkdir()
    for hour, clicks in CLICKS.items():
        rows = [{"user": user, "at": f"2026-03-01T{time}:00Z"} for user, time in clicks]
        (folder / f"{hour}.json").write_text("\n".join(map(json.dumps, rows)))


def run(spark: SparkSession, folder: Path) -> DataFrame:
    """Run the query over all files to its end; return what it has written."""
    write_clicks(folder / "clicks")
    sessions = timerheap.spark.process(
        spark.readStream.schema("user string, at timestamp").json(str(folder / "clicks")),
        key="user",
        function=Sessions(),
        output_schema="user string, started timestamp, ended timestamp, clicks bigint",
        event_time="at",
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(5 * MINUTE),
    )
    writer = sessions.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "sessions"), format="parquet").awaitTermination()
    return spark.read.parquet(str(folder / "sessions")).orderBy("ended")


def show(spark: SparkSession) -> None:
    """Run the query in a temporary folder and show the rows."""
    with tempfile.TemporaryDirectory() as folder:
        run(spark, Path(folder)).show(truncate=False)


def main() -> None:
    """Start a local Spark for the query."""
    ensure_java()
    builder = SparkSession.builder.master("local[2]").config(map=settings())
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = builder.config("spark.sql.shuffle.partitions", 2).getOrCreate()
    show(spark)
    spark.stop()


if __name__ == "__main__":
    main()
