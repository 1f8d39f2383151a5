"""Features as a batch and as streams: one table, byte for byte; `examples/flight_features.py` has a year."""

from __future__ import annotations

from pathlib import Path

import flight_features
import pandas as pd
import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("one_partition")]


@pytest.mark.in_turn
def test_a_batch_and_streams_make_the_same_bytes(spark: SparkSession, tmp_path: Path) -> None:
    """Four days of flights from La Guardia, by planes whose numbers end with an A."""
    tables, found = flight_features.read_tables(), {}
    end, until = pd.Timestamp("2013-01-05", tz="UTC"), "2013-01-04 00:00:00"
    for name, table in tables.items():
        few = table["origin"] == "LGA" if name == "weather" else table["plane"].str.endswith("A")
        tables[name] = table[few & (table[flight_features.TIMES[name]] < end)]
    for batches in (1, 4):
        work = tmp_path / str(batches)
        flight_features.write_stream(tables, work, batches)
        found[batches] = flight_features.table_bytes(flight_features.as_stream(spark, work, work), until)
    rows, wanted = flight_features.table_bytes(flight_features.as_batch(spark, work), until)
    assert rows == (tables["flights"]["scheduled"] < pd.Timestamp(until, tz="UTC")).sum() > 100
    assert found == {1: (rows, wanted), 4: (rows, wanted)}
