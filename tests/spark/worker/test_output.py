"""Tests the output of functions: all forms of a row, columns in any order, and pandas frames."""

import datetime
import itertools
import re

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.pandas.types import from_arrow_schema

from timerheap import OutputTag, Types
from timerheap.spark._columns import METRICS, RESULTS
from timerheap.spark._compat import to_record_batch
from timerheap.spark._plan.observed_metrics import output_type
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.spark_frames import result_frames
from timerheap.types import arrow_type

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("tags", pa.map_(pa.string(), pa.int64())),
    ]
)


def test_rows_and_batches_keep_their_order():
    output = ResultBuffer(SCHEMA)
    output.rows([("a", 1, {"x": 1})], "on_timer")
    output.batch(pa.record_batch({"n": pa.array([2], pa.int32()), "tags": [None], "k": ["b"]}), "on_timers")
    output.rows(None, "on_timer")
    output.rows([["c", None, {}], {"k": "d"}, Row(k="e", n=3, tags=None)], "on_timer")
    output.batch(
        pa.table({"k": ["f"], "n": [None], "tags": pa.nulls(1, SCHEMA.field("tags").type)}), "on_timers"
    )
    table = output.table()
    assert table.schema == SCHEMA
    assert table.to_pylist() == [
        {"k": k, "n": n, "tags": tags}
        for k, n, tags in zip(
            "abcdef", [1, 2, None, None, 3, None], [[("x", 1)], None, [], None, None, None], strict=True
        )
    ]
    assert all(column.num_chunks == 1 for column in table.columns)


def test_a_single_column_accepts_plain_values():
    output = ResultBuffer(pa.schema([("n", pa.int64())]))
    output.rows((n for n in (1, None, 3)), "on_timer")
    assert output.table()["n"].to_pylist() == [1, None, 3]


def test_no_rows_make_an_empty_table():
    assert ResultBuffer(SCHEMA).table().num_rows == 0


def test_a_table_takes_the_results_out_of_the_buffer():
    tag = OutputTag("tag", Types.LONG())
    output = ResultBuffer(pa.schema([("n", pa.int64())]), [pa.field("tag", pa.int64())])
    for n in (1, 2):
        output.rows([(n,), (tag, 10 * n)], "on_timer")
        rows = output.table().to_pylist()
        assert rows == [{"n": n, "side_output": None}, {"n": None, "side_output": {"tag": 10 * n}}]
        assert output.table().num_rows == 0


@pytest.mark.parametrize("row", [("a", 1), ("a", 1, None, 2), {"k": "a", "m": 1}, "abc", 5, ["a"]], ids=str)
def test_a_row_of_the_wrong_shape_raises(row):
    message = re.escape(
        f"on_timer yielded {row!r}, which does not fit output_schema (k string, n int64, tags map<"
    )
    with pytest.raises(ValueError, match=message):
        ResultBuffer(SCHEMA).rows([row], "on_timer")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((None, 1, None), "None in column 'k', which output_schema says is not null"),
        (("a", "1", None), r"column 'n': '1' \(str\) does not fit int64"),
        (("a", 2**63, None), r"column 'n': 9223372036854775808 \(int\) does not fit int64"),
        (("a", 1.0, None), r"column 'n': 1\.0 \(float\) does not fit int64"),
        (("a", True, None), r"column 'n': True \(bool\) does not fit int64"),
        ((5, 1, None), r"column 'k': 5 \(int\) does not fit string"),
        (("a", 1, {"x": "y"}), r"column 'tags': 'y' \(str\) does not fit int64"),
    ],
)
def test_a_value_of_the_wrong_type_raises(row, message):
    output = ResultBuffer(SCHEMA)
    with pytest.raises(ValueError, match=message):  # noqa: PT012
        output.rows([("a", 1, None), row], "on_timer")
        output.table()


def test_spark_receives_results_exactly_and_metrics_in_the_last_row():
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("nested", pa.list_(pa.map_(pa.int32(), pa.struct({"x": pa.int64()})))),
            ("past", pa.list_(pa.timestamp("us", "UTC"))),
        ]
    )
    at = datetime.datetime(1066, 1, 1, tzinfo=datetime.UTC)
    rows = [
        {"n": 2**63 - 1, "at": at, "nested": [[(1, {"x": 2**53 + 1})], None], "past": [at, None]},
        dict.fromkeys(schema.names),
    ]
    type_, metrics = output_type(from_arrow_schema(schema), has_watermark=True), pa.array(["{}"])
    for n in (0, 1, 2, 4096, 4097, 10_000):
        repeated = (rows * n)[:n]
        frames = list(result_frames(pa.Table.from_pylist(repeated, schema), metrics))
        for zone in ("UTC", "America/New_York"):
            batches = [to_record_batch(frame, type_, zone) for frame in frames]
            table = pa.Table.from_batches(batches)
            arrays = [[] if array is None else array for array in table.column(RESULTS).to_pylist()]
            assert list(itertools.chain(*arrays)) == repeated
            assert all(len(array) <= 4096 for array in arrays)
            assert table.column(METRICS).to_pylist() == [*[None] * (table.num_rows - 1), "{}"]


def test_arrays_of_large_results_are_small():
    results = pa.table({"text": ["x" * 2_000_000] * 5 + ["y"] * 5})
    (frame,) = result_frames(results)
    assert max(sum(len(row["text"]) for row in array) for array in frame[0]) <= 4_000_000


