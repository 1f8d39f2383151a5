"""How many flights have left each airport so far today? A cumulating window answers every hour."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from timerheap import WatermarkStrategy
from timerheap.spark import cumulate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIME_ZONE = "America/New_York"
DELAY = timedelta(hours=24)  # flights are in scheduled order, and depart up to 22 hours after later ones


def departures_so_far(departures: DataFrame) -> DataFrame:
    """Count each airport's departures since midnight in New York, at every full hour.

    Parameters
    ----------
    departures : pyspark.sql.DataFrame
        A streaming or batch DataFrame with the columns origin and departed.

    Returns
    -------
    pyspark.sql.DataFrame
        Columns origin, window_start (midnight) and window_end (the hour) as New York's clock shows them,
        window_time and departures. A day begins with the hour of its first departure.
    """
    windows = cumulate(
        departures,
        "departed",
        step=timedelta(hours=1),
        max_size=timedelta(days=1),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
        time_zone=TIME_ZONE,
        max_parallelism=4,  # key groups: there are three airports
    )
    return windows.groupBy("origin").agg(F.count("*").alias("departures"))
