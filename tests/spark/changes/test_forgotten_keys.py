"""Keys are forgotten by the clock, which these tests set."""

from __future__ import annotations

from typing import Any

import pytest
from change_runs import ChangeRun, planned_query
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.spark import aggregate_changes, changes_of
from timerheap.spark._columns import WEIGHT

pytestmark = pytest.mark.spark


@pytest.fixture
def stream(spark: SparkSession) -> DataFrame:
    rows = spark.readStream.format("rate").load()
    return rows.selectExpr("string(value) k", "value seq", "value n", "value > 1 gone")


def test_a_deleted_key_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch, stream: DataFrame) -> None:
    run = ChangeRun(
        planned_query(
            monkeypatch,
            "changes_of",
            lambda: changes_of(stream, "k", "seq", deleted="gone", forget_after="1 second"),
        ),
        ["k"],
    )
    row = {"k": "a", "seq": 5, "n": 1, "gone": False}
    other = row | {"k": "b"}
    assert [change["_change_type"] for change in run.run([row, other], now=0)] == ["insert", "insert"]
    assert run.run([row | {"seq": 7, "gone": True}], now=1000) == [row | {"_change_type": "delete"}]
    run.restart(1)
    assert run.run([row | {"seq": 6}], now=1900) == []  # it is older than the delete
    run.restart(2)
    assert run.run([], now=2000) == []
    assert run.run([row | {"seq": 6}], now=2001) == []  # rows come before the clock advances
    assert run.run([row | {"seq": 6}], now=9000) == [row | {"seq": 6, "_change_type": "insert"}]
    run.run([row | {"seq": 8, "gone": True}], now=9001)
    run.run([row | {"seq": 9}], now=9002)
    run.run([], now=99_000)
    assert {values[:2] for values in run.table} == {("a", 9), ("b", 5)}  # rows that are there stay
    assert run.run([row | {"seq": 8}], now=99_000) == []


def change(k: str, n: int, weight: int = 1) -> dict[str, Any]:
    return {"k": k, "__timerheap_input0": n, WEIGHT: weight}


def test_a_group_that_does_not_change_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, stream: DataFrame
) -> None:
    rows = stream.withColumn("_change_type", F.lit("insert"))
    wanted = [F.count("*").alias("c"), F.sum("n").alias("s"), F.max("n").alias("m")]
    query = planned_query(
        monkeypatch,
        "aggregates.aggregate_changes_plan",
        lambda: aggregate_changes(rows, "k", *wanted, forget_after=1000),
    )
    run = ChangeRun(query)

    def values(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in found)

    run.run([change("a", 3), change("a", 4), change("b", 5)], now=0)
    run.restart(1)
    assert values(run.run([change("b", 6)], now=600)) == [
        ("b", 1, 5, 5, "update_preimage"),
        ("b", 2, 11, 6, "update_postimage"),
    ]
    assert run.run([], now=1001) == []  # a is forgotten, and its row stays
    run.restart(2)
    assert run.run([change("a", 3, -1)], now=1100) == []
    assert run.counted["unmatched_deletes"] == 1
    assert values(run.run([change("a", 3), change("b", 7, -1)], now=1200)) == [
        ("a", 1, 3, 3, "insert"),  # the delete does not take it back
        ("b", 1, 4, 6, "update_postimage"),
        ("b", 2, 11, 6, "update_preimage"),
    ]
    assert values(run.run([change("b", 7)], now=1300))[0] == ("b", 1, 4, 6, "update_preimage")
    run.run([], now=9000)
    assert not len(run.group.keys.table) or not sum(map(len, run.group.states.values()))
