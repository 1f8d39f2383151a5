"""`doctor` runs its query, finds what is wrong, and its report has no secrets."""

from __future__ import annotations

import getpass
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from timerheap.spark import Finding, doctor

pytestmark = [pytest.mark.spark]


@pytest.mark.in_turn
def test_a_spark_that_works_is_healthy(spark: SparkSession, tmp_path: Path) -> None:
    location = tmp_path / "check points"
    location.mkdir()
    found = doctor(spark, str(location))
    assert found.healthy, str(found)
    by_subject = {each.subject: each for each in found.findings}
    assert by_subject["results of the query"].found == "all rows and timers once, with the right state"
    assert "worker killed" in [*by_subject][-3]
    assert not list(location.iterdir())
    assert json.loads(found.to_json())["healthy"]
    assert str(tmp_path) not in str(found)
    assert platform.node() not in str(found).replace(platform.platform(), "")


def test_what_is_wrong_is_found_and_told_without_secrets(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = getpass.getuser() if getpass.getuser() != "root" else "/root"
    told = (
        f"{tmp_path}/part of s3a://AKIAABCDEFGHIJKLMNOP:x@bucket/a, password=hunter2, fs.s3a.secret.key=abc"
    )

    def broken(*_: object) -> Iterator[Finding]:
        raise OSError(f"{name} at 10.1.2.3 cannot open {told} by 4.3.0")

    monkeypatch.setattr(f"{doctor.__module__}.check_clock", broken)
    provider = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(provider)
    spark.conf.set(provider, "org.example.Another")
    try:
        found = doctor(spark, f"{tmp_path}/points", query=False)
    finally:
        spark.conf.set(provider, str(before))
    assert not found.healthy
    failed = {each.subject: each for each in found.findings if each.status == "failed"}
    assert failed.keys() == {provider, "clock"}
    for secret in (str(tmp_path), name, "10.1.2.3", "AKIA", "hunter2", "abc", "bucket"):
        assert secret not in failed["clock"].found
        assert secret == name or secret not in found.to_json()
    assert failed["clock"].found.endswith("by 4.3.0")


RIGHT = [(value % 20, value, value // 20 + 1, -1) for value in range(60)]
RIGHT += [(key, -1, 1, at * 1000) for at in range(2) for key in range(20)]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([*RIGHT[1:], RIGHT[1]], "60 rows, 59 different ones, where 60 were wanted"),
        ([(0, 0, 2, -1), *RIGHT[1:]], "1 rows with a wrong count, such as (0, 0, 2, -1)"),
        (RIGHT[:-1], "39 timers, 39 different ones"),
        (RIGHT[:60], "no timer has fired"),
        (RIGHT, "all rows and timers once, with the right state"),
    ],
)
def test_wrong_results_are_found(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[int, ...]],
    wrong: str,
) -> None:
    def run(_: SparkSession, folder: str, kills_at: int, until: int, timeout: float) -> int:
        schema = "key bigint, value bigint, n bigint, fired bigint"
        spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").parquet(f"{folder}/output")
        return until

    monkeypatch.setattr("timerheap.spark._doctor.doctor_query._run", run)
    for check in ("check_workers", "check_clock", "check_checkpoint"):
        monkeypatch.setattr(f"{doctor.__module__}.{check}", lambda *_: iter(()))
    found = doctor(spark, str(tmp_path))
    assert found.healthy == (rows is RIGHT)
    assert found.findings[-1].found == wrong


def test_the_command_names_a_wrong_option() -> None:
    command = [sys.executable, "-m", "timerheap", "doctor", "--conf", "spark.x"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "must be NAME=VALUE, got spark.x" in run.stderr
