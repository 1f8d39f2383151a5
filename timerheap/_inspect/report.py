"""What a checkpoint holds, as tables and as a picture of the pending timers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from timerheap._inspect import printable
from timerheap._inspect.channels import judged, utc_millis
from timerheap._inspect.one_key import duration, moment
from timerheap.spark import CheckpointState
from timerheap.spark._state.checkpoint_survey import numbered_operator

_NEXT = 5  # timers to show
_MOST = 16  # rows of the other tables
_TIMERS = ("event_time_timers", "processing_time_timers")
_COUNTS = ("keys", *_TIMERS, "buffered_rows", "windows", "late_rows", "bytes")
_FIRSTS = ("next_event_time_timer", "next_processing_time_timer")

_BINS = 60
_DOMAINS = {"event_time": "C0", "processing_time": "C1"}
_DAY = 86_400_000  # ms; matplotlib counts days


def report(state: CheckpointState, console: Console) -> None:
    """Print what a checkpoint holds; times are in UTC."""
    groups = _rows(state.groups().orderBy("key_group"))
    operator = numbered_operator(state.operator_id, state.name)
    batch = Text(f"Checkpoint after micro-batch {state.batch_id}", "bold")
    batch.append(f", {operator}, key: {printable(', '.join(state.key)) or 'none'}", "not bold")
    console.print(batch, soft_wrap=True)
    _watermarks(_rows(state.watermarks()), console)
    _groups(groups, console)
    _states_table(groups, console)
    if any(group[name] for group in groups for name in _TIMERS):
        _next_timers(state, console)


def _rows(df: Any) -> list[dict[str, Any]]:
    """Return the rows by way of Arrow, so that times do not depend on the session's zone."""
    rows: list[dict[str, Any]] = df.toArrow().to_pylist()
    return rows


def _with_numbered_columns(df: DataFrame) -> DataFrame:
    """Return a DataFrame whose columns are c0, c1 ...: Spark cannot find all names that keys may have."""
    return df.toDF(*(f"c{number}" for number in range(len(df.columns))))


def _watermarks(channels: list[dict[str, Any]], console: Console) -> None:
    channels = judged(channels)
    mark = channels[0]["query_watermark"]
    title = Text("No watermark yet" if mark is None else f"Watermark {moment(mark)}")
    _add_names(title, ", held back by ", [_named(channel) for channel in channels if channel["to_blame"]])
    ahead = [f"{_named(c)} by {duration(c['ahead_ms'])}" for c in channels if c["ahead_ms"]]
    _add_names(title, "; ahead of the clock: ", ahead)
    heads = ("input", "channel", "watermark", "newest event", "behind", "last row", "status", "")
    table = _plain_table(title, *heads)
    channels = sorted(
        channels,
        key=lambda c: (
            not c["to_blame"],
            not c["ahead_ms"],
            not c["holds"],
            c["status"] == "idle",
            -(c["behind_ms"] or 0),
        ),
    )
    for channel in channels[:_MOST]:
        behind = channel["behind_ms"]
        table.add_row(
            channel["input"],
            _plain_text(channel["channel"] or "all rows"),
            _shown_millis(channel["watermark"]),
            _shown_millis(channel["newest"]),
            "" if not behind else duration(behind),
            _ago(channel["last_row"]),
            channel["status"] if channel["aligned"] in (True, None) else "has yet to catch up",
            "holds" if channel["to_blame"] else "lowest" if channel["holds"] else "",
        )
    _print(table, len(channels), console)


def _add_names(title: Text, before: str, names: list[str]) -> None:
    if names:
        title.append(before)
        title.append(", ".join(names[:3]), "bold")
        title.append(f" and {len(names) - 3} more" if len(names) > 3 else "")


def _named(channel: dict[str, Any]) -> str:
    if channel["input"] == "spark":
        return "Spark's own watermark"
    if channel["input"] == "operators":
        return "the operators before this one"
    whose = "" if channel["input"] == "df" else f" of input {channel['input']}"
    if channel["channel"] is None:
        return f"the rows{whose}" if channel["newest"] else f"input {channel['input']}, which has no rows yet"
    return printable(f"{channel['channel_column'] or 'channel'} {channel['channel']}{whose}")


