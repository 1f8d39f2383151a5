"""The settings of Spark: what a session should be built with, and which of its settings a query finds."""

from __future__ import annotations

import logging
import os
import re
import shlex
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from timerheap.errors import ArgumentValueError
from timerheap.spark._compat import environment_of_submit, jvm, local_cores, on_connect, spark_home
from timerheap.spark._flows import client_in_pipeline
from timerheap.spark._local_python import worker_trouble
from timerheap.spark._sockets import executor_variable, socket_directory

_log = logging.getLogger("timerheap")

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_DAEMON = "spark.python.daemon.module"
_ONE_DAEMON = "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK"
_SOCKETS = "spark.python.unix.domain.socket.enabled"
_SOCKET_FILES = "spark.python.unix.domain.socket.dir"
_ENCRYPTION = "spark.io.encryption.enabled"
_REUSE = "spark.python.worker.reuse"
_REAL_TIME = {
    "spark.python.udf.pipelined.enabled": "true",  # else the JVM writes and reads in turn, and waits
    "spark.shuffle.manager": "org.apache.spark.shuffle.streaming.MultiShuffleManager",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",  # Spark's default sends rows after 50 ms
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",  # private: else Spark refuses Python
}
IN_REAL_TIME = {
    RECORDS: "1",
    "spark.sql.execution.pandas.udf.buffer.size": "8",  # bytes
}
"""Settings of a query in real-time mode, for which each row is sent on its own."""

_REASONS = {
    _PROVIDER: "RocksDB keeps the state variables of streams; Spark's default has none",
    _CHANGELOG: "a micro-batch writes what has changed instead of all state",
    _BYTES: "no limit, so that Spark does not measure the Arrow batch after each row",
    _DAEMON: "Python workers start with their modules imported",
    _ONE_DAEMON: "the stages of a micro-batch share their Python workers",
    _SOCKETS: "over TCP a small micro-batch often waits in each stage",
    _SOCKET_FILES: "a directory that only this user can use, removed when this process ends",
    "spark.python.udf.pipelined.enabled": "the JVM writes to a Python worker while it reads",
    "spark.shuffle.manager": "rows go to tasks that run",
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "a row is sent after 1 ms, not 50",
    "spark.sql.streaming.realTimeMode.allowlistCheck": "Spark refuses Python in this mode otherwise",
}
_ON_EXECUTORS = "executors understand the name of the directory of sockets"

_SWITCHES = {"--load-spark-defaults", "--supervise", "--verbose", "-v"}  # options without a value
# A comment, or a name and a value; a backslash before the end of a line continues it.
_PROPERTY = re.compile(
    r"[ \t\f]*(?:[#!][^\r\n]*|((?:\\(?:\r\n|[\r\n])[ \t\f]*|\\[^\r\n]|[^\\ \t\f=:\r\n])*)"
    r"(?:\\(?:\r\n|[\r\n]|.)|[^\\\r\n])*\\?)(?:\r\n|[\r\n]|\Z)"
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|[\r\n]+[ \t\f]*|(.))")

_FEWEST_RECORDS = 10_000  # Spark's default; at 1,000 packing takes three times as long
NO_LIMIT = (1 << 31) - 1  # no limit


class ExplainedSettings(dict[str, str]):
    """Settings of Spark by name; as text, each with what it is for."""

    def __str__(self) -> str:
        return "\n".join(f"{name}={value}\n    {reason_of(name)}" for name, value in self.items())


def reason_of(name: str) -> str:
    """Return what a setting of `settings` is for."""
    return _REASONS.get(name, _ON_EXECUTORS)


