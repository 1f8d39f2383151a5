"""One function for applyInPandasWithState, written on heapq and on timerheap.

A courier's orders that are not delivered by their deadline are late. Nothing but the lines that end in
"queue" is different; a test holds that, and that the two give the same output.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from timerheap.spark import GroupStateTimers

if TYPE_CHECKING:
    from pyspark.sql.streaming.state import GroupState

INPUT = ["courier", "at", "event", "order_id", "deadline", "new_deadline"]
OUTPUT = ["courier", "order_id", "deadline", "delivered"]
OUTPUT_SCHEMA = "courier string, order_id bigint, deadline bigint, delivered bigint"
STATE_SCHEMA = "delivered bigint, timers binary"


def late_orders_heapq(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    watermark = state.getCurrentWatermarkMs()  # queue
    delivered, packed = state.get if state.exists else (0, b"")  # queue
    queue = list(struct.iter_unpack("<qq", packed))  # queue
    for batch in batches:
        rows = batch[["event", "order_id", "deadline", "new_deadline"]]
        for event, order, deadline, new_deadline in rows.itertuples(index=False, name=None):
            if event == "placed":
                heapq.heappush(queue, (deadline, order))  # queue
            elif event == "delivered":
                delivered += 1
                if (deadline, order) in queue:  # queue
                    queue.remove((deadline, order))  # queue
                    heapq.heapify(queue)  # queue
            elif event == "postponed":
                moved = (new_deadline, order)  # queue
                queue = [moved if timer == (deadline, order) else timer for timer in queue]  # queue
                heapq.heapify(queue)  # queue
    late = []
    while queue and queue[0][0] <= watermark:  # queue
        deadline, order = heapq.heappop(queue)  # queue
        late.append((key[0], order, deadline, delivered))
    packed = b"".join(struct.pack("<qq", *timer) for timer in queue)  # queue
    state.update((delivered, packed))  # queue
    if queue:  # queue
        state.setTimeoutTimestamp(max(queue[0][0] - 1, watermark))  # queue
    yield pd.DataFrame(late, columns=OUTPUT)


def late_orders_timerheap(
    key: tuple[Any, ...], batches: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    with GroupStateTimers(state) as queue:  # queue
        (delivered,) = queue.state or (0,)  # queue
        for batch in batches:
            rows = batch[["event", "order_id", "deadline", "new_deadline"]]
            for event, order, deadline, new_deadline in rows.itertuples(index=False, name=None):
                if event == "placed":
                    queue.push(deadline, order)  # queue
                elif event == "delivered":
                    delivered += 1
                    queue.remove(deadline, order)  # queue
                elif event == "postponed":
                    queue.reschedule(deadline, new_deadline, order)  # queue
        late = []
        for deadline, order, _ in queue.due():  # queue
            late.append((key[0], order, deadline, delivered))
        queue.state = (delivered,)  # queue
    yield pd.DataFrame(late, columns=OUTPUT)
