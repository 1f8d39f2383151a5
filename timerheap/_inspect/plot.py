"""Draws the pending timers of a checkpoint, over time and by key group."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from timerheap.spark import CheckpointState

__all__ = ["plot"]

_BINS = 60
_DOMAINS = {"event_time": "C0", "processing_time": "C1"}
_DAY = 86_400_000  # ms; matplotlib counts days


def plot(state: CheckpointState, file: Path) -> None:
    """Draw the pending timers into a PNG file; those outside the years 1 to 9999 are counted by group only.

    Parameters
    ----------
    state : CheckpointState
    file : pathlib.Path
    """
    counts = histogram(state)
    figure = Figure(figsize=(11, 6), layout="constrained")
    over_time, by_group = figure.subplots(2, 1, height_ratios=[3, 2])
    figure.suptitle(f"Pending timers after micro-batch {state.batch_id}")
    _draw_times(over_time, counts.dropna(subset="start"), state)
    _draw_groups(by_group, counts, state.max_parallelism)
    figure.savefig(file, dpi=120, format="png")


def histogram(state: CheckpointState) -> pd.DataFrame:
    """Return the number of timers in each span of time, key group and time domain.

    Returns
    -------
    pandas.DataFrame
        The columns key_group, time_domain, start and width (epoch ms and ms, missing for timers outside the
        years 1 to 9999), and timers.
    """
    timers = state.timers()
    group, domain, at = timers.columns[-1], timers.columns[-3], timers.columns[-4]
    when = F.when(timers[timers.columns[-5]].isNotNull(), timers[at])
    ends = timers.agg(F.min(when).alias("first"), F.max(when).alias("last")).first()
    first = 0 if ends is None or ends["first"] is None else ends["first"]
    last = 0 if ends is None or ends["last"] is None else ends["last"]
    width = max(1, -(-(last + 1 - first) // _BINS))
    start = (F.lit(first) + F.floor((when - F.lit(first)) / F.lit(width)) * F.lit(width)).cast("bigint")
    counted = timers.groupBy(
        timers[group].alias("key_group"), timers[domain].alias("time_domain"), start.alias("start")
    ).agg(F.count("*").alias("timers"))
    found: pd.DataFrame = counted.toArrow().to_pandas()
    return found.assign(width=width)


def _draw_times(axes: Axes, counts: pd.DataFrame, state: CheckpointState) -> None:
    bottom = pd.Series(dtype="float64")
    for domain, color in _DOMAINS.items():
        timers = counts[counts["time_domain"] == domain].groupby("start")["timers"].sum()
        if len(timers):
            starts = [int(start) / _DAY for start in timers.index]
            width = int(counts["width"].iloc[0]) / _DAY
            below = bottom.reindex(timers.index, fill_value=0)
            label = domain.replace("_", "-")
            axes.bar(starts, timers, width, list(below), align="edge", color=color, label=label)
            bottom = bottom.add(timers, fill_value=0)
    watermark = state.watermarks().toArrow().column("query_watermark")[0].as_py()
    if watermark is not None:
        axes.axvline(watermark.timestamp() * 1000 / _DAY, color="C3", linestyle="--", label="watermark")
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel("fires at, UTC")
    axes.set_ylabel("timers")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper right")


def _draw_groups(axes: Axes, counts: pd.DataFrame, groups: int) -> None:
    bottom = pd.Series(0, index=range(groups))
    for domain, color in _DOMAINS.items():
        timers = counts[counts["time_domain"] == domain].groupby("key_group")["timers"].sum()
        timers = timers.reindex(bottom.index, fill_value=0)
        axes.bar(list(bottom.index), list(timers), bottom=list(bottom), color=color)
        bottom += timers
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("key group")
    axes.set_ylabel("timers")
