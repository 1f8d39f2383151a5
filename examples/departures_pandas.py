"""The departures so far, counted with pandas: an independent check of the query."""

from __future__ import annotations

import pandas as pd
from overdue_pandas import departed

NEW_YORK = "America/New_York"


def departures_so_far(flights: pd.DataFrame, watermark: pd.Timestamp) -> pd.DataFrame:
    """Count each airport's departures since midnight, at every full hour of New York's clock.

    Parameters
    ----------
    flights : pandas.DataFrame
        Rows of the raw file.
    watermark : pandas.Timestamp
        Hours that end after it are omitted.

    Returns
    -------
    pandas.DataFrame
        Columns origin, window_start and window_end as New York's clock shows them, and departures. A day
        begins with the hour of its first departure.
    """
    found = departed(flights)
    shown = found["since"].dt.tz_convert(NEW_YORK).dt.tz_localize(None)
    hourly = pd.crosstab([found["origin"], shown.dt.normalize().rename("day")], shown.dt.hour.rename("hour"))
    so_far = hourly.reindex(columns=range(24), fill_value=0).cumsum(axis=1)
    table = so_far.reset_index().melt(["origin", "day"], var_name="hour", value_name="departures")
    table = table[table["departures"] > 0]
    ends = table["day"] + pd.to_timedelta(table["hour"].astype("int64") + 1, unit="h")
    result = pd.DataFrame(
        {
            "origin": table["origin"],
            "window_start": table["day"],
            "window_end": ends,
            "departures": table["departures"],
        }
    )
    passed = (watermark + pd.Timedelta(milliseconds=1)).tz_convert(NEW_YORK).tz_localize(None)
    ended = result["window_end"] <= passed  # the watermark is not in an hour that is repeated
    return result[ended].sort_values(["window_end", "origin"], ignore_index=True)
