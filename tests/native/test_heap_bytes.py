"""Stored heaps and the envelope: the exact format, and errors for invalid bytes."""

import pickle
import random
import struct

import numpy as np
import pytest
import xxhash
from heap_model import INT64_MAX, INT64_MIN
from hypothesis import given
from hypothesis import strategies as st

from timerheap import KeyTimerHeap, TimerHeap
from timerheap._native._core import from_text, seal, to_text, unseal, xxh64

both = pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])
NUMBER = {TimerHeap: 1, KeyTimerHeap: 2}


def sealed(kind, *columns):
    """Return the bytes of a heap with these columns."""
    payload = b"".join(struct.pack(f"<{len(column)}q", *column) for column in columns)
    header = struct.pack("<4sHHQ", b"TMRH", 1, NUMBER[kind], len(payload))
    return header + struct.pack("<Q", xxhash.xxh64_intdigest(header + payload)) + payload


# ---- the checksum ----


def test_xxh64_equals_the_xxhash_package():
    data = random.Random(1).randbytes(1000)
    for size in range(300):
        for seed in (0, 42, 2**64 - 1):
            assert xxh64(data[:size], seed) == xxhash.xxh64_intdigest(data[:size], seed)
    assert xxh64(np.arange(10_000)) == xxhash.xxh64_intdigest(np.arange(10_000))


@given(st.lists(st.binary(max_size=100), max_size=6))
def test_the_checksum_does_not_depend_on_the_parts(parts):
    whole = seal(16, b"".join(parts))
    assert seal(16, *parts) == whole
    assert bytes(unseal(16, whole)) == b"".join(parts)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_raises(seed):
    with pytest.raises(OverflowError, match="seed must be from 0"):
        xxh64(b"", seed)


# ---- the envelope ----


def test_the_envelope_has_the_documented_format():
    header, payload = bytes.fromhex("544d5248 0100 1000 0400000000000000"), b"ab\x01\x00"
    checksum = xxhash.xxh64_intdigest(header + payload).to_bytes(8, "little")
    assert seal(16, b"ab", np.array([1], "<i2")) == header + checksum + payload


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_unseal_copies_nothing(form):
    data = form(seal(500, bytes(100)))
    payload = unseal(500, data)
    assert payload.readonly
    assert payload.nbytes == 100
    assert np.shares_memory(np.frombuffer(payload, np.uint8), np.frombuffer(data, np.uint8))


