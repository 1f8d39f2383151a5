"""A checkpoint in an object store: kills, repeated micro-batches, refused requests, and what reads it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kill_child
import kill_jobs
import pytest
import streams
from connectors import published, running
from kill_driver import Soak, compared, run, settings_of
from kill_jobs import write_input
from object_store import ObjectStore, Request
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark
from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor

pytestmark = pytest.mark.world("s3a")

PAGE = Path(__file__).resolve().parents[2] / "docs/operations/checkpoints.md"
(BLOCK,) = re.findall(r"```text\n(spark\.jars\.packages .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PACKAGE, *LINES = BLOCK.splitlines()
SETTINGS = {line.split()[0]: line.split()[1] for line in LINES}
"""What the documentation recommends for S3A."""

DEFAULTS = {
    name: {"2": "1"}.get(value, value.replace("FileSystemBased", "FileContextBased"))
    for name, value in SETTINGS.items()
}


@pytest.fixture
def folder(object_store: ObjectStore) -> str:
    """A new folder in the object store."""
    return f"s3a://{object_store.bucket()}/queries/silent"


def sessions(df: DataFrame, **options: Any) -> DataFrame:
    """Rows by key, with lists, maps and timers, as the kill driver runs them."""
    return timerheap.spark.process(
        df,
        "k",
        kill_jobs.Sessions(),
        "k string, at bigint, what string",
        "at",
        watermark=kill_jobs.WATERMARK,
        **options,
    )


def run_to_end(result: DataFrame, checkpoint: str) -> list[tuple[Any, ...]]:
    """Run a query as a schedule does, and return its results."""
    found: list[tuple[Any, ...]] = []

    def collect(df: DataFrame, batch: int) -> None:
        found.extend(map(tuple, df.collect()))

    writer = result.writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint)
    timerheap.spark.run_available_now(writer)
    return sorted(found)


def test_the_documentation_names_the_version_that_runs() -> None:
    assert PACKAGE.split()[1] in published[running]["s3a"]


@pytest.mark.parametrize("what", ["driver", "worker"])
def test_a_kill_changes_no_micro_batch(
    spark: SparkSession,
    world_settings: dict[str, str],
    folder: str,
    tmp_path: Path,
    tell: Callable[..., None],
    what: str,
) -> None:
    write_input(tmp_path / "in", seed=1, batches=3, rows=60, keys=20)
    spec: dict[str, Any] = {"input": str(tmp_path / "in"), "query": "rows", "killer": None, "twins": False}
    kill_child.start(spark, spec | {"work": tmp_path / "undisturbed"}).awaitTermination()
    settings = {**settings_of(None), **world_settings, **SETTINGS}
    disturbed = {"killer": (what, tmp_path / "killed", 1), "settings": settings, "checkpoint": folder}
    found = run(tmp_path / "disturbed", spec | disturbed)
    found.add(compared(tmp_path / "undisturbed" / "out", tmp_path / "disturbed" / "out"))
    assert (tmp_path / "killed").exists()
    assert found.starts == (2 if what == "driver" else 1)
    assert not found.differences
    assert found.batches >= 3
    tell(f"checkpoint on S3A, {what} killed", kills=1, rows=found.rows, lost=0, doubled=0)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["driver", "worker", "executor"])
def test_many_kills_change_no_micro_batch(
    request: pytest.FixtureRequest,
    seed: int,
    world_settings: dict[str, str],
    folder: str,
    tmp_path: Path,
    tell: Callable[..., None],
    kind: str,
) -> None:
    write_input(tmp_path / "in", seed, batches=8, rows=200, keys=50)
    queries = ["rows", "columns-arrival", "twice", "session"]
    soak = Soak(tmp_path, seed, queries, {**world_settings, **SETTINGS}, folder)
    done = soak.kill(kind, request.config.getoption("kills"))
    assert not done.differences + done.errors + done.ended
    tell(f"checkpoint on S3A, {kind} killed at random", kills=done.kills, rows=done.rows, lost=0, doubled=0)


@pytest.mark.parametrize("before", [1, 3])
def test_a_changed_query_goes_on(
    spark: SparkSession, folder: str, tmp_path: Path, tell: Callable[..., None], before: int
) -> None:
    """The first micro-batch in the log of offsets is replaced if the old query has no other, else removed."""
    write_input(tmp_path / "all", seed=5, batches=5, rows=60, keys=20)
    (tmp_path / "in").mkdir()

    def add(first: int, end: int) -> DataFrame:
        for file in sorted((tmp_path / "all").glob("*.parquet"))[first:end]:
            shutil.copy2(file, tmp_path / "in")
        return streams.read_stream(spark, tmp_path / "in")

    with streams.with_settings(spark, SETTINGS):
        found = run_to_end(sessions(add(0, before)), f"{folder}/1")
        rows = add(before, 5)
        for _ in range(2):  # the second one begins where the first has ended
            result = timerheap.spark.continue_from(
                spark, f"{folder}/1", f"{folder}/2", lambda: sessions(rows, max_parallelism=5)
            )
            found += run_to_end(result, f"{folder}/2")
    wanted = run_to_end(sessions(rows), str(tmp_path / "undisturbed"))
    assert len(found) > 20
    assert sorted(found) == wanted
    tell(f"checkpoint on S3A, continue_from after {before}", kills=0, rows=len(found), lost=0, doubled=0)


class Tally(KeyedProcessFunction):
    """Adds `step` to the tally of a key for each row."""

    def __init__(self, step: int) -> None:
        self.step = step

    def open(self, runtime_context: Any) -> None:
        self.tally = runtime_context.get_state(ValueStateDescriptor("tally", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
        self.tally.update((self.tally.value() or 0) + self.step)
        yield ctx.get_current_key(), self.tally.value()


@pytest.mark.parametrize("settings", [SETTINGS, DEFAULTS], ids=["recommended", "defaults"])
def test_a_repeated_micro_batch_replaces_its_state(
    spark: SparkSession,
    object_store: ObjectStore,
    folder: str,
    tmp_path: Path,
    settings: dict[str, str],
) -> None:
    """The results that are written are those of the last attempt, so its state must be the one that stays."""
    write_input(tmp_path / "in", seed=1, batches=2, rows=20, keys=4)

    def tallies(step: int) -> int:
        df = streams.read_stream(spark, tmp_path / "in")
        run_to_end(timerheap.spark.process(df, "k", Tally(step), "k string, n long"), folder)
        state = timerheap.spark.read_checkpoint(spark, folder).state("tally")
        return sum(row.value for row in state.collect())

    with streams.with_settings(spark, settings):
        assert tallies(1) == 40
        bucket = folder.split("/")[2]
        object_store.client.delete_object(Bucket=bucket, Key="queries/silent/commits/1")
        assert tallies(1_000) == 20_020


def test_a_refused_write_ends_the_query(
    spark: SparkSession, object_store: ObjectStore, folder: str, tmp_path: Path
) -> None:
    """State that has not reached the store is never taken for committed."""
    write_input(tmp_path / "in", seed=1, batches=3, rows=60, keys=20)
    df = streams.read_stream(spark, tmp_path / "in")
    expected = run_to_end(sessions(df), str(tmp_path / "undisturbed"))

    def refuses(request: Request) -> bool:
        return request.kind == "PUT" and "/state/0/1/" in request.key and ".changelog" in request.key

    results: dict[int, list[tuple[Any, ...]]] = {}
    attempts: list[int] = []

    def collect(df: DataFrame, batch: int) -> None:
        if batch == 1 and not attempts:
            attempts.append(batch)
            object_store.refuses = refuses
        results[batch] = sorted(map(tuple, df.collect()))

    writer = sessions(df).writeStream.foreachBatch(collect).option("checkpointLocation", folder)
    with streams.with_settings(spark, SETTINGS):
        try:
            with pytest.raises(StreamingQueryException, match=r"Forbidden|AccessDenied"):
                timerheap.spark.run_available_now(writer)
        finally:
            object_store.refuses = lambda request: False
        assert list(results) == [0]
        timerheap.spark.run_available_now(writer)
    assert sorted(row for rows in results.values() for row in rows) == expected


def test_state_is_read_and_moved_to_a_new_checkpoint(
    spark: SparkSession, object_store: ObjectStore, folder: str, tmp_path: Path
) -> None:
    write_input(tmp_path / "in", seed=2, batches=4, rows=60, keys=20)
    whole = run_to_end(sessions(streams.read_stream(spark, tmp_path / "in")), str(tmp_path / "undisturbed"))
    for number in (2, 3):
        (tmp_path / "in" / f"{number:05}.parquet").rename(tmp_path / f"{number:05}.parquet")
    with streams.with_settings(spark, SETTINGS):
        first = run_to_end(
            sessions(streams.read_stream(spark, tmp_path / "in"), max_parallelism=8), f"{folder}/old"
        )
        for number in (0, 1):
            (tmp_path / "in" / f"{number:05}.parquet").unlink()
        for number in (2, 3):
            (tmp_path / f"{number:05}.parquet").rename(tmp_path / "in" / f"{number - 2:05}.parquet")
        old = timerheap.spark.read_checkpoint(spark, f"{folder}/old")
        assert old.timers().count() > 0
        moved = sessions(streams.read_stream(spark, tmp_path / "in"), max_parallelism=4, initial_state=old)
        assert sorted([*first, *run_to_end(moved, f"{folder}/new")]) == whole
    with pytest.raises(ValueError, match="which does not exist"):
        timerheap.spark.read_checkpoint(spark, f"{folder}/elsewhere")


class Alarm(KeyedProcessFunction):
    """Rings twice for a key, by the clock."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[str]]:
        yield (ctx.get_current_key(),)


def test_a_schedule_fires_what_is_due(spark: SparkSession, folder: str, tmp_path: Path) -> None:
    """Micro-batches without rows are planned in the checkpoint."""
    write_input(tmp_path / "in", seed=3, batches=2, rows=10, keys=3)
    df = streams.read_stream(spark, tmp_path / "in")
    with streams.with_settings(spark, SETTINGS):
        result = timerheap.spark.process(df, "k", Alarm(), "k string", processing_time=True)
        keys = {row.k for row in spark.read.parquet(str(tmp_path / "in")).collect()}
        found = run_to_end(result, folder)
        found += run_to_end(result, folder)
        assert timerheap.spark.read_checkpoint(spark, folder).timers().count() == 0
    assert {key for (key,) in found} == keys
