"""Nexmark: the events have the published proportions, and the queries give the rows that Flink has given.

The rows are in data/nexmark.json, with Flink's version: tests/support/recorders/record_nexmark.py makes the
same events and runs the queries in Flink. q6, which Flink cannot run, is compared with a model in pandas. q12
is left out, since its windows are those of the clock; the benchmark compares its counts.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from children import helpers
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import timerheap.spark

ROOT = Path(__file__).resolve().parents[3]
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "nexmark.json").read_text())
MODULES = ("generator", "streams", "plain", "timers", "windows", "columns", "spark_alone", "compare", "spark")
MODULES += ("texts",)

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(20)]


@pytest.fixture(scope="module")
def nexmark() -> Iterator[Any]:
    """Import the benchmark; its functions are pickled by value, since workers cannot import it."""
    folders = [str(ROOT / "bench"), *helpers()]
    sys.path.extend(folders)
    modules = [importlib.import_module(f"nexmark.{name}") for name in MODULES]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield importlib.import_module("nexmark")
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def files(nexmark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("nexmark")
    nexmark.compare.write_small(folder)
    return folder


@pytest.fixture(scope="module")
def rows(nexmark: Any, files: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a query and returns its final rows; those without state run as a batch."""

    @cache
    def run(name: str) -> Any:
        query = nexmark.spark.QUERIES[name]
        if query.__module__.endswith("plain") and name != "q17":
            return query(nexmark.streams.events(spark, files / "spark", batch=True))
        work = tmp_path_factory.mktemp(name)
        return nexmark.compare.final(name, nexmark.spark.results(spark, query, files, work))

    return run


@pytest.mark.parametrize("name", RECORDED["queries"])
def test_rows_are_those_of_flink(nexmark: Any, rows: Any, name: str) -> None:
    assert nexmark.compare.recorded(name, rows(name)) == RECORDED["queries"][name]


@pytest.mark.parametrize("name", ["q3", "q20"])
def test_spark_runs_the_published_text(nexmark: Any, files: Path, spark: SparkSession, name: str) -> None:
    found = nexmark.texts.in_spark(nexmark.streams.events(spark, files / "spark", batch=True), name)
    assert nexmark.compare.recorded(name, found) == RECORDED["queries"][name]


@pytest.mark.parametrize("name", ["q5", "q8", "q11"])
def test_sql_runs_the_published_text(nexmark: Any, files: Path, spark: SparkSession, name: str) -> None:
    nexmark.texts.create_views(nexmark.streams.events(spark, files / "spark", batch=True))
    found = timerheap.spark.sql(spark, nexmark.texts.QUERIES[name])
    assert nexmark.compare.recorded(name, found) == RECORDED["queries"][name]


def test_q6_averages_as_the_model_does(nexmark: Any, rows: Any) -> None:
    got = rows("q6").toPandas().sort_values(["ms", "id"]).reset_index(drop=True)
    assert got.equals(nexmark.compare.model_of_q6(rows("q9")))
    assert len(got) > 100


@pytest.fixture(scope="module")
def events(nexmark: Any) -> dict[str, np.ndarray]:
    """Return columns of 500,000 events; NaN for what an event does not have."""
    table = nexmark.generator.Generator().block(500_000, 500_000)
    names = [field.name for field in table.schema if str(field.type).startswith("int")]
    return {name: table[name].to_numpy().astype(float) for name in names} | {"table": table}


def test_the_kinds_have_the_published_shares(events: dict[str, np.ndarray]) -> None:
    kinds = np.bincount(events["event_type"].astype(int)) / 500_000
    np.testing.assert_array_equal(kinds, [1 / 50, 3 / 50, 46 / 50])


def test_hot_keys_have_the_published_shares(events: dict[str, np.ndarray]) -> None:
    # A bid is for the hot auction with 1 - 1/2, and else for one of 110. A bidder is the hot one with 1 - 1/4
    # and else one of 1,010, ten of which end with the same two digits; a seller likewise.
    bid, auction = events["event_type"] == 2, events["event_type"] == 1
    for column, of, share in (
        ("auction", bid, 1 / 2 + 1 / 2 / 110),
        ("bidder", bid, 3 / 4 + 1 / 4 / 101),
        ("seller", auction, 3 / 4 + 1 / 4 / 101),
    ):
        keys = events[column][of]
        hot = (keys % 100 == (1 if column == "bidder" else 0)).mean()
        assert hot == pytest.approx(share, abs=0.01), column


def test_values_are_in_the_published_ranges(events: dict[str, np.ndarray]) -> None:
    bid, auction = events["event_type"] == 2, events["event_type"] == 1
    price = events["price"][bid]
    # 10 to the power of 0..6, times 100: the logarithm is uniform
    assert np.histogram(np.log10(price), 6, (2, 8))[0] / len(price) == pytest.approx([1 / 6] * 6, abs=0.005)
    assert set(events["category"][auction]) == {10, 11, 12, 13, 14}
    lasts = (events["expires_ms"] - events["ms"])[auction]
    # 100 auctions are made in 1,666 events, which are 166 ms: an auction lasts 1 ms up to twice that
    assert (lasts.min(), lasts.max()) == (1, 332)
    assert lasts.mean() == pytest.approx(167, abs=2)
    lengths = pc.binary_length(events["table"]["extra"]).to_numpy()
    assert (lengths[bid].min(), lengths[bid].max()) == (54, 81)  # 68 less a fifth, up to a fifth more
    assert events["reserve"][auction].min() >= 200


def test_events_are_out_of_order_within_groups(events: dict[str, np.ndarray]) -> None:
    late = np.maximum.accumulate(events["ms"]) - events["ms"]
    assert 0 < (late > 0).mean() < 1
    assert late.max() < 100  # a group of 1,000 events is 100 ms


def test_the_same_seed_makes_the_same_rows_for_both_engines(nexmark: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        nexmark.generator.write(tmp_path / name, 3_000, 1_000)
    one, two = (
        [path.read_bytes() for path in sorted((tmp_path / name).rglob("*.*"))] for name in ("one", "two")
    )
    assert one == two
    by_engine = [
        sorted(map(str, pq.read_table(tmp_path / "one" / engine).to_pylist()))
        for engine in ("spark", "flink")
    ]
    assert by_engine[0] == by_engine[1]
    assert len(by_engine[0]) == 3_001
