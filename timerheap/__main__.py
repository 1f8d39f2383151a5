"""The command line: ``python -m timerheap``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

try:
    import click
    from rich.console import Console
except ModuleNotFoundError as missing:
    sys.exit(f"Error: the command line needs {missing.name}; run pip install 'timerheap[inspect]'")

from timerheap._inspect import printable


@click.group()
def main() -> None:
    """Flink's timers, watermarks and windows for PySpark."""


@main.command()
@click.argument("checkpoint")
@click.option("--operator", help="Name or number of the stateful operator.  [default: all of timerheap's]")
@click.option("--batch", type=int, help="Show the state after this micro-batch.  [default: the last one]")
@click.option(
    "--plot",
    "picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Draw the pending timers into this PNG file.",
)
@click.option(
    "--key",
    "key",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Show one key, and what its next timer waits for; once for each key column.",
)
@click.option(
    "--history",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="With --key, how many micro-batches to look back.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="With --key, print text, JSON or a page with a timeline.",
)
def inspect(
    checkpoint: str,
    operator: str | None,
    batch: int | None,
    picture: Path | None,
    key: tuple[str, ...],
    history: int,
    form: str,
) -> None:
    """Show what the query of a CHECKPOINT holds; it may be running.

    Prints what holds the watermark back, the key groups, the states, and the timers that fire next. With
    --key, prints what there is of one key and why its timer has not fired.
    """
    if form != "text" and not key:
        raise click.BadParameter(f"must be text without --key, got {form}", param_hint="--format")
    if picture is not None and picture.suffix != ".png":
        raise click.BadParameter(f"must end in .png, got {picture}", param_hint="--plot")
    if picture is not None and not picture.absolute().parent.is_dir():
        raise click.BadParameter(f"must be in a folder that exists, got {picture}", param_hint="--plot")
    if wrong := [each for each in key if "=" not in each]:
        raise click.BadParameter(f"must be COLUMN=VALUE, got {wrong[0]}", param_hint="--key")
    console = Console(highlight=False, stderr=form != "text")
    try:
        from timerheap._inspect.command import inspect_key, inspect_operators

        if key:
            columns = dict(each.split("=", 1) for each in key)
            inspect_key(checkpoint, operator, batch, columns, history, form, console)
        else:
            inspect_operators(checkpoint, operator, batch, picture, console)
    except ModuleNotFoundError as missing:
        message = f"this command needs {missing.name}; run pip install 'timerheap[inspect]'"
        raise click.ClickException(message) from missing
    except (ValueError, OSError) as e:
        raise click.ClickException(printable(str(e))) from e


@main.command("settings")
@click.option(
    "--format",
    "form",
    type=click.Choice(["yaml", "conf", "json"]),
    default="conf",
    show_default=True,
    help="For a pipeline's specification, for spark-defaults.conf, or as JSON.",
)
def print_settings(form: str) -> None:
    """Print the settings that Spark should have, for a file, and what each is for.

    They are the same in any process. In the specification of a pipeline Spark takes only those of a session;
    the others, which make micro-batches faster, are comments there, for spark-defaults.conf or --conf.
    timerheap must be installed where Python workers run.
    """
    from timerheap.spark._settings import of_application, reason_of
    from timerheap.spark._settings import settings as of_session

    wanted = of_session(portable=True)
    if form == "json":
        click.echo(json.dumps(wanted, indent=2))
    elif form == "yaml":
        click.echo("configuration:")
        for name, value in wanted.items():
            click.echo(f"  # {reason_of(name)}")
            click.echo(
                f"  # in spark-defaults.conf: {name} {value}"
                if of_application(name)
                else f'  {name}: "{value}"'
            )
    else:
        for name, value in wanted.items():
            click.echo(f"# {reason_of(name)}\n{name} {value}")


@main.command("doctor")
@click.option("--checkpoint", help="A folder where checkpoints will be; a query runs there.")
@click.option("--master", help="Spark's master, such as yarn.  [default: as Spark is configured]")
@click.option("--remote", help="Instead, a server of Spark Connect, such as sc://host.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting; once for each.")
@click.option("--query/--no-query", default=True, help="Run a query, of a few minutes.  [default: yes]")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def print_diagnosis(
    checkpoint: str | None,
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    query: bool,
    form: str,
) -> None:
    """Check whether timerheap works on a Spark, and print a report without secrets.

    Checks Python, Java, Spark and its settings, Python workers, and the checkpoint location, and runs a query
    with a restart and a kill of a worker. Ends with status 1 if a check has failed.
    """
    if wrong := [each for each in conf if "=" not in each]:
        raise click.BadParameter(f"must be NAME=VALUE, got {wrong[0]}", param_hint="--conf")
    if master is not None and remote is not None:
        raise click.BadParameter(f"must not be given with --master, got {remote}", param_hint="--remote")
    from timerheap._inspect.examined import examined_spark

    found = examined_spark(checkpoint, master, remote, dict(each.split("=", 1) for each in conf), query)
    click.echo(found.to_json() if form == "json" else str(found))
    if not found.healthy:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="python -m timerheap")
