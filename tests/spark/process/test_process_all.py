"""Several rules over one exchange of rows: each has the results that its function has alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import streams
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import (
    BatchProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from timerheap.spark import IfStored, Rule, read_checkpoint, rule_results

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64()), ("x", pa.int64())])
ODD = OutputTag("odd", Types.ROW_NAMED(["k", "x"], [Types.STRING(), Types.LONG()]))
EVENT_TIME = StateTtlConfig.TtlTimeCharacteristic.EventTime
EXPIRING = StateTtlConfig.new_builder(Time.milliseconds(400)).set_ttl_time_characteristic(EVENT_TIME).build()
NAMES = {"red": "first", "blue": "second"}


class Rises(KeyedProcessFunction):
    """A value above the one before."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))
        self.rises = runtime_context.get_metrics_group().counter("rises")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        last = self.last.value()
        self.last.update(value.x)
        if last is not None and value.x > last:
            self.rises.inc()
            yield value.k, value.x - last
        if value.x % 2:
            yield ODD, (value.k, value.x)


class Silence(KeyedProcessFunction):
    """No row of a key for 200 ms; and each 500th ms after a row, timers without a name."""

    def __init__(self, wait: int = 200) -> None:
        self.wait = wait

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_event_time_timer(value.at + self.wait, name="silence")
        timers.register_event_time_timer(value.at // 500 * 500 + 500)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.timer_name()


class Sums(BatchProcessFunction):
    """The sum of the values of a key so far, by columns, and its end 300 ms after a row."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", "struct<sum bigint>"))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        for number, key_id in enumerate(ctx.ids.tolist()):
            ids = np.array([key_id])
            before = self.last.values(ids).to_pylist()[0]
            total = batch.column("x")[number].as_py() + (before["sum"] if before else 0)
            self.last.update_many(ids, pa.array([{"sum": total}]))
            yield pa.record_batch({"k": batch.column("k").slice(number, 1), "sum": pa.array([total])})
        ctx.timer_service().register_event_time_timers(ctx.ids, ctx.timestamps + 300, name="silence")

    def on_timers(self, due: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        keys = ctx.keys(due.ids).column("k")
        yield pa.record_batch({"k": keys, "sum": pa.nulls(len(keys), pa.int64())})


class Seen(KeyedProcessFunction):
    """How often a key has come, of which it forgets."""

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("seen", Types.LONG())
        descriptor.enable_time_to_live(EXPIRING)
        self.seen = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.seen.update(1 + (self.seen.value() or 0))
        yield value.k, self.seen.value()


class Named(KeyedProcessFunction):
    """A timer for each value that a key has had, under its name."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + 700, name=f"{value.k} had {value.x}")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, ctx.timer_name()


class Reminder(KeyedProcessFunction):
    """A text after a row, by the clock."""

    def __init__(self, text: str) -> None:
        self.text = text

    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 1, name=self.text)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), ctx.timer_name()


RULES = {
    "rises": Rule(Rises(), "k string, by bigint"),
    "silence": Rule(Silence(), "k string, at bigint, name string"),
    "sums": Rule(Sums(), "k string, sum bigint"),
    "quick.silence": Rule(Silence(50), "k string, at bigint, name string"),
}


def together(df: DataFrame, rules: dict[str, Rule] = RULES, **options: Any) -> DataFrame:
    return timerheap.spark.process_all(
        df, "k", rules, "at", **{"watermark": 100, "max_parallelism": 4, **options}
    )


def alone(df: DataFrame, rule: Rule, **options: Any) -> DataFrame:
    options = {"watermark": 100, "max_parallelism": 4, **options}
    return timerheap.spark.process(df, "k", rule.function, rule.output_schema, "at", **options)


def made(batches: int, seed: int = 1, rows: int = 60, start: int = 0) -> list[pa.Table]:
    """Micro-batches of rows, some of them out of order, of keys that come and go."""
    draw = np.random.default_rng(seed)
    found = []
    for number in range(start, start + batches):
        at = (
            number * 400
            + draw.integers(0, 400, rows)
            - draw.integers(0, 2, rows) * draw.integers(0, 300, rows)
        )
        keys = [f"k{n}" for n in draw.integers(number, number + 6, rows)]
        found.append(pa.table([keys, at, draw.integers(0, 50, rows)], SCHEMA))
    return found


