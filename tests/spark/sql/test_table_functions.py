"""Process functions that a query calls on tables, as Flink's process table functions are called."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import timerheap.spark
from timerheap import KeyedCoProcessFunction, KeyedProcessFunction, OutputTag, Types, ValueStateDescriptor
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark import table_function

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def at(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=second)


def rows(*values: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "ts": at(second)} for k, v, second in values]


class Silence(KeyedProcessFunction):
    """Numbers the rows of a key, and says how many there were when it has been silent."""

    def __init__(self, after: int, text: str = "silent") -> None:
        self.after, self.text = after * 1000, text

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + self.after, name="silent")
        if value.v > 0:
            yield {"what": "row", "n": self.count.value()}

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        return [[self.text, self.count.value()]]


FUNCTIONS = {"Silence": table_function(Silence, "what string, n bigint")}
FIRST = rows(("a", 1, 1), ("b", 1, 2), ("a", 0, 4), ("c", 1, 9))
SECOND = rows(("a", 1, 12), ("z", 0, 40))


class Priced(KeyedCoProcessFunction):
    """Joins each row of the first table with the newest row of the second before it."""

    def open(self, runtime_context: Any) -> None:
        self.price = runtime_context.get_state(ValueStateDescriptor("price", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.v, self.price.value()

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.price.update(value.price)


class Numbered(KeyedProcessFunction):
    """Numbers the rows of a key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield self.count.value()


class Doubled(KeyedProcessFunction):
    """Is of single rows."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value.v:
            yield value.k, 2 * value.v


class Totals(KeyedProcessFunction):
    """Adds up what comes and goes, and yields changes of the total."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        before = self.total.value()
        weight = 1 if value.kind in ("insert", "update_postimage") else -1
        self.total.update((before or 0) + weight * value.n)
        if before is not None:
            yield before, "update_preimage"
        yield self.total.value(), "insert" if before is None else "update_postimage"


TOTALS = "total bigint, _change_type string"
FUNCTIONS["counted"] = table_function(Numbered, "n bigint", partition_by="optional")
FUNCTIONS["joined"] = table_function(Priced, "v bigint, price bigint", partition_by="optional")
FUNCTIONS["doubled"] = table_function(Doubled, "name string, twice bigint", partition_by="none")
FUNCTIONS["beside"] = table_function(
    Doubled, "name string, twice bigint", partition_by="none", pass_columns_through=True
)
FUNCTIONS["totals"] = table_function(Totals, TOTALS, change_type="kind", partition_by="optional")
FUNCTIONS["priced"] = table_function(Priced, "v bigint, price bigint")
FUNCTIONS["numbered"] = table_function(Numbered, "n bigint", pass_columns_through=True)

CALL = "silence(input => TABLE t PARTITION BY k, on_time => DESCRIPTOR(ts), uid => 'silences', after => 5)"
WINDOWS = f"TABLE(TUMBLE((SELECT * FROM {CALL}), DESCRIPTOR(rowtime), INTERVAL '10' SECOND))"

