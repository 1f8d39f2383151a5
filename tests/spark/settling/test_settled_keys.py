"""A group whose keys settle does in each micro-batch what a plain group does, and writes the same chunks."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from live_files import reads_single_pages
from settled_files import (
    Live,
    Repeated,
    Sessions,
    query,
    rows_of,
    rows_of_batch,
    watermark_of,
)
from settling_groups import ALWAYS, DEFAULT, LIVE, Driven, Pair

from timerheap import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)

TTL = StateTtlConfig.new_builder(Time.milliseconds(40)).build()
BY_EVENTS = (
    StateTtlConfig.new_builder(Time.milliseconds(30))
    .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime)
    .build()
)


def with_ttl(descriptor: ValueStateDescriptor, config: StateTtlConfig) -> ValueStateDescriptor:
    descriptor.enable_time_to_live(config)
    return descriptor


class Ops(KeyedProcessFunction):
    """Does what the op of a row says, and tells all that it sees."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.ratio = runtime_context.get_state(ValueStateDescriptor("ratio", Types.DOUBLE()))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", Types.LONG()))
        self.seen = runtime_context.get_state(with_ttl(ValueStateDescriptor("seen", Types.LONG()), TTL))
        self.last = runtime_context.get_state(with_ttl(ValueStateDescriptor("last", Types.INT()), BY_EVENTS))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        timers, op, arg = ctx.timer_service(), value.op, value.arg
        if op == 0:
            timers.register_event_time_timer(value.at + arg, name="end")
            if arg % 4 == 0:
                self.log.add(arg)
        elif op == 1:
            timers.register_event_time_timer(value.at + arg)
        elif op == 2:
            timers.delete_event_time_timer(value.at + arg)
            timers.register_processing_time_timer(timers.current_processing_time() + arg)
        elif op == 3:
            self.count.clear()
            self.log.clear()
            self.text.clear()
        elif op == 4:
            self.ratio.update(float("nan") if arg % 7 == 0 else arg / 3)
            self.text.update("x" * (5000 if arg % 11 == 0 else arg))
        elif op == 5:
            self.seen.update(arg)
            self.last.update(arg)
        elif op == 6:
            timers.register_event_time_timer(value.at - arg)  # fires with the next advance
        elif op == 7:
            timers.register_processing_time_timer(timers.current_processing_time() + 3 * arg, name="late")
        elif op == 8:
            timers.delete_event_time_timer(name="end")
        yield self._told("row", ctx, op)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        if timestamp % 3 == 0:
            for state in (self.count, self.ratio, self.log):
                state.clear()
        if timestamp % 5 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 20, name="again")
        yield self._told("timer", ctx, timestamp)

    def _told(self, what: str, ctx: Any, more: int) -> tuple[Any, ...]:
        if more != 3:
            self.count.update((self.count.value() or 0) + 1)
        held: list[Any] = [each.value() for each in (self.count, self.ratio, self.text, self.seen, self.last)]
        held += list(self.log)
        return ctx.get_current_key(), f"{what} {more} {held}"


def compare(seed: int, settling: Any, batches: int = 30, loads: float = 0.05) -> tuple[int, Driven]:
    """Compare a plain group with one whose keys settle, or that is loaded before that many micro-batches."""
    draw = random.Random(seed)
    function, order = (Ops, Ops, Sessions)[seed % 3], ("arrival", "event_time")[seed % 2]
    both = Pair((query(function(), order), query(function(), order)), settling)
    plain, other = both.plain, both.other
    keys, watermark, displaced = draw.choice([5, 80, 400]), 0, draw.random() < 0.2
    for number in range(batches):
        n = draw.choice([0, 1, 5, 60, 300]) if number else 600
        rows = rows_of(draw, n, watermark + draw.randrange(20), keys, displaced) if n else None
        advances = draw.random() < 0.7
        watermark += draw.choice([1, 20, 100]) * advances
        both.batch((seed, number), rows, watermark if advances else None, 40 * number)
        if draw.random() < 0.3:
            other.hand_over()
        if draw.random() < loads:
            other.load()
        if draw.random() < 0.05:
            plain.load()
    return keys, other


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("seed", range(4))
def test_a_group_whose_keys_settle_is_like_a_plain_group(seed: int) -> None:
    keys, other = compare(seed, ALWAYS)
    assert other.most > keys // 10


@pytest.mark.parametrize("seed", range(3))
def test_the_policy_makes_no_difference(seed: int) -> None:
    keys, other = compare(seed, replace(DEFAULT, above=2_000, records=16, ranges=2, least=3, share=4))
    assert keys == 5 or other.most > keys // 10


