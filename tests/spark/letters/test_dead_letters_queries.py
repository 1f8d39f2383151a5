"""Dead letters of queries: of batches, of streams that start again, of several functions and of async_map."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from faulty import SIDE, Broadcast, Columns, Rows, TwoInputs, is_bad
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap import KeyedProcessFunction
from timerheap.async_io import AsyncRetryStrategy, has_exception_predicate
from timerheap.spark import DeadLetters, Rule

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.int64()), ("seed", pa.int64())])
KINDS: dict[str, Any] = {"rows": Rows, "two": TwoInputs, "broadcast": Broadcast, "columns": Columns}


def rows(seed: int, n: int, start: int) -> list[dict[str, Any]]:
    choice = random.Random(seed)
    return [
        {"key": choice.choice("abcdefgh"), "at": start + choice.randrange(40), "seed": choice.getrandbits(30)}
        for _ in range(n)
    ]


def results(df: DataFrame, kind: str, raises: bool, **options: Any) -> DataFrame:
    """The results, side outputs and dead letters of a function of a kind."""
    settings = {"output_schema": "key string, n bigint", "event_time": "at", "watermark": 20}
    settings |= {"errors": "emit", "max_parallelism": 2, "late": "drop"} | options
    function = KINDS[kind](raises)
    if kind != "columns":
        settings["side_outputs"] = [SIDE]
    if kind == "two":
        one, two = df.where("seed % 2 = 0"), df.where("seed % 2 = 1")
        return timerheap.spark.process_two(one, two, "key", function, **settings)
    if kind == "broadcast":
        rules = df.where("seed % 7 = 0").select(F.col("key").alias("name"), F.col("seed").alias("n"))
        return timerheap.spark.process_broadcast(df, rules, "key", function, **settings)
    return timerheap.spark.process(df, "key", function, **settings)


def parted(df: DataFrame) -> tuple[list[Any], list[Any]]:
    """What is no dead letter, and the calls, errors and inputs of dead letters."""
    letter = F.col("side_output.dead_letters")
    others = df.where(letter.isNull()).withColumn("side_output", F.col("side_output").cast("string"))
    letters = df.where(letter.isNotNull()).select(letter.alias("l")).select("l.*").drop("trace")
    return streams.rows(others), streams.rows(letters)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch(kind: str, spark: SparkSession) -> None:
    df = spark.createDataFrame(pa.Table.from_pylist(rows(1, 300, 0), SCHEMA))
    found = {}
    for raises in (False, True):
        outputs = timerheap.spark.with_side_outputs(results(df, kind, raises))
        found[raises] = parted(outputs)
    assert found[True][0] == found[False][0]
    assert found[False][1] == []
    assert len(found[True][1]) > 20


@pytest.mark.parametrize("order", ["event_time", "arrival"])
@pytest.mark.parametrize("kind", ["rows", "two"])
def test_a_stream_that_starts_again(kind: str, order: str, spark: SparkSession, tmp_path: Path) -> None:
    found = {}
    for raises in (False, True):
        work = tmp_path / str(raises)
        for part in range(3):
            files = [rows(10 * part + k, 60, 100 * part + 25 * k) for k in range(4)]
            streams.write_batches(work / "input", files, SCHEMA)
            df = results(streams.read_stream(spark, work / "input"), kind, raises, order=order)
            streams.run(timerheap.spark.with_side_outputs(df), work)
        schema = streams.schema_of(next((work / "sink").glob("*.parquet")))
        written = spark.read.schema(schema).parquet(str(work / "sink"))
        states = timerheap.spark.read_checkpoint(spark, str(work / "checkpoint")).state("long")
        found[raises] = (*parted(written), streams.rows(states))
    assert found[True][0] == found[False][0]
    assert found[True][2] == found[False][2]
    letters = found[True][1]
    calls = [letter[1] for letter in letters]
    assert calls.count("on_timer") > 10
    assert len(calls) > 80


class Halves(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.key, 100 // (value.seed % 4)


def test_letters_have_the_input_as_it_was(spark: SparkSession) -> None:
    given = spark.createDataFrame(
        [("a", 1, 4, [1, 2], "2026-01-01 00:00:00"), ("b", 2, 5, [], None)],
        "key string, at bigint, seed bigint, `a list` array<int>, text string",
    ).withColumn("when", F.to_timestamp("text"))
    df = timerheap.spark.process(
        given, ["key", F.upper("key")], Halves(), "k string, n bigint", errors="emit"
    )
    assert streams.rows(df) == [("b", 100)]
    letters = timerheap.spark.dead_letters(df)
    assert letters.select("input.*").schema == given.schema
    assert letters.select("input.*").collect() == given.where("key = 'a'").collect()
    (one,) = letters.drop("input", "trace").toArrow().to_pylist()
    assert one == {
        "key": {"key": "a", "upper(key)": "A"},
        "call": "process_element",
        "timestamp": None,
        "timer": None,
        "error": "ZeroDivisionError: integer division or modulo by zero",
    }
    (trace,) = letters.select("trace").first()
    assert "yield value.key, 100 // (value.seed % 4)" in trace
    assert "timerheap" not in trace.replace("wt-", "")


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        (DeadLetters(in_a_row=50), "for 50 rows and timers in a row"),
        (DeadLetters(share=0.2), "DeadLetters(share=0.2) ends the query"),
    ],
    ids=["in a row", "share"],
)
def test_too_many_errors_end_the_query(errors: DeadLetters, message: str, spark: SparkSession) -> None:
    seed = "if(id between 500 and 549, 0, 1)" if errors.in_a_row == 50 else "if(id % 4 = 1, 0, 1)"
    df = spark.range(3000).selectExpr("'a' as key", "id as at", f"{seed} as seed")
    options: dict[str, Any] = {"event_time": "at", "watermark": 0}
    found = timerheap.spark.process(df, "key", Halves(), "k string, n bigint", errors=errors, **options)
    with pytest.raises(Exception, match="ZeroDivisionError") as raised:
        found.collect()
    assert message in str(raised.value)


def test_rules_have_letters_of_their_own(spark: SparkSession) -> None:
    df = spark.createDataFrame(pa.Table.from_pylist(rows(3, 200, 0), SCHEMA))
    schema = "key string, n bigint"
    found = {}
    for raises in (False, True):
        rules = {"rows": Rule(Rows(raises), schema), "columns": Rule(Columns(raises), schema)}
        options: dict[str, Any] = {"event_time": "at", "watermark": 0, "side_outputs": [SIDE]}
        alerts = timerheap.spark.process_all(df, "key", rules, errors="emit", **options)
        outputs = timerheap.spark.with_side_outputs(alerts)
        letters = timerheap.spark.dead_letters(alerts)
        found[raises] = [streams.rows(timerheap.spark.rule_results(alerts, rule)) for rule in rules]
        found[raises].append(streams.rows(timerheap.spark.side_output(outputs, SIDE)))
        by_rule = dict(streams.rows(letters.groupBy("rule").count()))
    assert found[True] == found[False]
    assert by_rule.keys() == {"rows", "columns"}
    assert min(by_rule.values()) > 20


def test_async_map(spark: SparkSession) -> None:
    df = spark.range(200).selectExpr("id", "cast(id as string) as text")

    async def slow(row: Any) -> Any:
        if row.id % 10 == 3:
            raise LookupError(f"no {row.id}")
        return (row.id, None if row.id % 10 == 4 else row.text) if row.id % 10 != 5 else "no row"

    retry = AsyncRetryStrategy.fixed_delay(
        max_attempts=2, backoff_time_millis=1, exception_predicate=has_exception_predicate
    )
    found = timerheap.spark.async_map(df, slow, "id bigint, text string", errors="emit", retry=retry)
    assert sorted(id_ for id_, _ in streams.rows(found)) == [n for n in range(200) if n % 10 not in (3, 5)]
    letters = timerheap.spark.dead_letters(found)
    errors = {row.input.id: row.error for row in letters.collect()}
    assert sorted(errors) == [n for n in range(200) if n % 10 in (3, 5)]
    assert errors[13] == "LookupError: no 13"
    assert "no row" in errors[15]
    over = timerheap.spark.async_map(df, slow, "id bigint, text string", errors=DeadLetters(in_a_row=1))
    with pytest.raises(Exception, match="LookupError"):
        over.collect()


def test_the_metrics_count_them(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "input", [rows(1, 100, 0), rows(2, 100, 100)], SCHEMA)
    df = results(streams.read_stream(spark, tmp_path / "input"), "rows", True, order="arrival")
    progress = streams.run(timerheap.spark.with_side_outputs(df), tmp_path)
    counted = sum(
        row["counters"]["dead_letters"]
        for batch in progress
        for row in [batch.observedMetrics["timerheap"].asDict()]
        if row.get("counters")
    )
    written = spark.read.parquet(str(tmp_path / "sink"))
    assert counted > 10
    assert counted == written.where("side_output.dead_letters IS NOT NULL").count()


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ("drop", 'errors must be "raise", "emit" or a timerheap.spark.DeadLetters, got \'drop\''),
        (0.1, 'errors must be "raise", "emit" or a timerheap.spark.DeadLetters, got 0.1'),
    ],
)
def test_wrong_errors(errors: Any, message: str, spark: SparkSession) -> None:
    df = spark.createDataFrame([("a", 1, 2)], "key string, at bigint, seed bigint")
    with pytest.raises((ValueError, TypeError)) as raised:
        timerheap.spark.process(df, "key", Halves(), "k string, n bigint", errors=errors)
    assert str(raised.value) == message
    plain = timerheap.spark.process(df, "key", Halves(), "k string, n bigint")
    with pytest.raises(ValueError, match=r'errors="emit"'):
        timerheap.spark.dead_letters(plain)


def test_wrong_bounds() -> None:
    for wrong in ({"in_a_row": 0}, {"share": 2}, {"share": "much"}, {"share": True}):
        with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
            DeadLetters(**wrong)  # type: ignore[arg-type]


def test_a_bad_seed_is_one_of_eight() -> None:
    assert 100 < sum(map(is_bad, range(1000))) < 150
