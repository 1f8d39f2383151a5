"""The variants of the session-timeout job: each gives the results of a DataFrame of events."""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from session_job import GAP

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    WatermarkStrategy,
)
from timerheap.spark._columns import PACKED, RESULTS
from timerheap.spark._exchange.codec import frame_rows
from timerheap.spark._exchange.packed import OBSERVATION
from timerheap.spark._exchange.packer import Packer
from timerheap.spark._observed import OBSERVED
from timerheap.spark._plan.observed_metrics import output_type
from timerheap.spark._worker.spark_frames import result_frames


class Columns(BatchProcessFunction):
    """timerheap in columns, with a named timer per key, which a registration moves."""

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + GAP, name="silent")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.ids).column("key")
        yield pa.record_batch([keys, pa.array(due.timestamps)], names=["key", "at"])


class Rows(KeyedProcessFunction):
    """timerheap row by row, with the same timer."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + GAP, name="silent")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str, int]]:
        yield ctx.get_current_key(), timestamp


def timerheap_process(
    function: BatchProcessFunction | KeyedProcessFunction, order: str
) -> Callable[..., DataFrame]:
    def variant(events: DataFrame) -> DataFrame:
        return timerheap.spark.process(
            events,
            key="key",
            function=function,
            output_schema=_result(events),
            event_time="at",
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            order=order,
        )

    return variant


def _result(events: DataFrame) -> str:
    return f"key {events.schema['key'].dataType.simpleString()}, at bigint"


def packed(events: DataFrame) -> Any:
    """Group the output of timerheap's pack stage by label, one for each shuffle partition."""
    packer = Packer("key", "at", None)
    return events.mapInArrow(lambda batches: packer(batches), PACKED).groupBy("label")


class Nothing(StatefulProcessor):
    """Discards the packed rows, to measure the cost of the pack stage and the exchange alone."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for _ in rows:
            pass
        return iter(())


def no_op(events: DataFrame) -> DataFrame:
    return packed(events).transformWithStateInPandas(Nothing(), _result(events), "Append", "None")


class Eighth(Nothing):
    """Returns one row in eight, as many results as a full batch has, as timerheap does; keeps nothing."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for sequence, blob in zip(frame["sequence"], frame["blob"], strict=True):
                if sequence != OBSERVATION:
                    batch = frame_rows(blob)[0].select(["key", "at"])
                    yield from result_frames(pa.Table.from_batches([batch[: len(batch) // 8]]))


def results_only(events: DataFrame) -> DataFrame:
    """Pack rows and return results as timerheap does, with nothing between."""
    type_ = output_type(events.select("key", "at").schema, has_watermark=True)
    arrays = packed(events).transformWithStateInPandas(Eighth(), type_, "Append", "None")
    return arrays.select(F.inline(RESULTS))


def heapq_blob(events: DataFrame) -> DataFrame:
    """Python's heapq and a dict, pickled into one blob of state per partition.

    A key has one entry in the heap. If its timer has been moved when the entry is due, the entry is pushed
    again. That is twice as fast as one entry per move, since the blob stays small.
    """
    return packed(events).applyInPandasWithState(
        _heapq_group, _result(events), "timers binary", "append", "NoTimeout"
    )


def _heapq_group(label: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    heap, timers = pickle.loads(state.get[0]) if state.exists else ([], {})
    seen = pd.concat(frames)
    blobs: dict[bool, list[pa.RecordBatch]] = {True: [], False: []}
    for sequence, blob in zip(seen["sequence"], seen["blob"], strict=True):
        observation = sequence == OBSERVATION
        blobs[observation].append(
            pa.ipc.open_stream(blob).read_next_batch() if observation else frame_rows(blob)[0]
        )
    observed = pa.Table.from_batches(blobs[True], OBSERVED)
    if blobs[False]:
        rows = pa.Table.from_batches(blobs[False])
        due = (rows["at"].to_numpy() + GAP).tolist()
        moved = dict(zip(rows["key"].to_pylist(), due, strict=True))
        heap += [(timer, key) for key, timer in moved.items() if key not in timers]
        heapq.heapify(heap)
        timers.update(moved)
    watermark = pc.max(observed["max_timestamp"]).as_py() - 1
    fired = []
    while heap and heap[0][0] <= watermark:
        timer, key = heap[0]
        if timers[key] > timer:
            heapq.heapreplace(heap, (timers[key], key))
        else:
            heapq.heappop(heap)
            del timers[key]
            fired.append((key, timer))
    state.update((pickle.dumps((heap, timers), pickle.HIGHEST_PROTOCOL),))
    if fired:
        yield pd.DataFrame(fired, columns=["key", "at"])


class SparkTimers(StatefulProcessor):
    """Spark's own timers, moved once for all rows of a key in a batch."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.timer = handle.getValueState("timer", "timer bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        new = max(int(frame["at"].max()) for frame in rows) + GAP
        old = self.timer.get()
        if old is not None:
            self.handle.deleteTimer(old[0])
        self.handle.registerTimer(new)
        self.timer.update((new,))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        self.timer.clear()
        yield pd.DataFrame({"key": [key[0]], "at": [expiredTimerInfo.getExpiryTimeInMs()]})


def spark_timers(events: DataFrame) -> DataFrame:
    timed = events.withColumn("time", F.timestamp_millis("at")).withWatermark("time", "0 seconds")
    return timed.groupBy("key").transformWithStateInPandas(
        SparkTimers(), _result(events), "Append", "EventTime"
    )


VARIANTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columns": timerheap_process(Columns(), "event_time"),
    "columns-arrival": timerheap_process(Columns(), "arrival"),
    "rows": timerheap_process(Rows(), "event_time"),
    "rows-arrival": timerheap_process(Rows(), "arrival"),
    "no-op": no_op,
    "results": results_only,
    "heapq": heapq_blob,
    "spark": spark_timers,
}

UNCHECKED = ("no-op", "results")  # have no timers
