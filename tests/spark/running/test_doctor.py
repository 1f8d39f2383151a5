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

from timerheap.spark import doctor
from timerheap.spark._doctor import doctor_query
from timerheap.spark._doctor.doctor_secrets import Secrets
from timerheap.spark._doctor.doctor_software import Finding

pytestmark = [pytest.mark.spark]


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


def test_what_is_wrong_is_found(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[Finding]:
        raise OSError(f"cannot open {tmp_path}/part of s3a://AKIAABCDEFGHIJKLMNOP:x@bucket, password=hunter2")

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
    for secret in (str(tmp_path), "AKIA", "hunter2", "bucket"):
        assert secret not in str(found) + found.to_json()


def test_wrong_results_are_found(spark: SparkSession) -> None:
    right = [(value % 20, value, value // 20 + 1, -1) for value in range(60)]
    right += [(key, -1, 1, at * 1000) for at in range(2) for key in range(20)]
    schema = "key bigint, value bigint, n bigint, fired bigint"
    told = {
        "": right,
        "60 rows, 59 different ones, where 60 were wanted": [*right[1:], right[1]],
        "1 rows with a wrong count, such as (0, 0, 2, -1)": [(0, 0, 2, -1), *right[1:]],
        "39 timers, 39 different ones": right[:-1],
        "no timer has fired": right[:60],
    }
    for wrong, rows in told.items():
        assert doctor_query.wrong_results(spark.createDataFrame(rows, schema)) == wrong


def test_names_and_keys_are_left_out(spark: SparkSession) -> None:
    name = getpass.getuser() if getpass.getuser() != "root" else "/root"
    secrets = Secrets.of(spark, "s3a://bucket/points")
    text = f"{name} at 10.1.2.3 with 'fs.s3a.secret.key=abc' in /data/points, s3a://bucket/points 4.3.0"
    found = secrets.removed_from(Finding("a", "failed", text)).found
    assert not any(each in found for each in (name, "10.1.2.3", "abc", "/data", "bucket"))
    assert found.endswith("4.3.0")


def test_the_command_names_a_wrong_option() -> None:
    command = [sys.executable, "-m", "timerheap", "doctor", "--conf", "spark.x"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "must be NAME=VALUE, got spark.x" in run.stderr
