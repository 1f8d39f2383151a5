"""The system clock calls callbacks in its own thread; no test depends on the speed of the machine."""

import logging
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import SimpleNamespace

import pytest

import timerheap.flink.processing_time
from timerheap.flink import SystemProcessingTimeService

LONG = 60  # seconds; a timeout that no test reaches
FAR = 10**9  # milliseconds


def test_a_callback_is_called_after_its_timestamp(system):
    seen = []

    def callback(timestamp):
        seen.append((timestamp, system.get_current_processing_time(), threading.current_thread()))

    now = system.get_current_processing_time()
    futures = [system.register_timer(now + delay, callback) for delay in (20, 0, -50, 5)]
    for future in futures:
        assert future.result(timeout=LONG) is None
    assert sorted(timestamp - now for timestamp, _, _ in seen) == [-50, 0, 5, 20]
    assert all(timestamp < at for timestamp, at, _ in seen)
    assert len({thread for _, _, thread in seen}) == 1
    assert seen[0][2] is not threading.current_thread()


class StoppedTime:
    """A replacement of the ``time`` module whose time stands still until `let_go` is called."""

    def __init__(self):
        self.stopped_at, self.let_go_at = time.time_ns(), None

    def let_go(self):
        self.let_go_at = time.monotonic_ns()

    def time_ns(self):
        return self.stopped_at + (0 if self.let_go_at is None else time.monotonic_ns() - self.let_go_at)


def test_many_callbacks_are_called_once_and_in_order(monkeypatch):
    called = []
    stopped = StoppedTime()
    monkeypatch.setattr(timerheap.flink.processing_time, "time", stopped)
    monkeypatch.setattr(timerheap.flink.processing_time, "_LONGEST_WAIT", 0.01)
    with SystemProcessingTimeService() as clock:
        start = clock.get_current_processing_time()
        timestamps = [start + (i * 7919) % 1_000 for i in range(100_000)]
        futures = [clock.register_timer(timestamp, called.append) for timestamp in timestamps]
        stopped.let_go()
        for future in futures:
            future.result(timeout=LONG)
    assert called == sorted(timestamps)


def test_an_earlier_callback_does_not_wait_for_a_later_one(system):
    late = system.register_timer(system.get_current_processing_time() + FAR, print)
    for _ in range(3):
        system.register_timer(system.get_current_processing_time() + 1, str).result(timeout=LONG)
    assert not late.done()


def test_a_callback_may_register_another(system):
    called = threading.Event()

    def first(timestamp):
        system.register_timer(timestamp + 1, lambda _: called.set())

    system.register_timer(0, first)
    assert called.wait(LONG)


def test_exceptions_reach_the_handler_and_the_clock_continues():
    handled = []

    def handler(error):
        handled.append(error)
        raise RuntimeError("from the handler")

    def fail(timestamp):
        raise KeyError(timestamp)

    def leave(timestamp):
        raise SystemExit

    with SystemProcessingTimeService(handler) as clock:
        failed, left = clock.register_timer(0, fail), clock.register_timer(0, leave)
        assert clock.register_timer(0, str).result(timeout=LONG) is None
        assert isinstance(failed.exception(timeout=LONG), KeyError)
        assert isinstance(left.exception(timeout=LONG), SystemExit)
        assert handled == [failed.exception(), left.exception()]


def test_an_error_handler_that_is_not_callable_raises():
    with pytest.raises(TypeError, match="error_handler must be callable, got 'log'"):
        SystemProcessingTimeService("log")


def test_exceptions_are_logged_without_a_handler(system, caplog):
    with caplog.at_level(logging.ERROR, "timerheap.flink.processing_time"):
        with pytest.raises(ZeroDivisionError):
            system.register_timer(0, lambda _: 1 // 0).result(timeout=LONG)
        system.register_timer(0, str).result(timeout=LONG)
    assert "a processing-time callback failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_no_callback_runs_while_the_lock_is_held(system):
    ran = threading.Event()
    with system.lock:
        future = system.register_timer(0, lambda _: ran.set())
        assert not ran.wait(0.05)
        assert future.cancel() is True  # it waits for the lock and has not started
    system.register_timer(0, str).result(timeout=LONG)
    assert not ran.is_set()


def test_the_exit_of_a_block_waits_for_the_running_callback():
    running, go_on, done = threading.Event(), threading.Event(), []

    def callback(timestamp):
        running.set()
        assert go_on.wait(LONG)
        done.append(timestamp)

    with SystemProcessingTimeService() as clock:
        future = clock.register_timer(0, callback)
        next_one = clock.register_timer(0, callback)
        assert running.wait(LONG)
        clock.shutdown_service()
        assert next_one.cancelled()
        assert not future.done()
        go_on.set()
    assert done == [0]


def test_the_thread_ends_with_the_service():
    with SystemProcessingTimeService() as clock:
        before = set(threading.enumerate())
        clock.register_timer(0, str).result(timeout=LONG)
        (thread,) = set(threading.enumerate()) - before
    thread.join(LONG)
    assert not thread.is_alive()


def test_callbacks_are_called_after_the_system_clock_was_set(monkeypatch):
    now = [10**18]
    monkeypatch.setattr(timerheap.flink.processing_time, "time", SimpleNamespace(time_ns=lambda: now[0]))
    monkeypatch.setattr(timerheap.flink.processing_time, "_LONGEST_WAIT", 0.01)
    with SystemProcessingTimeService() as clock:
        future = clock.register_timer(clock.get_current_processing_time() + FAR, str)
        with pytest.raises(FutureTimeoutError):
            future.result(timeout=0.05)
        now[0] += FAR * 10**6 + 10**6
        assert future.result(timeout=LONG) is None
