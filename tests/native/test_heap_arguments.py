"""Every argument of the heaps: valid values, errors that name the argument, and no change after an error."""

import datetime
import inspect

import numpy as np
import pytest
from heap_model import INT64_MAX, INT64_MIN

from timerheap import KeyTimerHeap, TimerHeap

ONE = {
    "push": ["timestamp", "key_hash", "namespace"],
    "remove": ["timestamp", "key_hash", "namespace"],
    "reschedule": ["timestamp", "new_timestamp", "key_hash", "namespace"],
    "timestamp_of": ["key_hash", "namespace"],
}
MANY = {
    "push_many": ["timestamps", "key_hashes", "namespaces"],
    "remove_many": ["timestamps", "key_hashes", "namespaces"],
    "reschedule_many": ["timestamps", "new_timestamps", "key_hashes", "namespaces"],
    "remove_keys": ["key_hashes"],
    "timestamps_of": ["key_hashes", "namespaces"],
}


def arguments_of(methods):
    cases = []
    for kind in (TimerHeap, KeyTimerHeap):
        for method, names in methods.items():
            if not hasattr(kind, method):
                continue
            if kind is KeyTimerHeap and method in ("remove", "remove_many"):
                names = names[1:]
            label = f"{kind.__name__}.{method}"
            cases += [pytest.param(kind, method, names, name, id=f"{label}-{name}") for name in names]
    return cases


def some_heap(kind):
    heap = kind()
    heap.push_many([5, 3, INT64_MAX, INT64_MIN], [1, 2, 3, 4], [0, 0, 7, 7])
    return heap


class Index:
    """An object that is not an int but has ``__index__``."""

    def __index__(self):
        return 5


BAD_INTS = [
    (5.0, TypeError, "5.0 (float)"),
    (float("nan"), TypeError, "nan (float)"),
    ("5", TypeError, "'5' (str)"),
    (None, TypeError, "None (NoneType)"),
    (True, TypeError, "True (bool)"),
    (np.bool_(True), TypeError, "bool"),
    (np.float64(5), TypeError, "float64"),
    (np.array([1, 2]), TypeError, "array([1, 2]) (ndarray)"),
    (np.datetime64("2013-01-01", "ms"), TypeError, "datetime64[ms]"),
    (datetime.datetime(2013, 1, 1), TypeError, "int(x.timestamp() * 1000)"),
    (2**63, OverflowError, "9223372036854775808"),
    (-(2**63) - 1, OverflowError, "-9223372036854775809"),
    (np.uint64(2**63), OverflowError, "9223372036854775808"),
]


@pytest.mark.parametrize(("value", "error", "shown"), BAD_INTS, ids=[str(row[0]) for row in BAD_INTS])
@pytest.mark.parametrize(("kind", "method", "names", "name"), arguments_of(ONE))
def test_an_invalid_integer_raises_and_changes_nothing(kind, method, names, name, value, error, shown):
    heap = some_heap(kind)
    before = heap.to_bytes()
    with pytest.raises(error) as caught:
        getattr(heap, method)(**{**dict.fromkeys(names, 1), name: value})
    assert str(caught.value).startswith(f"{name} must ")
    assert shown in str(caught.value)
    assert heap.to_bytes() == before


