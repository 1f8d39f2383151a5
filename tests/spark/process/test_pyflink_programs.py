"""Programs of the kind that PyFlink's repository has as examples, with their imports changed.

Their sources are DataFrames, and states have types, since nothing is pickled.
"""

import json
from collections import Counter
from collections.abc import Iterable
from functools import reduce

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import (
    ContinuousEventTimeTrigger,
    CountWindow,
    Duration,
    EventTimeSessionWindows,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    Row,
    RuntimeContext,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    Time,
    TimestampAssigner,
    TimeWindow,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    WindowFunction,
    count_window,
)

pytestmark = pytest.mark.spark


class Spent(KeyedProcessFunction):
    def __init__(self):
        self.total = None

    def open(self, runtime_context: RuntimeContext):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.DOUBLE()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.total.update((self.total.value() or 0) + value[2])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield ctx.get_current_key(), round(self.total.value(), 1)


class FirstField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp: int) -> int:
        return int(value[0])


def test_event_time_timers_with_a_timestamp_assigner(spark):
    payments = spark.createDataFrame(
        [
            ("1000", "Alice", 110.1),
            ("4000", "Bob", 30.2),
            ("3000", "Alice", 20.0),
            ("2000", "Bob", 53.1),
            ("5000", "Alice", 13.1),
            ("3000", "Bob", 3.1),
        ],
        "`at.ms` string, name string, amount double",
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(2)).with_timestamp_assigner(
        FirstField()
    )

    totals = timerheap.spark.process(
        payments, "name", Spent(), "name string, total double", watermark=strategy
    )

    assert Counter(map(tuple, totals.collect())) == Counter(
        [("Alice", 130.1), ("Alice", 143.2), ("Alice", 143.2), ("Bob", 86.4), ("Bob", 86.4), ("Bob", 86.4)]
    )


class Matched(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield Row(at=ctx.timestamp(), side="left", width=len(value))

    def process_element2(self, value, ctx):
        yield Row(at=ctx.timestamp(), side="right", width=len(value))


def test_two_inputs_may_have_a_column_and_an_assigner_for_their_times(spark):
    left = spark.createDataFrame([("a", 5)], "k string, at bigint")
    right = spark.createDataFrame([("7", "a")], "at string, k string")
    ascending = WatermarkStrategy.for_monotonous_timestamps()

    rows = timerheap.spark.process_two(
        left,
        timerheap.spark.RightInput(right, watermark=ascending.with_timestamp_assigner(FirstField())),
        "k",
        Matched(),
        "side string, at bigint, width int",
        "at",
        watermark=ascending,
    )

    assert sorted(map(tuple, rows.collect())) == [("left", 5, 2), ("right", 7, 2)]


def test_an_assigner_that_returns_no_timestamp_raises(spark):
    rows = spark.createDataFrame([("a", 5)], "k string, at bigint")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.k)
    late = timerheap.spark.process(rows, "k", Spent(), "k string, total double", watermark=strategy)
    with pytest.raises(Exception, match=r"extract_timestamp must return epoch milliseconds, .* got 'a'"):
        late.collect()


class InChina(KeyedProcessFunction):
    def process_element(self, value, ctx):
        person = json.loads(value[1])
        person["tel"] += 1
        if "China" in person["addr"]["country"]:
            yield value[0], person["name"], person["tel"], person["addr"]["city"]


def test_json_is_parsed_and_filtered(spark):
    people = spark.createDataFrame(
        [
            (1, '{"name": "Flink", "tel": 123, "addr": {"country": "Germany", "city": "Berlin"}}'),
            (2, '{"name": "hello", "tel": 135, "addr": {"country": "China", "city": "Shanghai"}}'),
        ],
        "id long, data string",
    )
    found = timerheap.spark.process(people, "id", InChina(), "id long, name string, tel int, city string")
    assert found.collect() == [(2, "hello", 136, "Shanghai")]


TOO_LONG = OutputTag("too long", Types.TUPLE([Types.STRING(), Types.LONG()]))


