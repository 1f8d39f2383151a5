"""The manual and the system clock; no test depends on the speed of the machine."""

import logging
import threading
import time
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import SimpleNamespace

import pytest

import timerheap.flink.processing_time
from timerheap import MAX_WATERMARK
from timerheap.flink import ManualProcessingTimeService, SystemProcessingTimeService

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
LONG = 60  # seconds; a timeout that no test reaches
FAR = 10**9  # milliseconds


@pytest.fixture
def system():
    with SystemProcessingTimeService() as clock:
        yield clock


@pytest.fixture(params=["system", "manual"])
def either(request):
    if request.param == "manual":
        yield ManualProcessingTimeService()
    else:
        yield request.getfixturevalue("system")


# ---- manual ----


@pytest.mark.parametrize("jump", [False, True])
def test_a_callback_is_due_when_the_clock_is_set_to_its_timestamp(jump):
    clock = ManualProcessingTimeService(jump=jump)
    called = []
    for timestamp in (30, 40):
        clock.register_timer(timestamp, called.append)
    for now, expected in ((29, []), (30, [30]), (39, [30]), (40, [30, 40])):
        clock.set_current_time(now)
        assert called == expected
    assert clock.get_active_timers() == []


@pytest.mark.parametrize("jump", [False, True])
def test_a_callback_registered_for_the_past_waits_until_the_clock_is_set(jump):
    clock = ManualProcessingTimeService(now=100, jump=jump)
    called = []
    for timestamp in (300, 100, 99, -5):
        clock.register_timer(timestamp, called.append)
    assert clock.get_active_timers() == [(-5, -5), (99, 99), (100, 100), (300, 300)]
    assert called == []
    clock.advance(0)
    assert called == [-5, 99, 100]


@pytest.mark.parametrize("jump", [False, True])
def test_callbacks_are_called_in_due_order_with_their_timestamps(jump):
    clock = ManualProcessingTimeService(jump=jump)
    called = []

    def callback(timestamp):
        called.append((timestamp, clock.get_current_processing_time()))

    for timestamp in (30, 10, 20, 10):
        clock.register_timer(timestamp, callback)
    clock.set_current_time(20)
    assert called == [(10, 20 if jump else 10)] * 2 + [(20, 20)]
    called.clear()
    clock.advance(15)
    assert clock.get_current_processing_time() == 35
    assert called == [(30, 35 if jump else 30)]


@pytest.mark.parametrize("jump", [False, True])
def test_a_due_callback_registered_by_a_callback_is_called(jump):
    clock = ManualProcessingTimeService(jump=jump)
    called = []

    def callback(timestamp):
        called.append(timestamp)
        if timestamp < 4:
            clock.register_timer(timestamp + 1, callback)
            clock.register_timer(timestamp + 100, callback)

    clock.register_timer(1, callback)
    clock.set_current_time(50)
    assert called == [1, 2, 3, 4]
    assert sorted(timestamp for timestamp, _ in clock.get_active_timers()) == [101, 102, 103]


def test_the_clock_may_be_set_back():
    clock = ManualProcessingTimeService(now=100)
    called = []
    clock.register_timer(100, called.append)
    clock.set_current_time(50)
    assert (clock.get_current_processing_time(), called) == (50, [])
    clock.register_timer(70, called.append)
    clock.set_current_time(101)
    assert called == [70, 100]


@pytest.mark.parametrize("jump", [False, True])
def test_an_exception_reaches_the_caller_and_loses_no_other_callback(jump):
    clock = ManualProcessingTimeService(jump=jump)
    called = []

    def fail(timestamp):
        raise KeyError(timestamp)

    clock.register_timer(1, called.append)
    failed = clock.register_timer(2, fail)
    clock.register_timer(3, called.append)
    with pytest.raises(KeyError, match="2"):
        clock.set_current_time(10)
    assert called == [1]
    assert isinstance(failed.exception(timeout=0), KeyError)
    clock.set_current_time(10)
    assert called == [1, 3]
    assert clock.get_current_processing_time() == 10


@pytest.mark.parametrize("jump", [False, True])
def test_a_callback_may_advance_the_clock(jump):
    clock = ManualProcessingTimeService(jump=jump)
    called = []
    clock.register_timer(5, lambda timestamp: clock.set_current_time(100))
    clock.register_timer(50, called.append)
    clock.set_current_time(20)
    assert (called, clock.get_current_processing_time()) == ([50], 100)