QUERIES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "arguments by name": (
        f"SELECT * FROM {CALL} WHERE k < 'c'",
        [
            *[("a", "row", 1, 1), ("a", "silent", 2, 9), ("a", "row", 3, 12), ("a", "silent", 3, 17)],
            *[("b", "row", 1, 2), ("b", "silent", 1, 7)],
        ],
    ),
    "arguments in order, one function of the rows of another": (
        "WITH f AS (SELECT k, n AS v, rowtime "
        "FROM TABLE(Silence(TABLE t PARTITION BY k, 5, DESCRIPTOR(ts))) AS s) "
        "SELECT k, n, rowtime "
        "FROM silence(TABLE f PARTITION BY (k), 2 + 5, 'gone', DESCRIPTOR(rowtime), 'gone') "
        "WHERE what = 'gone'",
        [("a", 1, 8), ("a", 4, 24), ("b", 2, 14), ("c", 2, 21)],
    ),
    "windows of the rows": (
        f"SELECT k, window_start AS s, COUNT(*) AS n FROM {WINDOWS} GROUP BY window_start, window_end, k",
        [("a", 0, 2), ("a", 10, 2), ("b", 0, 2), ("c", 0, 1), ("c", 10, 1)],
    ),
    "OVER the rows, of a nested SELECT": (
        "SELECT k, SUM(n) OVER (PARTITION BY k ORDER BY rowtime) AS s, rowtime FROM silence("
        "input => (SELECT k, v, ts FROM t WHERE k <> 'b') PARTITION BY k, "
        "on_time => DESCRIPTOR(ts), after => 5)",
        [("a", 1, 1), ("a", 3, 9), ("a", 6, 12), ("a", 9, 17), ("c", 1, 9), ("c", 2, 14)],
    ),
    "an interval join with the table": (
        f"SELECT s.k, s.n, t.v, t.ts FROM {CALL} AS s JOIN t ON s.k = t.k "
        "AND t.ts BETWEEN s.rowtime - INTERVAL '5' SECOND AND s.rowtime WHERE s.what = 'silent'",
        [("a", 2, 0, 4), ("a", 3, 1, 12), ("b", 1, 1, 2), ("c", 1, 1, 9)],
    ),
    "two tables": (
        "SELECT * FROM priced(TABLE t PARTITION BY k, TABLE prices PARTITION BY k, DESCRIPTOR(ts, since))",
        [
            *[("a", "a", 0, 30, 4), ("a", "a", 1, None, 1), ("a", "a", 1, 30, 12)],
            *[("b", "b", 1, 20, 2), ("c", "c", 1, None, 9)],
        ],
    ),
    "one partition of all rows": (
        "SELECT * FROM counted(TABLE t, DESCRIPTOR(ts)) WHERE n < 6",
        [(1, 1), (2, 2), (3, 4), (4, 9), (5, 12)],
    ),
    "one partition of all rows of two tables": (
        "SELECT * FROM joined(TABLE t, TABLE prices, DESCRIPTOR(ts, since)) WHERE v > 0",
        [(1, 20, 2), (1, 30, 12), (1, 30, 9), (1, None, 1)],
    ),
    "single rows": (
        "SELECT name, twice, rowtime FROM doubled(input => TABLE t, on_time => DESCRIPTOR(ts))",
        [("a", 2, 1), ("a", 2, 12), ("b", 2, 2), ("c", 2, 9)],
    ),
    "single rows, counted in windows": (
        "SELECT name, COUNT(*) AS n, window_start FROM TABLE(TUMBLE((SELECT * FROM beside(TABLE t, "
        "DESCRIPTOR(ts))), DESCRIPTOR(rowtime), INTERVAL '10' SECOND)) GROUP BY name, window_start, "
        "window_end",
        [("a", 1, 0), ("a", 1, 10), ("b", 1, 0), ("c", 1, 0)],
    ),
    "all columns of the row": (
        "SELECT * FROM numbered(TABLE t PARTITION BY k, DESCRIPTOR(ts)) WHERE k IN ('a', 'b')",
        [("a", 0, 4, 2, 4), ("a", 1, 1, 1, 1), ("a", 1, 12, 3, 12), ("b", 1, 2, 1, 2)],
    ),
}
PRICES = pa.schema([("k", pa.string()), ("price", pa.int64()), ("since", pa.timestamp("us", "UTC"))])
PRICED = [("b", 20, 1), ("a", 30, 3), ("a", 40, 13), ("z", 0, 40)]
WATERMARK = "ts - INTERVAL '2' SECOND"
OF_BOTH = {"t": WATERMARK, "prices": "since - INTERVAL '2' SECOND"}


