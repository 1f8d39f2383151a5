"""The manual clock, and what both clocks do alike; no test depends on the speed of the machine."""

from concurrent.futures import CancelledError

import pytest

from timerheap.flink import ManualProcessingTimeService, SystemProcessingTimeService

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
LONG = 60  # seconds; a timeout that no test reaches
FAR = 10**9  # milliseconds


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


# ---- both ----


def test_a_cancelled_callback_has_a_cancelled_future(either):
    future = either.register_timer(either.get_current_processing_time() + FAR, print)
    assert future.cancel() is True
    assert future.cancelled()
    assert future.cancel() is True
    with pytest.raises(CancelledError):
        future.result(timeout=0)


def test_registering_after_shutdown_raises(either):
    waiting = either.register_timer(either.get_current_processing_time() + FAR, print)
    assert not either.is_terminated()
    either.shutdown_service()
    assert either.is_terminated()
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="shut down"):
        either.register_timer(0, print)
    either.shutdown_service()
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


def test_a_callback_may_shut_the_service_down():
    with SystemProcessingTimeService() as clock:
        clock.register_timer(0, lambda _: clock.shutdown_service()).result(timeout=LONG)
        assert clock.is_terminated()
