"""The command: starts a small Spark, reads a checkpoint, and shows it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession
from rich.console import Console
from rich.text import Text

from timerheap._inspect.one_key import page, print_key, read_key
from timerheap._inspect.report import report
from timerheap._local_spark import CORES, local_spark
from timerheap.spark import read_checkpoint
from timerheap.spark._state.stored_operators import FORMAT_VERSION, find_operators


def inspect_operators(
    checkpoint: str, operator: str | None, batch: int | None, picture: Path | None, console: Console
) -> None:
    """Show what an operator of a checkpoint holds, by default all, after a micro-batch, by default the last.

    picture: the PNG file to draw into, of the first operator
    """
    with _spark(console) as spark:
        operators = [each.number for each in find_operators(spark, checkpoint)]
        for each in operators if operator is None else [_name_or_number(operator)]:
            state = read_checkpoint(spark, checkpoint, each, batch_id=batch)
            report(state, console)
            if picture is not None:
                from timerheap._inspect.report import plot  # which needs matplotlib

                plot(state, picture)
                console.print("Pending timers:", Text(str(picture), "bold"), soft_wrap=True)
                picture = None
            console.print()


def inspect_key(
    checkpoint: str,
    operator: str | None,
    batch: int | None,
    key: dict[str, str],
    history: int,
    form: str,
    console: Console,
) -> None:
    """Show what an operator of a checkpoint holds of one key.

    key: the value of each key column, as text
    history: how many micro-batches to look back
    form: "text", for the console, or "json" or "html", for standard output
    ArgumentValueError: as in `inspect_operators`, or if `key` does not name the key columns, or there are
        several operators and `operator` names none
    """
    with _spark(console) as spark:
        last = read_checkpoint(spark, checkpoint, _name_or_number(operator), batch_id=batch)
        (found,) = [each for each in find_operators(spark, checkpoint) if each.number == last.operator_id]
        first = max(found.first_batch, last.batch_id - history)
        states = []
        for each in range(first, last.batch_id):
            with suppress(ValueError):  # before the first row, say
                states.append(read_checkpoint(spark, checkpoint, last.operator_id, batch_id=each))
        of_key = read_key(spark, [*states, last], key)
    if form == "text":
        print_key(of_key, console)
    else:
        print(of_key.to_json() if form == "json" else page(of_key))


def _name_or_number(operator: str | None) -> str | int | None:
    return int(operator) if operator is not None and operator.isdecimal() else operator


@contextmanager
def _spark(console: Console) -> Iterator[SparkSession]:
    with tempfile.TemporaryDirectory(prefix="timerheap-") as scratch:
        settings = {"spark.sql.shuffle.partitions": CORES, "spark.sql.warehouse.dir": scratch}
        settings[FORMAT_VERSION] = 2  # which reads version 1, too
        settings["spark.sql.session.timeZone"] = "UTC"
        with (
            console.status("Reading the checkpoint with Spark"),
            local_spark("timerheap inspect", Path(scratch) / "spark.log", settings) as spark,
        ):
            yield spark
