"""The command line: ``python -m timerheap``."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

try:
    import click
    from rich.console import Console
except ModuleNotFoundError as missing:
    sys.exit(f"Error: the command line needs {missing.name}; run pip install 'timerheap[demo]'")


@click.group()
def main() -> None:
    """Flink's timers, watermarks and windows for PySpark."""


@main.command()
@click.option(
    "--batches", default=24, show_default=True, type=click.IntRange(1, 1000), help="How many micro-batches."
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep flights, alerts, checkpoint and Spark's log in this empty directory.  [default: none is kept]",
)
def demo(batches: int, directory: Path | None) -> None:
    """Find planes that leave New York and do not return, in a year of flights.

    Exits with 1 if an alert differs from an independent computation.
    """
    if directory is not None and directory.exists() and any(directory.iterdir()):
        raise click.BadParameter(f"must be an empty directory, got {directory}", param_hint="--directory")
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="timerheap-")))
        directory.mkdir(parents=True, exist_ok=True)
        with _extra():
            from timerheap._demo.demo import demo as run

            right = run(batches, directory, Console(highlight=False))
    sys.exit(0 if right else 1)


@main.command()
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
def demo_windows(batches: int, chart: Path) -> None:
    """Count a year of departures in windows that grow by the hour through each day.

    Exits with 1 if a window differs from an independent computation.
    """
    if chart.suffix != ".png":
        raise click.BadParameter(f"must end in .png, got {chart}", param_hint="--chart")
    chart.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="timerheap-") as directory, _extra():
        from timerheap._demo.demo_windows import demo_windows as run

        right = run(batches, Path(directory), chart, Console(highlight=False))
    sys.exit(0 if right else 1)


@main.command()
@click.argument("checkpoint")
@click.option("--operator", type=int, help="Number of the stateful operator.  [default: all of timerheap's]")
@click.option("--batch", type=int, help="Show the state after this micro-batch.  [default: the last one]")
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the pending timers into this PNG file.",
)
def inspect(checkpoint: str, operator: int | None, batch: int | None, picture: Path | None) -> None:
    """Show what the query of a CHECKPOINT holds; it may be running.

    Prints who holds the watermark back, the key groups, the states, and the timers that fire next.
    """
    if picture is not None and picture.suffix != ".png":
        raise click.BadParameter(f"must end in .png, got {picture}", param_hint="--plot")
    with _extra():
        from timerheap._inspect.command import inspect as run

        try:
            run(checkpoint, operator, batch, picture, Console(highlight=False))
        except ValueError as e:
            raise click.ClickException(str(e)) from e


@contextlib.contextmanager
def _extra() -> Iterator[None]:
    """Convert a missing module into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        message = f"this command needs {missing.name}; run pip install 'timerheap[demo]'"
        raise click.ClickException(message) from missing


if __name__ == "__main__":
    main(prog_name="python -m timerheap")
