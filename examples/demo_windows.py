"""The demo of windows: counts a year of departures through each day, checks the counts, draws a week."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
import departures_pandas
import pandas as pd
from demo import SHOWN, local, shown
from departures import DELAY, departures_so_far
from flights import (
    departures,
    micro_batches,
    read_flights,
    read_replay,
    spark_session,
    write_replay,
)
from matplotlib.dates import DateFormatter, DayLocator
from matplotlib.figure import Figure
from overdue_pandas import final_watermark
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = ["origin", "window_start", "window_end", "departures"]
WEEK = pd.Timestamp("2013-02-04")  # the night to Saturday brings the year's worst blizzard


def demo_windows(batches: int, directory: Path, chart: Path, console: Console) -> bool:
    """Replay the flights, draw a week of the results, and return whether all results are right.

    Parameters
    ----------
    batches : int
        Number of micro-batches.
    directory : pathlib.Path
        Directory for the flights, the windows, the checkpoint and Spark's log.
    chart : pathlib.Path
        The PNG file to write.
    console : rich.console.Console
        Console for the output.

    Returns
    -------
    bool
        True if the windows equal those of `departures_pandas`.
    """
    console.print("[bold]How many flights have left each airport so far today, at every full hour?[/]")
    milliseconds = 0
    with ExitStack() as stack:
        with console.status("Reading the flights, starting Spark"):
            flights = read_flights()
            write_replay(flights, directory / "flights", batches)
            spark = stack.enter_context(spark_session(directory / "spark.log"))
            query = start_replay(spark, directory)
        for batch in shown(micro_batches(query), batches, console):
            milliseconds += batch.durationMs["triggerExecution"]
        windows = spark.read.parquet(str(directory / "windows")).toArrow().to_pandas()

    watermark = final_watermark(flights, pd.Timedelta(DELAY))
    right = compare(windows, departures_pandas.departures_so_far(flights, watermark), watermark, console)
    draw(windows, WEEK, chart)
    console.print(
        f"{len(flights) * 1000 // milliseconds:,} flights per second, from the first micro-batch on"
    )
    console.print(f"The {week(WEEK)}: [bold]{chart}[/]", soft_wrap=True)
    return right


def start_replay(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Start the query on the files in ``directory``/flights; it writes to ``directory``/windows."""
    flights = read_replay(spark, directory / "flights").observe(
        "flights", F.date_format(F.max("time_hour"), "MMM d").alias("day")
    )
    return (
        departures_so_far(departures(flights))
        .writeStream.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "windows"), format="parquet")
    )


def compare(windows: pd.DataFrame, expected: pd.DataFrame, watermark: pd.Timestamp, console: Console) -> bool:
    """Return whether the windows equal the expected ones, each once; show the difference if not."""
    sides = (side[COLUMNS].itertuples(index=False, name=None) for side in (windows, expected))
    found, wanted = map(Counter, sides)
    for name, rows in (("too many", found - wanted), ("missing", wanted - found)):
        if rows:
            table = Table(*COLUMNS, title=f"{rows.total():,} {name}", title_justify="left", box=None)
            for origin, start, end, count in sorted(rows.elements(), key=lambda row: row[2:0:-1])[:SHOWN]:
                table.add_row(origin, str(start), str(end), f"{count:,}")
            console.print(table)
    console.print(
        f"{len(windows):,} windows from Spark, {len(expected):,} from an independent pandas computation over "
        f"the raw file, all ended by the final watermark {local(watermark)}: "
        + ("[bold green]equal[/]" if found == wanted else "[bold red]different[/]")
    )
    return found == wanted


def draw(windows: pd.DataFrame, monday: pd.Timestamp, chart: Path) -> None:
    """Draw a week: one line per airport, which rises through each day and restarts at midnight."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    shown = windows["window_start"].between(monday, monday + pd.DateOffset(days=7), inclusive="left")
    for number, (origin, airport) in enumerate(windows[shown].groupby("origin")):
        for day, (midnight, hours) in enumerate(airport.sort_values("window_end").groupby("window_start")):
            ends = list(hours["window_end"])
            axes.plot(
                [midnight, ends[0] - pd.Timedelta(hours=1), *ends],
                [0, 0, *hours["departures"]],
                color=f"C{number}",
                label=None if day else str(origin),
            )
    axes.set_title(f"Departures since midnight, {week(monday)}")
    axes.set_ylabel("flights")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.xaxis.set_major_locator(DayLocator())  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(DateFormatter("%a %b %d"))  # type: ignore[no-untyped-call]
    axes.grid(axis="x", alpha=0.4)
    axes.legend(loc="upper left")
    figure.savefig(chart, dpi=120, format="png")


def week(monday: pd.Timestamp) -> str:
    """Return the title of a week."""
    return f"week from {monday.day} {monday:%B %Y}"


@click.command()
@click.option(
    "--batches", default=24, show_default=True, type=click.IntRange(1, 1000), help="How many micro-batches."
)
@click.option(
    "--chart",
    default="departures.png",
    show_default=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw a week of it into this PNG file.",
)
def main(batches: int, chart: Path) -> None:
    """Count a year of departures in windows that grow by the hour through each day.

    Exits with 1 if a window differs from an independent computation.
    """
    if chart.suffix != ".png":
        raise click.BadParameter(f"must end in .png, got {chart}", param_hint="--chart")
    chart.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="timerheap-") as directory:
        right = demo_windows(batches, Path(directory), chart, Console(highlight=False))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
