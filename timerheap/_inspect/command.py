"""The command: starts a small Spark, reads a checkpoint, and shows it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from timerheap._inspect.report import report
from timerheap._local_spark import CORES, local_spark
from timerheap.spark import read_checkpoint
from timerheap.spark._state.checkpoint_reader import FORMAT_VERSION, find_operators

if TYPE_CHECKING:
    from rich.console import Console


def inspect(
    checkpoint: str, operator: int | None, batch: int | None, picture: Path | None, console: Console
) -> None:
    """Show what the operators of a checkpoint hold.

    checkpoint: a path, or the URI of one that Spark can read
    operator: the number of the operator; None: all operators of timerheap
    batch: the micro-batch; None: the last one that has finished
    picture: the PNG file to draw into, of the first operator
    ValueError: if there is no such checkpoint, operator or micro-batch
    """
    with tempfile.TemporaryDirectory(prefix="timerheap-") as scratch:
        settings = {"spark.sql.shuffle.partitions": CORES, "spark.sql.warehouse.dir": scratch}
        settings[FORMAT_VERSION] = 2  # which reads version 1, too
        with (
            console.status("Starting Spark"),
            local_spark("timerheap inspect", Path(scratch) / "spark.log", settings) as spark,
        ):
            operators = [each.number for each in find_operators(spark, checkpoint)]
            for number in operators if operator is None else [operator]:
                state = read_checkpoint(spark, checkpoint, number, batch_id=batch)
                report(state, console)
                if picture is not None:
                    from timerheap._inspect.report import plot  # which needs matplotlib

                    plot(state, picture)
                    console.print("Pending timers:", Text(str(picture), "bold"), soft_wrap=True)
                    picture = None
                console.print()
