"""A changed query goes on where an old one has stopped: no row is lost or read again, no timer fires twice.

See `timerheap.spark.continue_from`.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import streams
from local_spark import STATE_STORE
from pyspark.sql import DataFrame, SparkSession

from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor
from timerheap.spark import continue_from, process, read_checkpoint
from timerheap.spark._continued.checkpoint_files import CheckpointFiles

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

ROWS = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
RESULT = "rule string, k string, at bigint, n bigint"


class Rule(KeyedProcessFunction):
    """Counts the rows of each key, and tells the count some time after each."""

    def __init__(self, name: str, after: int = 3_000) -> None:
        self.name, self.after = name, after

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(value["at"] + self.after)
        yield self.name, value["k"], value["at"], self.count.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        yield self.name, ctx.get_current_key(), timestamp, -self.count.value()


def rule(df: DataFrame, name: str, **options: Any) -> DataFrame:
    return process(df, "k", Rule(name), RESULT, event_time="at", watermark="2 seconds", name=name, **options)


class Job:
    """Rows in folders, read by one query after the other, which write to one sink."""

    def __init__(self, spark: SparkSession, work: Path) -> None:
        self.spark, self.work, self.draw, self.at = spark, work, random.Random(str(work.name)), 0

    def add(self, folder: str = "in", files: int = 2) -> None:
        for _ in range(files):
            rows = []
            for _ in range(40):
                self.at += self.draw.randrange(300)
                at = self.at - self.draw.randrange(3_000)
                rows.append({"k": f"k{self.draw.randrange(9)}", "at": at, "v": self.draw.randrange(9)})
            streams.write_batches(self.work / folder, [rows], ROWS)

    def read(self, folder: str = "in") -> DataFrame:
        return streams.read_stream(self.spark, self.work / folder)

    def checkpoint(self, name: str) -> Path:
        return self.work / name

    def run(self, df: DataFrame, checkpoint: str, sink: str = "sink") -> None:
        writer = df.writeStream.option("checkpointLocation", str(self.work / checkpoint))
        query = writer.trigger(availableNow=True).start(str(self.work / sink), format="parquet")
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def go_on(self, old: str, new: str, query: Callable[[], DataFrame], **options: Any) -> None:
        self.run(continue_from(self.spark, self.work / old, self.work / new, query, **options), new)

    def written(self, sink: str = "sink") -> list[tuple[Any, ...]]:
        return streams.rows(self.spark.read.parquet(str(self.work / sink)))

    def undisturbed(self, query: Callable[[], DataFrame]) -> list[tuple[Any, ...]]:
        """Return what a query writes that reads all rows from the beginning."""
        self.run(query(), "undisturbed", "other sink")
        return self.written("other sink")


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_rule_is_added_in_front_and_one_behind(job: Job) -> None:
    """The old one goes on; a third query has them in a different order."""
    job.add()
    job.run(rule(job.read(), "a"), "1")
    before = files_of(job.work / "1")
    first = job.written()

    def added() -> DataFrame:
        front = rule(job.read(), "front")
        return front.union(rule(job.read(), "a")).union(rule(front.select("k", "at"), "behind"))

    job.add("in")
    job.go_on("1", "2", added, sources=[None, 0])
    assert files_of(job.work / "1") == before
    job.add("in")
    job.run(continue_from(job.spark, job.work / "1", job.work / "2", added, sources=[None, 0]), "2")

    def turned() -> DataFrame:
        rows = job.read()
        return rule(rows, "a", max_parallelism=3).union(rule(rule(rows, "front").select("k", "at"), "behind"))

    job.add("in")
    with streams.configured(job.spark, shuffle_partitions=3):
        job.go_on("2", "3", turned, sources=[1])
        states = {name: read_checkpoint(job.spark, job.work / "3", name) for name in ("a", "front", "behind")}
        assert states["a"].max_parallelism == 3
    written = job.written()
    assert set(first) <= set(written)
    of_a = [row for row in written if row[0] == "a"]
    assert of_a == job.undisturbed(lambda: rule(job.read(), "a"))
    assert {row[0] for row in written} == {"a", "front", "behind"}


@pytest.mark.parametrize("logs", [["1/commits", "sink/_spark_metadata"], ["1/commits"]])
def test_a_micro_batch_that_has_not_finished_is_run_over_the_same_rows(
    job: Job, logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the sink has it already, and if the call is killed while it runs this micro-batch."""
    if len(logs) == 1 and job.spark.conf.get(f"{STATE_STORE}.checkpointFormatVersion") == "2":
        pytest.skip("Spark loses the state of a micro-batch that the sink leaves out, with format version 2")
    job.add()
    job.run(rule(job.read(), "a"), "1")
    first = job.written()
    for log in logs:
        for path in (job.work / log).glob("*1*"):
            path.unlink()
    assert (len(job.written()) < len(first)) == (len(logs) > 1)
    job.add()
    original = CheckpointFiles.remove

    def remove(self: CheckpointFiles, name: str) -> None:
        if name == "commits/1":
            raise KeyboardInterrupt
        original(self, name)

    def changed() -> DataFrame:
        return rule(job.read(), "a", max_parallelism=5)

    monkeypatch.setattr(CheckpointFiles, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        continue_from(job.spark, job.work / "1", job.work / "2", changed)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"continue_from\(\) has not finished; call it again as before"):
        continue_from(job.spark, job.work / "2", job.work / "3", changed)
    job.go_on("1", "2", changed)
    assert job.written() == job.undisturbed(lambda: rule(job.read(), "a"))


