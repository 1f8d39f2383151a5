"""What `settings` returns, and what the daemon of Python workers that it names does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pandas as pd
import pyarrow as pa
import pytest
from local_spark import JAVA_OPTIONS
from processes import command
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import timerheap.spark
from timerheap.spark._settings import _names_in
from timerheap.spark._sockets import executor_variable, socket_directory

STORE = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
DAEMON = "spark.python.daemon.module"
ONE_DAEMON = "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"
SOCKETS = ["spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"]
SOCKETS += [f"spark.executorEnv.{executor_variable(socket_directory())[0]}"]


@pytest.fixture
def before_any_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of Spark's configuration files."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    return tmp_path


def test_what_has_been_chosen_is_left_out(before_any_session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(timerheap.spark.settings()) == [STORE, CHANGELOG, BYTES, DAEMON, ONE_DAEMON, *SOCKETS]
    defaults = before_any_session / "spark-defaults.conf"
    defaults.write_text(f"# {STORE} is left\n\n  {CHANGELOG}\tfalse\n{BYTES}: 64m\nspark.master=local\n")
    assert list(timerheap.spark.settings()) == [STORE, DAEMON, ONE_DAEMON, *SOCKETS]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f'--name "two words" --conf "{DAEMON}=a b" pyspark-shell')
    assert list(timerheap.spark.settings()) == [STORE, ONE_DAEMON, *SOCKETS]
    other = before_any_session / "other.conf"
    other.write_text(f"{STORE} none\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {other} pyspark-shell")
    # Instead of the defaults.
    assert list(timerheap.spark.settings()) == [CHANGELOG, BYTES, DAEMON, ONE_DAEMON, *SOCKETS]


def test_settings_say_what_they_are_for(before_any_session: Path) -> None:
    found = timerheap.spark.settings() | timerheap.spark.settings(real_time=True)
    assert type(found) is dict
    for settings in (timerheap.spark.settings(), timerheap.spark.settings(real_time=True)):
        lines = str(settings).splitlines()
        assert lines[::2] == [f"{name}={value}" for name, value in settings.items()]
        assert len({line for line in lines[1::2] if line.startswith("    ")}) == len(settings)
        assert dict(settings) == settings


@pytest.mark.parametrize(
    "submitted",
    [
        f"--conf={DAEMON}=a pyspark-shell",
        f"-c {DAEMON}=a pyspark-shell",
        f"--verbose --name x --conf '{DAEMON}=a b' pyspark-shell",
        "--properties-file={}/mine.conf pyspark-shell",
        "--properties-file {}/none.conf --properties-file={}/mine.conf pyspark-shell",
        "--extra-properties-file={}/mine.conf pyspark-shell",
    ],
)
def test_options_are_read_as_spark_submit_reads_them(
    before_any_session: Path, monkeypatch: pytest.MonkeyPatch, submitted: str
) -> None:
    (before_any_session / "mine.conf").write_text(f"{DAEMON} a\n")
    (before_any_session / "none.conf").write_text(f"{STORE} a\n")
    (before_any_session / "spark-defaults.conf").write_text(f"{CHANGELOG} a\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", submitted.replace("{}", str(before_any_session)))
    with_defaults = "properties-file" not in submitted
    found = timerheap.spark.settings()
    assert DAEMON not in found
    assert STORE in found
    assert (CHANGELOG in found) != with_defaults
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--load-spark-defaults {os.environ['PYSPARK_SUBMIT_ARGS']}")
    assert CHANGELOG not in timerheap.spark.settings()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"program.py --conf {STORE}=a")  # an argument of the program
    assert STORE in timerheap.spark.settings()


def test_options_that_cannot_be_split_are_named(
    before_any_session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name 'a")
    with pytest.raises(ValueError, match=r"PYSPARK_SUBMIT_ARGS must be .*No closing quota"):
        timerheap.spark.settings()


PROPERTIES = (
    b"! spark.a no\n  # spark.b no \\\nspark.c\\\n   .d = 1\r\nspark.e \\\r\n  spark.f 2\rspark.g:3\n\n"
    b"\tspark.h\\=i\\ j 4\nspark.\\u0061b\f5\nspark.k\\\\\nspark.l\nspark.m = caf\xe9 \\\n# spark.n\n=x\n"
    b"spark.o = a\\\\\nspark.p \\\n\nspark.q \xff\nspark.caf\xc3\xa9 1\nspark.r"
)


@pytest.mark.parametrize("end", [b"", b"\n", b"\\"])
@pytest.mark.spark
def test_files_are_read_as_java_reads_them(spark: SparkSession, tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_bytes(PROPERTIES + end)
    java = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    properties = java.util.Properties()
    stream = java.io.FileInputStream(str(file))
    properties.load(java.io.InputStreamReader(stream, "UTF-8"))
    stream.close()
    wanted = set(properties.stringPropertyNames())
    assert len(wanted) > 12
    assert set(_names_in(file.read_bytes().decode(errors="replace"))) - {""} == wanted - {""}


def test_a_file_in_any_encoding_is_read(before_any_session: Path) -> None:
    (before_any_session / "spark-defaults.conf").write_bytes(f"# caf\xe9\n{STORE} \xe9\n".encode("latin-1"))
    assert STORE not in timerheap.spark.settings()


SUBMITTED = """
import sys
import timerheap.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.config(map=timerheap.spark.settings()).getOrCreate()
with open(sys.argv[1], "w") as file:
    print(*(spark.conf.get(name) for name in sys.argv[2:]), file=file)