def plain(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with seconds in place of times, without those of the key that ends the others."""
    times = [
        tuple(
            int((one.replace(tzinfo=dt.UTC) - at(0)).total_seconds()) if isinstance(one, dt.datetime) else one
            for one in row
        )
        for row in found
    ]
    return sorted((row for row in times if row[0] != "z"), key=repr)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The first halves of both tables."""
    prices = [dict(zip(PRICES.names, (k, price, at(second)), strict=True)) for k, price, second in PRICED]
    streams.write_batches(tmp_path / "prices", [prices], PRICES)
    streams.write_batches(tmp_path / "t", [FIRST], SCHEMA)
    return tmp_path


@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "process table functions, with PARTITION BY, on_time, uid and scalar arguments",
    "process table functions without PARTITION BY, of all rows or of single rows",
    note="a `KeyedProcessFunction`, or a `KeyedCoProcessFunction` of two tables, in `table_function`",
)
@pytest.mark.in_turn(20)
@pytest.mark.parametrize("name", QUERIES)
def test_a_call_is_the_same_as_batch_and_as_stream(name: str, spark: SparkSession, folder: Path) -> None:
    """The stream stops between the two halves, and goes on with its state and its timers."""
    query, wanted = QUERIES[name]
    wanted = sorted(wanted, key=repr)
    streamed = {one: streams.read_stream(spark, folder / one) for one in ("t", "prices")}
    watermark: Any = OF_BOTH if "prices" in query else WATERMARK
    arguments: dict[str, Any] = {"functions": FUNCTIONS, "max_parallelism": 2, "name": "query"}
    result = timerheap.spark.sql(spark, query, watermark, tables=streamed, **arguments)
    streams.run(result, folder)
    streams.write_batches(folder / "t", [SECOND], SCHEMA)
    streams.run(result, folder)
    assert plain(streams.sink(spark, folder)) == wanted
    batches = {one: spark.read.schema(df.schema).parquet(str(folder / one)) for one, df in streamed.items()}
    batch = timerheap.spark.sql(spark, query, tables=batches, **arguments)
    assert batch.dtypes == result.dtypes
    assert plain(streams.rows(batch)) == wanted


def test_columns_values_and_states_of_calls(spark: SparkSession, folder: Path) -> None:
    """Values are Python's; a key of the second table has a number; the uid is the name of the operator."""
    t, prices = (streams.read_stream(spark, folder / one) for one in ("t", "prices"))
    seen: list[Any] = []

    def make(*values: Any, **named: Any) -> KeyedProcessFunction:
        seen.append((values, named))
        return Numbered()

    functions = {**FUNCTIONS, "f": table_function(make, "n bigint")}

    def of(query: str) -> Any:
        given = {"t": t, "prices": prices}
        return timerheap.spark.sql(spark, query, OF_BOTH, tables=given, functions=functions)

    found = of(
        "SELECT * FROM f(TABLE t PARTITION BY (k, v), -1, 2.5, 'it''s', TRUE, DEFAULT, 'counts', "
        "span => INTERVAL '10' MINUTE, at => DATE '2026-01-02', words => ARRAY('a', 'b'), "
        "left_out => DEFAULT, nothing => NULL, price => CAST(2.5 AS DECIMAL(3, 1)))"
    )
    assert found.columns == ["k", "v", "n"]
    assert seen == [
        (
            (-1, 2.5, "it's", True),
            {
                "span": dt.timedelta(minutes=10),
                "at": dt.date(2026, 1, 2),
                "words": ["a", "b"],
                "nothing": None,
                "price": Decimal("2.5"),
            },
        )
    ]
    found = of(
        "SELECT * FROM priced(orders => TABLE t PARTITION BY k, prices => TABLE prices PARTITION BY k, "
        "on_time => DESCRIPTOR(ts, since), uid => 'priced')"
    )
    assert found.columns == ["k", "k0", "v", "price", "rowtime"]
    streams.run(found, folder)
    stored = timerheap.spark.read_checkpoint(spark, str(folder / "checkpoint"), operator="priced")
    assert sorted(stored.states) == ["price"]