def test_a_source_goes_when_its_rows_are_finished(job: Job) -> None:
    job.add()
    job.add("other")
    job.run(rule(job.read(), "a"), "1")
    for log in ("1/commits", "sink/_spark_metadata"):
        for path in (job.work / log).glob("*1*"):
            path.unlink()

    def changed() -> DataFrame:
        return rule(job.read("other"), "a")

    with pytest.raises(ValueError, match="begun one over rows of source 0; start the old query for a micro-"):
        continue_from(job.spark, job.work / "1", job.work / "2", changed, sources=[None])
    job.run(rule(job.read(), "a"), "1")
    job.go_on("1", "2", changed, sources=[None])
    others = [pq.read_table(path) for path in sorted((job.work / "other").glob("*.parquet"))]
    streams.write_batches(job.work / "in", others, ROWS)
    assert job.written() == job.undisturbed(lambda: rule(job.read(), "a"))


def test_an_earlier_micro_batch_is_gone_back_to(job: Job) -> None:
    job.add(files=4)
    job.run(rule(job.read(), "a"), "1")
    df = continue_from(job.spark, job.work / "1", job.work / "2", lambda: rule(job.read(), "a"), batch_id=1)
    job.run(df, "2", "replayed")
    everything = job.written()
    again = streams.rows(job.spark.read.parquet(*map(str, (job.work / "replayed").glob("*.parquet"))))
    assert 0 < len(again) < len(everything)
    assert set(again) <= set(everything)
    assert {row for row in everything if row[2] > max(at for _, _, at, _ in again) - 9_000} <= {
        *again,
        *everything,
    }


