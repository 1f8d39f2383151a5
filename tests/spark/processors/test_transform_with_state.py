"""Stateful processors on Spark's implementation and on timerheap's yield the same."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
import streams
from processors import SCHEMA, Commands, on_both, random_batches, run_both
from pyspark.errors import PySparkRuntimeError, StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from spark_faults import nested

from timerheap.spark import transform_with_state, transform_with_state_in_pandas

pytestmark = pytest.mark.spark


@pytest.mark.in_turn
@pytest.mark.promises(
    "StatefulProcessor",
    "supported",
    "StatefulProcessor.handleInputRows",
    "StatefulProcessor.handleExpiredTimer",
    "StatefulProcessorHandle.getValueState",
    "StatefulProcessorHandle.getListState",
    "StatefulProcessorHandle.getMapState",
    "StatefulProcessorHandle.registerTimer",
    "StatefulProcessorHandle.deleteTimer",
    "StatefulProcessorHandle.listTimers",
    "StatefulProcessorHandle.deleteIfExists",
    "TimerValues.getCurrentProcessingTimeInMs",
    "TimerValues.getCurrentWatermarkInMs",
    "ExpiredTimerInfo.getExpiryTimeInMs",
    "ValueState.exists",
    "ValueState.get",
    "ValueState.update",
    "ValueState.clear",
    "ListState.exists",
    "ListState.get",
    "ListState.put",
    "ListState.appendValue",
    "ListState.appendList",
    "ListState.clear",
    "MapState.exists",
    "MapState.getValue",
    "MapState.containsKey",
    "MapState.updateValue",
    "MapState.iterator",
    "MapState.keys",
    "MapState.values",
    "MapState.removeKey",
    "MapState.clear",
    "GroupedData.transformWithState",
)
def test_random_commands_on_rows_in_event_time_do_the_same_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = random_batches(seed=1, batches=4)
    found = run_both(spark, batches, tmp_path, "rows", "EventTime")
    for theirs, ours in found:
        assert ours == theirs
    yielded = [what for theirs, _ in found for _, what in theirs]
    assert sum(what.startswith("timer ") for what in yielded) > 3
    ran = sum(" -> " in what for what in yielded)
    assert ran < sum(len(row["ops"].split(";")) for batch in batches for row in batch)  # some are late


@pytest.mark.in_turn
@pytest.mark.promises(
    "StatefulProcessor", "supported", "GroupedData.transformWithStateInPandas", "ttlDurationMs"
)
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "StatefulProcessor.handleInitialState",
    note="runs for all keys of a partition before any row; in Spark, for each key before its rows",
)
def test_random_commands_on_frames_with_time_to_live_and_initial_state_do_the_same_as_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, *batches = random_batches(seed=2, batches=3)
    with streams.configured(spark, streaming_noDataMicroBatches_enabled=False):
        initial = spark.createDataFrame([(row["k"], row["ops"]) for row in first], "i string, ops string")
        found = run_both(
            spark, batches, tmp_path, "frames", "ProcessingTime", ttl=3_600_000, initial=initial.groupBy("i")
        )
    for theirs, ours in found:
        assert ours == theirs


@pytest.mark.promises("StatefulProcessor", "supported", "initialState", "batch DataFrames")
def test_a_batch_dataframe_with_initial_state_does_the_same_as_in_spark(spark: SparkSession) -> None:
    ops = "value.get();value.update((3,'x'));list.get();map.keys();register(5);timers()"
    df = spark.createDataFrame([("a", ops), ("b", ops), ("a", ops)], "k string, ops string")
    first = "value.update((1,'first'));list.put([(1,),(2,)]);map.updateValue(('x',),(1,))"
    initial = spark.createDataFrame([("a", first), ("c", first)], "i string, ops string").groupBy("i")
    both = on_both(df, Commands("rows"), "rows", "EventTime", initial)
    found = [(row.by, row.k, row.what.partition(" ")[2].partition(" ")[2]) for row in both.collect()]
    yielded = {by: sorted(rest for one, *rest in found if one == by) for by in ("spark", "timerheap")}
    assert yielded["timerheap"] == yielded["spark"]
    assert len(yielded["spark"]) == 18


class Trip(NamedTuple):
    stop: str
    minutes: int


class Nested(StatefulProcessor):
    """States of nested and long values in each shape; yields nested values, and what it has found as text."""

    SCHEMA = (
        "ids array<int>, tags array<array<string>>, stops array<struct<stop:string,minutes:int>>, "
        "limits map<string,map<string,int>>, note string"
    )
    OUTPUT = (
        "a string, b int, what string, stops array<struct<stop:string,minutes:int>>, limits map<string,int>"
    )
    VALUE = (
        [1, None, 3],
        [["a", ""], [], ["\x00\\ \n\t,'\""]],
        [{"stop": "north", "minutes": 2}, nested(Trip("south", 3))],
        {"up": {"x": 1}},
        "long " * 40_000,
    )

    def __init__(self, style: str) -> None:
        self.style = style

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", self.SCHEMA)
        self.list = handle.getListState("list", self.SCHEMA)
        self.map = handle.getMapState("map", "a string, b int", self.SCHEMA)
        self.empty = handle.getValueState("empty", "n int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        n = initialState.n if self.style == "rows" else initialState.at[0, "n"]
        self.value.update(self.VALUE)
        self.list.appendList([self.VALUE, ([n], None, None, None, None)])
        self.map.updateValue((None, 1), self.VALUE)
        self.map.updateValue(key, ([n], [], [], {"": {"é": n}}, ""))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10_000_000)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = sum(row.n if self.style == "rows" else int(row["n"].sum()) for row in rows)
        found = self.value.get()
        if found is not None:
            found[0].append(n)  # which changes no state
            ids, tags, stops, limits, note = found
            stops = [*map(nested, stops), {"stop": key[0], "minutes": n}]
            self.value.update((ids, tags, stops, limits, note))
        self.list.appendValue(([n], [], [nested(Trip("end", n))], {}, None))
        shown = [self.value.get(), *self.list.get(), *self.map.iterator()]
        shown += [
            self.empty.get(),
            self.empty.exists(),
            self.map.getValue(key),
            len(list(self.handle.listTimers())),
        ]
        text = repr(shown).replace("long " * 40_000, "long")
        yield self._result(
            key, text, [{"stop": "x", "minutes": n}, {"stop": None, "minutes": None}], {"n": n}
        )
        yield self._result(key, None, None, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        self.handle.deleteTimer(expiredTimerInfo.getExpiryTimeInMs())
        left = len(list(self.handle.listTimers()))
        yield self._result(key, f"timer {key!r} {left} {self.value.exists()}", [], {})

    def _result(self, key: Any, what: Any, stops: Any, limits: Any) -> Any:
        a, b = key
        if self.style == "rows":
            return Row(limits=limits, a=a, b=b, what=what, stops=stops and [Row(**stop) for stop in stops])
        return pd.DataFrame({"b": [b], "a": [a], "what": [what], "limits": [limits], "stops": [stops]})


@pytest.mark.parametrize("style", ["rows", "frames"])
def test_nested_states_two_key_columns_and_timers_of_initial_state_do_the_same_as_in_spark(
    spark: SparkSession, style: Any
) -> None:
    schema = "n int, b int, at timestamp, a string"
    rows = [(1, 5, None, "x"), (2, 5, None, "y"), (3, 6, None, "x"), (4, 5, None, "x")]
    df = spark.createDataFrame(rows, schema)
    initial = spark.createDataFrame([("x", 7, 5), ("z", 8, 9)], "a2 string, n int, b2 int").groupBy(
        "a2", "b2"
    )
    grouped = df.groupBy("a", "b")
    theirs = grouped.transformWithState if style == "rows" else grouped.transformWithStateInPandas
    ours = transform_with_state if style == "rows" else transform_with_state_in_pandas
    spark_result = theirs(Nested(style), Nested.OUTPUT, "Append", "ProcessingTime", initial)
    result = ours(df, ["a", "b"], Nested(style), Nested.OUTPUT, "Append", "ProcessingTime", initial)
    expected = sorted(map(repr, spark_result.collect()))
    assert sorted(map(repr, result.collect())) == expected
    assert len(expected) == 8


class Clock(StatefulProcessor):
    """Yields the time."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield Row(now=timerValues.getCurrentProcessingTimeInMs())