@pytest.mark.parametrize(
    "returned",
    ["abc", b"abc", {"k": "a"}, ("a", 1, None), Row(k="a", n=1, tags=None), 5, pa.table({"k": ["a"]})],
)
def test_returning_a_bare_row_raises(returned):
    output = ResultBuffer(pa.schema([("k", pa.string())]))
    with pytest.raises(TypeError, match=r"process_element must yield .* got .*; yield it, or return \[it\]"):
        output.rows(returned, "process_element")
    assert output.table().num_rows == 0
    output.rows((), "process_element")
    output.rows(iter(["abc"]), "process_element")
    assert output.table().to_pylist() == [{"k": "abc"}]


def test_an_int_is_a_timestamp_in_epoch_ms():
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
    output = ResultBuffer(schema)
    output.rows([(1_500, 2_000)], "on_timer")
    output.batch(
        pa.record_batch({"at": pa.array([1_500]), "local": pa.array([2_000], pa.int32())}), "on_timers"
    )
    rows = output.table().to_pylist()
    assert [row["at"].timestamp() for row in rows] == [1.5, 1.5]
    assert [row["local"].second for row in rows] == [2, 2]
    with pytest.raises(ValueError, match=r"column 'at': 9223372036854775807 .*outside the years 1 to 9999"):
        output.rows([(2**63 - 1, 0)], "on_timer")
    with pytest.raises(ValueError, match="on_timers yielded column 'at' as int64, which does not fit"):
        ResultBuffer(schema).batch(pa.record_batch({"at": [2**62], "local": [0]}), "on_timers")


def test_fields_of_structs_are_matched_by_name_at_every_depth():
    moment = pa.timestamp("us", "UTC")
    pair = pa.struct([("at", moment), ("n", pa.int64())])
    output = ResultBuffer(pa.schema([("pairs", pa.list_(pair)), ("pair", pair)]))

    other_order = pa.array([{"n": 5, "at": 1_700_000_000_000}])
    output.batch(
        pa.record_batch({"pair": other_order, "pairs": pa.array([other_order.to_pylist()])}), "on_timers"
    )
    output.batch(pa.record_batch({"pair": [{"n": 6}], "pairs": [None]}), "on_timers")

    first, second = output.table().to_pylist()
    assert first["pair"]["at"].timestamp() == first["pairs"][0]["at"].timestamp() == 1_700_000_000
    assert first["pair"]["n"] == first["pairs"][0]["n"] == 5
    assert second["pair"] == {"at": None, "n": 6}


@pytest.mark.parametrize(
    ("ddl", "values", "message"),
    [
        ("decimal(10,2)", pa.array([0.125]), "pass decimals"),
        ("date", pa.array([0], pa.timestamp("s")), "pass dates"),
        ("boolean", pa.array([2]), "pass values of bool"),
        ("bigint", pa.array([True]), "pass values of int64"),
        ("bigint", pa.array(["1"]), "pass values of int64"),
        ("string", pa.array([1]), "pass values of string"),
        ("string", pa.array([1]).dictionary_encode(), "pass values of string"),
        ("timestamp_ntz", pa.array([0], pa.timestamp("us", "UTC")), "without a time zone"),
        ("int", pa.array([2**31]), "not in range"),
        ("struct<at:bigint>", pa.array([{"aat": 1}]), r"its fields must be of \['at'\], got 'aat'"),
        ("array<bigint>", pa.array([["1"]]), "pass values of int64"),
    ],
)
def test_a_column_that_would_say_something_else_raises(ddl, values, message):
    output = ResultBuffer(pa.schema([("x", arrow_type(ddl))]))
    with pytest.raises(ValueError, match=rf"on_timers yielded column 'x' as [\s\S]*{message}"):
        output.batch(pa.record_batch({"x": values}), "on_timers")
    assert output.table().num_rows == 0


TAG = OutputTag("seen", Types.ROW_NAMED(["at", "n"], [Types.INSTANT(), Types.LONG()]))
SEEN = pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def test_columns_of_a_side_output_are_read_like_those_of_the_result():
    output = ResultBuffer(SCHEMA, [pa.field("seen", SEEN)])
    output.batch((TAG, pa.record_batch({"n": pa.array([5], pa.int32()), "at": [1_500]})), "process_batch")
    (row,) = output.table()["side_output"].to_pylist()
    assert row["seen"]["at"].timestamp() == 1.5
    assert row["seen"]["n"] == 5


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"at": [1]}, r"must have the columns \['at', 'n'\], got \['at'\]"),
        (
            {"at": [1], "n": [2], "lost": [3]},
            r"must have the columns \['at', 'n'\], got \['at', 'n', 'lost'\]",
        ),
        (
            {"at": [1], "n": ["2"]},
            "has column 'n' as string, which does not fit int64: pass values of int64",
        ),
    ],
)
def test_columns_that_do_not_fit_a_side_output_raise(columns, message):
    output = ResultBuffer(SCHEMA, [pa.field("seen", SEEN)])
    with pytest.raises(ValueError, match=f"a record batch of the side output 'seen' {message}"):
        output.batch((TAG, pa.record_batch(columns)), "process_batch")
