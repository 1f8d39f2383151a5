"""The small examples print what their docstrings show."""

from __future__ import annotations

from types import ModuleType

import orders_per_hour
import pytest
import unpaid_orders
import user_sessions
import winning_bids
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "example",
    [user_sessions, orders_per_hour, unpaid_orders, winning_bids],
    ids=lambda module: module.__name__,
)
def test_an_example_prints_what_its_docstring_shows(
    example: ModuleType, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    example.show(spark)
    printed = [line for line in capsys.readouterr().out.splitlines() if line]
    assert printed == [line for line in example.__doc__.splitlines() if line[:1] in ("+", "|")]
