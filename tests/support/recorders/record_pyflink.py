"""Record what PyFlink answers to `pyflink_body.py`, in tests/spark/data/pyflink_{input,output}.jsonl.

Run by hand, never by the tests, with Java 17 and in an environment of its own (PyFlink asks for old
packages):

    python3.11 -m venv flink && flink/bin/pip install apache-flink==2.3.0
    flink/bin/python record_pyflink.py            # writes both files
    flink/bin/python record_pyflink.py --check    # writes nothing; fails where the files differ

The rows are drawn from a fixed seed. Each key's rows come in event-time order; across keys they are up to
`BOUND` out of order, so none is late. The body runs in PyFlink's thread mode, which calls Flink's own timer
service, under three patterns of watermarks, and the three must yield the same rows, each as often: what is
recorded depends on the rows alone.
"""

import argparse
import json
import os
import random
import re
import site
import sys
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
DATA = TESTS / "spark" / "data"
INPUT = DATA / "pyflink_input.jsonl"
OUTPUT = DATA / "pyflink_output.jsonl"

PYFLINK_IMPORTS = """\
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext, TimeDomain
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
"""
MINUTE = 60_000
HOUR = 60 * MINUTE
BOUND = 5 * MINUTE
START = 1_710_028_800_000  # 2024-03-10 00:00 UTC
KEYS = ["ada", "ben", "cleo", "dov", "eun", "fay", "gus", "hoa", "ivo", "Zoë", "王", ""]
INPUT_TYPES = {
    "k": "STRING",
    "at": "LONG",
    "event": "STRING",
    "stop": "STRING",
    "via": "STRING",
    "parcels": "LONG",
    "weight": "DOUBLE",
}
OUTPUT_TYPES = {
    "kind": "STRING",
    "k": "STRING",
    "at": "LONG",
    "number": "INT",
    "parcels": "LONG",
    "weight": "DOUBLE",
    "detail": "STRING",
    "in_time": "BOOLEAN",
}
# What separates a row from the one before it, in minutes. The body's gap is 20 and its first call 45 minutes
# later, so that rows fall on timers.
STEPS = [1, 3, 7, 12, 19, 20, 20, 21, 30, 45, 65, 65, 110, 155, 156, 200, 310]
STEP_WEIGHTS = [6, 6, 6, 6, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1]
# Minutes of the hour from which a row, its gap's end or the call after a sign-off falls on the hour, where
# the body has another timer.
ON_THE_HOUR = [0, 40, 15]
# name: (watermark interval, pause before each row so that intervals pass between rows)
PATTERNS = {
    "often": ("1 ms", 0.004),
    "now and then": ("200 ms", 0.004),
    "only at the end": ("0 ms", 0.0),
}


