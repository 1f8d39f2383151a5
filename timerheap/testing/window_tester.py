"""Windows on what runs them in a query, with one key group and without Spark: for timerheap's own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from timerheap.output_tag import OutputTag
from timerheap.spark._arrow import KeyedRows
from timerheap.spark._compat import to_arrow_schema
from timerheap.spark._exchange.placement import Placement
from timerheap.spark._group.key_group import KeyGroup
from timerheap.spark._query import Query, Reduction
from timerheap.spark._tvf.sliced_rows import PartialColumns, SlicedRows, WindowSpec
from timerheap.spark._tvf.window_runner import WindowWork
from timerheap.spark._windows.window_operator import WindowedBy, WindowFunctions
from timerheap.spark._worker.key_group_run import run_key_group
from timerheap.spark._worker.output import ResultBuffer
from timerheap.spark._worker.runner import MicroBatch
from timerheap.testing.inputs import columns_type, spark_xxhash64
from timerheap.testing.process_tester import ProcessTester, load_group, save_group
from timerheap.tvf.slices import SliceAssigner
from timerheap.watermarks import WatermarkStrategy

_BOUNDS = ("window_start", "window_end", "window_time")
_HASH = -1  # the column of the hashes in what the pack stage makes of rows


class WindowTester:
    """Runs windows in which a test pushes rows and advances the watermark.

    assigner: of slices or sessions
    aggregates: of `timerheap.tvf`
    rows: the columns of the rows, as DDL: the key ``k``, the event time ``at``, and what the aggregates read
    results: the results of the aggregates, as DDL
    objects: the types of Python objects in accumulators, by the aggregate's column
    pre_aggregated: whether rows are aggregated by slice before they reach the key group, as in the pack stage
    """

    def __init__(
        self,
        assigner: Any,
        aggregates: list[Any],
        rows: str,
        results: str,
        objects: dict[str, pa.DataType],
        *,
        pre_aggregated: bool,
    ) -> None:
        spec = WindowSpec(assigner, aggregates, objects, "windows")
        inputs = {name: one.dtype for one in aggregates for name in one.columns}
        bounds = ", ".join(f"{name} bigint" for name in _BOUNDS)
        result = columns_type("results", f"k string, {bounds}, {results}")
        fields = list(to_arrow_schema(result))
        work = WindowWork(spec, ["k"], inputs, pre_aggregated, fields[4:], None, fields[1:4])
        reduction: Reduction | None = None
        if pre_aggregated:
            assert isinstance(assigner, SliceAssigner)
            _, *slices = PartialColumns(spec).schema
            reduction = Reduction(partial(SlicedRows, spec, ["k"], "at", inputs), pa.schema(slices))
        self._rows = to_arrow_schema(columns_type("rows", rows))
        self._query = Query(
            work=work,
            key=["k"],
            rows=columns_type("rows", rows),
            result=result,
            event_time="at",
            watermarks=(WatermarkStrategy.for_monotonous_timestamps(),),
            channels=(None,),
            order="arrival",
            time_mode="EventTime",
            max_parallelism=1,
            own=(work,),
            reduction=reduction,
        )
        self.begin(KeyGroup(self._query.layout))

    def begin(self, group: KeyGroup) -> None:
        self._group = group
        self._runner = self._query.work.runner(self._query, Placement(1, 1))

    def push(self, rows: list[dict[str, Any]]) -> None:
        """Process rows of one micro-batch."""
        if not rows:
            return
        batch = pa.RecordBatch.from_pylist(rows, self._rows)
        hashes, times = spark_xxhash64([batch.column("k")]), batch.column("at").to_numpy()
        if self._query.reduction is not None:
            reducer = self._query.reduction.reducer()
            reducer.add(batch, hashes)
            batch = reducer.drain()
            hashes = batch.column(_HASH).to_numpy()
            times = np.zeros(len(hashes), np.int64)
        self._run(KeyedRows(batch, hashes, times), None)

    def advance_watermark(self, watermark: int) -> list[dict[str, Any]]:
        """Return the windows that a watermark ends; their bounds are epoch ms."""
        return [row | {name: row[name] // 1000 for name in _BOUNDS} for row in self._run(None, watermark)]

    def restart(self) -> None:
        """Go on from the checkpoint."""
        group, _ = load_group(self._query, 1, save_group(self._group, 1, None))
        self.begin(group)

    @property
    def late_rows(self) -> int:
        return self._group.late_rows

    @property
    def pending(self) -> tuple[int, int | None]:
        """How many windows are open, and when the next ends."""
        (own,) = self._group.own
        return own.pending(True)

    def _run(self, rows: KeyedRows | None, watermark: int | None) -> list[dict[str, Any]]:
        output = ResultBuffer(*self._query.outputs)
        run_key_group(MicroBatch(self._query, self._runner, None, output), self._group, rows, watermark)
        found: list[dict[str, Any]] = output.table().to_pylist()
        return found


def window_operator_tester(
    by: WindowedBy,
    function: Any,
    window_function: Any,
    rows: str,
    results: str,
    late: Callable[[Any, Any], Any],
    side_output: OutputTag,
    accumulator_type: object,
    element_type: object,
) -> ProcessTester:
    """Return a tester of what `timerheap.spark.window_operator` runs, of rows with ``key`` and ``at``.

    rows, results: the columns, as DDL; the key and the window come before those of the result
    late: called with an element that is too late, and the context; may yield to `side_output`
    accumulator_type, element_type: as in a `WindowOperator`
    """
    names = columns_type("results", results).names
    options = {
        "trigger": by.trigger,
        "evictor": by.evictor,
        "allowed_lateness": by.allowed_lateness,
        "accumulator_type": accumulator_type,
        "element_type": element_type,
    }
    return ProcessTester(
        WindowFunctions(by, function, window_function, options).hosted(1, names, late),
        key="key",
        input_schema=rows,
        output_schema=f"key string, window_start timestamp, window_end timestamp, {results}",
        event_time="at",
        order="arrival",
        side_outputs=[side_output],
    )
