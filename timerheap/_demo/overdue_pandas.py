"""The overdue planes once more, by sorting: what the query is compared with, and shares no code with."""

from __future__ import annotations

import pandas as pd

PATIENCE = pd.Timedelta(hours=72)


def departed(flights: pd.DataFrame) -> pd.DataFrame:
    """The flights that did depart, and when, by the schedule on New York's clock.

    Parameters
    ----------
    flights : pandas.DataFrame
        Rows of the raw file, in its columns.

    Returns
    -------
    pandas.DataFrame
        Columns plane, origin, dest and since (UTC).

    Raises
    ------
    ValueError
        A scheduled time does not exist on that clock, or exists twice (in 2013 none does).
    """
    flights = flights.dropna(subset="dep_delay")
    scheduled = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    delay = pd.to_timedelta(flights["dep_delay"].astype("int64"), unit="min")
    found = flights[["tailnum", "origin", "dest"]].rename(columns={"tailnum": "plane"})
    return found.assign(since=scheduled.dt.tz_localize("America/New_York").dt.tz_convert("UTC") + delay)


def final_watermark(flights: pd.DataFrame, delay: pd.Timedelta) -> pd.Timestamp:
    """What bounded out-of-orderness says once every flight has been seen."""
    latest: pd.Timestamp = departed(flights)["since"].max()
    return latest - delay - pd.Timedelta(milliseconds=1)


def overdue_planes(
    flights: pd.DataFrame,
    watermark: pd.Timestamp | None = None,
    patience: pd.Timedelta = PATIENCE,
) -> pd.DataFrame:
    """The departures that are followed by no other of the same plane within the patience.

    Parameters
    ----------
    flights : pandas.DataFrame
        Rows of the raw file, in its columns.
    watermark : pandas.Timestamp, optional
        Up to when patience may have run out; by default all of time.
    patience : pandas.Timedelta
        A departure after exactly this long is in time.

    Returns
    -------
    pandas.DataFrame
        Columns plane, origin, dest and since (UTC), sorted by since and plane.
    """
    found = departed(flights).sort_values(["plane", "since"], kind="stable")
    following = found.groupby("plane")["since"].shift(-1)
    quiet = following.isna() | (following - found["since"] > patience)
    if watermark is not None:
        quiet &= found["since"] + patience <= watermark
    return found[quiet].sort_values(["since", "plane"], ignore_index=True)