@pytest.mark.promises("StatefulProcessor", "supported", "processing time of a batch DataFrame")
def test_all_partitions_of_a_batch_have_one_time_as_in_spark(spark: SparkSession) -> None:
    df = spark.createDataFrame([(str(n),) for n in range(20)], "k string")
    with streams.configured(spark, shuffle_partitions=4):  # more than tasks at a time
        for result in (
            df.groupBy("k").transformWithState(Clock(), "now long", "Append", "ProcessingTime"),
            transform_with_state(df, "k", Clock(), "now long", "Append", "ProcessingTime"),
        ):
            found = result.collect()
            assert (len(found), len(set(found))) == (20, 1)


class Total(StatefulProcessor):
    """Yields the number of rows of a key so far."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n = sum(map(len, rows)) + (self.total.get() or (0,))[0]
        self.total.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})


@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "checkpoints",
    note="those of Spark's operator are refused in the first micro-batch (not on Spark Connect, where the "
    "query begins with no state); read their state with the format statestore, and pass it as initial_state",
)
def test_a_checkpoint_of_spark_s_own_operator_is_refused_and_spark_goes_on_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    def total(ours: bool) -> list[list[tuple[Any, ...]]]:
        streams.write_batches(tmp_path / "input", [[{"k": "a", "at": None, "ops": ""}]], SCHEMA)
        df = streams.read_stream(spark, tmp_path / "input", files=9)
        if ours:
            result = transform_with_state_in_pandas(df, "k", Total(), "k string, n long", "Append", "None")
        else:
            grouped = df.groupBy("k")
            result = grouped.transformWithStateInPandas(Total(), "k string, n long", "Append", "None")
        return streams.batches(result, tmp_path)

    assert total(ours=False) == [[("a", 1)]]
    with pytest.raises(
        StreamingQueryException,
        match="checkpoint of query .* must be one that timerheap has written, got '.*checkpoint', with "
        r"the state of Spark's own transformWithStateInPandas in operator 0; .* as initial_state",
    ):
        total(ours=True)
    assert total(ours=False) == [[("a", 2)], [("a", 3)]], "that of the refused micro-batch, and the next"


class Echo(StatefulProcessor):
    """Yields its rows, and for each a timer a second later."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(int(row.at.timestamp() * 1000) + 1000)
            yield Row(k=row.k, at=row.at)

    def close(self) -> None:
        pass


