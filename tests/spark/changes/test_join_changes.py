"""Joins of changes on Spark: each kind, with and without conditions, chains, self joins, and arguments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from change_streams import changelog, duckdb_table, tables_after
from changes_model import Table, apply_changes
from live_tables import LiveTable, Row
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.errors import ArgumentError
from timerheap.spark import RightInput, aggregate_changes, join_changes, read_checkpoint, top_changes
from timerheap.spark._changes.guarantees import unique_keys

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

ORDERS = pa.schema([("customer", pa.string()), ("amount", pa.int32()), ("note", pa.string())])
CUSTOMERS = pa.schema([("customer", pa.string()), ("most", pa.int32()), ("note", pa.string())])
HOW = ["inner", "left", "right", "full", "semi", "anti"]


def some_order(rng: np.random.Generator) -> Row:
    customer = (None, "ann", "bob", "cay", "dan")[rng.integers(5)]
    return customer, (None, 1, 2, 3, 4)[rng.integers(5)], (None, "n")[rng.integers(2)]


def some_customer(rng: np.random.Generator) -> Row:
    customer = (None, "ann", "bob", "cay", "eve")[rng.integers(5)]
    return customer, (None, None, 2, 3)[rng.integers(4)], (None, None, "m")[rng.integers(3)]


def both_live(seed: int, count: int = 4) -> tuple[list[Any], list[tuple[list[Row], list[Row]]]]:
    """Changes of orders and customers in micro-batches, and both tables after each."""
    orders = LiveTable(ORDERS.names, some_order, seed)
    customers = LiveTable(CUSTOMERS.names, some_customer, seed + 50)
    inputs: list[Any] = [[], []]
    after = []
    for _ in range(count):
        inputs[0].append(orders.change(14))
        inputs[1].append(customers.change(8))
        after.append((list(orders.rows), list(customers.rows)))
    return inputs, after


def of_duckdb(live: tuple[list[Row], list[Row]], how: str, on: str | None) -> Table:
    columns = (
        "o.*"
        if how in ("semi", "anti")
        else ("coalesce(o.customer, c.customer) AS customer, o.amount, o.note, c.most, c.note AS note_right")
    )
    condition = "o.customer = c.customer" + ("" if on is None else f" AND ({on})")
    text = f"SELECT {columns} FROM o {how} JOIN c ON {condition}"
    return duckdb_table(text, o=(ORDERS, live[0]), c=(CUSTOMERS, live[1]))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("on", [None, "o.amount > coalesce(c.most, 1)"], ids=["by-key", "on"])
def test_after_each_micro_batch_the_table_is_the_join(
    spark: SparkSession, tmp_path: Path, how: str, on: str | None
) -> None:
    inputs, after = both_live(len(how))
    condition = None if on is None else F.col("amount") > F.coalesce("most", F.lit(1))

    def joined(orders: DataFrame, customers: DataFrame) -> DataFrame:
        return join_changes(orders, customers, "customer", how=how, on=condition, max_parallelism=2)

    schemas = ORDERS, CUSTOMERS
    found = tables_after(spark, joined, inputs, tmp_path, schemas=schemas)
    assert found == [of_duckdb(live, how, on) for live in after]
    batch: Table = Counter()
    all_of = ([row for part in one for row in part] for one in inputs)
    result = joined(*(changelog(spark, rows, schema) for rows, schema in zip(all_of, schemas, strict=True)))
    apply_changes(batch, result.toArrow().to_pylist())
    assert batch == found[-1]


def test_a_chain_of_three_joins_a_top_n_and_an_aggregate(spark: SparkSession, tmp_path: Path) -> None:
    inputs, after = both_live(3)

    def chained(orders: DataFrame, customers: DataFrame) -> DataFrame:
        first = join_changes(orders, customers, "customer", how="left")
        second = join_changes(
            first.drop("note_right"),
            RightInput(customers.withColumnRenamed("customer", "who"), key="most"),
            key="amount",
            how="left",
            suffix="_2",
        )
        third = join_changes(second, RightInput(orders, key="customer"), key="who", how="anti")
        best = top_changes(third, "customer", 2, [F.desc_nulls_last("amount"), "note"])
        return aggregate_changes(best, "who", F.count("*").alias("n"), F.sum("amount").alias("total"))

    text = """
        WITH first AS (SELECT o.*, c.most FROM o LEFT JOIN c ON o.customer = c.customer),
        second AS (
            SELECT f.*, c.customer AS who, c.most AS most_2, c.note AS note_2
            FROM first f LEFT JOIN c ON f.amount = c.most
        ),
        third AS (SELECT * FROM second s ANTI JOIN o ON s.who = o.customer),
        best AS (SELECT * FROM third QUALIFY row_number() OVER (
            PARTITION BY customer ORDER BY amount DESC NULLS LAST, note NULLS FIRST, most NULLS FIRST,
            who NULLS FIRST, most_2 NULLS FIRST, note_2 NULLS FIRST) <= 2)
        SELECT who, count(*) AS n, sum(amount)::BIGINT AS total FROM best GROUP BY who
    """
    found = tables_after(spark, chained, inputs, tmp_path, schemas=(ORDERS, CUSTOMERS))
    live = [{"o": (ORDERS, one), "c": (CUSTOMERS, two)} for one, two in after]
    assert found == [duckdb_table(text, **tables) for tables in live]


def test_a_table_is_joined_with_itself(spark: SparkSession, tmp_path: Path) -> None:
    inputs, after = both_live(8)

    def itself(orders: DataFrame) -> DataFrame:
        more = F.col("amount") < F.col("amount_right")
        return join_changes(orders, orders, "customer", how="left", on=more)

    found = tables_after(spark, itself, inputs[:1], tmp_path, schemas=(ORDERS,))
    text = """
        SELECT a.*, b.amount AS amount_right, b.note AS note_right
        FROM o a LEFT JOIN o b ON a.customer = b.customer AND a.amount < b.amount
    """
    assert found == [duckdb_table(text, o=(ORDERS, orders)) for orders, _ in after]


def test_rows_that_only_come_are_joined_with_a_table_that_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    inputs, after = both_live(5)
    orders = LiveTable(ORDERS.names, some_order, 1)
    inputs[0] = [orders.change(10, grows=True) for _ in after]

    def joined(rows: DataFrame, customers: DataFrame) -> DataFrame:
        plain = rows.where("_change_type != ''").drop("_change_type")
        return join_changes(plain, customers, "customer")

    found = tables_after(spark, joined, inputs, tmp_path, schemas=(ORDERS, CUSTOMERS))
    assert found[-1] == of_duckdb((orders.rows, after[-1][1]), "inner", None)


def test_the_result_says_which_keys_it_has(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "id int, customer string, amount int")
    orders = top_changes(rows, "id", 1, "amount")
    customers = top_changes(spark.createDataFrame([], "customer string, id int"), "customer", 1, "id")
    assert unique_keys(join_changes(orders, customers, "customer")) == (("id",),)
    assert unique_keys(join_changes(orders, customers, "customer", how="left")) == (("id",),)
    assert unique_keys(join_changes(customers, orders, "customer")) == (("id_right",),)
    assert unique_keys(join_changes(customers, orders, "customer", how="left")) == (("customer", "id_right"),)
    assert unique_keys(join_changes(orders, customers, "customer", how="right")) == (("id", "customer"),)
    assert unique_keys(join_changes(orders, customers, "customer", how="full")) == ()
    assert unique_keys(join_changes(orders, rows, "customer", how="anti")) == (("id",),)
    assert unique_keys(join_changes(orders, rows, "customer")) == ()
    with_condition = join_changes(orders, customers, "customer", how="left", on=F.col("amount") > 3)
    assert unique_keys(with_condition) == (("id",),)


def test_the_state_of_a_semi_join_has_no_rows_of_the_right_side(spark: SparkSession, tmp_path: Path) -> None:
    inputs, _ = both_live(2, count=2)

    def joined(orders: DataFrame, customers: DataFrame) -> DataFrame:
        return join_changes(orders, customers, "customer", how="semi")

    tables_after(spark, joined, inputs, tmp_path, schemas=(ORDERS, CUSTOMERS))
    state = read_checkpoint(spark, str(tmp_path / "checkpoint"))
    kept = state.state("right").collect()
    assert kept
    assert all(len(row["value"]) == 1 for row in kept)
    assert {row["customer"] for row in kept} <= {"ann", "bob", "cay", "eve"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"how": "cross"}, "how must be one of inner, left, right, full, semi, anti, got 'cross'"),
        ({"on": "amount > 3"}, "on must be a Column, got 'amount > 3'"),
        ({"on": lambda: F.col("amount")}, "on must be boolean, got column"),
        ({"on": lambda: F.col("nothing") > 3}, "on must be a column that each row of the join has"),
        ({"on": lambda: F.rand() > 0.5}, "on must have columns that are the same each time"),
        (
            {"key": "amount"},
            "right.key must be of type int like column 'amount' of left, got 'amount' of type",
        ),
        ({"suffix": ""}, "suffix must make the names of the result different, got '', and 'amount' twice"),
        ({"suffix": None}, "suffix must be a str, got None"),
        ({"forget_after": 0}, "forget_after must be"),
        (
            {"forget_after": "1 day", "how": "anti", "on": lambda: F.col("amount") > 3},
            "forget_after must be None with `on` and how='anti', got 86400000 ms",
        ),
        ({"event_time": "customer"}, "right.event_time must be left out, since changes have no event time"),
        ({"tags": True}, "left must have columns whose values can be compared, got column 'tags'"),
        (
            {"pair": True},
            "left, in a left join with a condition, must be of an atomic type, got column 'pair'",
        ),
    ],
)
def test_wrong_arguments_are_errors_that_name_them(
    spark: SparkSession, arguments: dict[str, Any], message: str
) -> None:
    given = {name: value() if callable(value) else value for name, value in arguments.items()}
    left = spark.createDataFrame([], "customer string, amount int, tags map<string, int>, pair struct<a int>")
    right = spark.createDataFrame([], "customer string, amount long")
    left = left if given.pop("tags", False) else left.drop("tags")
    if given.pop("pair", False):
        given |= {"how": "left", "on": F.col("amount") > 3}
    other = RightInput(right, event_time=given.pop("event_time", None))
    with pytest.raises(ArgumentError, match=message):
        join_changes(left, other, **{"key": "customer"} | given)