def by_rule(rows: list[tuple[Any, ...]], names: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """The results of each rule, sorted, given rows with a struct for each."""
    assert all(sum(value is not None for value in row) == 1 for row in rows)
    return {
        name: joined([tuple(row[at].values()) for row in rows if row[at] is not None])
        for at, name in enumerate(names)
    }


def joined(*parts: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((row for part in parts for row in part), key=repr)


def of_batches(batches: list[list[tuple[Any, ...]]], rules: dict[str, Rule]) -> dict[str, list[Any]]:
    """The results of each rule, sorted, in the rows of micro-batches."""
    rows = [row for batch in batches for row in batch]
    return {
        name: joined([tuple(row[at]) for row in rows if row[at] is not None]) for at, name in enumerate(rules)
    }


@pytest.fixture(scope="module")
def df(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(pa.concat_tables(made(5)))


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_each_rule_has_the_results_that_it_has_alone(order: str, df: DataFrame) -> None:
    rules = {**RULES, "the same": RULES["rises"]}
    result = together(df.repartition(1), rules, order=order)
    assert result.columns == list(rules)
    for name, rule in rules.items():
        expected = streams.rows(alone(df.repartition(1), rule, order=order))
        assert streams.rows(rule_results(result, name)) == expected
        assert expected


@pytest.mark.parametrize("order", ["event_time", "arrival"])
def test_so_it_is_on_a_stream_that_starts_again(order: str, spark: SparkSession, tmp_path: Path) -> None:
    rules = {
        **RULES,
        "seen": Rule(Seen(), "k string, n bigint"),
        "named": Rule(Named(), "k string, at bigint, name string"),
    }
    folders = {name: tmp_path / name for name in ("all", *rules)}
    for seed in (1, 2):
        for name, folder in folders.items():
            streams.write_batches(folder / "input", made(3, seed, start=3 * seed), SCHEMA)
            rows = streams.read_stream(spark, folder / "input")
            if name == "all":
                progress = streams.run(together(rows, rules, order=order), folder)
            else:
                streams.run(alone(rows, rules[name], order=order), folder)
    found = by_rule(streams.sink(spark, folders["all"]), list(rules))
    assert found == {name: streams.sink(spark, folders[name]) for name in rules}
    assert all(found.values())
    metrics = [one.observedMetrics["timerheap"] for one in progress]
    assert {"rises.rises"} == {name for one in metrics for name in one.counters}
    assert sum(one.metrics["fired_timers"] for one in metrics) > 0
    read = [json.loads(source.endOffset)["logOffset"] for one in progress for source in one.sources]
    assert len(read) == len(progress), "one source"


def test_rules_have_timers_of_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "input", made(1), SCHEMA)
    rules = {name: Rule(Reminder(text), "k string, text string") for name, text in NAMES.items()}
    result = timerheap.spark.process_all(
        streams.read_stream(spark, tmp_path / "input"), "k", rules, processing_time=True, max_parallelism=2
    )
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).format("parquet")
    timerheap.spark.run_available_now(writer, str(tmp_path / "sink"))
    keys = sorted(set(made(1)[0].column("k").to_pylist()))
    expected = {name: [(key, text) for key in keys] for name, text in NAMES.items()}
    assert by_rule(streams.sink(spark, tmp_path), list(rules)) == expected


def test_late_rows_and_side_outputs_come_once_for_all_rules(spark: SparkSession, tmp_path: Path) -> None:
    rules = some("rises", "sums")
    streams.write_batches(tmp_path / "input", made(4), SCHEMA)
    rows = streams.read_stream(spark, tmp_path / "input")

    def outputs(result: DataFrame, work: Path) -> tuple[list[tuple[Any, ...]], ...]:
        found: tuple[list[tuple[Any, ...]], ...] = ([], [], [])

        def write(batch: DataFrame, batch_id: int) -> None:
            results = batch.where("side_output IS NULL").drop("side_output")
            late, odd = timerheap.spark.late_rows(batch), timerheap.spark.side_output(batch, ODD)
            results = rule_results(results, "rises") if "rises" in results.columns else results
            for part, one in zip(found, (results, late, odd), strict=True):
                part += streams.rows(one)

        both = timerheap.spark.with_side_outputs(result).writeStream.foreachBatch(write)
        both.trigger(availableNow=True).option("checkpointLocation", str(work)).start().awaitTermination()
        return tuple(map(joined, found))

    result = together(rows, rules, watermark=10, late="emit")
    assert timerheap.spark.late_rows(rule_results(result, "rises")).columns == ["k", "at", "x", "late_by"]
    found = outputs(result, tmp_path / "all")
    assert all(found)
    assert found == outputs(alone(rows, RULES["rises"], watermark=10, late="emit"), tmp_path / "one")


def some(*names: str) -> dict[str, Rule]:
    return {name: RULES[name] for name in names}


def test_rules_are_added_and_removed_with_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """A new rule begins without state, others go on, and what is left of a removed one is named."""
    folder = tmp_path / "input"

    def run(number: int, rules: dict[str, Rule], **options: Any) -> dict[str, list[Any]]:
        if len(list(folder.glob("*.parquet"))) < number:
            streams.write_batches(folder, made(1, number, start=number), SCHEMA)
        result = together(streams.read_stream(spark, folder), rules, order="arrival", **options)
        return of_batches(streams.batches(result, tmp_path), rules)

    streams.write_batches(folder, made(1, 1, start=1), SCHEMA)
    first = run(1, some("rises", "silence"))
    second = run(2, some("rises", "silence", "sums"))
    state = read_checkpoint(spark, tmp_path / "checkpoint")
    assert state.states == ["rises/last", "sums/last"]
    timers = {row.name for row in state.timers().select("name").distinct().collect()}
    assert timers == {"silence/silence", "silence/", "sums/silence"}
    counted = state.groups().selectExpr("sum(event_time_timers) AS n").collect()[0].n
    assert counted == state.timers().count()
    for rules, missing in (("sums",), "rises"), (("rises", "sums"), "silence"):
        with pytest.raises(
            StreamingQueryException, match=re.escape(f"rules must have '{missing}', of which")
        ):
            run(3, some(*rules))
    third = run(3, some("silence", "sums"), state_changes={"rises": None})
    fourth = run(4, some("sums", "rises"), state_changes=IfStored({"silence": None, "gone": None}))
    assert read_checkpoint(spark, tmp_path / "checkpoint").states == ["rises/last", "sums/last"]
    for name, numbers, parts in (
        ("rises", [1, 2], [first, second]),
        ("silence", [1, 2, 3], [first, second, third]),
        ("sums", [2, 3, 4], [second, third, fourth]),
        ("rises", [4], [fourth]),
    ):
        work = tmp_path / f"{name}-{numbers[0]}"
        streams.write_batches(work / "input", [made(1, n, start=n)[0] for n in numbers], SCHEMA)
        rows = streams.read_stream(spark, work / "input")
        expected = streams.batches(alone(rows, RULES[name], order="arrival"), work)
        assert joined(*(part[name] for part in parts)) == joined(*expected)


def test_another_query_continues_with_other_rules(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    streams.write_batches(folder, made(3), SCHEMA)
    rules = some("rises", "silence", "quick.silence")
    result = together(streams.read_stream(spark, folder), rules)
    before = of_batches(streams.batches(result, tmp_path / "before"), rules)
    state = read_checkpoint(spark, tmp_path / "before" / "checkpoint")
    streams.write_batches(tmp_path / "more", made(2, 5, start=3), SCHEMA)
    rows = streams.read_stream(spark, tmp_path / "more")
    result = together(rows, some("rises", "silence"), initial_state=state)
    with pytest.raises(StreamingQueryException, match=r"rules must have 'quick\.silence', of which"):
        streams.batches(result, tmp_path / "refused")
    rules = some("rises", "silence", "sums")
    result = together(
        rows,
        rules,
        initial_state=state,
        max_parallelism=6,
        state_changes={"quick.silence": None},
    )
    after = of_batches(streams.batches(result, tmp_path / "after"), rules)
    streams.write_batches(folder, made(2, 5, start=3), SCHEMA)
    for name in ("rises", "silence"):
        whole = streams.batches(alone(streams.read_stream(spark, folder), RULES[name]), tmp_path / name)
        assert joined(before[name], after[name]) == joined(*whole)
    assert after["sums"]


class Failing(KeyedProcessFunction):
    """Fails at some time."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, runtime_context: Any) -> None:
        assert self.where != "open"

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.where == "row":
            raise ValueError("no such value")
        yield "one", "column too many"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("row", ["ValueError: no such value", "in process_element, key 'k0'", "in rule 'failing'"]),
        ("result", ["which does not fit output_schema (k string)", "in rule 'failing'"]),
    ],
)
def test_an_error_names_the_rule(where: str, told: list[str], spark: SparkSession) -> None:
    rows = spark.createDataFrame([("k0", 1, 2)], "k string, at bigint, x bigint")
    rules = {**RULES, "failing": Rule(Failing(where), "k string")}
    with pytest.raises(Exception, match=re.escape(told[0])) as error:
        together(rows, rules).collect()
    assert all(text in str(error.value) for text in told)


def test_an_error_in_open_names_the_rule(df: DataFrame) -> None:
    with pytest.raises(AssertionError) as error:
        together(df, {"failing": Rule(Failing("open"), "k string")})
    assert error.value.__notes__[-1] == "timerheap: in rule 'failing'"


@pytest.mark.parametrize(
    ("rules", "options", "error", "message"),
    [
        ([Rises()], {}, TypeError, "rules must be a dict of names to timerheap.spark.Rule or SqlRule, got ["),
        ({"a": Rises()}, {}, TypeError, "a dict of names to timerheap.spark.Rule or SqlRule, got {'a'"),
        ({}, {}, ValueError, "a dict of names to timerheap.spark.Rule or SqlRule, one or more, got {}"),
        ({1: Rule(Rises(), "k int")}, {}, TypeError, "got the name 1"),
        ({"a/b": Rule(Rises(), "k int")}, {}, ValueError, "begin with '__timerheap', got 'a/b'"),
        ({"a": Rule(Rises(), "k int"), "A": Rule(Rises(), "k int")}, {}, ValueError, "got 'A'"),
        ({"a": Rule(Rises, "k int")}, {}, TypeError, "function must be an instance, got the class Rises"),
        ({"a": Rule(Rises(), 1)}, {}, TypeError, "output_schema must be a DDL string"),
        (RULES, {"state_changes": {"rises": None}}, ValueError, "got 'rises', which is among the rules"),
        (RULES, {"state_changes": {"rises/last": "seen"}}, ValueError, "such as 'spikes/last'"),
        (RULES, {"state_changes": {"rises/last": None}}, ValueError, "got 'last', which it uses"),
        (
            RULES,
            {"initial_state": 1},
            TypeError,
            "initial_state must be what timerheap.spark",
        ),
    ],
)
def test_what_is_wrong_is_said(
    rules: Any, options: Any, error: type[Exception], message: str, df: DataFrame
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        together(df, rules, **options)


def test_results_are_of_a_rule(df: DataFrame) -> None:
    with pytest.raises(ValueError, match=r"rule must be one of .*, \['rises'\], got 'falls'"):
        rule_results(together(df, some("rises")), "falls")


def test_a_query_of_one_function_does_not_become_one_of_rules(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "input"
    streams.write_batches(folder, made(1), SCHEMA)
    streams.batches(alone(streams.read_stream(spark, folder), RULES["silence"]), tmp_path)
    streams.write_batches(folder, made(1), SCHEMA)
    with pytest.raises(
        StreamingQueryException, match=re.escape("query must be process(), as in the checkpoint")
    ):
        streams.batches(together(streams.read_stream(spark, folder), some("silence")), tmp_path)