@pytest.mark.promises("StatefulProcessor", "supported", "eventTimeColumnName")
@pytest.mark.promises(
    "StatefulProcessor",
    "different",
    "late rows",
    note="are counted in `late_rows` of the metrics; in Spark, in numRowsDroppedByWatermark",
)
def test_windows_follow_by_the_event_time_column_and_metrics_are_in_the_progress(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = [(1,), (2,), (15,), (16,), (35,), (1,)]  # the second 1 is late
    batches = [
        [{"k": "a", "at": datetime.fromtimestamp(at, UTC), "ops": ""} for at in some] for some in times
    ]
    streams.write_batches(tmp_path / "input", batches, SCHEMA)
    df = streams.read_stream(spark, tmp_path / "input", files=2).withWatermark("at", "0 seconds")
    echo = transform_with_state(df, "k", Echo(), "k string, at timestamp", "Append", "EventTime", None, "at")
    counts = echo.groupBy(F.window("at", "10 seconds")).count().select("window.start", "count")
    progress = streams.run(counts, tmp_path)
    found = {(start.timestamp(), n) for start, n in streams.sink(spark, tmp_path)}
    assert found == {(0.0, 2), (10.0, 2)}
    metrics = [batch.observedMetrics["timerheap"].metrics for batch in progress]
    for name, total in {"fired_timers": 4, "late_rows": 1, "dropped_rows": 1, "out_of_order_rows": 0}.items():
        assert sum(values[name] or 0 for values in metrics) == total, name
    last = metrics[-1]
    assert last["watermark"] == 35_000
    assert (last["pending_event_time_timers"], last["next_event_time_timer"], last["keys"]) == (1, 36_000, 1)
    assert last["groups"] == last["max_parallelism"] > 1
    assert 0 < last["largest_group_bytes"] <= last["state_bytes"]


def test_the_result_has_the_schema_that_it_has_in_spark(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("'a' AS k", "timestamp AS at")
    schema = "k string not null, at timestamp"
    for df in (stream, stream.sparkSession.createDataFrame([], stream.schema)):
        theirs = df.groupBy("k").transformWithState(Echo(), schema, "Append", "EventTime")
        assert transform_with_state(df, "k", Echo(), schema, "Append", "EventTime").schema == theirs.schema


class Broken(Echo):
    def init(self, handle: Any) -> None:
        handle.getValueState("n", "n int", 1000)


def test_wrong_arguments_and_states_are_refused_before_the_query_starts(spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1)], "k string, n int")

    def run(processor: Any = None, mode: str = "EventTime", initial: Any = None, key: str = "k") -> None:
        transform_with_state(df, key, processor or Echo(), "k string", "Append", mode, initial)

    with pytest.raises(ValueError, match="time_mode must be"):
        run(mode="Event")
    with pytest.raises(TypeError, match="processor must be an instance, got the class Echo"):
        run(Echo)
    with pytest.raises(TypeError, match="processor must be a StatefulProcessor"):
        run(print)
    with pytest.raises(TypeError, match="initial_state must be a grouped DataFrame"):
        run(initial=df)
    with pytest.raises(ValueError, match="initial_state must be grouped by columns of the types of key"):
        run(initial=df.groupBy("n"))
    with pytest.raises(ValueError, match="key must name one column"):
        run(key="x")
    with pytest.raises(PySparkRuntimeError, match=r"INCORRECT_TIME_MODE_TO_ASSIGN_TTL.*state=n in timeMode="):
        run(Broken())
