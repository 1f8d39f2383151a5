"""Tables of Delta, Iceberg and PostgreSQL, and a topic, have the rows of a result, also through kills."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import streams
from changelogs import ROWS, changelog, row_of
from children import PROGRAMS
from kafka_broker import Broker, messages
from local_spark import without_spark
from postgres import postgres
from pyspark.sql import DataFrame, SparkSession
from sink_child import TABLE_OF_LAKE, TABLE_OF_POSTGRES, jdbc_url
from sink_run import SinkRun

from timerheap.errors import ArgumentValueError
from timerheap.spark import merge_into, upsert_jdbc, upsert_kafka

LAKE, SERVERS = pytest.mark.world("delta", "iceberg"), pytest.mark.world("kafka", "jdbc")
STEPS = 5


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL of this machine."""
    with postgres() as started:
        yield started


Sink = Callable[[DataFrame, int], None]
Reader = Callable[[], dict[Any, Any]]


def in_lake(spark: SparkSession, kind: str, folder: Path) -> tuple[str, Reader]:
    """Make a table; return its name, and what reads it."""
    name = {
        "delta by path": f"delta.`{folder}/balances`",
        "delta by name": f"of_delta_{uuid.uuid4().hex}",
        "iceberg": f"ice.sinks.balances_{uuid.uuid4().hex}",
    }[kind]
    spark.sql(TABLE_OF_LAKE.format(name=name, kind=kind.split()[0]))
    return name, lambda: {row["k"]: row_of(row) for row in spark.table(name).toArrow().to_pylist()}


def in_postgres(server: str) -> tuple[str, Reader]:
    """Make a table; return its name, and what reads it."""
    name = f"Balances {uuid.uuid4().hex[:8]}"
    with psycopg.connect(server) as connection:
        connection.execute(TABLE_OF_POSTGRES.format(name=f'"{name}"'))
    return name, lambda: of_postgres(server, name)


def of_postgres(server: str, name: str) -> dict[Any, Any]:
    with psycopg.connect(server) as connection:
        rows = connection.execute(f'SELECT k, v, x, at FROM "{name}"').fetchall()
    return {row[0]: row_of(dict(zip(("k", "v", "x", "at"), row, strict=True))) for row in rows}


def of_topic(broker: Broker, topic: str) -> dict[Any, Any]:
    """Return what a reader of the whole topic has: the last value of each key."""
    found: dict[Any, Any] = {}
    for message in messages(broker, topic):
        key = json.loads(message.key())["k"]
        found.pop(key, None)
        if message.value() is not None:
            row = json.loads(message.value())
            numbers = {"NaN": float("nan"), "-Infinity": float("-inf")}
            row["x"] = numbers.get(row["x"], row["x"])
            row["at"] = row["at"] and datetime.fromisoformat(row["at"]).astimezone(UTC)
            found[key] = row_of(row)
    return found


def options(server: str) -> dict[str, Any]:
    return {"properties": {"user": "postgres"}, "url": jdbc_url(server)}


def follows(spark: SparkSession, sink: Callable[[], Sink], read: Reader, seed: int) -> None:
    """Apply random changelogs, some micro-batches of them twice, before a restart or after it."""
    draw, write = random.Random(seed), sink()
    for net in (True, False):
        for number, step in enumerate(changelog(seed, STEPS, 7, net)):
            changes = spark.createDataFrame(step.arrow())
            for _ in range(draw.choice([1, 1, 2])):
                write(changes, number)
                if draw.randrange(2):
                    write = sink()
            assert read() == step.table
        # The next one begins with an empty table.
        gone = [{"k": key, "_change_type": "delete"} for key in step.table]
        write(spark.createDataFrame(pa.Table.from_pylist(gone, ROWS)), STEPS)
        assert read() == {}


