"""Functions with broadcast state in real-time mode, within their first epoch; see `real_time_child`.

Its argument is a folder. Prints a JSON object a line: what each query has done so far.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from real_time_child import SCHEMA, STRATEGY, Child, Source, append, lines, wait

import timerheap.spark
from timerheap import KeyedBroadcastProcessFunction, MapStateDescriptor, Types
from timerheap.spark import in_real_time

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
KEYS = [f"k{n}" for n in range(20)]


class Ruled(KeyedBroadcastProcessFunction):
    """Writes down each rule, with what it is called for each row and timer, and the rule that holds then."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.at + 10)
        self.write("row", value.key, value.at, ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("the", value.at)
        self.write("rule", value.key, value.at, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        self.write("timer", ctx.get_current_key(), timestamp, ctx)
        yield ctx.get_current_key(), timestamp, ""

    def write(self, kind: str, key: str, at: int, ctx: Any) -> None:
        append(self.file, (kind, key, at, ctx.get_broadcast_state(RULES).get("the")))


class Rules(Child):
    """Two queries over the same rows and rules, of which one has its rows and rules wait for others."""

    def run(self) -> None:
        rows, rules, waits = (
            self.source,
            Source(self.spark),
            {"at once": 0, "after others": "300 milliseconds"},
        )
        for name, linger in waits.items():
            df, others = rows.rows(), rules.rows()
            df, others = (df, in_real_time(others)) if linger else (in_real_time(df), others)
            result = timerheap.spark.process_broadcast(
                df, others, "key", Ruled(self.file(name)), SCHEMA, "at", watermark=STRATEGY, order="arrival"
            )
            writer = self.writer(name, result, "noop")
            self.queries[name] = timerheap.spark.start_real_time(writer, epoch="5 minutes", linger=linger)

        try:
            timerheap.spark.process_broadcast(
                in_real_time(rows.rows()), result, "key", Ruled(self.folder), SCHEMA
            )
        except ValueError as error:
            self.tell(**{"results as rules": str(error)})
        rows.send(0, ("a", 1000, ""), ("a", 9000, ""))
        rows.send(1, ("b", 9000, ""))
        self.tell_when("without rules", "timer", 1)
        groups = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 0)
        rules.send(1, ("", 5, ""))
        self.tell_when("a rule", "rule", groups)
        rows.send(0, *((key, 9000, "") for key in KEYS))
        self.tell_when("rows behind it", "row", len(KEYS) + 3)
        rules.send(0, *(("", n, "") for n in range(1000)))
        self.tell_when("many rules", "rule", 1001 * groups)
        rows.send(1, *((key, 9000, "") for key in KEYS))
        self.tell_when("rows behind them", "row", 2 * len(KEYS) + 3)
        for query in self.queries.values():
            query.stop()
        self.spark.stop()

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.lines"

    def tell_when(self, what: str, kind: str, count: int) -> None:
        """Wait until each query has written so many lines of a kind, and tell the last 60 of them."""
        for name, query in self.queries.items():
            file = self.file(name)
            wait(lambda file=file: len(of_kind(file, kind)) >= count, query)
            last, ended = of_kind(file, kind)[-60:], len(query.recentProgress)
            self.tell(**{f"{name}: {what}": last, f"{name}: {what}, epochs": ended})


def of_kind(file: Path, kind: str) -> list[tuple[Any, ...]]:
    return [line[1:] for line in lines(file) if line[0] == kind]


if __name__ == "__main__":
    try:
        Rules(Path(sys.argv[1])).run()
    except BaseException:
        print(traceback.format_exc(), flush=True)
        raise
