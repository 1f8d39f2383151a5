"""Random histories of a table: micro-batches of changes, in any order inside a micro-batch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

Row = dict[str, Any]
NewRow = Callable[[random.Random], Row]


def history(
    seed: int, new_row: NewRow, batches: int = 8, size: int = 30, inserts: float = 0.5
) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield for each micro-batch its changes, and the rows of the table after it.

    An update is a pair, or a delete and an insert; rows may be there several times. A row may come and go in
    one micro-batch.
    """
    rng = random.Random(seed)
    live: list[Row] = []
    for _ in range(batches):
        changes = list[Row]()
        for _ in range(rng.randrange(size)):
            kind = rng.random()
            if kind < inserts or not live:
                row = rng.choice(live) if live and rng.random() < 0.1 else new_row(rng)
                live.append(row)
                changes.append(row | {"_change_type": "insert"})
                continue
            old = live.pop(rng.randrange(len(live)))
            if kind < inserts + (1 - inserts) / 2:
                changes.append(old | {"_change_type": "delete"})
                continue
            new = old | dict(rng.sample(sorted(new_row(rng).items()), 1))
            live.append(new)
            words = ("update_preimage", "update_postimage") if rng.random() < 0.8 else ("delete", "insert")
            changes += [old | {"_change_type": words[0]}, new | {"_change_type": words[1]}]
        rng.shuffle(changes)
        yield changes, list(live)
