"""The overdue planes, found with pandas by sorting: an independent check of the query."""

from __future__ import annotations

import pandas as pd

PATIENCE = pd.Timedelta(hours=72)


def departed(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the flights that departed, with times from the schedule on New York's clock.

    Parameters
    ----------
    flights : pandas.DataFrame
        Rows of the raw file.

    Returns
    -------
    pandas.DataFrame
        Columns plane, origin, dest and since (UTC).

    Raises
    ------
    ValueError
        If a scheduled time does not exist on that clock or exists twice (none does in 2013).
    """
    flights = flights.dropna(subset="dep_delay")
    scheduled = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    delay = pd.to_timedelta(flights["dep_delay"].astype("int64"), unit="min")
    found = flights[["tailnum", "origin", "dest"]].rename(columns={"tailnum": "plane"})
    return found.assign(since=scheduled.dt.tz_localize("America/New_York").dt.tz_convert("UTC") + delay)


def final_watermark(flights: pd.DataFrame, delay: pd.Timedelta) -> pd.Timestamp:
    """Return the bounded-out-of-orderness watermark after all flights."""
    latest: pd.Timestamp = departed(flights)["since"].max()
    return latest - delay - pd.Timedelta(milliseconds=1)


def overdue_planes(
    flights: pd.DataFrame,
    watermark: pd.Timestamp | None = None,
    patience: pd.Timedelta = PATIENCE,
) -> pd.DataFrame:
    """Return the departures that no other departure of the same plane follows in time.

    Parameters
    ----------
    flights : pandas.DataFrame
        Rows of the raw file.
    watermark : pandas.Timestamp, optional
        Omit departures whose patience ends after it; by default omit none.
    patience : pandas.Timedelta
        Time for the next departure; one after exactly this time is in time.

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
