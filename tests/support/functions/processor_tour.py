"""Stateful processors that do what those of Spark's own tests do, on both implementations in one query."""

from __future__ import annotations

import unittest
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor
from spark_faults import nested

from timerheap.spark import transform_with_state, transform_with_state_in_pandas

Style = Literal["rows", "frames"]

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("degrees", pa.int32()),
        ("site", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
INITIAL = "degrees int, id string, site string"
KEY = ["id", "site"]


def readings(*rows: tuple[str, int | None, int]) -> list[dict[str, Any]]:
    """Return rows: a key, degrees, and seconds; the site follows from the key."""
    return [
        {"id": id_, "degrees": degrees, "site": f"site {id_}", "at": datetime.fromtimestamp(at, UTC)}
        for id_, degrees, at in rows
    ]


def on_both(
    df: DataFrame,
    key: list[str],
    processor: StatefulProcessor,
    output: str,
    mode: str,
    initial: GroupedData | None = None,
    event_time: str = "",
) -> tuple[DataFrame, DataFrame]:
    """Return the result of Spark's implementation, and that of timerheap's."""
    frames = processor.style == "frames"  # type: ignore[attr-defined]
    grouped = df.groupBy(*key)
    theirs = grouped.transformWithStateInPandas if frames else grouped.transformWithState
    ours = transform_with_state_in_pandas if frames else transform_with_state
    return (
        theirs(processor, output, "Append", mode, initial, event_time),
        ours(grouped, None, processor, output, "Append", mode, initial, event_time),
    )


class Base(StatefulProcessor):
    """Reads and makes what its style has: ``Row`` objects or DataFrames."""

    def __init__(self, style: Style) -> None:
        self.style = style

    def column(self, rows: Any, *names: str) -> list[tuple[Any, ...]]:
        """Return columns of the rows of a key; numbers are Python's."""
        if self.style == "rows":
            return [tuple(row[name] for name in names) for row in rows]
        found = [list(frame[list(names)].itertuples(index=False, name=None)) for frame in rows]
        return [
            tuple(None if pd.isna(v) else int(v) if isinstance(v, float) else v for v in row)
            for row in chain(*found)
        ]

    def out(self, **values: Any) -> Any:
        """Return one result."""
        if self.style == "rows":
            return Row(**values)
        return pd.DataFrame({name: [value] for name, value in values.items()})

    def close(self) -> None:
        """Do nothing."""


class Road(NamedTuple):
    number: int
    city: str


class Tour(Base, unittest.TestCase):
    """Uses each kind of state as Spark's tests do, and yields what it finds as text and as nested values."""

    INNER = "n int, ratio double, names array<string>, notes map<string,string>"
    OUTPUT = (
        "id string, what string, names array<string>, notes map<string,string>, "
        f"list array<struct<{INNER}>>, map map<string,struct<{INNER}>>"
    )
    NESTED = (
        "ids array<int>, tags array<array<string>>, meta array<struct<key:string,value:string>>, "
        "roads array<struct<number:int,city:string>>"
    )
    TAGS = (["a", "b"], ["c"])
    META = ({"key": "env", "value": "prod"}, {"key": "zone", "value": "west"})
    ROADS = (nested(Road(1, "north")), nested(Road(3, "south")))
    LONG = "a" * (512 << 10)

    def __init__(self, style: Style, ttl: int | None = None) -> None:
        super().__init__(style)
        self.ttl = ttl
        self.calls = 0

    def init(self, handle: Any) -> None:
        self.handle = handle
        number = T.StructType([T.StructField("value", T.IntegerType(), True)])
        self.gone = handle.getValueState("gone", number)
        handle.deleteIfExists("gone")
        self.hot = handle.getValueState("hot", "value int", self.ttl)
        self.strict = handle.getValueState("strict", "id int not null, name string not null")
        self.missing = handle.getValueState("missing", number)
        self.first, self.second = (handle.getListState(n, number, self.ttl) for n in ("first", "second"))
        self.times = handle.getListState("times", "time timestamp")
        self.many = handle.getListState("many", "value int, none int")
        self.size = handle.getValueState("size", "size int")
        self.map = handle.getMapState("map", "name string", "count int", self.ttl)
        self.value = handle.getValueState("nested value", self.NESTED)
        self.list = handle.getListState("nested list", self.NESTED)
        soon = self.ttl and 1  # has passed when the next micro-batch comes
        self.brief = handle.getValueState("brief", number, soon)
        self.briefs = handle.getListState("briefs", number, soon)
        self.brief_map = handle.getMapState("brief map", "id string", "value int", soon)
        self.confs = handle.getMapState(
            "nested map",
            "name string",
            "n int, lists map<string,array<int>>, maps map<string,map<string,int>>",
        )
        self.long = handle.getValueState("long", "value string")
        self.longs = handle.getListState("longs", "value string")
        self.long_map = handle.getMapState("long map", "key string", "value string")
        self.given = handle.getListState("given", number)
        self.earliest = handle.getValueState("earliest", "value double")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        one = self.style == "rows"
        degrees = [initialState.degrees] if one else initialState["degrees"].tolist()
        self.hot.update((degrees[0] if one else initialState.at[0, "degrees"],))
        for value in degrees:
            self.given.appendValue((value,))
        if self.ttl:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        with self.assertRaisesRegex(PySparkRuntimeError, "Error checking value state exists"):  # noqa: PT027
            self.gone.exists()
        now = timerValues.getCurrentProcessingTimeInMs()
        degrees, times = zip(*self.column(rows, "degrees", "at"), strict=True)
        counted = sum(n is not None for n in degrees)
        found = [
            ("count", counted, list(self.given.get()), now < 0, timerValues.getCurrentWatermarkInMs()),
            ("hot", *self._hot(degrees)),
            ("missing", self.missing.exists(), self.missing.get(), self.missing.clear()),
            ("lists", *self._lists(len(degrees))),
            ("many", *self._many(key[0])),
            ("map", *self._map(counted)),
            ("brief", *self._brief(key[0], len(degrees))),
            ("nested", *self._nested(key[0], sum(n or 0 for n in degrees))),
            ("long", *self._long()),
            ("earliest", *self._earliest([at.timestamp() for at in times])),
        ]
        self.strict.update((None, key[0]))
        found.append(("strict", self.strict.get()))
        if self.ttl and key[0] == "0":
            self.handle.registerTimer(now + 1)
        yield self.out(id=key[0], what=repr(found), **self._composite(counted))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        once, twice = list(self.handle.listTimers()), list(self.handle.listTimers())
        late = timerValues.getCurrentProcessingTimeInMs() - at
        found = ("timer", late > 0, len(once), once == twice, self.hot.get())
        self.hot.clear()
        self.handle.deleteTimer(at)
        yield self.out(id=f"{key[0]}-expired", what=repr(found), **self._composite(0))

    def _hot(self, degrees: Sequence[Any]) -> Iterator[Any]:
        before = self.hot.get()[0] if self.hot.exists() else 0
        yield before
        self.calls += 1  # another copy in each micro-batch
        self.hot.update((np.int64(before + sum(n is not None and n > 100 for n in degrees)),))
        yield self.hot.get()

    def _lists(self, n: int) -> Iterator[Any]:
        two = [(120,), (20,)]
        for _ in range(n):
            for each, more in ((self.first, 111), (self.second, 222)):
                each.put(two)
                each.appendValue((more,))
                each.appendList(iter(two))
        left, right = self.first.get(), self.second.get()
        yield [next(left), next(right), next(left), next(right)]
        other = self.first.get()
        yield [*islice(other, 2), next(left), next(right), *other, *left, *right]
        time = datetime(2026, 1, 1) + timedelta(minutes=n)
        self.times.put([(time,), (pd.Timestamp(time),)])
        yield list(self.times.get())

    def _many(self, id_: str) -> Iterator[Any]:
        before = list(self.many.get())
        size = self.size.get()
        yield before, size
        if id_ == "0":
            self.many.put([(n, None) for n in range(len(before) + 90)])
        else:
            self.many.appendList([(n, None) for n in range(len(before), len(before) + 90)])
        self.size.update((len(before) + 90,))
        yield list(self.many.get())

    def _map(self, n: int) -> Iterator[Any]:
        one, two = ("key1",), ("key2",)
        values = [
            n + (self.map.getValue(key)[0] if self.map.exists() and self.map.containsKey(key) else 0)
            for key in (one, two)
        ]
        for key, value in zip((one, two), values, strict=True):
            self.map.updateValue(key, (value,))
        yield next(self.map.keys()), next(self.map.values()), next(self.map.iterator())
        self.map.removeKey(one)
        yield self.map.containsKey(one), self.map.exists(), list(self.map.iterator())
        if n == 3:
            self.map.clear()
        yield self.map.exists()

    def _brief(self, id_: str, n: int) -> Iterator[Any]:
        states = self.brief, self.briefs, self.brief_map
        if self.ttl:
            self.assertFalse(any(state.exists() for state in states))  # noqa: PT009
        yield self.brief.get(), list(self.briefs.get()), self.brief_map.getValue((id_,))
        if n > 1:  # otherwise only what an earlier micro-batch has written can be there
            self.brief.update((n,))
            self.briefs.appendList([(n,), (n,)])
            self.brief_map.updateValue((id_,), (n,))
        yield self.brief.get(), list(self.briefs.get()), list(self.brief_map.iterator())

    def _nested(self, id_: str, total: int) -> Iterator[Any]:
        ids = [0]
        if self.value.exists():
            ids, tags, meta, roads = self.value.get()
            yield tags == list(self.TAGS), meta == [Row(**m) for m in self.META], roads
            ids = [n + total for n in ids]
        whole = (ids, list(self.TAGS), list(self.META), list(self.ROADS))
        self.value.update(whole)
        updated = []
        for some, tags, meta, roads in self.list.get():
            some.append(np.int64(total))
            updated.append((some, tags, [row.asDict() for row in meta], [*map(nested, roads)]))
        self.list.put(updated or [whole])
        yield self.value.get(), list(self.list.get())
        if not self.confs.containsKey(id_):
            self.confs.updateValue(id_, (0, {"key1": [1]}, {"e1": {"e2": 5}}))
        else:
            n, lists, maps = self.confs.getValue(id_)
            lists[id_] = [np.int64(total)]
            maps.setdefault("e1", {})[id_] = total
            self.confs.updateValue(id_, (n, lists, maps))
        _, lists, maps = self.confs.getValue(id_)
        yield sorted(lists.items()), sorted((key, sorted(inner.items())) for key, inner in maps.items())

    def _long(self) -> Iterator[Any]:
        self.long.update((self.LONG,))
        self.longs.put([(self.LONG,), (self.LONG + "b",), (self.LONG + "c",)])
        self.long_map.updateValue(("key",), (self.LONG,))
        yield self.long.get() == (self.LONG,), [(len(s), s[-1]) for (s,) in self.longs.get()]
        yield len(self.long_map.getValue(("key",))[0])

    def _earliest(self, times: list[float]) -> Iterator[Any]:
        self.earliest.update(
            (min([*times, *(self.earliest.get() or ())]),)
        )  # rows are late in event time alone
        yield self.earliest.get()

    def _composite(self, n: int) -> dict[str, Any]:
        make = Row if self.style == "rows" else dict

        def inner(i: int) -> Any:
            names = [f"{i} {j}" for j in range(i + 1)]
            return make(n=i, ratio=i * 1.5, names=names, notes=dict.fromkeys(names, "x"))

        return {
            "names": [f"item {i}" for i in range(n)],
            "notes": {f"key{i}": f"value{i}" for i in range(n)},
            "list": [inner(i) for i in range(n)],
            "map": {f"key{i}": inner(i) for i in range(n)},
        }


class Newest(Base):
    """Yields the newest event time of a key, which a timer at the watermark forgets at once."""

    OUTPUT = "id string, what string"

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.newest = handle.getValueState("newest", "value string")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        times = [at.timestamp() for (at,) in self.column(rows, "at")]
        if self.newest.exists():
            times.append(float(self.newest.get()[0]))
        newest = str(max(times))
        self.newest.update((newest,))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
        yield self.out(id=key[0], what=newest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        self.newest.clear()
        at = expiredTimerInfo.getExpiryTimeInMs()
        self.handle.deleteTimer(at)
        yield self.out(id=f"{key[0]}-expired", what=str(at))


class First(Base):
    """Yields the first event time of a key; has no state."""

    OUTPUT = "id string, first timestamp"

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        (first,), *_ = self.column(rows, "at")
        yield self.out(id=key[0], first=first)


class Chunks(Base):
    """Yields the sizes of the frames of a key, and an int for a decimal."""

    OUTPUT = "id string, sizes string, amount decimal(10,2)"

    def init(self, handle: Any) -> None:
        self.initial = handle.getValueState("initial", "value int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.initial.update((initialState.at[0, "degrees"],))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        sizes = [len(frame) for frame in rows]
        yield self.out(id=key[0], sizes=f"{sizes} {self.initial.get()}", amount=12345)