@pytest.mark.parametrize("seed", range(2))
def test_a_group_that_is_loaded_each_time_writes_what_others_write(seed: int) -> None:
    compare(seed, None, 15, loads=1)


def settled_group(n: int = 300) -> Driven:
    """Return a group most of whose keys have settled."""
    driven = Driven(query(Sessions(), "arrival"), ALWAYS)
    draw = random.Random(1)
    driven.batch(rows_of(draw, 4 * n, 0, n, False), 5, 0)
    driven.batch(None, 6, 1)
    assert driven.has_settled > n // 3
    assert not len(driven.group.keys.table)
    return driven


def test_damage_is_an_error_that_says_so() -> None:
    draw = random.Random(2)
    lost = 0
    for number in range(20):
        driven = settled_group(60)
        rows = rows_of(random.Random(1), 30, 20, 60, False)
        plain = settled_group(60)
        fd = driven.file.descriptor
        settled = driven.group.settling.settled
        assert settled is not None
        places = [each for _, _, _, places, _ in settled.head()[4] for each in places[:1]]
        at, nbytes = draw.choice(places)
        if number % 4:
            byte = at + draw.randrange(nbytes)
            os.pwrite(fd, bytes([os.pread(fd, 1, byte)[0] ^ 1 << draw.randrange(8)]), byte)
        else:
            os.pwrite(fd, bytes(nbytes), at)
        try:
            found = driven.batch(rows, 100, 2)
        except LIVE.SettledLost:
            lost += 1
        else:
            assert found == plain.batch(rows, 100, 2)
    assert lost > 10


def test_a_group_that_has_lost_keys_is_loaded_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, live, found = Driven(query(Sessions(), "arrival"), None), Live(tmp_path, monkeypatch), []
    for number in range(8):
        rows = rows_of_batch(number)
        if number in (3, 6):
            with live.file.open("r+b") as file:
                for start, stop in live.places:
                    file.seek(start)
                    file.write(bytes(stop - start))
        assert live.batch(number, rows) == plain.batch(rows, watermark_of(number), number)
        found.append({name: live.counts[name] for name in ("new", "continued", "loaded")})
        assert live.counts["keys"] > 10
        assert live.counts["bytes"] == sum(stop - start for start, stop in live.places)
        assert (live.counts["returned"] > 5) == (number > 0), "of those that have settled in a load, too"
    continued, again = {"new": 0, "continued": 1, "loaded": 0}, {"new": 0, "continued": 1, "loaded": 1}
    new = {"new": 1, "continued": 0, "loaded": 0}
    assert found == [new, *[continued] * 2, again, *[continued] * 2, again, continued]
    assert "live state was damaged" in str(live.mail.warnings)


def test_the_kernel_reads_nothing_around_keys_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(tmp_path, monkeypatch)
    for number, worker in enumerate(["", "", " b", " b"]):
        live.batch(number, rows_of_batch(number), worker)
        assert live.counts["keys"]
        assert reads_single_pages(tmp_path) == (number > 0), "from the first micro-batch on that finds runs"


def test_a_flipped_bit_in_any_page_of_a_run_changes_no_result(repeated: Repeated) -> None:
    draw = random.Random(1)
    for page in repeated.pages:
        at = page + draw.randrange(4096)
        bit = bytes([repeated.bytes[at] ^ 1 << draw.randrange(8)])
        assert repeated.batches(lambda at=at, bit=bit: repeated.change(at, bit)) == repeated.expected, at
    assert repeated.loads > len(repeated.pages) // 2, "the pages of the index are read by each worker"


def test_a_lost_or_displaced_page_of_a_run_changes_no_result(repeated: Repeated) -> None:
    for page, other in pairwise([*repeated.pages, repeated.pages[0]]):
        for data in (bytes(4096), repeated.bytes[other : other + 4096]):
            found = repeated.batches(lambda page=page, data=data: repeated.change(page, data))
            assert found == repeated.expected, page
    assert repeated.loads > len(repeated.pages)


def test_a_file_that_ends_at_any_page_of_a_run_changes_no_result(repeated: Repeated) -> None:
    for page in repeated.pages:
        assert repeated.batches(lambda page=page: repeated.truncate(page)) == repeated.expected, page
    assert repeated.loads == len(repeated.pages)