def test_the_clock_reaches_the_limits_of_int64():
    clock = ManualProcessingTimeService(now=INT64_MIN)
    called = []
    for timestamp in (INT64_MAX, INT64_MIN, INT64_MAX - 1):
        clock.register_timer(timestamp, called.append)
    clock.set_current_time(INT64_MAX - 1)
    assert called == [INT64_MIN, INT64_MAX - 1]
    clock.set_current_time(INT64_MAX)
    assert called == [INT64_MIN, INT64_MAX - 1, INT64_MAX]


def test_periodic_callbacks_are_called_at_a_fixed_rate():
    clock = ManualProcessingTimeService(now=1_000, jump=True)
    called = []
    future = clock.schedule_at_fixed_rate(called.append, 5, 10)
    clock.set_current_time(1_004)
    assert called == []
    clock.set_current_time(1_005)
    assert called == [1_005]
    clock.set_current_time(1_040)  # three late calls at once
    assert called == [1_005, 1_015, 1_025, 1_035]
    assert clock.get_active_timers() == [(1_045, 1_045)]
    assert future.cancel() is True
    clock.set_current_time(2_000)
    assert len(called) == 4
    assert clock.get_active_timers() == []


def test_a_periodic_callback_may_cancel_itself_and_continues_after_an_exception():
    clock = ManualProcessingTimeService()
    called = []

    def callback(timestamp):
        called.append(timestamp)
        if timestamp == 1:
            raise KeyError(timestamp)
        if timestamp == 3:
            future.cancel()

    future = clock.schedule_at_fixed_rate(callback, 1, 1)
    with pytest.raises(KeyError):
        clock.set_current_time(100)
    clock.set_current_time(100)
    assert called == [1, 2, 3]
    assert future.cancelled()


# ---- both ----


def test_a_cancelled_callback_has_a_cancelled_future(either):
    future = either.register_timer(either.get_current_processing_time() + FAR, print)
    assert future.cancel() is True
    assert future.cancelled()
    assert future.cancel() is True
    with pytest.raises(CancelledError):
        future.result(timeout=0)


def test_a_quiesced_service_accepts_callbacks_without_calling_them(either):
    called = []
    now = either.get_current_processing_time()
    waiting = either.register_timer(now + FAR, called.append)
    periodic = either.schedule_at_fixed_rate(called.append, FAR, 1)
    assert either.quiesce().result(timeout=LONG) is None
    assert waiting.cancelled()
    assert periodic.cancelled()
    assert not either.is_terminated()
    for future in (
        either.register_timer(now - 5, called.append),
        either.schedule_at_fixed_rate(called.append, 0, 1),
    ):
        with pytest.raises(FutureTimeoutError):
            future.result(timeout=0.02)
        assert not future.done()
        assert future.cancel() is True
    assert called == []
    either.quiesce().result(timeout=LONG)


def test_registering_after_shutdown_raises(either):
    waiting = either.register_timer(either.get_current_processing_time() + FAR, print)
    assert not either.is_terminated()
    either.shutdown_service()
    assert either.is_terminated()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        either.register_timer(0, print)
    with pytest.raises(RuntimeError, match="shut down"):
        either.schedule_at_fixed_rate(print, 0, 1)
    either.shutdown_service()
    either.quiesce().result(timeout=LONG)
    assert either.is_terminated()


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("register_timer", (1.5, print), TypeError, r"timestamp must be an int, got 1\.5"),
        ("register_timer", (True, print), TypeError, "timestamp must be an int, got True"),
        ("register_timer", ("1", print), TypeError, "timestamp must be an int, got '1'"),
        (
            "register_timer",
            (2**63, print),
            OverflowError,
            "timestamp must fit into 64 bits, got 9223372036854775808",
        ),
        ("register_timer", (1, None), TypeError, "callback must be callable, got None"),
        ("schedule_at_fixed_rate", (print, -1, 1), ValueError, "initial_delay must be 0 ms or more, got -1"),
        ("schedule_at_fixed_rate", (print, 0, 0), ValueError, "period must be 1 or more, got 0"),
        ("schedule_at_fixed_rate", (print, 0, 0.5), TypeError, r"period must be an int, got 0\.5"),
        ("schedule_at_fixed_rate", ("print", 0, 1), TypeError, "callback must be callable"),
        ("set_current_time", (None,), TypeError, "timestamp must be an int, got None"),
        ("set_current_time", (-(2**63) - 1,), OverflowError, "timestamp must fit"),
        ("advance", ("5",), TypeError, "delta must be an int, got '5'"),
        ("advance", (True,), TypeError, "delta must be an int"),
    ],
)
def test_errors_name_the_argument_and_change_nothing(method, arguments, error, message):
    clock = ManualProcessingTimeService(now=7)
    with pytest.raises(error, match=message):
        getattr(clock, method)(*arguments)
    assert clock.get_active_timers() == []
    assert clock.get_current_processing_time() == 7