DAMAGED = {
    "": "too short: 0 bytes",
    "short": "too short: 23 bytes",
    "magic": "begins with b'TMRX'",
    "newer": "format version 2: this build of timerheap reads version 1",
    "kind": "holds a KeyTimerHeap, not a TimerHeap",
    "unknown kind": "holds kind 17, not a TimerHeap",
    "cut off": "47 bytes, its header says 48",
    "longer": "49 bytes, its header says 48",
    "payload": "checksum",
    "checksum": "checksum",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_errors_name_the_damage(damage):
    heap = TimerHeap()
    heap.push_many([1, 2], [3, 4])
    good = heap.to_bytes()
    bad = {
        "": b"",
        "short": good[:23],
        "magic": good[:3] + b"X" + good[4:],
        "newer": good[:4] + b"\x02" + good[5:],
        "kind": sealed(KeyTimerHeap, [1, 2], [3, 4], [0, 0]),
        "unknown kind": seal(17, good[24:]),
        "cut off": good[:-1],
        "longer": good + b"\x00",
        "payload": good[:-1] + b"\x01",
        "checksum": good[:16] + b"\xff\xff" + good[18:],
    }[damage]
    with pytest.raises(ValueError, match=DAMAGED[damage].replace("(", r"\(")):
        TimerHeap.from_bytes(bad)
    assert list(TimerHeap.from_bytes(good)) == list(heap)


@pytest.mark.parametrize("at", range(24 + 48))
def test_every_flipped_bit_raises(at):
    good = sealed(TimerHeap, [1, 2], [3, 4], [0, 0])
    for bit in range(8):
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        with pytest.raises(ValueError, match=r"data|version"):
            TimerHeap.from_bytes(bad)


@pytest.mark.parametrize("data", [5, "text", None, [1, 2], np.arange(100)[::2]])
def test_data_that_is_not_a_buffer_raises(data):
    for call in (TimerHeap.from_bytes, KeyTimerHeap.from_bytes, lambda data: unseal(1, data), xxh64, to_text):
        with pytest.raises(TypeError, match="data must be bytes or another contiguous buffer"):
            call(data)
    with pytest.raises(TypeError, match="part 1 must be bytes"):
        seal(16, b"", data)


@pytest.mark.parametrize(
    ("kind", "error"), [(-1, ValueError), (65536, ValueError), ("1", TypeError), (2**70, OverflowError)]
)
def test_an_invalid_kind_raises(kind, error):
    with pytest.raises(error, match="kind must"):
        seal(kind, b"")
    with pytest.raises(error, match="kind must"):
        unseal(kind, seal(1, b""))


# ---- text ----


@given(st.binary(max_size=100))
def test_bytes_come_back_from_ascii_text_a_seventh_longer(data):
    text = to_text(data)
    assert text.isascii()
    assert len(text) == -(-8 * len(data) // 7)
    assert from_text(text) == data
    bits = "".join(f"{ord(character):07b}"[::-1] for character in text)
    assert "".join(f"{byte:08b}"[::-1] for byte in data) == bits[: 8 * len(data)]


@pytest.mark.parametrize("text", ["é" * 8, "\u4e00", "seven or\x80", "a", "nine char"])
def test_text_that_holds_no_bytes_raises(text):
    with pytest.raises(ValueError, match="text must be what to_text"):
        from_text(text)
    with pytest.raises(TypeError, match="text must be a str, got b''"):
        from_text(b"")


@given(st.text(st.characters(codec="ascii"), max_size=20))
def test_text_is_read_only_if_its_bytes_give_the_same_text(text):
    try:
        data = from_text(text)
    except ValueError:
        return
    assert to_text(data) == text


@pytest.mark.parametrize("size", range(1, 15))
def test_a_bit_behind_the_last_byte_raises(size):
    text = to_text(bytes(size))
    for bit in range(7):
        changed = text[:-1] + chr(1 << bit)
        if 7 * (len(text) - 1) + bit < 8 * size:
            assert to_text(from_text(changed)) == changed
        else:
            with pytest.raises(ValueError, match="text must be what to_text"):
                from_text(changed)


# ---- heaps ----


@both
def test_a_stored_heap_has_the_documented_format(kind):
    heap = kind()
    heap.push(7, -1, INT64_MAX)
    heap.push(INT64_MIN, 2, 3)
    assert heap.to_bytes() == sealed(kind, [INT64_MIN, 7], [2, -1], [3, INT64_MAX])
    assert list(kind.from_bytes(heap.to_bytes())) == [(INT64_MIN, 2, 3), (7, -1, INT64_MAX)]
    assert kind().to_bytes() == sealed(kind)


@both
@pytest.mark.parametrize("n", [0, 1, 9, 10, 1000, 100_000])
def test_a_restored_heap_equals_the_stored_one(kind, n):
    rng = np.random.default_rng(n)
    heap = kind(2 * n)
    heap.push_many(rng.integers(INT64_MIN, INT64_MAX, n), np.arange(n), rng.integers(0, 3, n))
    for form in (bytes, bytearray, lambda b: memoryview(b"x" + b)[1:]):  # unaligned as well
        again = kind.from_bytes(form(heap.to_bytes()))
        again._check()
        assert type(again) is kind
        assert again.to_bytes() == heap.to_bytes()
    assert again.nbytes <= 36 * n + 64
    again = pickle.loads(pickle.dumps(heap))
    assert again.to_bytes() == heap.to_bytes()
    again.push(5, -5)
    assert len(again) == n + 1
    again._check()


def test_a_subclass_is_restored_as_itself():
    heap = pickle.loads(pickle.dumps(Special(50)))
    assert type(heap) is Special
    assert type(Special.from_bytes(heap.to_bytes())) is Special


class Special(TimerHeap):
    pass


@pytest.mark.parametrize(
    ("kind", "columns", "text"),
    [
        (TimerHeap, ([2, 1], [0, 0], [0, 0]), "comes before its parent"),
        (TimerHeap, ([1, 1], [2, 1], [0, 0]), "comes before its parent"),
        (TimerHeap, ([1, 1], [1, 1], [0, -1]), "comes before its parent"),
        (TimerHeap, ([1, 1], [1, 1], [0, 0]), "two timers have the same identity"),
        (TimerHeap, ([1, 2, 1], [0, 0, 0], [0, 0, 0]), "two timers have the same identity"),
        (KeyTimerHeap, ([1, 2], [1, 1], [0, 0]), "two timers have the same identity"),
        (TimerHeap, ([1, 2, 3, 4], [1]), "with 24 bytes a timer, got 40 bytes of columns"),
        (TimerHeap, ([INT64_MIN] + [5] * 8 + [4], range(10), [0] * 10), "comes before its parent"),
    ],
)
def test_invalid_columns_raise(kind, columns, text):
    with pytest.raises(ValueError, match=text):
        kind.from_bytes(sealed(kind, *columns))


@pytest.mark.parametrize(("first", "second"), [(0, 1), (0, 4999), (37, 69), (2500, 2501), (4000, 4999)])
def test_one_duplicate_timer_among_many_raises(first, second):
    for seed in range(10):  # each puts the timer at another place in the index
        keys = np.random.default_rng(seed).permutation(5000)
        KeyTimerHeap.from_bytes(sealed(KeyTimerHeap, range(5000), keys, [0] * 5000))._check()
        keys[second] = keys[first]
        with pytest.raises(ValueError, match="two timers have the same identity"):
            KeyTimerHeap.from_bytes(sealed(KeyTimerHeap, range(5000), keys, [0] * 5000))


@both
@pytest.mark.parametrize("at", range(24, 24 + 24 * 30, 7))
def test_bytes_changed_after_the_checksum_are_a_valid_heap_or_raise(kind, at, monkeypatch):
    heap = kind()
    heap.push_many(np.arange(30) // 3, np.arange(30) % 5, np.arange(30) // 5)
    data = bytearray(heap.to_bytes())
    frombuffer = np.frombuffer

    def change(payload, dtype):  # from_bytes calls it after verifying the checksum
        data[at] ^= 1
        return frombuffer(payload, dtype)

    monkeypatch.setattr(np, "frombuffer", change)
    try:
        other = kind.from_bytes(data)
    except ValueError as error:
        assert "data must be a valid heap" in str(error)  # noqa: PT017
    else:
        other._check()
    assert bytes(data) != heap.to_bytes()


@given(st.binary(max_size=400), st.sampled_from([TimerHeap, KeyTimerHeap]))
def test_any_payload_is_a_valid_heap_or_raises(payload, kind):
    data = seal(NUMBER[kind], payload)
    try:
        heap = kind.from_bytes(data)
    except ValueError:
        return
    heap._check()
    assert heap.to_bytes() == data


@given(st.lists(st.integers(0, 3), max_size=60), st.sampled_from([TimerHeap, KeyTimerHeap]))
def test_any_columns_are_a_valid_heap_or_raise(values, kind):
    n = len(values) // 3
    columns = values[:n], values[n : 2 * n], values[2 * n : 3 * n]
    rows = list(zip(*columns, strict=True))
    identities = rows if kind is TimerHeap else [row[1:] for row in rows]
    valid = len(set(identities)) == n and all(rows[(i - 1) // 8] < rows[i] for i in range(1, n))
    data = sealed(kind, *columns)
    if valid:
        assert list(kind.from_bytes(data)) == rows
    else:
        with pytest.raises(ValueError, match="data must be a valid heap"):
            kind.from_bytes(data)
