"""The timers of one key group, for any number of services, as versioned and checksummed bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timerheap._native._heap import seal, unseal

__all__ = ["KeyGroupSnapshot", "ServiceSnapshot"]

_KIND = 3
_HEAD = struct.Struct("<HH")
_LENGTH = struct.Struct("<I")


class ServiceSnapshot(NamedTuple):
    """The timers of one service in a key group, as the named serializers wrote them."""

    name: str
    key_serializer: str
    namespace_serializer: str
    event_time_timers: list[bytes]
    processing_time_timers: list[bytes]


class KeyGroupSnapshot(NamedTuple):
    """The timers of all services in a key group.

    The bytes are timerheap's usual envelope around a list of parts; each part is preceded by its length in 4
    bytes. The first part is the key group and the maximum parallelism, 2 bytes each. Every further part is a
    service. Its own parts are its name, its serializers' names, and the event-time and the processing-time
    timers, each of which is again a list of parts. All numbers are little-endian.
    """

    key_group: int
    max_parallelism: int
    services: list[ServiceSnapshot]

    def to_bytes(self) -> bytes:
        """Serialize the snapshot. O(its size)."""
        services = [
            _join(
                [
                    *(text.encode() for text in service[:3]),
                    _join(service.event_time_timers),
                    _join(service.processing_time_timers),
                ]
            )
            for service in self.services
        ]
        return seal(_KIND, _join([_HEAD.pack(self.key_group, self.max_parallelism), *services]))

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyGroupSnapshot:
        """Deserialize a snapshot. O(its size).

        Raises
        ------
        TypeError
            If `data` is not a buffer.
        ValueError
            If `to_bytes` did not write `data`, or it is damaged.
        """
        head, *services = _split(bytes(unseal(_KIND, data)))
        try:
            key_group, max_parallelism = _HEAD.unpack(head)
            return cls(key_group, max_parallelism, [_service(*_split(service)) for service in services])
        except (struct.error, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"data must be the timers of a key group, got invalid bytes: {error}") from error


def _service(name: bytes, key: bytes, namespace: bytes, event: bytes, processing: bytes) -> ServiceSnapshot:
    names = name.decode(), key.decode(), namespace.decode()
    return ServiceSnapshot(*names, list(_split(event)), list(_split(processing)))


def _join(parts: Iterable[bytes]) -> bytes:
    return b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        end = at + _LENGTH.size
        if end <= len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at, end = end, end + length
        if end > len(data):
            raise ValueError(f"data must be the timers of a key group, got {end - len(data)} bytes too few")
        yield data[at:end]
        at = end