# ---- system ----


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


def test_periodic_callbacks_have_regular_timestamps(system):
    called, enough = [], threading.Event()

    def callback(timestamp):
        called.append((timestamp, system.get_current_processing_time()))
        if len(called) == 5:
            future.cancel()
            enough.set()

    with system.lock:
        future = system.schedule_at_fixed_rate(callback, 3, 7)
    assert enough.wait(LONG)
    first = called[0][0]
    assert [timestamp for timestamp, _ in called] == [first + 7 * i for i in range(5)]
    assert all(timestamp <= at for timestamp, at in called)
    assert len(called) == 5


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


def test_a_periodic_callback_continues_after_exceptions():
    handled, enough = [], threading.Event()

    def fail(timestamp):
        if len(handled) == 3:
            enough.set()
        raise KeyError(timestamp)

    with SystemProcessingTimeService(handled.append) as clock:
        future = clock.schedule_at_fixed_rate(fail, 0, 2)
        assert enough.wait(LONG)
        assert future.cancel() is True
    timestamps = [error.args[0] for error in handled]
    assert timestamps == list(range(timestamps[0], timestamps[0] + 2 * len(timestamps), 2))


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


def test_quiesce_waits_for_the_running_callback(system):
    running, go_on = threading.Event(), threading.Event()

    def callback(timestamp):
        running.set()
        assert go_on.wait(LONG)

    future = system.register_timer(0, callback)
    next_one = system.register_timer(0, callback)
    assert running.wait(LONG)
    quiesced = system.quiesce()
    assert next_one.cancelled()
    assert not quiesced.done()
    assert not future.done()
    go_on.set()
    quiesced.result(timeout=LONG)
    assert future.result(timeout=LONG) is None


END = {
    "quiesce": lambda clock: clock.quiesce(),
    "shutdown_service": lambda clock: clock.shutdown_service(),
    "quiesce, then shutdown_service": lambda clock: (clock.quiesce(), clock.shutdown_service()),
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("end", END.values(), ids=END)
def test_a_periodic_callback_running_at_the_end_is_cancelled_when_it_returns(system, end, fails):
    called, running, go_on = [], threading.Event(), threading.Event()

    def callback(timestamp):
        called.append(timestamp)
        running.set()
        assert go_on.wait(LONG)
        if fails:
            raise KeyError(timestamp)

    future = system.schedule_at_fixed_rate(callback, 0, 1)
    assert running.wait(LONG)
    end(system)
    go_on.set()
    with pytest.raises(CancelledError):
        future.result(timeout=LONG)
    system.quiesce().result(timeout=LONG)
    assert future.cancelled()
    assert len(called) == 1


@pytest.mark.parametrize("end", END.values(), ids=END)
def test_a_periodic_callback_that_ends_the_service_is_cancelled(either, end):
    future = either.schedule_at_fixed_rate(lambda _: end(either), 0, 1)
    if isinstance(either, ManualProcessingTimeService):
        either.advance(100)
    with pytest.raises(CancelledError):
        future.result(timeout=LONG)


def test_a_callback_may_shut_the_service_down():
    with SystemProcessingTimeService() as clock:
        clock.register_timer(0, lambda _: clock.shutdown_service()).result(timeout=LONG)
        assert clock.is_terminated()


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


def test_a_periodic_callback_is_cancelled_at_the_limit_of_int64():
    clock = ManualProcessingTimeService(now=MAX_WATERMARK - 25)
    called = []
    future = clock.schedule_at_fixed_rate(called.append, 5, 10)
    clock.set_current_time(MAX_WATERMARK)
    assert future.cancelled()
    assert called == [MAX_WATERMARK - 20, MAX_WATERMARK - 10, MAX_WATERMARK]
    assert clock.get_active_timers() == []