"""


@pytest.mark.in_turn(5)
@pytest.mark.spark
def test_what_spark_submit_was_given_stays(tmp_path: Path) -> None:
    program, found = tmp_path / "program.py", tmp_path / "found"
    program.write_text(SUBMITTED)
    timerheap.spark.ensure_java()
    submit = [sys.executable, "-m", "pyspark.find_spark_home"]
    home = subprocess.check_output(submit, text=True).strip()
    options = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", f"{BYTES}=1m"]
    subprocess.run(
        [f"{home}/bin/spark-submit", *options, program, found, BYTES, CHANGELOG, DAEMON],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(tmp_path),
            "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        },
        check=True,
        capture_output=True,
    )
    assert found.read_text().split() == ["1m", "true", "timerheap.spark.daemon"]


@pytest.mark.spark
def test_a_running_session_keeps_its_settings(spark: SparkSession) -> None:
    assert timerheap.spark.settings() == {}
    spark.conf.unset(CHANGELOG)
    try:
        assert timerheap.spark.settings() == {CHANGELOG: "true"}
    finally:
        spark.conf.set(CHANGELOG, "true")


IN_FORKS = """
import os, sys, threading
from timerheap.spark import daemon
daemon.prepare()
print(daemon.threads())
for _ in range(2):
    child = os.fork()
    if not child:
        {work}
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
COMPUTES = """
        import numpy as np, pyarrow as pa, pyarrow.compute as pc
        a = np.arange(400 * 400, dtype=float).reshape(400, 400)
        assert (a @ np.eye(400) == a).all()
        table = pa.table({"k": np.arange(200_000) % 7, "v": np.ones(200_000)})
        assert table.group_by("k", use_threads=True).aggregate([("v", "sum")]).num_rows == 7
        assert len(table.to_pandas(use_threads=True)) == 200_000
        print(len(os.listdir("/proc/self/task")) > 1, flush=True)
"""
DRAWS = """
        import random, numpy as np
        print(np.random.random(), random.random(), flush=True)
"""


# A worker that has Spark's files invalidates what importers have cached.
IMPORTS = """
        import importlib, zipimport
        read, zipimport._read_directory = zipimport._read_directory, None
        importlib.invalidate_caches()
        zipimport._read_directory = read
        import zipped
        print(zipped.__file__, flush=True)
"""