@contextmanager
def up_to(size: int) -> Iterator[None]:
    """Refuse to write what lies behind `size` in a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_at_any_page_changes_no_result(
    repeated: Repeated, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, told = repeated.live.batch, 0
    for size in range(0, len(repeated.bytes.rstrip(b"\0")) + (64 << 10), 4096):
        with monkeypatch.context() as patch:

            def limited(*arguments: Any, size: int = size) -> Any:
                with up_to(size):
                    return batch(*arguments)

            patch.setattr(repeated.live, "batch", limited)
            assert repeated.batches(lambda: None) == repeated.expected, size
        told += bool(repeated.live.mail.warnings)
    assert told > 10


def test_a_disk_that_is_full_at_any_reservation_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, left = os.posix_fallocate, 1000

    def reserved(fd: int, at: int, nbytes: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(fd, at, nbytes)

    def results(name: str) -> Any:
        (tmp_path / name).mkdir()
        live = Live(tmp_path / name, monkeypatch)
        return [live.batch(number, rows_of_batch(number)) for number in range(4)], live.store.chunks

    monkeypatch.setattr(os, "posix_fallocate", reserved)
    expected, times = results("undisturbed"), 1000 - left
    for most in range(times):
        left = most
        assert results(str(most)) == expected, most
        assert left < 0
    assert times > 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_worker_that_dies_at_any_page_that_it_writes_changes_no_result(repeated: Repeated) -> None:
    """The kernel kills a process that writes behind the limit."""
    died = 0
    for size in range(0, len(repeated.bytes.rstrip(b"\0")) + (64 << 10), 16 << 10):

        def dies(size: int = size) -> None:
            nonlocal died
            child = os.fork()
            if not child:
                with suppress(BaseException):
                    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
                    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                    with up_to(size):
                        repeated.batch(2, " of the child")
                os._exit(0)
            _, status = os.waitpid(child, 0)
            died += os.WIFSIGNALED(status)

        assert repeated.batches(lambda: None, dies) == repeated.expected, size
        assert repeated.live.file.suffix != ".taken", "the file of the dead is removed"
    assert died > 3


def test_keys_in_memory_have_a_share_of_what_a_container_leaves_for_files(tmp_path: Path) -> None:
    mib = 1 << 20
    for name, limit in (("a", "max"), ("a/b", f"{96 * mib}"), ("a/b/c", f"{160 * mib}"), ("memory/v1", "9")):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        file = "memory.limit_in_bytes" if "v1" in name else "memory.max"
        (tmp_path / name / file).write_text(limit + "\n")
    number = 0

    def above(text: str) -> int:
        nonlocal number
        number += 1
        path = tmp_path / str(number)
        path.write_text(text)
        found: int = LIVE.settling_of(3, False, path, tmp_path).above
        return found

    none = DEFAULT.above
    assert above("0::/a/b/c\n") == 4 * mib, "the limit of a group around it counts, too"
    assert above("0::/a\n") == none
    assert above("9:name=systemd:/a/b\n4:cpu,memory:/v1\n") == mib, "a group has at least so much"
    assert above("0::/elsewhere\n") == none
    assert LIVE.settling_of(3, False, tmp_path / "none", tmp_path).above == none
    (tmp_path / "a/b/memory.stat").write_text(f"file {mib}\nanon_thp 7\nanon {48 * mib}\n")
    assert above("0::/a/b/c\n") == 2 * mib, "what processes hold is no room"
    (tmp_path / "memory/v1/memory.limit_in_bytes").write_text(f"{96 * mib}\n")
    assert above("4:memory:/v1\n") == 4 * mib
    (tmp_path / "memory/v1/memory.stat").write_text(f"rss 3\ntotal_rss {24 * mib}\n")
    assert above("4:memory:/v1\n") == 3 * mib


def test_ranges_are_smaller_where_there_is_little_memory(tmp_path: Path) -> None:
    """Keys are copied when they settle, at most those of a range."""

    def in_memory_of(limit: int) -> Any:
        folder = tmp_path / str(limit)
        folder.mkdir()
        (folder / "memory.max").write_text(str(limit))
        (folder / "process").write_text("0::/\n")
        return LIVE.settling_of(1, False, folder / "process", folder)

    assert in_memory_of(1 << 40) == DEFAULT
    for limit, finer in ((128 << 20, 1), (32 << 20, 4), (1, 16)):
        found = in_memory_of(limit)
        assert found.records == DEFAULT.records // finer
        assert found.ranges == DEFAULT.ranges * finer, "a micro-batch writes as much"
        assert found.least == DEFAULT.least // finer


def test_a_key_with_a_waiting_row_stays_in_memory() -> None:
    driven = Driven(query(Sessions(), "event_time"), ALWAYS)
    driven.batch(rows_of(random.Random(1), 300, 1000, 60, False), 5, 0)
    assert not driven.has_settled, "all rows wait"
    driven.batch(None, 2000, 1)
    driven.batch(None, 2001, 2)
    assert not driven.has_settled, "all have fired"
