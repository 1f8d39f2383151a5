"""Every variant of the benchmarked job emits the rows that pandas computes, so that speeds are comparable."""

import dataclasses
import importlib.util
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pd = pytest.importorskip("pandas")
pytest.importorskip("pyspark")

from pyspark import cloudpickle  # noqa: E402

BENCH = Path(__file__).resolve().parents[3] / "bench"
FILES = 2


@pytest.fixture(scope="module")
def bench():
    """Import the program; its functions are pickled by value, since workers cannot import it."""
    sys.path.append(str(BENCH))
    modules = [importlib.import_module(name) for name in ("session_job", "session_variants")]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield importlib.import_module("session_timeout")
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
    sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def data(bench):
    return importlib.import_module("session_job")


@pytest.fixture(scope="module")
def job(data):
    return data.Job(events=400, batches=4)


@pytest.fixture(scope="module")
def source(job, tmp_path_factory):
    source = tmp_path_factory.mktemp("session") / "events"
    job.write(source, FILES)
    return source


def batch(source, number):
    return pd.concat([pd.read_parquet(file) for file in source.glob(f"{number:03}-*.parquet")])


def timeouts(source, gap):
    """Compute by sorting each (key, timestamp) at which a key had no row for `gap`."""
    events = pd.concat(pd.read_parquet(file) for file in source.iterdir()).sort_values(["key", "at"])
    following = events.groupby("key")["at"].shift(-1)
    ends = events[following.isna() | (following - events["at"] > gap)]
    due = ends.assign(at=ends["at"] + gap)
    due = due[due["at"] < events["at"].max()]
    return Counter(due.itertuples(index=False, name=None))


def test_a_key_that_stops_sending_rows_does_not_start_again(data, job, source):
    seen = {}
    for number in range(job.batches):
        rows = batch(source, number)
        assert len(rows) == job.events
        assert rows["at"].between(number * data.SPAN, (number + 1) * data.SPAN - 1).all()
        for key in rows["key"].unique():
            seen.setdefault(key, []).append(number)
    assert len(seen) == job.keys
    assert all(numbers == list(range(numbers[0], numbers[-1] + 1)) for numbers in seen.values())
    assert {len(numbers) for numbers in seen.values()} == {1, 2, 3, 4}
    assert data.GAP > 2 * data.SPAN


def test_the_rows_of_a_key_are_in_one_file_and_sorted(job, source):
    for number in range(job.batches):
        files = [pd.read_parquet(file) for file in source.glob(f"{number:03}-*.parquet")]
        assert sum(file["key"].nunique() for file in files) == batch(source, number)["key"].nunique()
        assert all(file["at"].is_monotonic_increasing for file in files)


def test_the_last_row_moves_the_watermark_past_all_timers(data, job, source):
    closing = batch(source, job.batches)
    assert len(closing) == 1
    assert closing["at"].item() > job.batches * data.SPAN + data.GAP
    wanted = timeouts(source, data.GAP)
    assert wanted.total() == job.keys
    assert Counter(data.expected(source).itertuples(index=False, name=None)) == wanted


@pytest.mark.in_turn(5)
@pytest.mark.spark
@pytest.mark.parametrize("variant", ["columns", "columns-arrival", "rows", "rows-arrival", "heapq", "spark"])
def test_every_variant_emits_the_same_rows(bench, data, job, source, spark, tmp_path, variant):
    wanted = timeouts(source, data.GAP)

    done = bench.run(variant, spark, job, source, tmp_path, FILES)

    emitted = spark.read.schema(data.SCHEMA).parquet(str(tmp_path / "output"))
    assert Counter(tuple(row) for row in emitted.collect()) == wanted
    assert done.fired == wanted.total()
    assert 0 < done.closing_fired < done.fired
    assert len(done.rates) == job.batches - 1
    assert done.jvm > 0
    assert done.python > 0


@pytest.mark.spark
@pytest.mark.parametrize(("variant", "share"), [("no-op", 0), ("results", 1 / 8)])
def test_a_variant_without_timers_returns_its_share_of_the_rows(
    bench, job, source, spark, tmp_path, variant, share
):
    done = bench.run(variant, spark, job, source, tmp_path, FILES)

    assert len(done.rates) == job.batches - 1
    assert done.fired <= job.batches * job.events * share
    assert (done.fired > 0) == (share > 0)


def test_a_difference_between_variants_is_reported(data):
    wanted = pd.DataFrame({"key": ["a", "b"], "at": [1, 2]})
    assert not data.difference(wanted[::-1], wanted)
    for emitted in (wanted[:1], wanted[:0], pd.concat([wanted, wanted[:1]]), wanted.assign(at=[1, 3])):
        assert data.difference(emitted, wanted)


def test_the_report_compares_medians(bench, job):
    rates = {"columns": 600, "rows": 90, "no-op": 1000, "heapq": 300, "spark": 6}
    runs = {
        variant: [
            bench.Run([rate / 2, rate, 2 * rate], 320, 200, seconds, 1500.0, 250.0)
            for seconds in (1.0, 2.0, 9.0)
        ]
        for variant, rate in rates.items()
    }

    result = bench.report(runs, job, rounds=3)

    columns = result["variants"]["columns"]
    assert {name: columns[name] for name in list(columns)[:-1]} == {
        "rows_per_second": 600,
        "spread": [300, 1200],
        "to_no-op": 0.6,
        "to_heapq": 2,
        "to_spark": 100,
        "fired": 320,
        "fired_at_the_end": 200,
        "seconds_at_the_end": 2.0,
        "jvm_ns_a_row": 1500.0,
        "python_ns_a_row": 250.0,
    }
    line = "columns                  600     0.60     2.00    100.0         320     2.0 s    1,500       250"
    assert line in bench.table(result)


def test_shapes_change_the_rows_and_not_the_result(data, tmp_path):
    shapes = importlib.import_module("session_shapes")
    for number, shape in enumerate(shapes.SHAPES.values()):
        job = dataclasses.replace(shape.job(400), events=400, batches=4)
        source = tmp_path / str(number)
        job.write(source, FILES)
        rows = batch(source, 0)
        assert [f"{name} " in job.schema for name in rows.columns] == [True] * (2 + job.payload)
        assert data.expected(source)["key"].nunique() == job.keys


def test_figures_of_shapes_are_medians_beside_the_no_op(bench, tmp_path, monkeypatch):
    shapes = importlib.import_module("session_shapes")
    rates = {variant: 100.0 * (number + 1) for number, variant in enumerate(shapes.VARIANTS)}
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=FILES))
    monkeypatch.setattr(shapes, "session", lambda *_: nullcontext(spark))
    monkeypatch.setattr(shapes, "expect", lambda *_: None)
    monkeypatch.setattr(
        shapes, "run", lambda variant, *_: bench.Run([rates[variant]] * 3, 0, 0, 1.0, 1500.0, 250.0)
    )
    figures = shapes.measure(shapes.Shape(batches=4), 400, 2, tmp_path)
    assert figures["columns"]["to_no-op"] == 2
    assert "bigint key      columns                  200     2.00     1,500        250" in shapes.table(
        {"bigint key": figures}
    )
