"""Rules in SQL over one exchange of rows: each has the results that its query has alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, OutputTag, Types, ValueStateDescriptor, WatermarkStrategy
from timerheap.spark import (
    Rule,
    SqlRule,
    continue_from,
    process_all,
    rule_results,
    side_output,
    with_side_outputs,
)

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

pytest.importorskip("sqlglot")

SCHEMA = pa.schema(
    [("k", pa.string()), ("at", pa.timestamp("us", "UTC")), ("x", pa.int64()), ("ok", pa.bool_())]
)
DELAY = WatermarkStrategy.for_bounded_out_of_orderness(2_000)
FALLS = """
    SELECT * FROM t MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY at, x DESC
        MEASURES A.x AS high, LAST(D.x) AS low, COUNT(D.*) AS n, upper(LAST(D.k)) AS name
        AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A D{2,} U) WITHIN INTERVAL '10' SECOND
        DEFINE A AS ok, D AS x < PREV(x), U AS x > PREV(x)
    )
"""
LONE = """
    SELECT k, x + 1 AS more, upper(k) AS name FROM t MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY at
        ALL ROWS PER MATCH
        PATTERN (N O) DEFINE N AS NOT ok, O AS ok AND x > 4
    ) WHERE x > 2
"""


OVER = """
    SELECT k, n + x AS more, after, recent, best FROM (
        SELECT *, RANK() OVER w AS n, LEAD(x + 1) OVER w AS after, MAX(upper(k)) OVER w AS best,
            SUM(x * 2) FILTER (WHERE ok)
                OVER (w RANGE BETWEEN INTERVAL '5' SECOND PRECEDING AND CURRENT ROW) AS recent
        FROM t WHERE x > 1 WINDOW w AS (PARTITION BY k ORDER BY at)
    ) WHERE n <> 7
"""

PLACES = "SELECT k, x, ROW_NUMBER() OVER (PARTITION BY k ORDER BY at) AS n FROM t WHERE ok"

NINTH = OutputTag("ninth", Types.ROW_NAMED(["k"], [Types.STRING()]))


class Count(KeyedProcessFunction):
    """Counts the rows of a key, and tells the number a while after each."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("matches", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_000, name="match")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield ctx.get_current_key(), self.count.value()
        if self.count.value() == 9:
            yield NINTH, (ctx.get_current_key(),)


COUNT = Rule(Count(), "k string, n bigint")
RULES = {"falls": SqlRule(FALLS), "count": COUNT, "lone": SqlRule(LONE), "over": SqlRule(OVER)}


