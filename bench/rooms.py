"""The files of the package in which a function runs, for `process` and `tumble`: how far a reader has to go.

On the driver while the query is built, then in the Python workers that pack rows and in those that run key
groups, over a few micro-batches of a stream. What modules do as they are imported does not count.

Run as ``python bench/rooms.py``, with the folders of tests/support on the path, in an environment with
timerheap[spark].
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = f"{os.sep}timerheap{os.sep}"
_GROUPS = "spark/_worker/operator.py"  # the file that runs in each worker of key groups, and in no other
_HOOK = f"""\
import sys
sys.path.append({str(ROOT / "bench")!r})
import rooms
rooms.watch({{folder!r}})
"""


def watch(folder: str) -> None:
    """Write a line for each file in which a function runs, from now on, into a file for each process."""
    lines: dict[int, set[str]] = {}  # by process
    importing = 0

    def forked() -> None:  # by Spark's daemon, in a module that is being run
        nonlocal importing
        importing = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing = max(0, importing + (event == "call") - (event == "return"))
        if event != "call" or importing or _PACKAGE not in code.co_filename:
            return
        process = os.getpid()
        seen = lines.setdefault(process, set())
        name = code.co_filename.rpartition(_PACKAGE)[2]
        if name not in seen and name.endswith(".py"):
            seen.add(name)
            with open(f"{folder}/{process}", "a", encoding="utf-8") as file:
                print(name, code.co_qualname, file=file)

    os.register_at_fork(after_in_child=forked)
    sys.setprofile(profile)


@contextmanager
def _watched(folder: Path) -> Iterator[None]:
    folder.mkdir()
    watch(str(folder))
    try:
        yield
    finally:
        sys.setprofile(None)


def _found(folder: Path) -> list[dict[str, str]]:
    """Return for each process the files, with the first function that ran in each."""
    processes = [path.read_text(encoding="utf-8").splitlines() for path in sorted(folder.iterdir())]
    return [dict(line.split(" ", 1) for line in lines) for lines in processes]


def _shown(title: str, found: dict[str, str]) -> None:
    print(f"\n{title}: {len(found)} files")
    for name, function in sorted(found.items()):
        print(f"  {name:44} {function}")


def _features() -> dict[str, Callable[[Any], Any]]:
    from pyspark.sql import functions as F

    import timerheap.spark
    from timerheap import KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy

    strategy = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")

    class Silent(KeyedProcessFunction):
        def open(self, ctx: Any) -> None:
            self.count = ctx.get_state(ValueStateDescriptor("count", Types.LONG()))

        def process_element(self, value: Any, ctx: Any) -> None:
            self.count.update((self.count.value() or 0) + 1)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10_000, name="silent")

        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            yield ctx.get_current_key(), self.count.value()

    def process(rows: Any) -> Any:
        return timerheap.spark.process(
            rows,
            key="key",
            function=Silent(),
            output_schema="key string, count bigint",
            event_time="at",
            watermark=strategy,
        )

    def tumble(rows: Any) -> Any:
        windows = timerheap.spark.tumble(rows, "at", size="10 seconds", watermark=strategy)
        return windows.groupBy("key").agg(F.count("*").alias("rows"))

    return {"process": process, "tumble": tumble}


def main() -> None:
    scratch = Path(tempfile.mkdtemp(prefix="timerheap-bench-"))
    (scratch / "hook").mkdir()
    (scratch / "workers").mkdir()
    hook = _HOOK.format(folder=str(scratch / "workers"))
    (scratch / "hook" / "sitecustomize.py").write_text(hook, encoding="utf-8")
    paths = [str(scratch / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # that of the workers, which the JVM starts

    import pyarrow as pa
    from local_spark import start_spark
    from streams import batches, read_stream, write_batches

    spark = start_spark(scratch, settings={"spark.python.worker.reuse": "false"})
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    moments = (datetime(2026, 1, 1, 12, minute, tzinfo=UTC) for minute in range(4))
    write_batches(scratch / "rows", ([{"key": key, "at": at} for key in "abcdef"] for at in moments), schema)
    for name, build in _features().items():
        with _watched(scratch / f"{name}-driver"):
            result = build(read_stream(spark, scratch / "rows"))
        for path in (scratch / "workers").iterdir():
            path.unlink()
        assert any(batches(result, scratch / name)), "the query must have results"
        workers = _found(scratch / "workers")
        (driver,) = _found(scratch / f"{name}-driver")
        packing: dict[str, str] = {}
        groups: dict[str, str] = {}
        for found in workers:
            (groups if _GROUPS in found else packing).update(found)
        _shown(f"{name}, driver", driver)
        _shown(f"{name}, workers that pack rows", packing)
        _shown(f"{name}, workers that run key groups", groups)
    spark.stop()


if __name__ == "__main__":
    main()