def draw_rows(count=432, seed=20240310):
    """Rows as they arrive: up to BOUND after their time, never before an earlier row of their key."""
    rng = random.Random(seed)
    arrivals = []
    for key in KEYS:
        at, arrival = START + rng.randrange(60) * MINUTE, 0
        for _ in range(count // len(KEYS)):
            at += rng.choices(STEPS, STEP_WEIGHTS)[0] * MINUTE
            if rng.random() < 0.3:
                at += (rng.choice(ON_THE_HOUR) * MINUTE - at) % HOUR
            elif rng.random() < 0.15:
                at += rng.randrange(1, MINUTE)
            arrival = max(arrival, at + rng.choice([0, 0, rng.randrange(BOUND), BOUND]))
            row = {
                "k": key,
                "at": at,
                "event": rng.choices(["deliver", "skip", "sign_off"], [16, 2, 2])[0],
                "stop": rng.choice(["Harbour", "Mill", "Opéra", "North", "Quay 4"]),
                "via": rng.choice([None, None, None, "depot", "Bridge"]),
                "parcels": rng.randrange(1, 9),
                "weight": rng.randrange(1, 40) / 4,
            }
            arrivals.append((arrival, row))
    arrivals.sort(key=lambda pair: pair[0])
    return [row for _, row in arrivals]


def load_body():
    """The class CourierWatch of pyflink_body.py, its one import replaced by PyFlink's."""
    source = (TESTS / "support" / "functions" / "pyflink_body.py").read_text(encoding="utf-8")
    source, replaced = re.subn(r"(?m)^from timerheap import \([^)]*\)\n", PYFLINK_IMPORTS, source)
    if replaced != 1 or re.search(r"(?m)^\s*(from|import) timerheap", source):
        raise SystemExit("pyflink_body.py must have exactly one import of timerheap, in parentheses")
    namespace = {"__name__": "__main__"}  # so that cloudpickle sends the class, not the name of its module
    exec(compile(source, "pyflink_body.py", "exec"), namespace)
    return namespace["CourierWatch"]


def run(body, rows, interval, pause):
    """What the body yields for the rows, and how many different watermarks it met."""
    # Here, because pytest imports this module when it looks for doctests, and the tests have no PyFlink.
    from pyflink.common import Configuration, Duration, Row, Types, WatermarkStrategy
    from pyflink.common.watermark_strategy import TimestampAssigner
    from pyflink.datastream import StreamExecutionEnvironment

    class EventTime(TimestampAssigner):
        def extract_timestamp(self, value, record_timestamp):
            time.sleep(pause)
            return value["at"]

    class WithWatermark(body):
        """The same body; each row it yields is followed by the watermark of that moment."""

        def process_element(self, value, ctx):
            for row in super().process_element(value, ctx):
                yield *row, ctx.timer_service().current_watermark()

        def on_timer(self, timestamp, ctx):
            for row in super().on_timer(timestamp, ctx):
                yield *row, ctx.timer_service().current_watermark()

    conf = Configuration()
    conf.set_string("python.execution-mode", "thread")
    conf.set_string("pipeline.auto-watermark-interval", interval)
    env = StreamExecutionEnvironment.get_execution_environment(conf)
    env.set_parallelism(1)
    input_types = [getattr(Types, name)() for name in INPUT_TYPES.values()]
    output_types = [getattr(Types, name)() for name in OUTPUT_TYPES.values()]
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(BOUND))
    result = (
        env.from_collection(
            [Row(*row.values()) for row in rows], Types.ROW_NAMED([*INPUT_TYPES], input_types)
        )
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(EventTime()))
        .key_by(lambda row: row["k"], key_type=Types.STRING())
        .process(WithWatermark(), Types.TUPLE([*output_types, Types.LONG()]))
    )
    with result.execute_and_collect() as collected:
        yielded = [tuple(row) for row in collected]
    lines = (
        json.dumps(dict(zip(OUTPUT_TYPES, row[:-1], strict=True)), ensure_ascii=False) for row in yielded
    )
    return Counter(lines), len({row[-1] for row in yielded})


def record():
    """The two files' lines; SystemExit where a pattern of watermarks changes what the body yields."""
    rows = draw_rows()
    body = load_body()
    runs = []
    for name, (interval, pause) in PATTERNS.items():
        yielded, watermarks = run(body, rows, interval, pause)
        print(f"watermarks {name}: {yielded.total()} rows yielded under {watermarks} different watermarks")
        if runs and watermarks >= runs[-1][1]:
            raise SystemExit("not fewer watermarks than in the run before: the runs show nothing")
        if runs and yielded != runs[-1][0]:
            raise SystemExit(f"other rows: {yielded - runs[-1][0]} instead of {runs[-1][0] - yielded}")
        runs.append((yielded, watermarks))
    inputs = [json.dumps(row, ensure_ascii=False) for row in rows]
    return inputs, sorted(yielded.elements())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files, write nothing")
    check = parser.parse_args().check
    # Flink starts an interpreter of its own inside the JVM: it has to find the same packages.
    os.environ["PYTHONPATH"] = os.pathsep.join(site.getsitepackages())
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for path, lines in zip((INPUT, OUTPUT), record(), strict=True):
        text = "".join(line + "\n" for line in lines)
        if not check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path.name} differs from what PyFlink yields now")
        print(f"{path.name}: {len(lines)} lines {'agree' if check else 'written'}")


if __name__ == "__main__":
    main()
