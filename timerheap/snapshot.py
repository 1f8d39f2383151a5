"""The timers of one key group, of any number of services, as bytes: versioned, checksummed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from timerheap._heap import seal, unseal

__all__ = ["KeyGroupSnapshot", "ServiceSnapshot"]

_KIND = 3
_HEAD = struct.Struct("<HH")
_LENGTH = struct.Struct("<I")


class ServiceSnapshot(NamedTuple):
    """What one service has in a key group: the timers as the named serializers wrote them."""

    name: str
    key_serializer: str
    namespace_serializer: str
    event_time_timers: list[bytes]
    processing_time_timers: list[bytes]


class KeyGroupSnapshot(NamedTuple):
    """What all services have in a key group.

    The bytes are the envelope of all that timerheap stores around parts: a length in 4 bytes, then so many
    bytes. The first part is the key group and the maximum parallelism, 2 bytes each; each further one is a
    service, whose own parts are its name, its serializers' names, and the timers of either time in turn as
    parts of a part. All little-endian.
    """

    key_group: int
    max_parallelism: int
    services: list[ServiceSnapshot]

    def to_bytes(self) -> bytes:
        """Write the snapshot. O(its size)."""
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
        """Read a snapshot. O(its size).

        Raises
        ------
        TypeError
            If `data` is no buffer.
        ValueError
            If it is none that `to_bytes` wrote.
        """
        head, *services = _split(bytes(unseal(_KIND, data)))
        try:
            key_group, max_parallelism = _HEAD.unpack(head)
            return cls(key_group, max_parallelism, [_service(*_split(service)) for service in services])
        except (struct.error, TypeError, UnicodeDecodeError) as error:
            raise ValueError(f"data holds no timers of a key group: {error}") from error


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
            raise ValueError(f"data holds no timers of a key group: {end - len(data)} bytes are missing")
        yield data[at:end]
        at = end