def test_keys_and_times_of_any_type(spark: SparkSession) -> None:
    """Keys may be null; a time that no clock shows, since clocks change, stays what it is."""
    t = spark.sql(
        "SELECT * FROM VALUES (CAST(1.5 AS FLOAT), CAST(NULL AS DATE), 1), (NULL, DATE '2026-03-08', 0) "
        "AS t (f, d, v)"
    ).selectExpr("*", "TIMESTAMP_NTZ '2026-03-08 02:30:00' AS ts")
    with streams.configured(spark, session_timeZone="America/New_York"):
        found = timerheap.spark.sql(
            spark,
            "SELECT * FROM silence(TABLE t PARTITION BY (f, d), 5, DESCRIPTOR(ts))",
            tables={"t": t},
            functions=FUNCTIONS,
        )
        times = [dt.datetime(2026, 3, 8, 2, 30, second) for second in (0, 5)]
        assert streams.rows(found) == [
            (1.5, None, "row", 1, times[0]),
            (1.5, None, "silent", 1, times[1]),
            (None, dt.date(2026, 3, 8), "silent", 1, times[1]),
        ]


class Waking(KeyedProcessFunction):
    """Yields the value of a key a while after it has come."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.last.update(value.v)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 200, name="wake")

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield self.last.value()


@pytest.mark.promises(
    "Flink SQL",
    "added",
    "process table functions with timers of processing time",
    note="`table_function(..., processing_time=True)`, on streams, without `on_time`",
)
def test_a_call_has_timers_of_processing_time(spark: SparkSession, folder: Path) -> None:
    functions = {"waking": table_function(Waking, "last bigint", processing_time=True)}
    t = streams.read_stream(spark, folder / "t").drop("ts")
    query = "SELECT k, last FROM waking(input => TABLE t PARTITION BY k) WHERE k <> 'b'"
    result = timerheap.spark.sql(spark, query, tables={"t": t}, functions=functions)
    assert streams.run_until(result, lambda rows: len(rows) == 2, folder) == [("a", 0), ("c", 1)]


@pytest.mark.in_turn(5)
@pytest.mark.promises(
    "Flink SQL",
    "supported",
    "process table functions of tables that change",
    note="`table_function(..., change_type=...)` names a column that says what becomes of a row",
)
def test_a_call_takes_and_yields_changes(spark: SparkSession, folder: Path) -> None:
    groups = "(SELECT k, COUNT(*) * 10 AS n FROM t GROUP BY k)"
    query = f"SELECT MAX(total) AS total FROM totals({groups})"
    arguments: dict[str, Any] = {"functions": FUNCTIONS, "max_parallelism": 2}
    t = streams.read_stream(spark, folder / "t")
    result = timerheap.spark.sql(spark, query, WATERMARK, tables={"t": t}, **arguments)
    assert result.columns == ["total", "_change_type"]
    assert streams.batches(result, folder) == [[(40, "insert")]]
    streams.write_batches(folder / "t", [SECOND], SCHEMA)
    assert sorted(streams.batches(result, folder)[-1]) == [(40, "update_preimage"), (60, "update_postimage")]
    batch = spark.read.schema(t.schema).parquet(str(folder / "t"))
    found = timerheap.spark.sql(spark, query, tables={"t": batch}, **arguments)
    assert streams.rows(found) == [(60, "insert")]
    query = "SELECT * FROM totals((SELECT v AS n FROM t) PARTITION BY n)"  # which only grows
    found = timerheap.spark.sql(spark, query, tables={"t": batch.where("v > 0")}, **arguments)
    assert found.columns == ["n", "total", "_change_type"]
    assert [row[1] for row in streams.rows(found) if row[2] != "update_preimage"] == [1, 2, 3, 4]


class Aside(Numbered):
    """Has a side output."""

    tag = OutputTag("aside", Types.LONG())


ON_T = "TABLE t PARTITION BY k, DESCRIPTOR(ts)"


@pytest.mark.promises(
    "Flink SQL",
    "refused",
    "process table functions with ORDER BY",
    note="rows come in the order of `on_time`",
)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "silence()",
            "silence must be called on a table, got none; write f\\(input => TABLE t PARTITION BY k",
        ),
        (
            "silence(TABLE t, 5)",
            "silence of t without PARTITION BY is not supported; say .* TABLE t PARTITION BY k; or pass "
            'table_function.*partition_by="optional".* or partition_by="none" for a function of single rows',
        ),
        (
            "doubled(TABLE t PARTITION BY k)",
            "PARTITION BY k of doubled, a function of single rows, is not supported; leave it out, or pass",
        ),
        (
            "doubled(TABLE t, TABLE t)",
            "doubled, a function of single rows, of 2 tables is not supported; pass",
        ),
        (
            "stateful(TABLE t)",
            r"functions\['stateful'\] must have neither state nor timers .*, got get_state\(\); pass",
        ),
        (
            "totals(TABLE changes, on_time => DESCRIPTOR(ts))",
            "totals must be called without on_time for table changes, whose rows change and have",
        ),
        ("totals(TABLE kinds)", "must have a change_type that is no column of table kinds, got 'kind'"),
        (
            f"waking({ON_T})",
            "waking must be called without on_time, .*: it has processing_time=True, .* one of both out",
        ),
        ("waking(TABLE t PARTITION BY k)", "processing_time must be False for a batch DataFrame, got True"),
        (
            "silence(TABLE t PARTITION BY k ORDER BY ts DESC, 5)",
            "ORDER BY of a table in a call is not supported",
        ),
        (
            "silence(TABLE t PARTITION BY j, 5)",
            "PARTITION BY must name columns of table t, got j; the columns",
        ),
        ("silence(TABLE t PARTITION BY v + 1, 5)", "PARTITION BY v \\+ 1 is not supported"),
        ("silence(5, PARTITION_BY => k)", "PARTITION BY k is not supported; write it behind a table"),
        (f"silence({ON_T})", "silence must be called with its arguments .*, got \\(\\): missing .* 'after'"),
        (f"silence({ON_T}, after => 1, hours => 2)", "got \\(after => 1, hours => 2\\): .* 'hours'"),
        (f"silence({ON_T}, after => 1, after => 2)", "the argument after, given twice, is not supported"),
        (f"silence({ON_T}, after => 1 + v)", "the arguments of silence must be constants, got 1 \\+ v: "),
        (
            "silence(TABLE t PARTITION BY k, on_time => ts, after => 5)",
            "on_time => ts is not supported; write DES",
        ),
        (
            "silence(TABLE t PARTITION BY k, 5, DESCRIPTOR(at))",
            r"on_time must name one column of .*DESCRIPTOR\(at\)",
        ),
        (f"silence({ON_T}, uid => 5, after => 5)", "uid must be a text such as 'totals', got 5"),
        (
            f"silence({ON_T}, uid => 'a', after => 5) AS a, silence({ON_T}, uid => 'a', after => 6) AS b",
            "the uid 'a' of",
        ),
        (
            f"silence({ON_T}, TABLE t PARTITION BY k, after => 5)",
            "silence, a KeyedProcessFunction, must be called on one",
        ),
        (f"priced({ON_T})", "priced, a KeyedCoProcessFunction, must be called on two, got 1"),
        (
            f"priced({ON_T}, TABLE t PARTITION BY (k, v))",
            "PARTITION BY of 2 tables by different numbers of columns",
        ),
        (
            f"priced({ON_T}, TABLE t PARTITION BY k, TABLE t PARTITION BY k)",
            "priced of 3 tables is not supported",
        ),
        (f"numbered({ON_T}, TABLE t PARTITION BY k)", "pass_columns_through of two tables is not supported"),
        (f"twice({ON_T})", r"functions\['twice'\] must have an output_schema without .* got 'K' twice"),
        (f"aside({ON_T})", r"functions\['aside'\] must not have side outputs, got \['aside'\]"),
        (f"wrong({ON_T})", r"functions\['wrong'\] must be a KeyedProcessFunction"),
        (
            "silence(TABLE changes PARTITION BY k, 5)",
            r"silence\(\) of table changes, whose rows change, is not supported, as in Flink; pass "
            r'table_function\(..., change_type="kind"\)',
        ),
        (
            f"noise({ON_T})",
            r"the table function noise is not supported; use one of TUMBLE.* or pass your own",
        ),
    ],
)
def test_what_a_call_cannot_do_is_refused(call: str, message: str, spark: SparkSession) -> None:
    t = spark.createDataFrame([], "k string, v bigint, ts timestamp")
    functions = {
        **FUNCTIONS,
        "aside": table_function(Aside, "n bigint"),
        "twice": table_function(Numbered, "K bigint"),
        "wrong": table_function(lambda: 5, "n bigint"),
        "stateful": table_function(Numbered, "n bigint", partition_by="none"),
        "waking": table_function(Waking, "v bigint", processing_time=True),
    }
    tables = {"t": t, "changes": t.withColumn("_change_type", t.k), "kinds": t.withColumn("kind", t.k)}
    with pytest.raises((ArgumentTypeError, ArgumentValueError), match=message):
        timerheap.spark.sql(spark, f"SELECT 1 FROM {call}", tables=tables, functions=functions)


class Late(Numbered):
    """Yields a row in a timer."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        return super().process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield 1


