"""Runs the program of the README as it is, and its function on a backlog of rows."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import streams
from pyspark.sql import DataFrame, SparkSession

import timerheap.spark

pytestmark = pytest.mark.spark

README = Path(__file__).resolve().parents[3] / "README.md"
MINUTE, BOUND = 60_000, 5_000
SCHEMA = pa.schema([("sensor", pa.string()), ("at", pa.timestamp("ms", "UTC"))])


def blocks(language: str) -> list[str]:
    """Return the blocks of the README in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)


def block(language: str) -> str:
    """Return the block in a language that belongs to the first program."""
    (found,) = (text for text in blocks(language) if "is silent" in text or "> readings" in text)
    return found


def test_the_first_screen_names_the_two_commands() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 135
    for command in ("make demo", "make test"):
        assert any(line.startswith(f"{command}  # ") for line in lines[:25]), "with what it shows"
    extras = tomllib.loads((README.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in ("spark", "java", "sql", "inspect"):
        assert extra in extras
        assert any(f"`{extra}`" in line for line in lines[:30])
    assert "make test" in (README.parent / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_the_program_prints_what_the_readme_shows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-c", block("sh")], check=True)
    program, sink = block("python").split("query = ", 1)
    assert "foreachBatch(report)" in sink
    program += 'silent.writeStream.start(format="memory", queryName="silent_sensors")\n'
    program = program.replace('after="10 seconds"', 'after="1 second"')
    names: dict[str, Any] = {"__name__": "program_of_the_readme"}
    exec(program.replace('json("readings")', f'json("{tmp_path}/readings")'), names)
    wanted = re.findall(r"^(\w+) is silent at (.*)$", block("text"), re.MULTILINE)
    assert len(wanted) == 3
    deadline = time.monotonic() + streams.PATIENCE
    try:
        while spark.table("silent_sensors").count() < len(wanted) and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        for query in spark.streams.active:
            query.stop()
    found = spark.table("silent_sensors").selectExpr("sensor", "string(silent_at) AS at").orderBy("at")
    assert [tuple(row) for row in found.collect()] == wanted


def test_the_second_program_keeps_its_table_up_to_date(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["bash", "-c", block("sh")], check=True)
    begin = block("python").split("strategy = ")[0]
    (program,) = (text for text in blocks("python") if "upserts_of" in text)
    for name in ("readings", "counts"):
        program = program.replace(f'"{name}")', f'"{tmp_path}/{name}")')
    names: dict[str, Any] = {"__name__": "program_of_the_readme"}
    exec(begin + program, names)
    query = names["query"]
    try:
        query.processAllAvailable()
        assert str(names["table"]) in README.read_text(encoding="utf-8")
        Path("readings/2.json").write_text('{"sensor": "b", "at": "2026-01-01 12:04:00"}\n')
        query.processAllAvailable()
    finally:
        query.stop()
    assert names["table"] == {"a": 3, "b": 2}


@pytest.mark.in_turn(5)
@pytest.mark.timeout(900)
def test_ctrl_c_ends_the_program_without_traces(tmp_path: Path) -> None:
    subprocess.run(["bash", "-c", block("sh")], check=True, cwd=tmp_path)
    program = block("python").replace("SparkSession.builder.", 'SparkSession.builder.master("local[2]").')
    (tmp_path / "silent.py").write_text(program)
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "log", "wb") as log:
        child = subprocess.Popen(
            [sys.executable, "silent.py"], cwd=tmp_path, stdout=out, stderr=log, start_new_session=True
        )
        try:
            while "is silent at" not in (tmp_path / "out").read_text():
                assert child.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.2)
            before = len((tmp_path / "log").read_text())
            os.killpg(child.pid, signal.SIGINT)
            child.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "log").read_text()[before:]
    assert (tmp_path / "out").read_text().startswith("Spark starts its workers")


def program(df: DataFrame) -> DataFrame:
    """Run the README's function on other rows; its class is pickled by value, since it is in no module."""
    code = block("python")
    imports = "".join(re.findall(r"^(?:import|from) .*\n", code, re.M))
    function = re.search(r"^class .*(?=^timerheap.spark.ensure_java)", code, re.M | re.S)
    built = re.search(r"^strategy = .*(?=^def report)", code, re.M | re.S)
    assert function is not None
    assert built is not None
    names: dict[str, Any] = {"__name__": "program_of_the_readme", "readings": df}
    query = re.sub(r"spark\.readStream.*?\.json\(.*?\)", "readings", built[0])
    exec(imports + function[0] + query, names)
    result = names["silent"]
    assert isinstance(result, DataFrame)
    return result.selectExpr("sensor", "unix_millis(silent_at) AS silent_at")


def backlog(sensors: int, each: int) -> list[tuple[str, int]]:
    """Return (sensor, time) in order of arrival, out of order within the bound of the watermark."""
    draw = random.Random(1)
    times = [draw.randrange(each * 50_000) for _ in range(sensors * each)]
    rows = [(f"s{draw.randrange(sensors)}", at) for at in times]
    return sorted(rows, key=lambda row: row[1] + draw.randrange(BOUND))


def alerts(rows: list[tuple[str, int]], watermark: float) -> list[tuple[str, int]]:
    """Return the minutes without a row that `watermark` has passed; a row exactly at the end is in time."""
    found = []
    for sensor, of_sensor in groupby(sorted(rows), key=lambda row: row[0]):
        times = [at for _, at in of_sensor] + [watermark + MINUTE + 1]
        due = [(at + MINUTE, after) for at, after in pairwise(times)]
        found += [(sensor, at) for at, after in due if after > at <= watermark]
    return sorted(found, key=repr)


def test_all_alerts_are_found_with_any_number_of_micro_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = partial(timerheap.spark.process, max_parallelism=2)  # fewer are quicker
    monkeypatch.setattr(timerheap.spark, "process", few)
    rows, files = backlog(sensors=60, each=50), 3
    size = len(rows) // files
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    named = [[{"sensor": sensor, "at": at} for sensor, at in batch] for batch in batches]
    streams.write_batches(tmp_path / "input", named, SCHEMA)
    watermark = max(at for _, at in rows) - BOUND - 1
    wanted = alerts(rows, watermark)
    assert len(wanted) > 500
    for micro_batches in (1, files):
        work = tmp_path / str(micro_batches)
        with streams.configured(spark, shuffle_partitions=1, streaming_noDataMicroBatches_enabled=False):
            found = streams.stream(spark, program, tmp_path / "input", work, files // micro_batches)
        assert found == wanted, f"{micro_batches} micro-batches"
    whole = spark.read.parquet(str(tmp_path / "input"))
    assert streams.rows(program(whole)) == alerts(rows, float("inf"))
