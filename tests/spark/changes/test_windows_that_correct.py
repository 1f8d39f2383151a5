"""Windows that are corrected: after each micro-batch their changes make the table of a slow model."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from changes_model import Table, apply_changes
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from revision_model import MAX, Revised, SessionModel, Window
from tvf_model import Model

import timerheap.spark
from timerheap import AggregateFunction
from timerheap.errors import ArgumentError, CheckpointMismatchError
from timerheap.spark import Corrections, aggregate_changes, cumulate, hop, read_checkpoint, session, tumble
from timerheap.spark._changes.guarantees import unique_keys

pytestmark = [pytest.mark.spark, pytest.mark.in_turn]

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.int64()), ("f", pa.float64())])
DELAY = 20
LATENESS = 60
KINDS: dict[str, tuple[Any, int, int]] = {
    "TUMBLE": (partial(tumble, size=50), 50, 50),
    "HOP": (partial(hop, size=60, slide=20), 60, 20),
    "CUMULATE": (partial(cumulate, max_size=60, step=20), 60, 20),
    "SESSION": (partial(session, gap=15), 15, 15),
}
EARLY: dict[str, Any] = {"late": {}, "interval": {"emit_every": 50}, "each": {"early": True}}
COLUMNS = ["k", "window_start", "window_end", "rows", "sum", "greatest", "values"]


def parts(seed: int, count: int = 8, size: int = 30) -> list[list[dict[str, Any]]]:
    """Micro-batches of which many rows are late."""
    draw, time, made = random.Random(seed), 1000, []
    for _ in range(count):
        time += draw.choice([0, 30, 60, 100])
        back = [draw.choice([0, 0, 5, 30, 60, 120, 400]) for _ in range(draw.choice([1, size]))]
        made.append(
            [
                {"k": draw.choice(["a", "b", None]), "at": time - ms, "v": v, "f": v * 0.1}
                for ms in back
                for v in (draw.randint(-9, 9),)
            ]
        )
    return made


def windows(kind: str, df: DataFrame, early: str, **options: Any) -> DataFrame:
    given = {"allowed_lateness": LATENESS, "later": "drop", "early": False, **EARLY[early], **options}
    corrections = Corrections(**{name: given[name] for name in ("allowed_lateness", "early", "later")})
    every = given.get("emit_every")
    more = {"watermark": DELAY, "late": corrections, "emit_every": every, "max_parallelism": 4}
    cut = KINDS[kind][0](df, "at", **more)
    result: DataFrame = cut.groupBy("k").agg(
        F.count("*").alias("rows"),
        F.sum("v").alias("sum"),
        F.max("v").alias("greatest"),
        F.count_distinct("v").alias("values"),
        F.sum("f").alias("floats"),
        F.stddev("f").alias("deviation"),
    )
    return result


class Expected:
    """The table of the model after each micro-batch."""

    def __init__(self, kind: str, early: str) -> None:
        _, size, step = KINDS[kind]
        made = SessionModel(kind, size, step) if kind == "SESSION" else Model(kind, size, step)
        self.model = Revised(made, LATENESS, bool(EARLY[early]), self.result)
        self.every = EARLY[early].get("emit_every")
        self.newest = self.late = 0

    @staticmethod
    def result(rows: list[Any]) -> tuple[int, ...]:
        values = [row[2] for row in rows]
        return len(values), sum(values), max(values), len(set(values))

    def step(self, rows: list[dict[str, Any]], end: bool = False) -> dict[Window, Any]:
        self.newest = max([self.newest, *(row["at"] for row in rows)])
        before, watermark = self.model.watermark, MAX if end else self.newest - DELAY - 1
        shows = True
        if self.every:
            shows = not end and watermark // self.every > before // self.every
        late = self.model.step([(row["k"], row["at"], row["v"]) for row in rows], watermark, shows)
        self.late += sum(by > 0 for by in late)
        return self.model.table


def exact(table: Table, names: list[str]) -> Counter[tuple[Any, ...]]:
    """The columns of a table that have one right answer; bounds are ms."""
    found: Counter[tuple[Any, ...]] = Counter()
    for values, count in table.items():
        row = dict(zip(names, values, strict=True))
        bounds = [round(row[name].timestamp() * 1000) for name in ("window_start", "window_end")]
        found[row["k"], *bounds, *(row[name] for name in COLUMNS[3:])] += count
    return found


def modelled(table: dict[Window, Any]) -> Counter[tuple[Any, ...]]:
    return Counter((*window, *values) for window, values in table.items())


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("kind", KINDS)
def test_each_micro_batch_makes_the_table_of_the_model(
    spark: SparkSession, tmp_path: Path, kind: str, early: str
) -> None:
    """Through a restart; what goes is what had come, also of floats; late rows are counted."""
    made = parts(len(kind) + len(early))
    expected, table, names, late = Expected(kind, early), Counter[Any](), list[str](), 0
    done = 0
    for some in (made[:5], made[5:]):
        streams.write_batches(tmp_path / "in", some, SCHEMA)
        result = windows(kind, streams.read_stream(spark, tmp_path / "in"), early)
        names = result.columns
        assert names[-1] == "_change_type"
        for batch in streams.batches(result, tmp_path):
            changes = [dict(zip(names, row, strict=True)) for row in batch]
            apply_changes(table, changes, ["k", "window_start", "window_end"])
            assert exact(table, names[:-1]) == modelled(expected.step(made[done]))
            done += 1
    assert done == len(made)
    assert expected.late
    state = read_checkpoint(spark, str(tmp_path / "checkpoint"))
    late = sum(row["late_rows"] for row in state.groups().collect())
    assert late == expected.late
    kept = state.windows().agg(F.sum("count_0")).first()
    assert kept is not None


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_gives_the_final_table(spark: SparkSession, kind: str, early: str) -> None:
    rows = [row for part in parts(3) for row in part]
    result = windows(kind, spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)), early)
    found: Table = Counter()
    assert unique_keys(result) == (("k", "window_start", "window_end"),)
    taken = [dict(zip(result.columns, row, strict=True)) for row in result.collect()]
    assert {row["_change_type"] for row in taken} == {"insert"}
    apply_changes(found, taken)
    assert exact(found, result.columns[:-1]) == modelled(Expected(kind, early).step(rows, end=True))


def test_corrections_end_as_results_of_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    """With a lateness that no row exceeds, the table is that of a query of the batch without corrections."""
    made = parts(9)
    made.append([{"k": "end", "at": 1_000_000, "v": 0, "f": 0.0}])
    streams.write_batches(tmp_path / "in", made, SCHEMA)
    result = windows(
        "HOP", streams.read_stream(spark, tmp_path / "in"), "late", allowed_lateness="1 hour", later="emit"
    )
    table: Table = Counter()
    for batch in streams.batches(result, tmp_path):
        apply_changes(table, [dict(zip(result.columns, row, strict=True)) for row in batch])
    rows = [row for part in made for row in part if row["k"] != "end"]
    whole = windows("HOP", spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA)), "late")
    everything: Table = Counter()
    apply_changes(everything, [dict(zip(whole.columns, row, strict=True)) for row in whole.collect()])
    assert exact(table, result.columns[:-1]) == exact(everything, whole.columns[:-1])


def test_rows_that_are_later_are_returned(spark: SparkSession, tmp_path: Path) -> None:
    made = [[(0, 1), (100, 2)], [(10, 3), (300, 4)], [(20, 5), (290, 6)]]
    batches = [[{"k": "a", "at": at, "v": v, "f": 0.0} for at, v in part] for part in made]
    streams.write_batches(tmp_path / "in", batches, SCHEMA)

    def query(df: DataFrame) -> DataFrame:
        return streams.with_late(windows("TUMBLE", df, "late", later="emit"))

    found = streams.stream(spark, query, tmp_path / "in", tmp_path)
    late = [row[-2:] for row in found if row[-2] is not None]
    assert [(by, row["at"]) for by, row in late] == [(171, 20)]


class Longest(AggregateFunction):
    """The longest text so far."""

    def create_accumulator(self) -> Any:
        return ""

    def add(self, value: Any, accumulator: Any) -> Any:
        return max(accumulator, value or "", key=lambda text: (len(text), text))

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return self.add(acc_a, acc_b)


def test_a_users_aggregate_is_corrected_and_equal_results_are_no_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("at", pa.int64()), ("text", pa.string())])
    made = [[(0, "ab"), (200, "x")], [(10, "b"), (201, "x")], [(20, "abc"), (202, "x")]]
    batches = [[{"at": at, "text": text} for at, text in part] for part in made]
    streams.write_batches(tmp_path / "in", batches, schema)
    longest = timerheap.spark.udaf(Longest(), "text", returns="string", accumulator="string", name="longest")
    df = streams.read_stream(spark, tmp_path / "in")
    result = tumble(df, "at", 100, watermark=0, late=Corrections(1000)).groupBy().agg(longest)
    found = [
        [(row[-2], row[-1]) for row in batch]
        for batch in streams.batches(result.select("longest", "_change_type"), tmp_path)
    ]
    assert found == [
        [("ab", "insert")],
        [],
        [("ab", "update_preimage"), ("abc", "update_postimage")],
    ]


def test_state_and_checkpoint_stay_flat(spark: SparkSession, tmp_path: Path) -> None:
    """Windows that are final leave the state; 60 micro-batches on Spark, 200 without: test_tvf_revisions."""
    made = [
        [{"k": k, "at": 1000 + 10 * n - back, "v": 1, "f": 0.1} for k in "abc" for back in (0, 30, 70)]
        for n in range(60)
    ]
    sizes = []
    for some in (made[:20], made[20:40], made[40:]):
        streams.write_batches(tmp_path / "in", some, SCHEMA)
        streams.run(windows("HOP", streams.read_stream(spark, tmp_path / "in"), "interval"), tmp_path)
        groups = read_checkpoint(spark, str(tmp_path / "checkpoint")).groups()
        found = groups.agg(F.sum("windows"), F.sum("keys"), F.sum("event_time_timers")).first()
        assert found is not None
        sizes.append(tuple(found))
    assert sizes[1] == sizes[2]


@pytest.mark.parametrize("kind", ["TUMBLE", "SESSION"])
def test_their_changes_are_aggregated_in_one_query(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """How many rows the windows of a key show together, and how many there are."""
    made = parts(5, 6)
    expected, table = Expected(kind, "each"), Counter[Any]()
    streams.write_batches(tmp_path / "in", made, SCHEMA)
    counts = windows(kind, streams.read_stream(spark, tmp_path / "in"), "each")
    totals = aggregate_changes(
        counts, "k", F.sum("rows").alias("all"), F.count("*").alias("windows"), max_parallelism=4
    )
    for number, batch in enumerate(streams.batches(totals, tmp_path)):
        apply_changes(table, [dict(zip(totals.columns, row, strict=True)) for row in batch], ["k"])
        wanted: dict[Any, list[int]] = {}
        for (key, *_), values in expected.step(made[number]).items():
            wanted.setdefault(key, []).append(values[0])
        assert table == Counter((key, sum(rows), len(rows)) for key, rows in wanted.items())


def test_another_lateness_needs_another_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", parts(1)[:2], SCHEMA)
    df = streams.read_stream(spark, tmp_path / "in")
    streams.run(windows("TUMBLE", df, "late"), tmp_path)
    streams.write_batches(tmp_path / "in", parts(1)[2:3], SCHEMA)
    with pytest.raises(Exception, match="corrected for 60 ms") as caught:
        streams.run(windows("TUMBLE", df, "late", allowed_lateness=70), tmp_path)
    assert CheckpointMismatchError.__name__ in str(caught.value)


def test_a_lateness_of_zero_only_has_early_results(spark: SparkSession, tmp_path: Path) -> None:
    made = [[(0, 1)], [(10, 2)], [(200, 3)], [(20, 4)]]
    batches = [[{"k": "a", "at": at, "v": v, "f": 0.0} for at, v in part] for part in made]
    streams.write_batches(tmp_path / "in", batches, SCHEMA)
    result = windows("TUMBLE", streams.read_stream(spark, tmp_path / "in"), "each", allowed_lateness=0)
    shown = result.select("rows", "_change_type")
    assert streams.batches(shown, tmp_path) == [
        [(1, "insert")],
        [(1, "update_preimage"), (2, "update_postimage")],
        [(1, "insert")],
        [],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time": None, "late": Corrections(5)}, "late must be left out if time is None"),
        ({"late": Corrections(-1)}, "late.allowed_lateness must be 0 or more"),
        ({"late": Corrections(5, later="process")}, 'late.later must be "drop" or "emit"'),
        ({"late": Corrections(5, early=1)}, "late.early must be a bool"),  # type: ignore[arg-type]
        (
            {"late": Corrections(5, early=True), "emit_every": 5},
            "emit_every must be left out with early=True",
        ),
        ({"late": Corrections(5), "emit_every": 0}, "emit_every must be more than 0 ms"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str, spark: SparkSession) -> None:
    df = spark.createDataFrame([], "k string, at long")
    given = {"time": "at", "watermark": 0, **options}
    if given["time"] is None:
        del given["watermark"]
    with pytest.raises(ArgumentError, match=message):
        tumble(df, size=10, **given)


def test_an_operator_behind_does_not_follow_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    streams.write_batches(tmp_path / "in", parts(1)[:1], SCHEMA)
    result = windows("TUMBLE", streams.read_stream(spark, tmp_path / "in"), "late")
    with pytest.raises(ArgumentError, match="watermark must be a WatermarkStrategy"):
        tumble(result.drop("_change_type"), "window_time", 100)
