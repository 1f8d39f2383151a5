"""Functions that raise at random, after random changes; or that do nothing instead, for a comparison."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from only_adds import OnlyAdds

from timerheap import (
    AggregatingStateDescriptor,
    BatchProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReducingStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)

SIDE = OutputTag("side", Types.LONG())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class _Sum(OnlyAdds):
    def merge(self, a: int, b: int) -> int:
        return a + b


def is_bad(seed: int) -> bool:
    """Whether the call with this seed raises: one of eight."""
    return random.Random(seed * 3 + 1).random() < 0.125


class Steps:
    """Does random things to the states and timers of the current key, which depend on a seed alone."""

    def __init__(self, context: Any, *, timed: bool = True) -> None:
        get = context
        ttl = StateTtlConfig.new_builder(Time.milliseconds(40)).set_ttl_time_characteristic(
            StateTtlConfig.TtlTimeCharacteristic.EventTime
        )
        self.long = get.get_state(ValueStateDescriptor("long", Types.LONG()))
        self.double = get.get_state(ValueStateDescriptor("double", Types.DOUBLE()))
        self.flag = get.get_state(ValueStateDescriptor("flag", Types.BOOLEAN()))
        self.text = get.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.row = get.get_state(ValueStateDescriptor("row", "struct<a: long, b: array<long>>"))
        self.list = get.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map = get.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        self.most = get.get_reducing_state(ReducingStateDescriptor("most", max, Types.LONG()))
        self.sum = get.get_aggregating_state(AggregatingStateDescriptor("sum", _Sum(), Types.LONG()))
        self.values = [self.long, self.double, self.flag, self.text, self.row, self.most, self.sum]
        self.timed = timed
        if timed:
            for kind, what in (("value", Types.LONG()), ("list", Types.LONG())):
                descriptor = {"value": ValueStateDescriptor, "list": ListStateDescriptor}[kind](
                    f"short {kind}", what
                )
                descriptor.enable_time_to_live(ttl.build())
                handle = get.get_state(descriptor) if kind == "value" else get.get_list_state(descriptor)
                setattr(self, f"short_{kind}", handle)
            descriptor = MapStateDescriptor("short map", Types.STRING(), Types.LONG())
            descriptor.enable_time_to_live(ttl.build())
            self.short_map = get.get_map_state(descriptor)

    def look(self) -> int:
        """A number that depends on all states of the key."""
        found = [self.long.value(), self.double.value(), self.flag.value(), self.text.value()]
        found += [self.row.value(), list(self.list.get()), sorted(self.map.items())]
        found += [self.most.get(), self.sum.get()]
        if self.timed:
            found += [self.short_value.value(), list(self.short_list.get()), sorted(self.short_map.items())]
        return hash_of(repr(found))

    def step(self, n: int, at: int, choice: random.Random, timers: Any) -> None:
        what = choice.randrange(24 if self.timed else 20)
        name = f"n{n % 3}"
        if what == 0:
            self.long.update(n)
        elif what == 1:
            self.double.update(n / 3)
        elif what == 2:
            self.flag.update(n % 2 == 0)
        elif what == 3:
            self.text.update(str(n))
        elif what == 4:
            self.row.update((n, [n, n + 1]))
        elif what == 5:
            self.list.add(n)
        elif what == 6:
            self.list.add_all([n, n + 1, n + 2])
        elif what == 7:
            self.list.update([n] * (n % 4))
        elif what == 8:
            self.list.clear()
        elif what in (9, 10):
            self.map.put(name, n)
        elif what == 11:
            self.map.put_all({name: n, str(n % 11): n, "x": n})
        elif what == 12:
            self.map.remove(name)
        elif what == 13:
            self.map.clear()
        elif what == 14:
            self.most.add(n % 100)
            self.sum.add(n % 100)
        elif what == 15:
            self.values[n % len(self.values)].clear()
        elif what == 16:
            timers.register_event_time_timer(at + n % 50)
        elif what == 17:
            timers.register_event_time_timer(at + n % 70, name=name)
        elif what == 18:
            if n % 3:
                timers.delete_event_time_timer(name=name)
            else:
                timers.delete_event_time_timer(timers.next_event_time_timer() or at)
        elif what == 19:
            if n % 5 == 0:
                timers.delete_all_timers()
            else:
                self.look()
        elif what == 20:
            self.short_value.update(n)
        elif what == 21:
            self.short_list.add(n)
        elif what == 22:
            self.short_map.put(name, n)
        elif what == 23:
            (self.short_value, self.short_list, self.short_map)[n % 3].clear()

    def call(self, seed: int, at: int, ctx: Any, key: Any, raises: bool) -> Iterator[Any]:
        """Do up to ten steps, with results between them; a bad seed raises after some of them."""
        bad = is_bad(seed)
        if bad and not raises:
            return
        choice = random.Random(seed)
        steps = choice.randrange(11)
        fault = choice.randrange(steps + 1) if bad else -1
        for k in range(steps + 1):
            if k == fault:
                if seed % 3 == 0:
                    yield key, "no number"  # does not fit
                if seed % 3 == 1:
                    yield SIDE, "no number"
                raise RuntimeError(f"seed {seed}")
            n = choice.randrange(1000)
            self.step(n, at, choice, ctx.timer_service())
            if n % 4 == 0:
                yield key, self.look()
            elif n % 4 == 1:
                ctx.output(SIDE, n)
            elif n % 4 == 2:
                yield SIDE, n


def hash_of(text: str) -> int:
    """A number that depends on a text, the same in all processes."""
    return int.from_bytes(np.frombuffer(text.encode(), np.uint8).sum().tobytes()[:4], "little") * 1000 + len(
        text
    )


class Rows(KeyedProcessFunction):
    """Rows have the columns key, at and seed."""

    _timed = True

    def __init__(self, raises: bool) -> None:
        self.raises = raises

    def open(self, runtime_context: Any) -> None:
        self.steps = Steps(runtime_context, timed=self._timed)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self.steps.call(value.seed, value.at, ctx, value.key, self.raises)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        seed = hash_of(f"{key} {timestamp} {ctx.timer_name()}")
        yield from self.steps.call(seed, timestamp, ctx, key, self.raises)
        if not is_bad(seed):
            yield key, timestamp


class TwoInputs(KeyedCoProcessFunction):
    def __init__(self, raises: bool) -> None:
        self.rows = Rows(raises)

    def open(self, runtime_context: Any) -> None:
        self.rows.open(runtime_context)

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self.rows.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self.rows.process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield from self.rows.on_timer(timestamp, ctx)


class Broadcast(KeyedBroadcastProcessFunction):
    """Rules have the columns name and n."""

    def __init__(self, raises: bool) -> None:
        self.rows = Rows(raises)
        self.raises = raises

    def open(self, runtime_context: Any) -> None:
        self.rows.open(runtime_context)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from self.rows.process_element(value, ctx)
        if not is_bad(value.seed):
            yield value.key, ctx.get_broadcast_state(RULES).get("a") or 0

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if is_bad(value.n) and not self.raises:
            return
        states = ctx.get_broadcast_state(RULES)
        for k in range(value.n % 4):
            states.put("abcd"[k], value.n)
            ctx.output(SIDE, value.n)
            yield value.name, k
        if value.n % 5 == 0:
            states.remove("b")
        ctx.apply_to_keyed_state(ValueStateDescriptor("long", Types.LONG()), lambda _, s: s.update(value.n))
        if is_bad(value.n):
            raise LookupError(value.n)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield from self.rows.on_timer(timestamp, ctx)


@dataclass
class Columns(BatchProcessFunction):
    """The same with columns: calls with a bad row raise, and all changes of other keys with them."""

    raises: bool
    deletes: bool = True

    def open(self, runtime_context: Any) -> None:  # type: ignore[override]
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))

    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[Any]:
        yield from self._call(batch.column("key"), np.array(batch.column("seed")), ctx)

    def on_timers(self, due: Any, ctx: Any) -> Iterator[Any]:
        keys = ctx.keys(due.ids).column("key")
        names = zip(keys.to_pylist(), due.timestamps.tolist(), due.names, strict=True)
        seeds = np.array([hash_of(f"{key} {at} {name}") for key, at, name in names])
        yield from self._call(keys, seeds, ctx)

    def _call(self, keys: pa.Array, seeds: np.ndarray, ctx: Any) -> Iterator[Any]:
        bad = np.array([is_bad(seed) for seed in seeds.tolist()], bool)
        ids, times = ctx.ids, ctx.timestamps
        if not self.raises:
            good = np.flatnonzero(~bad)
            ids, times, seeds, keys = ids[good], times[good], seeds[good], keys.take(pa.array(good))
        if not len(ids):
            return
        timers = ctx.timer_service()
        of_key, first = np.unique(ids, return_index=True)
        sums = np.array(self.count.values(of_key).fill_null(0)) + np.array(
            [seeds[ids == id_].sum() for id_ in of_key.tolist()]
        )
        self.count.update_many(of_key, sums)
        some = seeds % 3 == 0
        timers.register_event_time_timers(ids[some], times[some] + seeds[some] % 40, name="moved")
        timers.register_event_time_timers(ids[~some], times[~some] + seeds[~some] % 25)
        gone = (seeds % 5 == 0) & self.deletes
        timers.delete_event_time_timers(ids[gone], name="moved")
        timers.delete_event_time_timers(ids[gone], times[gone] + 7)
        for id_, seed in zip(ids.tolist(), seeds.tolist(), strict=True):
            ctx.set_current_key(id_)
            self.list.add(seed)
            if seed % 7 == 0:
                self.list.update([seed])
        yield pa.record_batch({"key": keys.take(pa.array(first)), "n": pa.array(sums)})
        kept = ids[seeds % 4 == 0]
        self.text.update_many(kept, [str(n) for n in kept.tolist()])
        if bad.any() and self.raises:
            raise RuntimeError(f"{np.count_nonzero(bad)} bad ones")
