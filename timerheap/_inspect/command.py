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
    """Show what an operator of a checkpoint holds, by default all, after a micro-batch, by default the last.

    picture: the PNG file to draw into, of the first operator
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