def refuses(spark: SparkSession, sink: Callable[..., Sink], read: Reader) -> None:
    """Give a key by which the result is not unique: nothing of the micro-batch is written."""

    def batch(*rows: tuple[Any, ...]) -> DataFrame:
        found = [dict(zip(("k", "v", "_change_type"), row, strict=True)) for row in rows]
        return spark.createDataFrame(pa.Table.from_pylist(found, ROWS))

    first = batch(("a", 1, "insert"), (None, 2, "insert"))
    write = sink()
    write(first, 0)
    sink()(first, 0)  # a restart repeats it
    before = read()
    assert {key: row[1] for key, row in before.items()} == {"a": 1, None: 2}
    other = (
        r"^key must be unique in the result, got \['k'\], by which a new row has the key of a different row "
    )
    for of_key, key in (("a", '"a"'), (None, "null")):
        second = batch(("b", 1, "insert"), (of_key, 7, "insert"))
        for one in (write, sink()):
            with pytest.raises(
                ArgumentValueError, match=rf'{other}in table .*, {{"k" ?: ?{key}}}; choose a key'
            ):
                one(second, 1)
    # Also if it is the same in all columns, when it cannot be a repetition.
    write = sink()
    write(batch(("a", 1, "update_preimage"), ("a", 1, "update_postimage"), ("c", 1, "insert")), 1)
    with pytest.raises(ArgumentValueError, match=other):
        write(batch(("a", 1, "insert")), 2)
    with pytest.raises(
        ArgumentValueError, match=r'by which 2 rows of one micro-batch have {"k":"d"}; choose'
    ):
        write(batch(("d", 1, "insert"), ("d", 2, "insert"), ("e", 1, "insert")), 3)
    with pytest.raises(
        ArgumentValueError, match=r"table must have the columns of the result, .* without \['z'\]"
    ):
        sink()(batch(("f", 1, "insert")).withColumnRenamed("x", "z"), 3)
    with pytest.raises(ArgumentValueError, match="key must name one column, got 'k', which names none"):
        sink()(batch(("f", 1, "insert")).withColumnRenamed("k", "z"), 3)
    assert read() == before | {"c": ("c", 1, "None", None)}
    # Whoever knows better may replace rows.
    sink(trust_key=True)(batch(("a", 9, "insert")), 4)
    assert read()["a"] == ("a", 9, "None", None)