def _groups(groups: list[dict[str, Any]], console: Console) -> None:
    used = {name for name in (*_COUNTS, *_FIRSTS) if any(group[name] for group in groups)}
    shown, firsts = [name for name in _COUNTS if name in used], [name for name in _FIRSTS if name in used]
    heads = [name.replace("_", " ") for name in (*shown, *firsts)]
    table = _plain_table("Key groups", "group", *heads)
    for group in groups[:_MOST]:
        counts = [f"{group[name]:,}" for name in shown]
        table.add_row(str(group["key_group"]), *counts, *(_shown_time(group[name]) for name in firsts))
    for column in table.columns[1 : len(shown) + 1]:
        column.justify = "right"
    totals = [f"{sum(group[name] for group in groups):,}" for name in shown]
    times = [_shown_time(min(group[name] for group in groups if group[name])) for name in firsts]
    table.add_row("all", *totals, *times, style="bold")
    _print(table, len(groups), console)


def _states_table(groups: list[dict[str, Any]], console: Console) -> None:
    totals: dict[str, int] = {}
    for group in groups:
        for name, count in group["states"]:
            totals[name] = totals.get(name, 0) + count
    if totals:
        table = _plain_table("States", "name", "keys")
        table.columns[1].justify = "right"
        for name, count in sorted(totals.items()):
            table.add_row(_plain_text(name), f"{count:,}")
        _print(table, 0, console)


def _next_timers(state: CheckpointState, console: Console) -> None:
    timers = _with_numbered_columns(state.timers())
    keys = timers.columns[: len(state.key)]
    first = timers.orderBy(timers.columns[len(keys) + 1], *keys).limit(_NEXT)
    table = _plain_table("Next timers", *map(_plain_text, state.key), "fires at", "time domain", "name")
    for row in _rows(first):
        *key, timestamp, _, domain, name, _ = row.values()
        at = _shown_time(timestamp) or "beyond the year 9999"
        table.add_row(
            *("null" if value is None else _plain_text(str(value)) for value in key),
            at,
            domain,
            _plain_text(name or ""),
        )
    _print(table, 0, console)


def _plain_table(title: str | Text, *heads: str | Text) -> Table:
    columns = map(Column, heads)
    return Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)


def _plain_text(data: str) -> Text:
    """Return data to print unchanged: without markup, and without characters that command a terminal."""
    return Text(printable(data))


def _print(table: Table, rows: int, console: Console) -> None:
    if rows > _MOST:
        table.caption = f"and {rows - _MOST} more"
        table.caption_justify = "left"
    console.print(Padding(table, (1, 0, 0, 0)))


def _shown_time(time: Any) -> str:
    return "" if time is None else moment(utc_millis(time))


def _shown_millis(time: int | None) -> str:
    return "" if time is None else moment(time)


def _ago(time: int | None) -> str:
    return "" if time is None else f"{duration(max(0, utc_millis(datetime.now(UTC)) - time))} ago"


def plot(state: CheckpointState, file: Path) -> None:
    """Draw the pending timers into a PNG file; times outside the years 1 to 9999 count by group only."""
    counts = histogram(state)
    figure = Figure(figsize=(11, 6), layout="constrained")
    over_time, by_group = figure.subplots(2, 1, height_ratios=[3, 2])
    figure.suptitle(f"Pending timers after micro-batch {state.batch_id}")
    _draw_times(over_time, counts.dropna(subset="start"), state)
    _draw_groups(by_group, counts, state.max_parallelism)
    figure.savefig(file, dpi=120, format="png")


def histogram(state: CheckpointState) -> pd.DataFrame:
    """Return the numbers of timers by group, domain and span of time, of none outside the years 1 to 9999."""
    timers = _with_numbered_columns(state.timers())
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
