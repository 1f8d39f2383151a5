"""``python -m timerheap doctor``: a session of the Spark that is to be examined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from timerheap.spark import Diagnosis, doctor, ensure_java, settings
from timerheap.spark._settings import of_application


def examined_spark(
    checkpoint: str | None, master: str | None, remote: str | None, chosen: Mapping[str, str], query: bool
) -> Diagnosis:
    """Start a session, and return what `doctor` finds.

    master: Spark's master, None for what Spark is configured to have
    remote: instead, the address of a server of Spark Connect
    chosen: settings
    """
    builder, own = SparkSession.builder, settings(portable=True) if remote else settings()
    if remote is not None:
        builder = builder.remote(remote)
        own = {name: value for name, value in own.items() if not of_application(name)}
    else:
        ensure_java()
        builder = builder if master is None else builder.master(master)
    wanted: dict[str, Any] = {**own, **chosen}
    spark = builder.config(map=wanted).getOrCreate()
    try:
        return doctor(spark, checkpoint, query=query)
    finally:
        spark.stop()
