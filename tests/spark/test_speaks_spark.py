"""Arguments in Spark's own words: intervals as text, columns, grouped DataFrames, withWatermark()."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from timerheap._intervals import interval_micros

INTERVALS = [
    "10 minutes", "1 minute", "5 seconds", "5 second", "500 milliseconds", "1 millisecond", "7 microseconds",
    "1 hour 30 minutes", "2 weeks 3 days 4 hours 5 minutes 6 seconds 7 milliseconds 8 microseconds",
    "interval 5 seconds", "INTERVAL 1 DAY", "Interval\t2 Hours  3\tMINUTES", "  10   minutes \n", "0 seconds",
    "-5 minutes", "- 5 minutes", "+5 minutes", "1 hour -30 minutes", "-1 hour -1 second",
    "1.5 seconds", "1. seconds", ".5 seconds", "-.25 second", "-1.000001 seconds", "0.123456789 seconds",
    "00010 minutes", "5 minutes 5 minutes", "1 week", "36500 days", "interval '5' seconds",
    "interval '1' hour '30' minutes", "INTERVAL '10 minutes'", "interval '-1.5' seconds",
    "interval -5 minutes",
]  # fmt: skip
WRONG = [
    "", " ", "interval", "10", "minutes", "10minutes", "ten minutes", "10 parsecs", "10 minutess", "10 min",
    "1.5 minutes", "0.1234567891 seconds", ". seconds", "5 seconds,", "5 seconds 5", "1 hour30 minutes",
    "--5 minutes", "5 - minutes", "interval5 minutes", "1e3 seconds", "'5' minutes", "PT10M", "00:10:00",
]  # fmt: skip


def test_an_interval_is_parsed_as_by_spark(spark: SparkSession) -> None:
    sparks = spark._jvm.org.apache.spark.sql.catalyst.util.IntervalUtils  # type: ignore[union-attr]
    for text in INTERVALS:
        interval = sparks.fromIntervalString(text)
        seconds = interval.extractAsPeriod().getDays() * 86_400
        assert (
            interval_micros("size", text)
            == seconds * 1_000_000 + interval.extractAsDuration().toNanos() // 1_000
        )
    for text in WRONG:
        with pytest.raises(PySparkException):
            sparks.fromIntervalString(text)
        with pytest.raises(ValueError, match="size must "):
            interval_micros("size", text)