def settings(*, real_time: bool = False, portable: bool = False) -> dict[str, str]:
    """Return the settings that a session for timerheap should be built with.

    ``print(timerheap.spark.settings())`` says what each of them is for. A setting that has been chosen
    already is left out, whatever its value: one in ``spark-defaults.conf``, one of ``spark-submit --conf`` or
    ``PYSPARK_SUBMIT_ARGS``, or one of the running session.

    Parameters
    ----------
    real_time : bool
        Whether queries run in real-time mode, too; see `timerheap.spark.start_real_time`.
    portable : bool
        Whether the settings are for a file, and so for processes to come, such as ``spark-defaults.conf`` or
        the ``configuration:`` of a declarative pipeline, which takes the first three alone. They are then the
        same everywhere: all of them, whatever has been chosen, but for those of Unix sockets, whose directory
        is of this process alone. So Spark uses TCP. ``python -m timerheap settings`` prints them. Not with
        `real_time`.

    Returns
    -------
    dict of str to str
        As text, with a line for each that says what it is for.

        - ``spark.sql.streaming.stateStore.providerClass``, RocksDB's: Spark's default keeps no state
          variables, so a stream cannot run on it. Spark keeps the provider of a checkpoint in it.
        - ``spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled``, true: a micro-batch
          writes what has changed instead of all state.
        - ``spark.sql.execution.arrow.maxBytesPerBatch``, 2147483647, which is no limit: under Spark's default
          of 64 MiB it computes the size of an Arrow batch anew after each row, which takes about as long as
          all else that the JVM does with the row. 10,000 rows are still a batch
          (``spark.sql.execution.arrow.maxRecordsPerBatch``); keep a limit if these may exceed 2 GiB.
        - ``spark.python.daemon.module``, `timerheap.spark.daemon`: Python workers start with their modules
          imported. Spark ends workers that have been idle for a minute, so without it each micro-batch after
          a pause imports them again. timerheap must be installed where Python workers run.
        - ``spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK``, 1: Spark has a daemon and workers for each set of
          environment variables, and sets this one for the stage that packs rows, but not for the operator.
          With it both use the same. Tracebacks of Python functions leave out PySpark's own lines.
        - ``spark.python.unix.domain.socket.enabled``, true: over TCP a small micro-batch often waits
          in each stage, until the worker's side has acknowledged the first part of what Spark sends. Not on
          Windows.
        - ``spark.python.unix.domain.socket.dir``, a new directory in /tmp that only this user can use, since
          these sockets ask for no secret. It is removed when this process ends. If it cannot be made, a
          warning says so, and Spark uses TCP.
        - ``spark.executorEnv.timerheap_...``, a dot: with it, executors understand the name of the directory
          as /tmp, since it is on the driver only. The daemon makes one of its own on each executor.
        - With `real_time`: ``spark.python.udf.pipelined.enabled``, true; ``spark.shuffle.manager``, the one
          that can send rows between running tasks; ``spark.shuffle.streaming.networkBufferMaxWaitTimeMs``,
          1; ``spark.sql.streaming.realTimeMode.allowlistCheck``, false, which Spark keeps private: else it
          refuses Python in this mode.

    See Also
    --------
    process : Log a warning if one of the first three is not set.

    Notes
    -----
    What is set on the builder later wins: ``builder.config(map=settings()).config(name, value)``. Those
    after the third belong to the application, so they have no effect on a session that runs already, such as
    that of a notebook; the others have. On Spark Connect they belong to the server.

    Reads ``spark-defaults.conf``. It does not start the JVM, unless ``spark-submit`` has.

    Examples
    --------
    ::

        spark = SparkSession.builder.config(map=timerheap.spark.settings()).getOrCreate()
    """
    ours = {
        _PROVIDER: _ROCKSDB,
        _CHANGELOG: "true",
        _BYTES: str(NO_LIMIT),
        _DAEMON: "timerheap.spark.daemon",
        _ONE_DAEMON: "1",
    }
    ours |= _REAL_TIME if real_time else {}
    if portable and real_time:
        raise ArgumentValueError(
            "portable must be False with real_time, got True: that mode needs Unix sockets, whose directory "
            "is of one process; call settings(real_time=True) in the program that builds the session"
        )
    if portable:
        return ExplainedSettings(ours)
    names = [*ours, _SOCKETS, _SOCKET_FILES]
    chosen = _chosen_settings(names)
    if hasattr(socket, "AF_UNIX") and not chosen.issuperset((_SOCKETS, _SOCKET_FILES)):
        ours |= _sockets(_SOCKET_FILES in chosen)
    return ExplainedSettings({name: value for name, value in ours.items() if name not in chosen})


def of_application(name: str) -> bool:
    """Return whether only the application can have a setting, not a session or a pipeline."""
    return not name.startswith("spark.sql.")


def _sockets(have_directory: bool) -> dict[str, str]:
    """Return the settings for Unix sockets, in a directory that this makes unless they have one."""
    if have_directory:
        return {_SOCKETS: "true"}
    try:
        directory = socket_directory()
    except OSError as e:
        _log.warning("Spark uses TCP rather than Unix sockets, since no private directory can be made: %s", e)
        return {}
    name, value = executor_variable(directory)
    return {_SOCKETS: "true", _SOCKET_FILES: directory, f"spark.executorEnv.{name}": value}


def _chosen_settings(names: Iterable[str]) -> set[str]:
    """Return the settings that have been chosen, of `names` at least, before a session is built."""
    session = SparkSession.getActiveSession()
    if session is not None:
        return {name for name in names if session.conf.get(name, None) is not None}
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # of spark-submit, whose JVM has read all
        return environment_of_submit()
    options = list(_submit_options())
    chosen = {value.partition("=")[0] for option, value in options if option in ("--conf", "-c")}
    files = [value for option, value in options if option == "--properties-file"][-1:]
    files += [value for option, value in options if option == "--extra-properties-file"]
    if not files or ("--load-spark-defaults", "") in options:
        directory = os.environ.get("SPARK_CONF_DIR") or os.path.join(spark_home(), "conf")
        files.append(os.path.join(directory, "spark-defaults.conf"))
    for file in files:
        with suppress(OSError):
            chosen.update(_names_in(Path(file).read_bytes().decode(errors="replace")))
    return chosen