@pytest.mark.parametrize(
    "value", [5, np.int8(5), np.uint64(5), np.array(5), Index()], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize(("kind", "method", "names", "name"), arguments_of(ONE))
def test_any_kind_of_integer_is_accepted(kind, method, names, name, value):
    heap, same = some_heap(kind), some_heap(kind)
    plain = {**dict.fromkeys(names, 1), name: 5}
    assert getattr(heap, method)(**{**plain, name: value}) == getattr(same, method)(**plain)
    assert set(heap) == set(same)


BAD_COLUMNS = [
    (np.array([1.0, 2.0]), TypeError, "float64"),
    (np.array([1.0, np.nan]), TypeError, "float64"),
    ([1, 2.5], TypeError, "[1] must be an integer, got 2.5 (float)"),
    ([1, None], TypeError, "[1] must be an integer, got None (NoneType)"),
    ([1, float("nan")], TypeError, "[1] must be an integer, got nan (float)"),
    (["1", "2"], TypeError, "[0] must be an integer, got '1' (str)"),
    (np.array([1, 2], object), TypeError, "object"),
    (np.array([True, False]), TypeError, "bool"),
    ([True, False], TypeError, "[0] must be an integer, got True (bool)"),
    (np.array(["a", "b"]), TypeError, "<U1"),
    (np.array([1, 2], complex), TypeError, "complex128"),
    (np.array(["2013", "2014"], "M8[ms]"), TypeError, "astype(np.int64)"),
    (np.array([1, 2], "m8[ms]"), TypeError, "astype(np.int64)"),
    (np.array([(1,), (2,)], [("a", "i8")]), TypeError, "[('a', '<i8')]"),
    ([[1, 2], [3, 4]], ValueError, "shape (2, 2)"),
    (np.ones((2, 1), np.int64), ValueError, "shape (2, 1)"),
    ([[1], [2, 3]], ValueError, "one-dimensional"),
    ([1, 2, 3], ValueError, "has 3"),
    ([1], ValueError, "has 1"),
    ([], ValueError, "has 0"),
    (np.ma.masked_array([1, 2], [False, True]), ValueError, "masked"),
    (np.array([1, 2**63], np.uint64), OverflowError, "[1] = 9223372036854775808"),
    ([1, 2**63], OverflowError, "9223372036854775808"),
    ([1, 2**64], OverflowError, "18446744073709551616"),
    ([2**63, -1], OverflowError, "9223372036854775808"),
    ([-(2**63) - 1, 1], OverflowError, "-9223372036854775809"),
    (2**63, OverflowError, "9223372036854775808"),
    (1.0, TypeError, "1.0 (float)"),
    (None, TypeError, "None (NoneType)"),
    ("12", TypeError, "'12' (str)"),
    ({1, 2}, TypeError, "(set)"),
    (np.array(1.0), TypeError, "array(1.) (ndarray)"),
]


@pytest.mark.parametrize(("value", "error", "shown"), BAD_COLUMNS, ids=range(len(BAD_COLUMNS)))
@pytest.mark.parametrize(("kind", "method", "names", "name"), arguments_of(MANY))
def test_an_invalid_column_raises_and_changes_nothing(kind, method, names, name, value, error, shown):
    if method == "remove_keys" and shown.startswith("has "):
        return  # a single column may have any length
    heap = some_heap(kind)
    before = heap.to_bytes()
    with pytest.raises(error) as caught:
        getattr(heap, method)(**{**dict.fromkeys(names, np.array([1, 2])), name: value})
    assert shown in str(caught.value)
    assert any(part in str(caught.value) for part in (f"{name} ", f"{name}["))
    assert heap.to_bytes() == before


GOOD_COLUMNS = {
    "list": [5, 3],
    "tuple": (5, 3),
    "range": range(5, 1, -2),
    "int8": np.array([5, 3], np.int8),
    "uint32": np.array([5, 3], np.uint32),
    "uint64": np.array([5, 3], np.uint64),
    "longlong": np.array([5, 3], np.longlong),
    "big-endian": np.array([5, 3], ">i8"),
    "reversed": np.array([3, 5])[::-1],
    "strided": np.array([5, 0, 0, 3])[::3],
    "broadcast": np.broadcast_to(np.array([5]), 2),
    "field": np.array([(1, 5), (1, 3)], [("a", "i4"), ("b", "i8")])["b"],
    "unaligned": np.frombuffer(b"x" + np.array([5, 3]).tobytes(), np.int64, offset=1),
    "read-only": np.frombuffer(np.array([5, 3]).tobytes(), np.int64),
    "not masked": np.ma.masked_array([5, 3], [False, False]),
    "one value": 5,
    "zero-dimensional": np.array(5),
}


@pytest.mark.parametrize("form", GOOD_COLUMNS)
@pytest.mark.parametrize(("kind", "method", "names", "name"), arguments_of(MANY))
def test_any_form_of_column_is_accepted(kind, method, names, name, form):
    heap, same = some_heap(kind), some_heap(kind)
    value = GOOD_COLUMNS[form]
    plain = [int(v) for v in np.broadcast_to(np.asarray(value), 2)]
    arguments = {other: np.array([1, 2]) if other != "namespaces" else 0 for other in names}
    if np.ndim(value) == 0 and method != "remove_keys":
        arguments[next(other for other in names if other != name)] = np.array([1, 2])
    result = getattr(heap, method)(**{**arguments, name: value})
    assert np.array_equal(result, getattr(same, method)(**{**arguments, name: plain}))
    assert set(heap) == set(same)
    heap._check()


EVERY = {(case.values[0], case.values[1]): case.values[2] for case in arguments_of(MANY)}


@pytest.mark.parametrize(("kind", "method"), EVERY)
def test_a_call_with_empty_columns_changes_nothing(kind, method):
    heap = some_heap(kind)
    for empty in ([], (), range(0), np.empty(0, np.int64), np.empty(0, np.uint8)):
        result = getattr(heap, method)(*[empty] * len(EVERY[kind, method]))
        assert result == 0 if method == "remove_keys" else np.shape(result)[-1] == 0
    assert len(heap) == 4


@pytest.mark.parametrize(("kind", "method"), EVERY)
def test_a_call_with_integers_only_raises(kind, method):
    heap = some_heap(kind)
    if method == "remove_keys":
        assert heap.remove_keys(1) == 1
        return
    with pytest.raises(TypeError, match="must be an array"):
        getattr(heap, method)(*[1] * len(EVERY[kind, method]))
    assert len(heap) == 4


@pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])
@pytest.mark.parametrize(("value", "error", "shown"), BAD_INTS, ids=[str(row[0]) for row in BAD_INTS])
def test_an_invalid_watermark_limit_or_capacity_raises(kind, value, error, shown):
    heap = some_heap(kind)
    before = heap.to_bytes()
    with pytest.raises(error, match="watermark must"):
        heap.pop_due(value)
    with pytest.raises(error, match="watermark must"):
        heap.count_due(value)
    with pytest.raises(error, match="n must"):
        heap.reserve(value)
    with pytest.raises(error, match="capacity must"):
        kind(value)
    if value is not None:
        with pytest.raises(error, match="limit must"):
            heap.pop_due(5, value)
    assert heap.to_bytes() == before


@pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])
def test_a_negative_limit_or_capacity_raises(kind):
    heap = some_heap(kind)
    with pytest.raises(ValueError, match="limit must not be negative, got -1"):
        heap.pop_due(5, -1)
    with pytest.raises(ValueError, match="n must not be negative, got -3"):
        heap.reserve(-3)
    with pytest.raises(ValueError, match="capacity must not be negative, got -3"):
        kind(-3)
    assert len(heap) == 4


def test_timers_and_keys_are_found_in_a_heap():
    heap = some_heap(TimerHeap)
    assert (5, 1, 0) in heap
    assert (5, 1) in heap
    assert heap.peek() in heap
    assert (5, 2) not in heap
    for bad in (5, "ab", (5,), (5, 1, 0, 0), [5, 1]):
        with pytest.raises(TypeError, match="must be a tuple"):
            bad in heap  # noqa: B015
    with pytest.raises(TypeError, match="key_hash must be an integer"):
        (5, 1.0) in heap  # noqa: B015

    by_key = some_heap(KeyTimerHeap)
    assert 1 in by_key
    assert (1, 0) in by_key
    assert by_key.peek() in by_key
    assert (6, 1, 0) not in by_key
    assert 3 not in by_key
    assert (3, 7) in by_key
    with pytest.raises(TypeError, match="a timer must be a key_hash"):
        (5, 1, 0, 0) in by_key  # noqa: B015
    with pytest.raises(TypeError, match="key_hash must be an integer"):
        "ab" in by_key  # noqa: B015


def test_an_unknown_argument_raises():
    with pytest.raises(TypeError):
        TimerHeap(size=5)
    with pytest.raises(TypeError):
        TimerHeap().push(5)
    assert not hasattr(KeyTimerHeap, "reschedule")
    assert not hasattr(KeyTimerHeap, "reschedule_many")
    assert inspect.signature(TimerHeap.push).parameters["namespace"].default == 0