@pytest.mark.parametrize("at", ["nothing", "state", "before the offsets", "before the end"])
def test_a_call_that_has_been_killed_is_repeated(job: Job, at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it has returned, no query goes on with what is there."""
    job.add()
    job.run(rule(job.read(), "a"), "1")
    if at == "nothing":
        (job.work / "2" / "offsets").mkdir(parents=True)
    original, calls = CheckpointFiles.write, {"nothing": 1, "state": 2, "before the offsets": 3}.get(at, 5)
    written = []

    def write(self: CheckpointFiles, name: str, text: str) -> None:
        written.append(name)
        if len(written) == calls:
            raise KeyboardInterrupt
        original(self, name, text)

    monkeypatch.setattr(CheckpointFiles, "write", write)
    with pytest.raises(KeyboardInterrupt):
        continue_from(job.spark, job.work / "1", job.work / "2", lambda: rule(job.read(), "a"))
    monkeypatch.undo()
    if at != "nothing":
        with pytest.raises(Exception, match=r"sources in the checkpoint offsets|MISSING_METADATA"):
            job.run(rule(job.read(), "a"), "2", "nowhere")
    job.add()
    job.go_on("1", "2", lambda: rule(job.read(), "a"))
    assert job.written() == job.undisturbed(lambda: rule(job.read(), "a"))


def test_what_would_be_lost_is_named(job: Job) -> None:
    job.add()
    kept = job.read()
    job.run(rule(kept, "a").union(rule(kept, "b")), "1")
    spark, old, new = job.spark, job.work / "1", job.work / "2"

    def only_a() -> DataFrame:
        return rule(job.read(), "a")

    with pytest.raises(ValueError, match=r"got one without 'b'; .*forget=\['b'\] to give up the state"):
        continue_from(spark, old, new, only_a)
    with pytest.raises(ValueError, match=r"forget must have names of .* \['a', 'b'\], got 'c'"):
        continue_from(spark, old, new, only_a, forget=["b", "c"])
    with pytest.raises(TypeError, match="forget must be a list of names of operators, got 'b'"):
        continue_from(spark, old, new, only_a, forget="b")
    with pytest.raises(
        ValueError, match="sources must be given where their number has changed, got None for 2"
    ):
        continue_from(spark, old, new, lambda: only_a().union(rule(job.read(), "b")))
    with pytest.raises(ValueError, match=r"sources must have a number from 0 to 0, .* got \[1\]"):
        continue_from(spark, old, new, only_a, forget=["b"], sources=[1])
    with pytest.raises(TypeError, match="query must return a streaming DataFrame, got None"):
        continue_from(spark, old, new, lambda: None)
    with pytest.raises(TypeError, match="query must be a function"):
        continue_from(spark, old, new, only_a())
    with pytest.raises(
        ValueError, match=r"new must be a place where nothing is yet, .* which has 00000.parquet"
    ):
        continue_from(spark, old, job.work / "in", only_a)
    with pytest.raises(ValueError, match="got 'a', which the new query has more than once"):
        continue_from(spark, old, new, lambda: only_a().union(only_a()), forget=["b"], sources=[0, None])
    with pytest.raises(ValueError, match="batch_id must be from 0 to 1, got 7"):
        continue_from(spark, old, new, only_a, batch_id=7)
    assert not new.exists(), "nothing is written before all is known"
    job.add()
    job.go_on("1", "2", only_a, forget=["b"], sources=[0])
    of_a = [row for row in job.written() if row[0] == "a"]
    assert of_a == job.undisturbed(only_a)


def test_an_operator_of_spark_begins_anew_when_its_state_is_given_up(job: Job) -> None:
    def query() -> DataFrame:
        rows = job.read().dropDuplicates(["k", "at"])
        return rule(rows, "a")

    job.add()
    job.run(query(), "1")
    with pytest.raises(ValueError, match="forget must have 'dedupe', an operator of Spark itself"):
        continue_from(job.spark, job.work / "1", job.work / "2", query)
    job.add()
    job.go_on("1", "2", query, forget=["dedupe"])
    assert job.written() == job.undisturbed(query)


def test_the_old_query_must_have_stopped(job: Job) -> None:
    job.add()
    job.run(rule(job.read(), "a"), "1")
    writer = rule(job.read(), "a").writeStream.option("checkpointLocation", str(job.work / "1"))
    running = writer.queryName("carts").start(str(job.work / "sink"), format="parquet")
    try:
        with pytest.raises(
            ValueError, match=r"that has stopped, got .*/1', whose query carts runs; stop it first"
        ):
            continue_from(job.spark, job.work / "1", job.work / "2", lambda: rule(job.read(), "a"))
    finally:
        running.stop()


def test_a_log_of_offsets_in_an_unknown_version_is_refused(job: Job, tmp_path: Path) -> None:
    job.add()
    job.run(rule(job.read(), "a"), "1")
    for log in (job.work / "1" / "offsets").iterdir():
        if log.name.startswith("."):
            log.unlink()
        else:
            log.write_text(log.read_text().replace("v1\n", "v9\n", 1))
    with pytest.raises(ValueError, match="a log of offsets must have version 1 or 2, got 'v9'"):
        continue_from(job.spark, job.work / "1", job.work / "2", lambda: rule(job.read(), "a"))
    shutil.rmtree(job.work / "1" / "commits")
    with pytest.raises(ValueError, match="old must be the checkpoint of a query with a finished micro-batch"):
        continue_from(job.spark, job.work / "1", job.work / "2", lambda: rule(job.read(), "a"))
