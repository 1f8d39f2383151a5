"""A stateful processor that runs what its rows say, on both implementations in one query."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import streams
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from timerheap.spark import transform_with_state, transform_with_state_in_pandas

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("ops", pa.string())])
OUTPUT = "k string, what string"
Style = Literal["rows", "frames"]

_VALUE = "value.get() value.exists() value.clear() value.update(({n},'x')) value.update([{n},None])"
_LIST = (
    "list.exists() list.get() list.appendValue(({n},)) list.appendList([(1,),({n},)]) list.put([({n},)]) "
    "list.clear()"
)
_MAP = (
    "map.exists() map.getValue(({k},)) map.containsKey(({k},)) map.updateValue(({k},),({n},)) map.iterator() "
    "map.updateValue(({k},),({n},)) map.keys() map.values() map.removeKey(({k},)) map.clear()"
)
_TIMERS = "timers() register({t}) register({t}) register({t}) register({t}) delete({t})"


class Commands(StatefulProcessor):
    """Evaluates the commands of each row on its states and timers, and yields what they return.

    A timer whose timestamp is divisible by 7 registers others when it fires: one at its own time, one that is
    due and one that is not; others delete one.
    """

    def __init__(self, style: Style, ttl: int | None = None) -> None:
        self.style = style
        self.ttl = ttl

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n bigint, s string", self.ttl)
        self.list = handle.getListState("list", "n int", self.ttl)
        self.map = handle.getMapState("map", "k string", "n int", self.ttl)
        self.gone = handle.getValueState("gone", "n int")
        handle.deleteIfExists("gone")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        found = []
        for row in rows:
            each = [row] if self.style == "rows" else row.itertuples()
            found += [command for one in each for command in one.ops.split(";")]
        times = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        self.now = max(times[1], 0) if times[1] >= 0 else times[0]
        yield from self._out(key, [f"{times} {command} -> {self._run(command)}" for command in found])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        rows = [initialState] if self.style == "rows" else list(initialState.itertuples())
        self.now = 0
        for row in rows:
            for command in row.ops.split(";"):
                self._run(command)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        found = [f"timer {at} {list(self.handle.listTimers())} {self.value.get()} {key!r}"]
        if at % 7 == 0:
            for other in (at, at + 1, at + 50_000):
                self.handle.registerTimer(other)
            self.value.update((at, "timer"))
        if at % 7 == 1:
            self.handle.deleteTimer(at + 100)
        yield from self._out(key, found)

    def close(self) -> None:
        pass

    def _run(self, command: str) -> str:
        names = {
            "value": self.value,
            "list": self.list,
            "map": self.map,
            "gone": self.gone,
            "register": lambda t: self.handle.registerTimer(t + (self.now if self.ttl else 0)),
            "delete": lambda t: self.handle.deleteTimer(t + (self.now if self.ttl else 0)),
            "timers": lambda: list(self.handle.listTimers()),
        }
        try:
            found = eval(command, names)
            return repr(list(found) if hasattr(found, "__next__") else found)
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    def _out(self, key: Any, found: list[str]) -> Iterator[Any]:
        if self.style == "rows":
            yield from (Row(k=key[0], what=what) for what in found)
        elif found:
            yield pd.DataFrame({"k": [key[0]] * len(found), "what": found})


def commands(rng: random.Random, clock: int) -> str:
    """Return some random commands; those of timers are around `clock`."""
    known = [*_VALUE.split(" "), *_LIST.split(" "), *_MAP.split(" "), *_TIMERS.split(" ")]
    known += ["gone.exists()", "value.update(5)", "value.update((2**70,7))", "list.put([({n}.5,)])"]
    key = repr(rng.choice(["a", "b", "ccc", "", "Z"]))
    time = (clock + rng.randrange(-20_000, 20_000)) // 7 * 7 + rng.choice([0, 0, 1])
    chosen = (rng.choice(known) for _ in range(6))
    return ";".join(one.format(n=rng.randrange(9), k=key, t=time) for one in chosen)


def random_batches(seed: int, batches: int, rows: int = 8) -> list[list[dict[str, Any]]]:
    """Return micro-batches of commands for five keys; some rows are late, and one in the first is of 1969."""
    rng = random.Random(seed)
    found = []
    for number in range(batches):
        clock = 10_000 * number
        times = [rng.randrange(-15_000, 10_000) + clock for _ in range(rows)]
        found.append(
            [
                {
                    "k": rng.choice(["a", "b", "c", "d", None]),
                    "at": datetime.fromtimestamp(time / 1000, UTC),
                    "ops": commands(rng, clock),
                }
                for time in times
            ]
        )
    return found


def on_both(
    df: DataFrame,
    processor: StatefulProcessor,
    style: Style,
    mode: str,
    initial: GroupedData | None = None,
) -> DataFrame:
    """Return the results of Spark's implementation and of timerheap's, marked by the column ``by``."""
    grouped = df.groupBy("k")
    theirs = grouped.transformWithState if style == "rows" else grouped.transformWithStateInPandas
    ours = transform_with_state if style == "rows" else transform_with_state_in_pandas
    spark = theirs(processor, OUTPUT, "Append", mode, initial)
    timerheap = ours(df, "k", processor, OUTPUT, "Append", mode, initial)
    return spark.withColumn("by", F.lit("spark")).union(timerheap.withColumn("by", F.lit("timerheap")))


def run_both(
    spark: SparkSession,
    batches: list[list[dict[str, Any]]],
    work: Path,
    style: Style,
    time_mode: str,
    ttl: int | None = None,
    initial: GroupedData | None = None,
) -> list[tuple[list[Any], list[Any]]]:
    """Run commands on both implementations; return what each yields in each micro-batch, sorted."""
    streams.write_batches(work / "input", batches, SCHEMA)
    df = streams.read_stream(spark, work / "input").withWatermark("at", "2 seconds")
    both = on_both(df, Commands(style, ttl), style, time_mode, initial)
    return [
        tuple(sorted((row[:2] for row in rows if row[2] == by), key=repr) for by in ("spark", "timerheap"))
        for rows in streams.batches(both, work)
    ]