def rows(batches: int, seed: int = 1) -> list[list[dict[str, Any]]]:
    draw, at = random.Random(seed), 0
    found: list[list[dict[str, Any]]] = []
    for _ in range(batches):
        found.append([])
        for _ in range(60):
            at += draw.randrange(900_000)
            values = {"x": draw.randrange(9), "ok": draw.random() < 0.7}
            found[-1].append({"k": draw.choice("abc"), "at": at // 400_000 * 400_000, **values})
    return found


def together(df: DataFrame, rules: Any = RULES, **options: Any) -> DataFrame:
    return process_all(df, "k", rules, "at", watermark=DELAY, **{"name": "rules", **options})


def alone(df: DataFrame, text: str) -> DataFrame:
    df.createOrReplaceTempView("t")
    return timerheap.spark.sql(df.sparkSession, text, watermark=DELAY)


@pytest.mark.in_turn(5)
def test_queries_find_what_they_find_alone_in_a_batch(spark: SparkSession) -> None:
    df = spark.createDataFrame(pa.Table.from_pylist([row for batch in rows(4) for row in batch], SCHEMA))
    found = together(df, {**RULES, "places": SqlRule(PLACES)})
    assert found.columns == [*RULES, "places"]
    for name, text in (("falls", FALLS), ("lone", LONE), ("over", OVER), ("places", PLACES)):
        mine, wanted = rule_results(found, name), alone(df, text)
        assert mine.columns == wanted.columns
        assert [field.dataType for field in mine.schema] == [field.dataType for field in wanted.schema]
        assert len(streams.rows(wanted)) > 3
        assert streams.rows(mine) == streams.rows(wanted)
    count = together(df, {"count": COUNT})
    assert streams.rows(rule_results(found, "count")) == streams.rows(rule_results(count, "count"))
    assert streams.rows(side_output(found, NINTH))
    assert streams.rows(side_output(found, NINTH)) == streams.rows(side_output(count, NINTH))
    beside = with_side_outputs(found).where("side_output IS NULL").drop("side_output")
    assert streams.rows(beside) == streams.rows(found)


@pytest.mark.in_turn(20)
@pytest.mark.parametrize("change", ["in place", "continue_from"])
def test_queries_come_and_go_beside_others(spark: SparkSession, tmp_path: Path, change: str) -> None:
    """What stays goes on; what comes begins with the rows that come."""
    far = [{"k": key, "at": 10**12, "x": 1, "ok": True} for key in "abc"]
    batches = [*rows(5), far]

    def add(*numbers: int) -> None:
        for folder, some in (("in", numbers), ("later", [number for number in numbers if number > 1])):
            streams.write_batches(tmp_path / folder, [batches[number] for number in some], SCHEMA)

    def read(folder: str = "in") -> DataFrame:
        return streams.read_stream(spark, tmp_path / folder)

    found: dict[str, list[Any]] = {name: [] for name in RULES}

    def collect(df: DataFrame, _: int) -> None:
        for name in df.columns:
            found[name] += [tuple(row) for row in rule_results(df, name).collect()]

    def run(result: DataFrame, checkpoint: str, sink: Any = collect) -> None:
        writer = result.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
        timerheap.spark.run_available_now(writer.foreachBatch(sink))

    def undisturbed(df: DataFrame, text: str) -> list[Any]:
        wanted: list[Any] = []
        run(
            alone(df, text),
            text[:20].strip(),
            lambda df, _: wanted.extend(tuple(row) for row in df.collect()),
        )
        return sorted(wanted)

    def changed() -> DataFrame:
        return together(read(), {"lone": SqlRule(LONE), **RULES})

    add(0, 1)
    run(together(read(), {"over": SqlRule(OVER), "count": COUNT, "falls": SqlRule(FALLS)}), "1")
    add(2, 3)
    last = "1"
    if change == "in place":
        run(changed(), "1")
    else:
        last = "2"
        run(continue_from(spark, tmp_path / "1", tmp_path / "2", changed), "2")
    add(4, 5)
    without_lone = {"falls": SqlRule(FALLS), "count": COUNT, "over": SqlRule(OVER)}
    seen = len(found["lone"])
    run(together(read(), without_lone, state_changes={"lone": None}), last)
    assert len(found["lone"]) == seen
    assert sorted(found["falls"]) == undisturbed(read(), FALLS)
    assert sorted(found["over"]) == undisturbed(read(), OVER)
    assert seen > 3
    assert {*found["lone"]} <= {*undisturbed(read("later"), LONE)}
    found["again"] = []
    run(together(read(), {"again": COUNT}), "3")
    assert sorted(found["count"]) == sorted(found["again"])


def test_the_rows_of_a_rule_are_those_of_all(spark: SparkSession) -> None:
    df = spark.createDataFrame(pa.Table.from_pylist(rows(1)[0], SCHEMA))

    def refused(text: str, message: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=message) as raised:
            together(df, {"count": COUNT, "mine": SqlRule(text)}, **options)
        assert any("in rule 'mine'" in note for note in raised.value.__notes__)

    refused(FALLS.replace("BY k ", "BY ok "), r"must have PARTITION BY k, the key of process_all\(\), got ok")
    refused(FALLS.replace("BY at, x DESC", "BY x"), r"must have ORDER BY at, the event_time of .* got x")
    refused(OVER.replace("BY k ", "BY ok "), r"must have PARTITION BY k, the key of process_all\(\), got ok")
    one = r"must be one SELECT FROM t MATCH_RECOGNIZE .* functions OVER rows of t, .* run that with"
    nested = "(SELECT * FROM t WHERE ok)"
    refused(f"SELECT SUM(x) OVER (PARTITION BY k ORDER BY at) AS s FROM {nested}", one)
    refused(FALLS.replace("FROM t ", f"FROM {nested} "), one)
    refused("SELECT k, COUNT(*) FROM t GROUP BY k", one)
    windows = "TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '5' SECOND))"
    refused(f"SELECT k, COUNT(*) FROM {windows} GROUP BY k, window_start, window_end", one)
    refused(FALLS, 'order must be "event_time" for a rule in SQL', order="arrival")
    with pytest.raises(ValueError, match="lag_within must be None for a rule without PREV"):
        together(df, {"mine": SqlRule(LONE, lag_within="1 hour")})
    with pytest.raises(ValueError, match="unbounded_matches must be False for a rule without MATCH_REC"):
        together(df, {"mine": SqlRule(OVER, unbounded_matches=True)})
    twice = "SELECT high AS n, low AS n FROM (" + FALLS + ")"
    with pytest.raises(
        ValueError, match=r"query of rule 'mine' must have columns of different names, got \['n'"
    ):
        together(df, {"mine": SqlRule(twice)})
