"""`doctor`: checks a Spark and runs a short query on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError
from timerheap.spark._compat import on_connect
from timerheap.spark._doctor.doctor_places import check_checkpoint, check_clock, check_workers
from timerheap.spark._doctor.doctor_query import check_query
from timerheap.spark._doctor.doctor_secrets import Secrets
from timerheap.spark._doctor.doctor_software import Finding, check_software, check_spark, check_spark_settings


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` has found; ``print`` shows it, and `to_json` is for programs.

    Attributes
    ----------
    findings : tuple of Finding
        One for each check, with `subject`, `status`, `found` and `remedy`. The status is "ok", "warning",
        "failed", or "unknown", where Spark does not let it be seen.
    """

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether no check has failed."""
        return all(each.status != "failed" for each in self.findings)

    def to_json(self) -> str:
        """Return the findings as JSON text."""
        return json.dumps({"healthy": self.healthy, "findings": [asdict(each) for each in self.findings]})

    def __str__(self) -> str:
        lines = []
        for each in self.findings:
            lines.append(f"{each.status:<8} {each.subject}: {each.found}")
            if each.remedy:
                lines.append(f"{'':<8} -> {each.remedy}")
        failed = sum(each.status == "failed" for each in self.findings)
        warned = sum(each.status == "warning" for each in self.findings)
        lines.append(f"{len(self.findings)} checks: {failed} failed, {warned} warnings")
        return "\n".join(lines)


def doctor(
    spark: SparkSession, checkpoint: str | None = None, *, query: bool = True, timeout: float = 300.0
) -> Diagnosis:
    """Check whether timerheap works on a Spark, and return a report without secrets.

    Checks Python, the native module, Java, Spark, its settings, the Python workers, their disks, sockets and
    clocks, and the checkpoint location. Then runs a streaming query with state and timers, stops it, starts
    it again, kills a Python worker within it, and compares all its results with those that are right.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        The session to check, classic or of Spark Connect.
    checkpoint : str, optional
        A folder where checkpoints of queries will be, on the file system that they will use. Folders below it
        are made, and removed again. Without it the location is not checked, and no query runs.
    query : bool, default True
        Whether the query runs. It has 20 rows for each of about ten micro-batches.
    timeout : float, default 300
        How many seconds each of the three runs of the query may take.

    Returns
    -------
    Diagnosis
        With `findings`, `healthy`, `to_json`, and the text that ``print`` shows.

    Raises
    ------
    ArgumentTypeError
        If an argument has a wrong type. What is wrong with the Spark is in the report.

    Notes
    -----
    The report has versions, sizes, names of classes, and the settings that timerheap is about. It has no
    other setting, and no names of hosts, users, and paths, nor what looks like a key.

    One task ends its Python worker by SIGKILL. Where Spark does not repeat tasks, as with the master
    ``local[2]``, that ends the run of the query, and the next one goes on.

    Examples
    --------
    ::

        print(timerheap.spark.doctor(spark, "s3a://bucket/checkpoints"))
    """
    if not (isinstance(spark, SparkSession) or on_connect(spark)):
        raise ArgumentTypeError(f"spark must be a pyspark.sql.SparkSession, got {spark!r}")
    if checkpoint is not None:
        instance("checkpoint", checkpoint, str)
    instance("query", query, bool)
    instance("timeout", timeout, int, float)
    secrets = Secrets.of(spark, checkpoint)
    findings = tuple(map(secrets.removed_from, _all_findings(spark, checkpoint, query, timeout)))
    return Diagnosis(findings)


def _all_findings(
    spark: SparkSession, checkpoint: str | None, query: bool, timeout: float
) -> Iterator[Finding]:
    yield from check_software()
    checks: list[tuple[str, Callable[..., Iterator[Finding]], tuple[Any, ...]]] = [
        ("Spark", check_spark, (spark,)),
        ("settings", check_spark_settings, (spark,)),
        ("workers", check_workers, (spark,)),
        ("clock", check_clock, (spark,)),
    ]
    if checkpoint is None:
        yield Finding("checkpoint", "unknown", "no location was given", "pass checkpoint, a folder for it")
    else:
        checks.append(("checkpoint", check_checkpoint, (spark, checkpoint)))
        if query:
            checks.append(("query", check_query, (spark, checkpoint, timeout)))
    for subject, check, arguments in checks:
        try:
            yield from check(*arguments)
        except Exception as e:  # the report is to have it, and the other checks
            yield Finding(subject, "failed", f"{type(e).__name__}: {e}", "see the log of the driver")