def _submit_options() -> Iterator[tuple[str, str]]:
    """Return the options of PYSPARK_SUBMIT_ARGS and their values, "" where there is none."""
    text = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    try:
        arguments = iter(shlex.split(text))
    except ValueError as e:
        raise ArgumentValueError(
            f"the environment variable PYSPARK_SUBMIT_ARGS must be options of spark-submit, quoted as in a "
            f"shell, got {text!r} ({e}); correct it, since Spark cannot start with it"
        ) from None
    for argument in arguments:
        if not argument.startswith("-"):
            return  # the program; the rest are its own arguments
        option, has_value, value = argument.partition("=")
        if argument in _SWITCHES or (option.startswith("--") and has_value):
            yield option, value
        else:
            yield argument, next(arguments, "")


def _names_in(text: str) -> Iterator[str]:
    """Return the names in a file of properties, by the rules of Java."""
    for name in _PROPERTY.findall(text):
        yield _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2] or "", name)


def check_settings(df: DataFrame) -> None:
    """Check the settings of the session of `df`, and log those that make a query slow.

    ArgumentValueError: if a stream would not use the RocksDB state store, which state variables need, or
        local workers do not have timerheap
    """
    spark = df.sparkSession
    if df.isStreaming:
        provider = spark.conf.get(_PROVIDER)
        if provider is None or "RocksDB" not in provider:
            raise ArgumentValueError(
                f"{_PROVIDER} must be the RocksDB state store's provider, since process() keeps state "
                f"variables, got {provider}; {_how_to_set_it()}"
            )
    if (trouble := worker_trouble(spark)) is not None:
        raise ArgumentValueError(trouble)
    if slow := [*_slow_exchange(spark), *(_slow_state(spark) if df.isStreaming else ())]:
        _log.warning("slow Spark settings: %s", "; ".join(slow))


def _how_to_set_it() -> str:
    if client_in_pipeline() is not None:
        return (
            "write what `python -m timerheap settings --format yaml` prints into the pipeline's "
            "specification, beside its name"
        )
    return (
        "build the session with timerheap.spark.settings(), or set it before the query starts: "
        f'spark.conf.set("{_PROVIDER}", "{_ROCKSDB}")'
    )


def check_real_time(spark: SparkSession, partitions: int, operators: int) -> None:
    """Raise an ArgumentValueError that names the settings and cores which a query in real-time mode lacks.

    partitions, operators: of the query so far, each of whose operators has a task for each partition
    """
    needed = partitions * operators
    wanted = _REAL_TIME | {_SOCKETS: "true"}
    found = {name: spark.conf.get(name, None) for name in wanted}
    lacks, cores = [], local_cores(spark)
    if missing := [f"{name}={value}" for name, value in wanted.items() if found[name] != value]:
        lacks.append(f"the settings of timerheap.spark.settings(real_time=True): {', '.join(missing)}")
    if cores is not None and cores <= needed:
        of_each = "" if operators == 1 else f" of each of {operators} operators"
        lacks.append(
            f"more than {needed} cores, got {cores}: one for each of spark.sql.shuffle.partitions{of_each} "
            "and one for each task of the source"
        )
    if lacks:
        raise ArgumentValueError(f"real_time needs an application with {'; and with '.join(lacks)}")


def is_encrypted(spark: SparkSession) -> bool:
    """Return whether Spark encrypts what it writes to local disks."""
    return is_set(spark, _ENCRYPTION, "false")


def batch_bytes(spark: SparkSession) -> int:
    """Return about how many bytes Spark puts into a batch of Arrow data."""
    return int(jvm(spark).org.apache.spark.network.util.JavaUtils.byteStringAsBytes(spark.conf.get(_BYTES)))


def is_set(spark: SparkSession, name: str, *unknown: str) -> bool:
    """Return whether a setting is true; `unknown` is for one that Spark may not know."""
    # A default that is passed to Spark replaces Spark's own default also for a setting that it knows.
    return str(spark.conf.get(name, *unknown)).lower() == "true"


def _slow_exchange(spark: SparkSession) -> Iterator[str]:
    records = int(spark.conf.get(RECORDS) or 0)
    if 0 < records < _FEWEST_RECORDS:
        yield f"{RECORDS} is {records}, set it to {_FEWEST_RECORDS} or more"
    if on_connect(spark):
        return
    if batch_bytes(spark) < NO_LIMIT:
        yield (
            f"{_BYTES} is {spark.conf.get(_BYTES)}, so Spark measures the Arrow batch after each row, set it "
            f"to {NO_LIMIT} (no limit) if {max(records, _FEWEST_RECORDS)} rows stay below 2 GiB"
        )


def _slow_state(spark: SparkSession) -> Iterator[str]:
    if not is_set(spark, _CHANGELOG, "false"):
        yield f"{_CHANGELOG} is false, so each micro-batch writes all state, set it to true"
    if not on_connect(spark) and spark.sparkContext.getConf().get(_REUSE, "true").lower() != "true":
        yield f"{_REUSE} is false, so each task starts a Python worker, set it to true for the application"