# As a worker does with the files of addPyFile.
SHIPPED = """
        import importlib, json
        sys.path[1:1] = [os.environ["SHIPPED"], os.environ["SHIPPED"] + "/more.zip"]
        importlib.invalidate_caches()
        import csv, dateutil, dateutil.tz, numpy, pandas, pytz
        print(json.dumps([module.__file__ for module in (csv, dateutil, dateutil.tz, pytz, json, numpy)]))
        sys.stdout.flush()
        assert pandas.Timestamp("2024-05-01 12:00", tz="Europe/Berlin").utcoffset().seconds == 7200
        first = dateutil
        importlib.invalidate_caches()
        import dateutil
        assert dateutil is first
"""


def in_forks(work: str, cpus: int, **environment: str) -> list[str]:
    """What a daemon with `cpus` for a task prints: its threads, and a line for each of two forks."""
    program = IN_FORKS.format(work=work.strip())
    environment = {**os.environ, "OMP_NUM_THREADS": str(cpus), **environment}
    return subprocess.check_output([sys.executable, "-c", program], env=environment, text=True).split("\n")


@pytest.mark.parametrize("cpus", [1, 3])
def test_libraries_compute_in_threads_of_their_own_after_a_fork(cpus: int) -> None:
    threads, *used, _ = in_forks(COMPUTES, cpus)
    assert threads == "1"
    assert used == ["True", "True"]


def test_each_worker_has_random_numbers_of_its_own() -> None:
    _, *drawn, _ = in_forks(DRAWS, 1)
    (numpy_1, own_1), (numpy_2, own_2) = (line.split() for line in drawn)
    assert numpy_1 != numpy_2
    assert own_1 != own_2


def test_no_worker_reads_the_directory_of_an_archive_that_it_does_not_use(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with ZipFile(archive, "w") as opened:
        opened.writestr("zipped.py", "")
    _, *found, _ = in_forks(IMPORTS, 1, PYTHONPATH=str(archive))
    assert found == 2 * [f"{archive}/zipped.py"]


def test_shipped_files_come_before_the_modules_of_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "dateutil").mkdir()
    for name in ("dateutil/__init__", "dateutil/tz", "json", "csv", "numpy"):
        (tmp_path / f"{name}.py").touch()
    with ZipFile(tmp_path / "more.zip", "w") as opened:
        opened.writestr("pytz/__init__.py", "")
        opened.writestr("dateutil/__init__.py", "")
    _, *found, _ = in_forks(SHIPPED, 1, SHIPPED=str(tmp_path))
    shipped = [f"{tmp_path}/{name}.py" for name in ("csv", "dateutil/__init__", "dateutil/tz")]
    for files in map(json.loads, found):
        assert files[:4] == [*shipped, f"{tmp_path}/more.zip/pytz/__init__.py"]
        # Spark's own daemon has imported the one too, and nobody can ship the other.
        assert all(str(tmp_path) not in file for file in files[4:])


@pytest.mark.parametrize(("starts", "module"), [("", "timerheap.spark.daemon"), ("thread", "pyspark.daemon")])
def test_threads_before_the_fork_make_it_spark_s_own_daemon(tmp_path: Path, starts: str, module: str) -> None:
    if starts:
        (tmp_path / "sitecustomize.py").write_text(
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "timerheap.spark.daemon", "pyspark.worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, env=environment, stdin=pipe, stdout=pipe, stderr=pipe) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stderr is not None
        assert int.from_bytes(daemon.stdout.read(4), "big") > 0  # the port it listens on
        assert f"-m {module} pyspark.worker" in command(daemon.pid)
        daemon.stdin.close()
        said = daemon.stderr.read().decode()
    assert ("start threads" in said) == bool(starts)


@pytest.mark.spark
def test_functions_that_are_not_ours_run_in_its_workers(spark: SparkSession) -> None:
    parents = spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getppid()).collect()
    assert all("-m timerheap.spark.daemon" in command(parent) for parent in parents)

    @F.pandas_udf("double")
    def plus_one(values: pd.Series) -> pd.Series:
        return values + 1

    def as_it_is(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    doubled = F.udf(lambda value: 2 * value, "bigint")
    df = spark.range(4).mapInArrow(as_it_is, "id bigint").select(plus_one("id"), doubled("id"))
    assert [tuple(row) for row in df.collect()] == [(n + 1, 2 * n) for n in range(4)]