def test_a_script_calls_functions_and_a_timer_has_no_row(spark: SparkSession) -> None:
    t = spark.createDataFrame([tuple(one.values()) for one in FIRST], "k string, v bigint, ts timestamp")
    functions = {**FUNCTIONS, "late": table_function(Late, "n bigint", pass_columns_through=True)}
    script = """
        CREATE TABLE t (k STRING, v BIGINT, ts TIMESTAMP_LTZ(3), WATERMARK FOR ts AS ts);
        CREATE VIEW silent AS SELECT k, rowtime FROM silence(TABLE t PARTITION BY k, 5, DESCRIPTOR(ts))
            WHERE what = 'silent';
        INSERT INTO ends SELECT k, rowtime FROM silent WHERE k < 'c';
        INSERT INTO late SELECT * FROM late(TABLE t PARTITION BY k, DESCRIPTOR(ts));
    """
    results = timerheap.spark.sql_script(spark, script, tables={"t": t}, functions=functions)
    assert plain(streams.rows(results["ends"])) == [("a", 9), ("b", 7)]
    assert results["late"].columns == ["k", "v", "ts", "n", "rowtime"]
    with pytest.raises(PythonException, match="on_timer yielded 1, where pass_columns_through has no row"):
        results["late"].collect()


def test_what_is_no_table_function_is_refused(spark: SparkSession) -> None:
    wrong: Any = Numbered()
    with pytest.raises(ArgumentTypeError, match=r"function must be a class, .* pass Numbered, without \(\)"):
        table_function(wrong, "n bigint")
    wrong = 5
    with pytest.raises(ArgumentTypeError, match="output_schema must be"):
        table_function(Numbered, wrong)
    wrong = "any"
    with pytest.raises(ArgumentValueError, match=r"partition_by must be one of 'required', .*, got 'any'"):
        table_function(Numbered, "n bigint", partition_by=wrong)
    with pytest.raises(ArgumentValueError, match="pass_columns_through must be False with change_type, got"):
        table_function(Numbered, "n bigint", change_type="kind", pass_columns_through=True)
    with pytest.raises(ArgumentValueError, match='processing_time must be False with partition_by="none"'):
        table_function(Numbered, "n bigint", partition_by="none", processing_time=True)
