"""Run the state machines of tests/native/test_heap_model.py for a number of steps: a part of `make fuzz`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.extend(map(str, Path(__file__).resolve().parents[1].glob("support/*")))
sys.path.append(str(Path(__file__).resolve().parents[1] / "native"))

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from test_heap_model import KeyTimerHeapMachine, Machine, TimerHeapMachine

# Without a database, each round draws new examples. A failure prints the steps that lead to it.
ROUND = settings(
    max_examples=200,
    stateful_step_count=60,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=float, default=200_000)
    steps = int(parser.parse_args().steps)
    start = time.monotonic()
    while Machine.steps < steps:
        for machine in (TimerHeapMachine, KeyTimerHeapMachine):
            run_state_machine_as_test(machine, settings=ROUND)
        print(f"{Machine.steps:,} steps equal the model, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
