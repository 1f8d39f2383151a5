"""One Spark for all tests of this folder, and functions that its workers can load."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import streams
from by_value import by_value
from local_spark import running_spark
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Compile queries, as Spark does unless told otherwise: it pays off with many rows."""
    with streams.configured(spark, codegen_wholeStage=True, codegen_factoryMode="FALLBACK"):
        yield


@pytest.fixture
def one_partition(spark: SparkSession) -> Iterator[None]:
    """Run half as many tasks, for what does not depend on the number of partitions."""
    with streams.configured(spark, shuffle_partitions=1):
        yield


@pytest.fixture(scope="module", autouse=True)
def carried_to_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pickle the functions of this test module, of the helpers and of the examples by value."""
    with by_value(request.module):
        yield
