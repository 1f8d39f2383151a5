"""What flights_on_executors.py has to yield, wherever it ran and whatever was killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from overdue import DELAY
from overdue_pandas import final_watermark, overdue_planes

__all__ = ["check"]


def check(
    alerts: Path,
    told: Path,
    flights: pd.DataFrame,
    micro_batches: int,
    victim: str,
    tell: Callable[..., None],
    where: str,
) -> dict[str, Any]:
    """Compare the alerts with those of pandas, and add a line to the table; return what the job told."""
    answer: dict[str, Any] = json.loads(told.read_text())
    kills = told.with_suffix(".killed").exists()
    assert kills == (victim != "nothing")
    # A driver that was started again tells of the micro-batches since.
    assert answer["micro-batches"][-1] == micro_batches - 1
    assert (answer["micro-batches"][0] == 0) == (victim != "driver")
    assert len(answer["imported"]) == 2  # executors

    right = overdue_planes(flights, final_watermark(flights, pd.Timedelta(milliseconds=DELAY)))
    right["since"] = right["since"].map(lambda time: time.value // 1_000_000)
    wanted = Counter(right.itertuples(index=False, name=None))
    found = Counter(pd.read_parquet(alerts).itertuples(index=False, name=None))
    lost, doubled = (wanted - found).total(), (found - wanted).total()
    tell(where, kills=int(kills), rows=len(flights), lost=lost, doubled=doubled)
    assert found == wanted
    assert wanted
    return answer
