"""What Spark reaches other systems with: which artifacts, for which version of PySpark.

A connector is published for a version of Spark, often months after it. `published` has the nearest there is.
"""

from __future__ import annotations

from pathlib import Path

import pyspark
from jars import jars

__all__ = ["VERSIONS", "connectors", "newest_with", "published", "running"]

# hadoop-aws asks for the whole of the AWS SDK in one jar of 686 MB; S3A needs three modules of it, 13 MB.
WITHOUT = ("bundle",)


def s3a(hadoop: str, sdk: str) -> tuple[str, ...]:
    """Return what S3A needs: the versions of Hadoop that PySpark has, and of the SDK that Hadoop asks for."""
    modules = ("s3", "s3-transfer-manager", "sts")
    return (
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        *(f"software.amazon.awssdk:{module}:{sdk}" for module in modules),
    )


published: dict[str, dict[str, tuple[str, ...]]] = {
    "4.3": {
        # Kafka's connector of 4.3.0 is not served; that of 4.2.0 runs on 4.3.0.
        "kafka": ("org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",),
        "jdbc": ("org.postgresql:postgresql:42.7.14",),
        "s3a": s3a("3.5.0", "2.35.4"),
    },
    # Iceberg 1.12 has a runtime for 4.1, none for later versions; Delta 4.4 one for 4.2 as well.
    "4.1": {
        # Before 4.1.3 a restart often fails (SPARK-57438); of 4.1.3 the token provider is not served.
        "kafka": (
            "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
            "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
        ),
        "delta": ("io.delta:delta-spark_4.1_2.13:4.4.0",),
        "iceberg": ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",),
        "jdbc": ("org.postgresql:postgresql:42.7.14",),
        "s3a": s3a("3.4.2", "2.29.52"),
    },
}
"""By version of PySpark and by part: what ``spark.jars.packages`` would have to name."""

VERSIONS = tuple(sorted(published, reverse=True))
running = ".".join(pyspark.__version__.split(".")[:2])


def newest_with(*parts: str) -> str | None:
    """Return the newest version of PySpark for which all `parts` are published."""
    # A part that is in no table, such as a broker, does not depend on Spark.
    known = {part for table in published.values() for part in table}
    wanted = known.intersection(parts)
    return next((version for version in VERSIONS if wanted <= published[version].keys()), None)


def connectors(*parts: str) -> tuple[Path, ...]:
    """Return the jars of some parts, or of all, for the PySpark that runs; for ``spark.jars``."""
    table = published.get(running, {})
    return jars(*sorted(artifact for part in parts or table for artifact in table[part]), without=WITHOUT)
