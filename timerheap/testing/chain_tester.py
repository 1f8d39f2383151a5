"""`ChainTester`: runs several process functions behind each other, as operators of one query."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from pyspark.sql import Row

from timerheap._arguments import instance
from timerheap.errors import ArgumentValueError
from timerheap.testing.process_tester import ProcessTester
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK


class ChainTester:
    """Runs testers behind each other: each processes the results of the one before it.

    As in a query, a tester follows the watermark of the one before it: it receives what that emits up to a
    watermark, and then the watermark itself.

    Parameters
    ----------
    *testers : ProcessTester
        Two or more, in the order of the operators. Tests may use them further on, for instance to look at
        timers and state.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If an argument is not a tester, if there is one alone, or if the same one is passed twice.

    Examples
    --------
    >>> from timerheap import KeyedProcessFunction
    >>> class Reminder(KeyedProcessFunction):
    ...     def process_element(self, value, ctx):
    ...         ctx.timer_service().register_event_time_timer(value.at + 1000)
    ...
    ...     def on_timer(self, timestamp, ctx):
    ...         yield ctx.get_current_key(), timestamp
    >>> schema = "user string, at bigint"
    >>> chain = ChainTester(*(ProcessTester(Reminder(), "user", schema, schema, "at") for _ in range(2)))
    >>> chain.push([("ann", 500)])
    []
    >>> chain.advance_watermark(2_499)
    []
    >>> chain.advance_watermark(2_500)
    [Row(user='ann', at=2500)]
    """

    def __init__(self, *testers: ProcessTester) -> None:
        for number, tester in enumerate(testers):
            instance(f"testers[{number}]", tester, ProcessTester)
        if len(testers) < 2 or len(set(map(id, testers))) < len(testers):
            raise ArgumentValueError(f"testers must be two or more, each once, got {testers!r}")
        self.testers = testers

    def push(self, rows: object) -> list[Row]:
        """Process rows of the first tester's input, as its `push` does; return the results of the last."""
        return self._pass_on(self.testers[0].push(rows), 0)

    def advance_watermark(self, timestamp: int) -> list[Row]:
        """Advance the watermark of the first tester, and then of those behind it; return the last results.

        Parameters
        ----------
        timestamp : int
            Epoch ms, at least the present watermark of the first tester.
        """
        return self._pass_on(self.testers[0].advance_watermark(timestamp), 0)

    def finish(self) -> list[Row]:
        """Advance the watermark to the end of the input; return the last results."""
        return self.advance_watermark(MAX_WATERMARK)

    def advance_clock(self, now: int) -> list[Row]:
        """Advance the processing time of all testers that have one; return the last results.

        Parameters
        ----------
        now : int
            Epoch ms, at least the present time.
        """
        found: list[Row] = []
        for number, tester in reversed(list(enumerate(self.testers))):  # results meet the new time
            if tester.has_clock:
                found += self._pass_on(tester.advance_clock(now), number)
        return found

    def _pass_on(self, results: list[Row], number: int) -> list[Row]:
        """Have the testers behind one process its results, and follow its watermark."""
        for before, tester in pairwise(self.testers[number:]):
            push: Callable[[list[Row]], list[Row]] = tester.push
            found = push(results) if results else []
            behind = before.results_behind or 0
            mark = before.watermark
            if mark < MAX_WATERMARK:
                mark = max(mark - behind, MIN_WATERMARK)
            if mark > tester.watermark:
                found += tester.advance_watermark(mark)
            results = found
        return results
