"""The stateful operator as Spark receives it: loaded where there is work, and not on the driver.

Spark starts a Python process on the driver for each start of a query, which calls only ``init()`` to hear of
the state. To import this package there would take most of its time, and it cannot import modules that were
sent with ``addPyFile()``.
"""

from __future__ import annotations

from typing import Any

from pyspark import TaskContext
from pyspark.cloudpickle import dumps, loads
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from timerheap.spark._worker.spark_store import CHUNKS

__all__ = ["deferred"]


def deferred(operator: StatefulProcessor) -> StatefulProcessor:
    """Return an operator that declares the state on the driver, and elsewhere does what `operator` does."""
    pickled = dumps(operator)  # type: ignore[no-untyped-call]
    state = CHUNKS

    class Deferred(StatefulProcessor):  # in a function, so that it is pickled by value
        _operator: Any = None
        _reported: Any = None

        def init(self, handle: StatefulProcessorHandle) -> None:
            if TaskContext.get() is None:
                handle.getMapState(*state)
            else:
                from timerheap.spark._exchange.garbage import freeze_modules

                freeze_modules(lambda: loads(pickled))
                self._operator = loads(pickled)
                self._operator.init(handle)
                from timerheap.spark._worker.user_errors import reported

                self._reported = reported

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            with self._reported():
                self._operator.handleInitialState(key, initialState, timerValues)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            with self._reported():
                yield from self._operator.handleInputRows(key, rows, timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            with self._reported():
                yield from self._operator.handleExpiredTimer(key, timerValues, expiredTimerInfo)

        def close(self) -> None:
            if self._operator is not None:
                with self._reported():
                    self._operator.close()

    return Deferred()
