"""Flink's ``TimerSerializer``: timers as bytes that sort by timestamp."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from timerheap._arguments import int64
from timerheap.flink.internal_timer import InternalTimer
from timerheap.flink.serializers import SERIALIZERS, Rows, TypeSerializer
from timerheap.timer import MAX_WATERMARK, MIN_WATERMARK

__all__ = ["TimerSerializer", "timestamp_bytes"]

_SIGN = 1 << 63
_TIMESTAMP = struct.Struct(">Q")
_WITH_HASH_CODE = struct.Struct(">QI")
_new_timer = partial(tuple.__new__, InternalTimer)  # twice as fast as InternalTimer._make


def timestamp_bytes(timestamp: int) -> bytes:
    """Serialize an int64 to 8 bytes that sort in the same order: big-endian, with the sign bit flipped."""
    return _TIMESTAMP.pack(timestamp + _SIGN)


class TimerSerializer:
    """Serializes timers: the timestamp in 8 sortable bytes, then the key, then the namespace.

    Parameters
    ----------
    key_serializer, namespace_serializer : str or TypeSerializer, default "any"
        The serializers. Flink's own formats are ``"long"``, ``"int"``, ``"short"``,
        ``"byte"``, ``"double"``, ``"boolean"``, ``"string"``, ``"bytes"``, ``"void"`` (None, Flink's
        ``VoidNamespace``) and ``"time_window"`` (a tuple of start and end). ``"any"`` is timerheap's own
        format for values of different types: None, bools, ints of 64 bits, floats, strings, bytes and tuples
        of these, each after a byte that names its type. A `TypeSerializer` is used as it is.

    Raises
    ------
    TypeError, ValueError
        If a serializer is not a known name or a `TypeSerializer`.

    Notes
    -----
    Flink: ``TimerSerializer``, ``LongSerializer``, ``StringSerializer``, ``TimeWindow.Serializer``, ... The
    bytes equal Flink's if both serializers are Flink's. O(length of the key and the namespace) per timer.

    Examples
    --------
    >>> serializer = TimerSerializer("string", "time_window")
    >>> data = serializer.serialize((1_000, "k6", (0, 60_000)))
    >>> data.hex(" ", -8)
    '80000000000003e8 036b360000000000 0000000000000000 00ea60'
    >>> serializer.deserialize(data)
    InternalTimer(timestamp=1000, key='k6', namespace=(0, 60000))
    """

    def __init__(
        self,
        key_serializer: str | TypeSerializer = "any",
        namespace_serializer: str | TypeSerializer = "any",
    ) -> None:
        self.key_serializer = _serializer("key_serializer", key_serializer)
        self.namespace_serializer = _serializer("namespace_serializer", namespace_serializer)

    def __repr__(self) -> str:
        return f"TimerSerializer({self.key_serializer.name!r}, {self.namespace_serializer.name!r})"

    def serialize(
        self, timer: tuple[int, Any, Any], hash_code_of: Callable[[Any], int] | None = None
    ) -> bytes:
        """Serialize a timer.

        Parameters
        ----------
        timer : InternalTimer or tuple
            The timestamp, the key and the namespace.
        hash_code_of : callable, optional
            A function from the key to a uint32, stored in 4 bytes between the timestamp and the key.

        Raises
        ------
        TypeError, OverflowError, ValueError
            If the timestamp is not an int64, or a serializer cannot write the key or the namespace.
        """
        try:
            timestamp, key, namespace = timer
        except (TypeError, ValueError) as error:
            raise TypeError(f"timer must be (timestamp, key, namespace), got {timer!r}") from error
        if type(timestamp) is not int or not MIN_WATERMARK <= timestamp <= MAX_WATERMARK:
            timestamp = int64("timestamp", timestamp)
        hash_code = None if hash_code_of is None else hash_code_of(key)
        part, serializer = "key", self.key_serializer
        try:
            key_bytes = serializer.serialize(key)
            part, serializer = "namespace", self.namespace_serializer
            namespace_bytes = serializer.serialize(namespace)
        except _SERIALIZER_ERRORS as error:
            raise _error_naming(part, serializer, error) from error
        if hash_code is None:
            return _TIMESTAMP.pack(timestamp + _SIGN) + key_bytes + namespace_bytes
        return _WITH_HASH_CODE.pack(timestamp + _SIGN, hash_code) + key_bytes + namespace_bytes

    def serialize_key(self, key: Any) -> bytes:
        """Serialize a key as `serialize` does."""
        try:
            return self.key_serializer.serialize(key)
        except _SERIALIZER_ERRORS as error:
            raise _error_naming("key", self.key_serializer, error) from error

    def deserialize(self, data: bytes, start: int = 8) -> InternalTimer[Any, Any]:
        """Deserialize a timer whose key starts at `start`.

        Raises
        ------
        ValueError
            If the bytes are not exactly one timer.
        """
        try:
            (timestamp,) = _TIMESTAMP.unpack_from(data)
            key, at = self.key_serializer.deserialize(data, start)
            namespace, end = self.namespace_serializer.deserialize(data, at)
        except (ValueError, IndexError, OverflowError, RecursionError, struct.error) as error:
            raise self._invalid_data(data, str(error)) from error
        if end != len(data):
            raise self._invalid_data(data, f"it ends at {end}")
        return InternalTimer(timestamp - _SIGN, key, namespace)

    def serialize_many(
        self,
        timestamps: Sequence[int],
        keys: Sequence[Any],
        namespaces: Sequence[Any],
        hash_codes: npt.NDArray[np.uint32] | None = None,
    ) -> list[bytes]:
        """Serialize timers given as columns, and return them in sorted order; see `serialize`."""
        column = _int64_column(timestamps)
        heads = (column.view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8").view(np.uint8).reshape(-1, 8)
        if hash_codes is not None:
            heads = np.hstack((heads, hash_codes.astype(">u4").view(np.uint8).reshape(-1, 4)))
        part, serializer = "key", self.key_serializer
        try:
            written_keys = _written(serializer, keys)
            part, serializer = "namespace", self.namespace_serializer
            written_namespaces = _written(serializer, namespaces)
        except _SERIALIZER_ERRORS as error:
            raise _error_naming(part, serializer, error) from error
        if isinstance(written_keys, np.ndarray) and isinstance(written_namespaces, np.ndarray):
            rows = np.hstack((heads, written_keys, written_namespaces))
            return sorted(_each(rows[np.argsort(column)]))  # already sorted by timestamp
        parts = zip(_each(heads), _each(written_keys), _each(written_namespaces), strict=True)
        return sorted(head + key + namespace for head, key, namespace in parts)

    def deserialize_many(self, data: Sequence[bytes], start: int = 8) -> list[InternalTimer[Any, Any]]:
        """Deserialize many timers; see `deserialize`."""
        few = len(data) < 16  # for a few timers, columns are not worth their fixed cost
        columns = None if few or len(set(map(len, data))) > 1 else self._columns(data, start)
        if columns is None:
            return list(map(self.deserialize, data, repeat(start)))
        return list(map(_new_timer, zip(*columns, strict=True)))

    def _invalid_data(self, data: bytes, why: str) -> ValueError:
        shown = data[:40].hex() + "..." * (len(data) > 40)
        return ValueError(f"data must be a timer of {self}, got {len(data)} bytes {shown}: {why}")

    def _columns(self, data: Sequence[bytes], start: int) -> tuple[list[Any], ...] | None:
        """Deserialize timers as columns; return None if their forms differ."""
        rows = np.frombuffer(b"".join(data), np.uint8).reshape(len(data), -1)
        keys = self.key_serializer.deserialize_column(rows, start)
        namespaces = None if keys is None else self.namespace_serializer.deserialize_column(rows, keys[1])
        if keys is None or namespaces is None or namespaces[1] != rows.shape[1]:
            return None
        timestamps = np.ascontiguousarray(rows[:, :8]).view(">u8").ravel().astype(np.uint64)
        return (timestamps ^ np.uint64(_SIGN)).view(np.int64).tolist(), keys[0], namespaces[0]


def _serializer(argument: str, serializer: str | TypeSerializer) -> TypeSerializer:
    if isinstance(serializer, str):
        if serializer not in SERIALIZERS:
            known = ", ".join(SERIALIZERS)
            raise ValueError(f"{argument} must be one of {known}, or a TypeSerializer, got {serializer!r}")
        return SERIALIZERS[serializer]
    if not isinstance(serializer, TypeSerializer):
        raise TypeError(f"{argument} must be a serializer's name or a TypeSerializer, got {serializer!r}")
    return serializer


def _int64_column(timestamps: Sequence[int]) -> npt.NDArray[np.int64]:
    try:
        if set(map(type, timestamps)) <= {int}:
            return np.array(timestamps, np.int64)
    except OverflowError:
        pass  # the fallback names the value
    return np.array([int64("timestamp", timestamp) for timestamp in timestamps], np.int64)


def _written(serializer: TypeSerializer, values: Sequence[Any]) -> Rows | Iterable[bytes]:
    column = serializer.serialize_column(values)
    return serializer.serialize_many(values) if column is None else column


def _each(written: Rows | Iterable[bytes]) -> Iterable[bytes]:
    """Return the bytes of each value, whether given as rows of a column or one by one."""
    if not isinstance(written, np.ndarray):
        return written
    each: list[bytes] = np.ascontiguousarray(written).view(f"V{written.shape[1]}").ravel().tolist()
    return each


_SERIALIZER_ERRORS = (TypeError, OverflowError, ValueError, RecursionError)


def _error_naming(part: str, serializer: TypeSerializer, error: Exception) -> Exception:
    """Return an error that names the key or the namespace."""
    kind = next((kind for kind in (TypeError, OverflowError) if isinstance(error, kind)), ValueError)
    return kind(f"{part} must be what the serializer {serializer.name!r} takes: {error}")