class Windowed(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        count = len(list(elements))
        if count > 3:
            yield TOO_LONG, (key, context.window().start)
            context.output(TOO_LONG, (key, context.window().end))
        else:
            yield key, count


@pytest.mark.promises(
    "PyFlink", "added", "ProcessWindowFunction.Context.output", note="as in Flink's Java API"
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_window_function_has_side_outputs(spark, tmp_path, streams):
    schema = "word string, n long"
    spark.createDataFrame([("hi", n) for n in (1, 2, 3, 4, 5, 8, 15)], schema).coalesce(1).write.parquet(
        str(tmp_path / "input")
    )
    reader = spark.readStream if streams else spark.read
    counts = timerheap.spark.window_operator(
        reader.schema(schema).parquet(str(tmp_path / "input")),
        "word",
        TumblingEventTimeWindows.of(Time.milliseconds(5)),
        Windowed(),
        "w string, count long",
        "n",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
    )
    main, side = [], []

    def take(batch, _=None):
        main.extend(map(tuple, batch.where("side_output is null").select("w", "count").collect()))
        side.extend(map(tuple, timerheap.spark.side_output(batch, TOO_LONG).collect()))

    if streams:
        query = timerheap.spark.with_side_outputs(counts).writeStream.foreachBatch(take)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()
    else:
        take(timerheap.spark.with_side_outputs(counts))
        assert [tuple(row)[3:] for row in counts.collect()] == main
        assert timerheap.spark.side_output(counts, TOO_LONG).columns == ["f0", "f1"]
        with pytest.raises(ValueError, match=r"tag must be one of .* \['too long'\], got 'other'"):
            timerheap.spark.side_output(counts, OutputTag("other", Types.LONG()))
        with pytest.raises(ValueError, match="df must be what a function"):
            timerheap.spark.side_output(spark.range(1), TOO_LONG)

    assert sorted(side) == [("hi", 0), ("hi", 5)]
    assert main == [("hi", 2), ("hi", 1)][: 1 if streams else 2]


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class GapOfElement(SessionWindowTimeGapExtractor):
    def extract(self, element: tuple) -> int:
        return element[1]


class Counted(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len(list(elements)))]

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        pass


class Summed(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]):
        return [(key, window.id, None, sum(number for _, number in inputs))]


def test_windows(spark):
    words = spark.createDataFrame([("hi", n) for n in (1, 2, 3, 4, 5, 8, 9, 15)], "key string, n int")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())

    def windowed(name, assigner, function=None, **options) -> DataFrame:
        results = timerheap.spark.window_operator(
            words,
            "key",
            assigner,
            function or Counted(),
            "word string, start bigint, end bigint, count int",
            watermark=strategy,
            **options,
        )
        return results.select(F.lit(name).alias("name"), "word", "start", "end", "count")

    every = Time.milliseconds
    results = reduce(
        DataFrame.unionAll,
        [
            windowed("tumbling", TumblingEventTimeWindows.of(every(5))),
            windowed("sliding", SlidingEventTimeWindows.of(every(5), every(2))),
            windowed("session", EventTimeSessionWindows.with_gap(every(3))),
            windowed("dynamic", EventTimeSessionWindows.with_dynamic_gap(GapOfElement())),
            windowed(
                "continuous",
                timerheap.spark.WindowedBy(
                    TumblingEventTimeWindows.of(every(10)),
                    trigger=ContinuousEventTimeTrigger.of(every(5)),
                ),
                order="event_time",
            ),
            windowed("count", count_window(3), Summed(), order="event_time"),
        ],
    )

    found = {}
    for name, word, *window in results.collect():
        assert word == "hi"
        found.setdefault(name, []).append(tuple(window))
    assert {name: sorted(windows) for name, windows in found.items()} == {
        "tumbling": [(0, 5, 4), (5, 10, 3), (15, 20, 1)],
        "sliding": [(start, start + 5, count) for start, count in SLIDING.items()],
        "session": [(1, 12, 7), (15, 18, 1)],
        "dynamic": [(1, 30, 8)],
        "continuous": [(0, 10, 5), (0, 10, 7), (10, 20, 1)],
        "count": [(0, None, 6), (1, None, 17)],
    }


SLIDING = {-2: 2, 0: 4, 2: 4, 4: 3, 6: 2, 8: 2, 12: 1, 14: 1}