@LAKE
@pytest.mark.parametrize("kind", ["delta by path", "delta by name", "iceberg"])
def test_a_table_of_a_lake_follows_a_changelog(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    name, read = in_lake(spark, kind, tmp_path)
    follows(spark, lambda: merge_into(name, "k"), read, seed=len(kind))


@LAKE
@pytest.mark.parametrize("kind", ["delta by path", "iceberg"])
def test_a_table_of_a_lake_refuses_a_wrong_key(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    name, read = in_lake(spark, kind, tmp_path)
    refuses(spark, lambda **trust: merge_into(name, "k", **trust), read)


@LAKE
def test_values_that_cannot_be_compared(spark: SparkSession, tmp_path: Path) -> None:
    """A repetition is told by maps and structs, too, in the types of the table."""
    name = f"delta.`{tmp_path}/maps`"
    spark.sql(f"CREATE TABLE {name} (k int, extra int, M map<string, float>, s struct<x: float>) USING delta")
    rows = spark.sql("""
        SELECT k, map('x', k / 10.0D) AS m, named_struct('x', k / 10.0D) AS s, 'insert' AS _change_type
        FROM VALUES (1), (2) AS t(k)
    """)
    for _ in range(2):
        merge_into(name, "k")(rows, 0)
    with pytest.raises(ArgumentValueError, match="a new row has the key of a different row"):
        merge_into(name, "k")(rows.selectExpr("k", "map('x', 0D) AS m", "s", "_change_type"), 0)
    assert streams.rows(spark.table(name).selectExpr("k", "extra", "m['x'] = float(k / 10.0D)")) == [
        (1, None, True),
        (2, None, True),
    ]


@SERVERS
def test_a_table_of_postgres_follows_a_changelog(spark: SparkSession, server: str) -> None:
    name, read = in_postgres(server)
    follows(spark, lambda: upsert_jdbc(table=name, key="k", **options(server)), read, seed=5)


@SERVERS
def test_a_table_of_postgres_refuses_a_wrong_key(spark: SparkSession, server: str) -> None:
    name, read = in_postgres(server)
    refuses(spark, lambda **trust: upsert_jdbc(table=name, key="k", **options(server), **trust), read)


@SERVERS
def test_a_table_of_postgres_is_checked(spark: SparkSession, server: str) -> None:
    rows = spark.sql("SELECT 'a' AS k, 1 AS n, 'insert' AS _change_type")
    with psycopg.connect(server) as connection:
        connection.execute("""
            CREATE TABLE unguarded (k text, n int); CREATE TABLE distinct_nulls (k text UNIQUE, n int);
            CREATE UNIQUE INDEX ON unguarded (lower(k)); CREATE UNIQUE INDEX ON unguarded (k) WHERE n > 0;
            CREATE TABLE precious (k text PRIMARY KEY, n int)
        """)
    refused = [
        (
            {"table": "absent"},
            r"table must be a table of the database, got 'absent', which is none; create it",
        ),
        (
            {"table": "unguarded"},
            r"table must have a unique constraint on the key, .* without one on \['k'\]; ALTER TABLE",
        ),
        ({"table": "distinct_nulls", "staging": "precious"}, "staging must be a table that may be replaced"),
        ({"table": "distinct_nulls", "key": "n"}, "table must have a unique constraint on the key"),
    ]
    for arguments, text in refused:
        with pytest.raises(ArgumentValueError, match=text):
            upsert_jdbc(**{"key": "k", **options(server), **arguments})(rows, 0)
    write = upsert_jdbc(table="distinct_nulls", key="k", **options(server))
    write(rows, 0)
    with pytest.raises(
        ArgumentValueError, match=r"key must have no null in the table .*; declare it UNIQUE NULLS"
    ):
        write(rows.selectExpr("cast(null AS string) AS k", "n", "_change_type"), 1)
    with psycopg.connect(server) as connection:
        assert connection.execute("SELECT * FROM distinct_nulls").fetchall() == [("a", 1)]
        assert connection.execute("SELECT count(*) FROM distinct_nulls__changes").fetchone() == (1,)


@SERVERS
def test_types_of_spark_reach_postgres(spark: SparkSession, server: str) -> None:
    """Also where the column of the table has a different type."""
    with psycopg.connect(server) as connection:
        connection.execute("""
            CREATE SCHEMA "s.1"; CREATE TABLE "s.1"."t ""1" (
                "K.1" uuid, n numeric(9, 2) DEFAULT 7, m jsonb, l text[], b bytea, d date, local timestamp,
                at timestamptz, extra int DEFAULT 5, "key" smallint, PRIMARY KEY ("K.1", "key")
            )
        """)
    rows = spark.sql("""
        SELECT '8d0e6e1c-0000-4000-8000-000000000000' AS `K.1`, tinyint(3) AS `key`, 2.5D AS n,
            map('a', array(1, null)) AS m, array('it''s', null, '"') AS l, x'00ff' AS b,
            date '1600-02-29' AS d, timestamp_ntz '2026-03-08 02:30:00.000001' AS local,
            timestamp '2026-11-01 06:30:00.000001Z' AS at, 'insert' AS _change_type
    """)
    for _ in range(2):
        upsert_jdbc(table='"s.1"."t ""1"', key=["key", "K.1"], **options(server))(rows, 0)
    with psycopg.connect(server) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute("""
            SELECT "K.1"::text, "key", n::text, m, l, b, d::text, local::text, at::text, extra
            FROM "s.1"."t ""1"
        """).fetchall()
    assert found == [
        (
            *("8d0e6e1c-0000-4000-8000-000000000000", 3, "2.50", {"a": [1, None]}, ["it's", None, '"']),
            *(b"\0\xff", "1600-02-29", "2026-03-08 02:30:00.000001", "2026-11-01 06:30:00.000001+00", 5),
        )
    ]


@SERVERS
def test_a_compacted_topic_follows_a_changelog(spark: SparkSession, broker: Broker) -> None:
    topic = broker.topic(1)
    follows(
        spark,
        lambda: upsert_kafka(broker.address, topic, "k", trust_key=True),
        lambda: of_topic(broker, topic),
        seed=3,
    )
    keys = {message.key() for message in messages(broker, topic)}
    assert b'{"k":null}' in keys
    rows = spark.sql("SELECT 'z' AS k, id AS v, 'insert' AS _change_type FROM range(2)")
    with pytest.raises(ArgumentValueError, match="by which 2 rows of one micro-batch have"):
        upsert_kafka(broker.address, topic, "k", trust_key=True)(rows, 0)


@pytest.mark.world("kafka", "delta", "iceberg", "jdbc")
def test_tables_are_kept_on_spark_connect(
    spark: SparkSession, server: str, broker: Broker, world_settings: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    steps = list(changelog(2, 3, 6))
    streams.write_batches(tmp_path / "in", [step.arrow() for step in steps], ROWS)
    name, read = in_postgres(server)
    topic, table = broker.topic(1), f"delta.`{tmp_path}/balances`"
    spec = {
        "work": str(tmp_path),
        "input": str(tmp_path / "in"),
        "settings": world_settings,
        "delta": table,
        "postgres": {"server": server, "table": name},
        "kafka": {"servers": broker.address, "topic": topic},
    }
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    program = [sys.executable, str(PROGRAMS / "connect_sinks.py"), str(tmp_path / "spec.json")]
    run = subprocess.run(program, env=without_spark(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-5000:]
    assert run.stdout.count("a new row has the key of a different row in table") == 2
    expected, more = steps[-1].table, {"another": ("another", 1, "None", None)}
    assert of_topic(broker, topic) == expected
    assert read() == expected | more
    assert {row["k"]: row_of(row) for row in spark.table(table).toArrow().to_pylist()} == expected | more


KILLS = [
    # All have written, none is committed.
    ["after the writes", "together", 1, ""],
    # Rows are written, but not committed to the table.
    ["in Delta", "delta", 2, "middle"],
    ["in Iceberg", "iceberg", 3, "middle"],
    ["in Kafka", "kafka", 4, "middle"],
    ["in the staging table", "postgres", 5, "middle"],
    # The statement goes on without the driver that has sent it.
    ["in PostgreSQL", "postgres", 6, "applying"],
]


def killed(
    spark: SparkSession,
    server: str,
    broker: Broker,
    settings: dict[str, str],
    work: Path,
    tell: Callable[..., None],
    seed: int,
    by_chance: int,
) -> None:
    """Run four queries through kills inside of foreachBatch, and some at any moment; compare the tables."""
    draw = random.Random(seed)
    steps = list(changelog(seed, 8 + 2 * by_chance, 40))
    streams.write_batches(work / "in", [step.arrow() for step in steps], ROWS)
    tables = {kind: in_lake(spark, kind, work) for kind in ("delta by path", "iceberg")}
    name, read = in_postgres(server)
    topic = broker.topic(1)
    spec = {
        "input": work / "in",
        "settings": settings | {"spark.master": "local[2,8]"},
        "kills": KILLS,
        "delta": tables["delta by path"][0],
        "iceberg": tables["iceberg"][0],
        "postgres": {"server": server, "table": name},
        "kafka": {"servers": broker.address, "topic": topic},
        "lake": [str(work / "balances"), settings["spark.sql.catalog.ice.warehouse"]],
    }
    run = SinkRun(work / "run", spec)
    run.finish([entry[0] for entry in KILLS], by_chance, draw)
    found: dict[str, Reader] = {kind: reader for kind, (_, reader) in tables.items()}
    found |= {"PostgreSQL": read, "Kafka, the last of each key": lambda: of_topic(broker, topic)}
    expected = steps[-1].table
    print(f"kills {run.kills}, starts {run.starts}")
    for sink, reader in found.items():
        rows = reader()
        wrong = [key for key in rows.keys() & expected.keys() if rows[key] != expected[key]]
        lost, more = len(expected.keys() - rows.keys()), len(rows.keys() - expected.keys())
        tell(
            f"changes to {sink}",
            kills=run.kills,
            rows=sum(len(step.changes) for step in steps),
            lost=lost + len(wrong),
            doubled=more,
        )
        assert rows == expected
    assert run.failures == []


@pytest.mark.timeout(3600)
@pytest.mark.world("kafka", "delta", "iceberg", "jdbc")
def test_tables_are_right_after_kills(
    spark: SparkSession,
    server: str,
    broker: Broker,
    world_settings: dict[str, str],
    tmp_path: Path,
    tell: Callable[..., None],
) -> None:
    killed(spark, server, broker, world_settings, tmp_path, tell, 1, by_chance=2)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.world("kafka", "delta", "iceberg", "jdbc")
def test_tables_are_right_after_many_kills(
    spark: SparkSession,
    server: str,
    broker: Broker,
    world_settings: dict[str, str],
    tmp_path: Path,
    tell: Callable[..., None],
    seed: int,
    request: pytest.FixtureRequest,
) -> None:
    kills = request.config.getoption("kills") - len(KILLS)
    killed(spark, server, broker, world_settings, tmp_path, tell, seed, by_chance=kills)
