"""Processors like those of Spark's own tests of its harness do the same there and on a key group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

import pandas as pd
import pytest
from processor_stage import Stage
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor

from timerheap.spark._processors.processor_states import DeclaredState
from timerheap.spark._query import TimeMode

TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="not in this Spark").TwsTester

Style = Literal["rows", "frames"]

NUMBER = T.StructType().add("n", T.LongType())
WORD = T.StructType().add("word", T.StringType())
ROWS = T.StructType().add("k", T.StringType()).add("word", T.StringType()).add("n", T.LongType())
RESULT = T.StructType().add("k", T.StringType()).add("what", T.StringType())
STYLES = pytest.mark.parametrize("style", ["rows", "frames"])


class Base(StatefulProcessor):
    style: Style = "rows"

    def read(self, rows: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the word and the number of each row."""
        each = rows if self.style == "rows" else chain.from_iterable(frame.itertuples() for frame in rows)
        return ((row.word, row.n) for row in each)

    def out(self, key: Any, *found: Any) -> Iterator[Any]:
        if self.style == "rows":
            yield from (Row(k=key[0], what=repr(what)) for what in found)
        elif found:
            yield pd.DataFrame({"k": [key[0]] * len(found), "what": list(map(repr, found))})


class Count(Base):
    states: Mapping[str, DeclaredState] = {"count": DeclaredState("value", (NUMBER,), None)}

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n = len(list(self.read(rows))) + (self.count.get()[0] if self.count.exists() else 0)
        self.count.update((n,))
        yield from self.out(key, n)


class Largest(Base):
    states: Mapping[str, DeclaredState] = {"largest": DeclaredState("list", (NUMBER,), None)}

    def init(self, handle: Any) -> None:
        self.largest = handle.getListState("largest", NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        numbers = [n for (n,) in self.largest.get()] + [n for _, n in self.read(rows)]
        self.largest.put([(n,) for n in sorted(numbers, reverse=True)[:2]])
        yield from self.out(key, *self.largest.get())


class Words(Base):
    states: Mapping[str, DeclaredState] = {"words": DeclaredState("map", (WORD, NUMBER), None)}

    def init(self, handle: Any) -> None:
        self.words = handle.getMapState("words", WORD, NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        found = []
        for word, _ in self.read(rows):
            n = 1 + (self.words.getValue((word,))[0] if self.words.containsKey((word,)) else 0)
            self.words.updateValue((word,), (n,))
            found.append((word, n))
        yield from self.out(key, *found)


class Methods(Base):
    """Calls each method of each kind of state."""

    states: Mapping[str, DeclaredState] = {**Count.states, **Largest.states, **Words.states}

    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("count", NUMBER)
        self.list = handle.getListState("largest", NUMBER)
        self.map = handle.getMapState("words", WORD, NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from self.out(key, *chain.from_iterable(self.calls(word, n) for word, n in self.read(rows)))

    def calls(self, word: str, n: int) -> Iterator[Any]:
        yield self.value.exists(), self.list.exists(), self.map.exists()
        self.value.update((n,))
        self.list.appendValue((n,))
        self.list.appendList([(n,), (None,)])
        self.map.updateValue((word,), (n,))
        self.map.updateValue(("gone",), (None,))
        yield self.value.get(), list(self.list.get()), sorted(self.map.keys())
        yield sorted(self.map.iterator()), len(list(self.map.values()))
        self.map.removeKey(("gone",))
        self.map.removeKey(("never there",))
        yield self.map.containsKey(("gone",)), self.map.getValue(("gone",)), sorted(self.map.iterator())
        if n % 2:
            self.value.clear()
            self.list.clear()
            self.map.clear()
        yield self.value.exists(), self.list.exists(), self.map.exists()


class Timeout(Base):
    """Moves a timer to ten seconds after the last row, by the time of the micro-batch or the row's own."""

    states: Mapping[str, DeclaredState] = {"due": DeclaredState("value", (NUMBER,), None)}

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.due = handle.getValueState("due", NUMBER)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        now, found = timerValues.getCurrentProcessingTimeInMs(), []
        for word, at in self.read(rows):
            if self.due.exists():
                self.handle.deleteTimer(self.due.get()[0])
            due = max(now, int(at)) + 10_000
            self.due.update((due,))
            self.handle.registerTimer(due)
            found.append((word, list(self.handle.listTimers())))
        yield from self.out(key, *found)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield from self.out(key, (self.due.get(), expiredTimerInfo.getExpiryTimeInMs()))
        self.due.clear()


class Pair:
    """A processor in Spark's harness, and on a key group."""

    def __init__(self, processor: type[Any], style: Style, mode: TimeMode = "None") -> None:
        of_style = type(processor.__name__, (processor,), {"style": style})
        self.style = style
        self.now: dict[str, int] = {}
        extractor: Callable[[Any], int] = lambda row: row.n  # noqa: E731
        self.tester = TwsTester(of_style(), timeMode=mode, eventTimeExtractor=extractor)
        self.stage = Stage(of_style, ROWS, RESULT, mode, style, **processor.states)

    def send(self, key: str | None, *rows: tuple[str | None, int]) -> list[tuple[Any, ...]]:
        """Process rows of a key; return the results, which must be the same."""
        names = ["word", "n"]
        if self.style == "rows":
            found = self.tester.test(key, [Row(**dict(zip(names, row, strict=True))) for row in rows])
        else:
            found = self.tester.testInPandas(key, pd.DataFrame(list(rows), columns=names))
        return self._expect(found, self.stage.batch([(key, *row) for row in rows], **self.now))

    def advance(self, **time: int) -> list[tuple[Any, ...]]:
        """Set `now` or `watermark`; return what the timers yield."""
        self.now = time
        set_ = self.tester.setWatermark if "watermark" in time else self.tester.setProcessingTime
        return self._expect(set_(*time.values()), self.stage.batch([], **time))

    def _expect(self, theirs: Any, ours: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        rows = theirs if isinstance(theirs, list) else theirs.itertuples(index=False)
        assert ours == list(map(tuple, rows))
        return ours


@STYLES
@pytest.mark.parametrize("processor", [Count, Largest, Words, Methods])
def test_states_are_those_of_sparks_harness(style: Style, processor: type[Any]) -> None:
    pair = Pair(processor, style)
    for batch in ([("a", 2), ("b", 9), ("a", 4), ("", 1)], [("é", 7)], [("b", 3), ("b", 8)]):
        for key in ("key1", "key2", "key@#$%", "", None):
            assert pair.send(key, *batch)
    assert pair.send("another", ("a", 1))


@STYLES
@pytest.mark.parametrize("mode", ["ProcessingTime", "EventTime"])
def test_timers_fire_as_in_sparks_harness(style: Style, mode: TimeMode) -> None:
    pair = Pair(Timeout, style, mode)
    time = "now" if mode == "ProcessingTime" else "watermark"
    assert pair.advance(**{time: 1_000}) == []
    pair.send("a", ("hello", 1_500), ("again", 1_600))
    pair.send("b", ("world", 2_000))
    assert pair.advance(**{time: 6_000}) == []
    pair.send("b", ("later", 7_000))
    assert len(pair.advance(**{time: 11_600})) == 1
    assert len(pair.advance(**{time: 17_000})) == 1
    assert pair.advance(**{time: 60_000}) == []
