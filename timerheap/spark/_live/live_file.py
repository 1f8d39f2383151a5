"""The file that a live key group is in: a memory that one worker after the other has."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import struct
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from glob import escape, iglob

import numpy as np
import pyarrow as pa

from timerheap._native import _core
from timerheap._native._core import seal, unseal, xxh64
from timerheap.spark._live.free_space import FreeSpace
from timerheap.spark._memory.blocks import ALIGNMENT, PROCESS, Block, rounded_up
from timerheap.spark._memory.scratch import Scratch

if sys.platform != "win32":
    import fcntl

_PAGE = 4096
_PIECE = 64 << 10  # space is reserved, and given back, in multiples of it
_LARGE = 1 << 20  # free bytes from which on they are given back
_MAPPED = 1 << 20  # size of the first mapping
_ZEROS = memoryview(bytes(1 << 18))
_FIRST_PAGE, _HEAD = 48, 49  # kinds of sealed bytes
# Where the head is, its size, how many holes are behind it, the end of the space, the build, the label.
_PLACE = struct.Struct("<QQQQQQ")
_HOLE = 16  # bytes that say where one is
_SEALED = len(seal(_FIRST_PAGE, bytes(_PLACE.size)))
_OPEN = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | os.O_RDWR
_MAP_FIXED, _PUNCH_HOLE, _KEEP_SIZE = 0x10, 0x02, 0x01  # of Linux
# What fstatfs() calls the file systems that need more space to overwrite what has been written, or send it to
# another machine or process first: there a full disk is noticed only after the write.
_WITHOUT_RESERVATION = {
    0x9123683E: "btrfs",
    0xCA451A4E: "bcachefs",
    0x2FC12FC1: "zfs",
    0x3434: "nilfs2",
    0xF2F52010: "f2fs",
    0x65735546: "fuse",
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
}

_files: weakref.WeakSet[LiveFile] = weakref.WeakSet()

if sys.platform == "linux":
    _libc = ctypes.CDLL(None)
    _mmap, _mprotect = _libc.mmap, _libc.mprotect
    _mmap.restype = ctypes.c_void_p
    _mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    _mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    _libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


class LiveFile:
    """A `Memory` in a file; the object closes its descriptor.

    A worker holds a lock on the file as long as it works on it. The next one sees all that it has written, on
    Arm too: unlocking and locking order memory. The operating system drops the lock when the worker dies,
    so files without an owner can be told from others. All space is reserved before it is handed out, so a
    full disk is an error here, rather than a signal (SIGBUS) at the first write; on a file system that cannot
    reserve it, no file is created. Large free ranges are given back to the disk when the file is released:
    these are holes, and reserved again when they are taken. A process that is forked gets a copy of its own.

    If the file cannot be used any more, for example because the disk is full, it is given up, with the reason
    in `failure`: it is removed, its blocks stay valid, and further blocks are in the memory of the process.

    The first page says which build has written the file, what it holds (`label`), and where the head is,
    which describes the structures in the file, and says where the holes are. Both have checksums, which
    blocks have not: they would cost O(size) in each micro-batch. The rest are blocks and free space. The free
    space is not recorded: what no structure attaches is free.
    """

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.label = 0  # 64 bits that `write_head` writes, and `read_head` and `relock` expect
        self.failure: OSError | None = None
        self._fd = fd
        self._locked = False
        self._end = 0  # of blocks and free space
        self._map = np.empty(0, np.uint8)  # at least up to `_end`
        self._mappings: list[weakref.ref[mmap.mmap]] = []  # that blocks may be in, that of `_map` last
        self._free = FreeSpace()
        self._holes = FreeSpace()  # what is not reserved of it
        _files.add(self)

    @classmethod
    def create(cls, path: str) -> LiveFile:
        """Create a file and lock it; raise OSError if that is impossible."""
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "this system cannot reserve space in a file", path)
        fd = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        file = cls(path, fd)
        file._locked = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not os.fstat(fd).st_nlink:  # a sweep took it for one of a dead worker before it was locked
                raise FileNotFoundError(errno.ENOENT, "removed before it was locked", path)
            if system := _without_reservation(fd):
                raise OSError(errno.EOPNOTSUPP, f"{system} cannot reserve space for later writes", path)
            file._grow(_PIECE)
            file._free.claim(0, _PAGE)
            file._reserve(0, _PAGE)
        except BaseException:
            file.discard()
            raise
        return file

    @classmethod
    def lock(cls, path: str) -> LiveFile | None:
        """Open and lock a released file, before `read_head`; return None if there is none or it is in use."""
        try:
            fd = os.open(path, _OPEN)
        except FileNotFoundError:
            return None
        file = cls(path, fd)
        return file if file._lock() else None

    @property
    def descriptor(self) -> int:
        """The descriptor of the file; -1 if it is closed."""
        return self._fd

    # ---- The methods of `Memory`.

    def allocate(self, nbytes: int, mapped: bool = True) -> Block:
        """See `Memory.allocate`; a block that is not `mapped` is first written through the descriptor."""
        size = rounded_up(max(nbytes, 1), ALIGNMENT)
        if self.failure is None:
            try:
                at = self._free.take(size)
                if at is None:
                    self._grow(size - self._free.before(self._end))
                    at = self._free.take(size)
                assert at is not None
                self._reserve(at, at + size, mapped)
                return Block(self._map[at : at + size], at)
            except OSError as e:
                self.give_up(e)
        return PROCESS.allocate(nbytes)

    def release(self, block: Block) -> None:
        if block.at:  # else it is in the memory of the process
            self._free.add(block.at, block.at + len(block.bytes))

    def attach(self, at: int, nbytes: int) -> Block:
        """See `Memory.attach`; two blocks never overlap."""
        size = rounded_up(max(nbytes, 1), ALIGNMENT)
        if at % ALIGNMENT:
            raise ValueError(f"a block must start at a multiple of {ALIGNMENT}, got {at}")
        self._free.claim(at, at + size)
        return Block(self._map[at : at + size], at)

    def scratch(self) -> Scratch:
        """Return a new scratch file beside this one; raise OSError if that is impossible."""
        return Scratch(os.path.dirname(self.path))

    # ---- Handing over.

    def write_head(self, head: bytes) -> bool:
        """Write what describes the structures in the file; return False if the file is given up."""
        most = len(self._free) + len(self._holes) + 2  # holes: the block adds one range, which may have one
        block = self.allocate(len(seal(_HEAD, head)) + _HOLE * most)
        if self.failure is not None:
            return False
        self._give_back()  # only now, since the head has taken its space
        holes = np.array(list(self._holes), np.int64)
        sealed = seal(_HEAD, head + holes.tobytes())
        block.bytes[: len(sealed)] = np.frombuffer(sealed, np.uint8)
        fields = block.at, len(sealed), len(holes), self._end, _build(), self.label
        place = seal(_FIRST_PAGE, _PLACE.pack(*fields))
        self._map[: len(place)] = np.frombuffer(place, np.uint8)
        self.release(block)  # it is written anew before the file is released again
        return True

    def read_head(self) -> bytes:
        """Map the file, all of whose space is free then, and return its head; `attached` must follow."""
        # Raises OSError if the file cannot be mapped, and ValueError if `write_head` of this build has not
        # written it under this label, or not completely, or others may write to it.
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.geteuid():
            raise ValueError(f"{self.path} must be a file that only this user can read and write")
        if found.st_size < _PAGE:
            raise ValueError(f"{self.path} must have at least {_PAGE} bytes, got {found.st_size}")
        if len(self._map) != found.st_size:
            self._map = self._mapped(found.st_size)
        self._advise(mmap.MADV_RANDOM)
        at, size, n, self._end, build, label = _PLACE.unpack(unseal(_FIRST_PAGE, self._map[:_SEALED]))
        if build != _build():
            raise ValueError(f"{self.path} was written by another version of timerheap, NumPy or PyArrow")
        if label != self.label:
            raise ValueError(f"{self.path} holds a different save, key group or query than its name says")
        if not _PAGE <= at < at + size <= self._end <= found.st_size:
            raise ValueError(f"the head of {self.path} lies outside of it")
        head = bytes(unseal(_HEAD, self._map[at : at + size]))
        ends = len(head) - _HOLE * n
        self._free, self._holes = FreeSpace(), FreeSpace()
        self._free.add(_PAGE, self._end)
        for start, stop in np.frombuffer(head[ends:], np.int64).reshape(n, 2).tolist():
            self._holes.add(start, stop)
        return head[:ends]

    def attached(self, runs: Sequence[Block] = ()) -> None:
        """Tell the kernel how to read from now on, since all structures are attached.

        Attaching looks at a few places of each. To read around them would be to read all of the file. Later
        it is right, unless the file has `runs`, which nothing reads through the mapping: around a page there
        is little else then, so that the kernel is asked for all that is not a run. It may have given up any
        page since the last time, so it is asked each time: O(pages).
        """
        if not runs:
            self._advise(mmap.MADV_NORMAL)
            return
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)  # who reads runs says what to read ahead
        self._advise(mmap.MADV_RANDOM)
        wanted = FreeSpace()
        wanted.add(0, self._end)
        for start, stop in (*self._free, *((run.at, run.at + len(run.bytes)) for run in runs)):
            wanted.claim(start, stop)
        mapping = self._mappings[-1]()
        if mapping is not None:
            for start, stop in wanted:
                start -= start % _PAGE
                mapping.madvise(mmap.MADV_WILLNEED, start, stop - start)

    def move(self, path: str) -> None:
        """Rename the file; raise OSError if it is not there any more."""
        os.rename(self.path, path)
        self.path = path

    def unlock(self) -> None:
        """Allow others to take the file."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._locked = False

    def relock(self, path: str) -> bool:
        """Lock the file again after it was released, if it is now at `path` and nobody else has it."""
        # Returns False if the file does not have the label, or is shorter than the mapping: the first use of
        # a page beyond its end would end this process (SIGBUS).
        try:
            found, mine = os.stat(path, follow_symlinks=False), os.fstat(self._fd)
            if self._locked or (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino):
                return False
            *_, label = _PLACE.unpack(unseal(_FIRST_PAGE, os.pread(self._fd, _SEALED, 0)))
        except (OSError, ValueError):
            return False
        if label != self.label or mine.st_size < len(self._map) or not self._lock():
            return False
        self.path = path
        return True

    def anew(self) -> LiveFile:
        """Return the locked file under a new object, which has the mapping and no blocks."""
        # This object keeps its blocks, which somebody else may have written to since, and gives up the file.
        file = type(self)(self.path, self._fd)
        file.label = self.label
        file._map, file._mappings, file._locked = self._map, self._mappings, self._locked
        self._fd, self._locked, self._mappings = -1, False, []
        return file

    def give_up(self, failure: OSError) -> None:
        """Remove the file, and keep its blocks and all further blocks for this process."""
        self.failure = failure
        self._remove()

    def discard(self) -> None:
        """Close the file, and remove it if it is locked; its blocks stay valid."""
        self._remove()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _remove(self) -> None:
        if self._locked:
            with suppress(OSError):  # somebody else may have removed it
                os.unlink(self.path)
        self._locked = False

    def leave_to_parent(self) -> None:
        """Close the file in a forked process, so that its later writes do not change the parent's blocks."""
        self.failure = OSError(errno.EBADF, "it belongs to the process that has forked this one", self.path)
        locked, self._fd, self._locked = self._fd, -1, False
        fd = -1
        if locked >= 0:
            with suppress(OSError):  # another file descriptor, see `_mapped`
                fd = os.open(f"/proc/self/fd/{locked}", os.O_RDWR)
            os.close(locked)
        access = mmap.PROT_READ | mmap.PROT_WRITE
        for array in (np.frombuffer(found, np.uint8) for each in self._mappings if (found := each())):
            at = array.ctypes.data
            if fd < 0 or _mmap(at, len(array), access, mmap.MAP_PRIVATE | _MAP_FIXED, fd, 0) != at:
                _mprotect(at, len(array), mmap.PROT_READ)  # a write ends the process
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.discard()

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._locked = True
        return True

    def _grow(self, nbytes: int) -> None:
        """Add a hole of at least `nbytes` at the end; raise OSError if that is impossible."""
        # The mapping grows in larger steps, since each holds a file descriptor as long as a block in it is in
        # use.
        end = rounded_up(self._end + max(nbytes, self._end // 4), _PIECE)
        if end > len(self._map):
            try:
                self._extend(max(end, 4 * len(self._map), _MAPPED))
            except OSError:  # the address space or the size of files may be limited
                self._extend(end)
        self._holes.add(self._end, end)
        self._free.add(self._end, end)
        self._end = end

    def _extend(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._map = self._mapped(size)

    def _reserve(self, start: int, stop: int, mapped: bool = True) -> None:
        """Reserve what lies in holes; raise OSError if that is impossible."""
        for at, end in self._holes.within(start // _PIECE * _PIECE, rounded_up(stop, _PIECE)):
            # The first touch of a page through the mapping would cost several times as much as to write it.
            written = at if mapped else end
            try:
                os.posix_fallocate(self._fd, at, end - at)
            except OSError as e:
                if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
                written = at  # the file system has no such call, and writing reserves
            while written < end:
                written += os.pwrite(self._fd, _ZEROS[: end - written], written)
            self._holes.claim(at, end)

    def _give_back(self) -> None:
        """Make holes of large free ranges."""
        for start, stop in self._free:
            start, stop = rounded_up(start, _PIECE), stop // _PIECE * _PIECE
            if stop - start >= _LARGE and [(start, stop)] != self._holes.within(start, stop):
                if _libc.fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, start, stop - start):
                    return  # the file system has no holes
                for hole in self._holes.within(start, stop):
                    self._holes.claim(*hole)
                self._holes.add(start, stop)

    def _advise(self, advice: int) -> None:
        for mapping in (each() for each in self._mappings):
            if mapping is not None:
                mapping.madvise(advice)

    def _mapped(self, size: int) -> np.ndarray:
        # Through another file descriptor: the mapping keeps a copy of it, which a process that the user's
        # function forks inherits, and with a copy of the locked one it would also inherit the lock.
        fd = os.open(self.path, _OPEN)
        try:
            mapping = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._mappings = [each for each in self._mappings if each() is not None]
        self._mappings.append(weakref.ref(mapping))
        return np.frombuffer(mapping, np.uint8)


def _leave_to_parent() -> None:
    for file in _files:
        file.leave_to_parent()


if sys.platform == "linux":
    os.register_at_fork(after_in_child=_leave_to_parent)


def _without_reservation(fd: int) -> str | None:
    """Return the name of the file system of a file if it cannot reserve space."""
    found = ctypes.create_string_buffer(1024)  # a struct statfs, which begins with the type
    if _libc.fstatfs(fd, found):
        return None
    return _WITHOUT_RESERVATION.get(ctypes.c_uint32.from_buffer(found).value)


@cache
def _build() -> int:
    """Return 64 bits that tell whether another build may lay out structures in another way."""
    digest = xxh64(f"{sys.byteorder} {sys.version} {np.__version__} {pa.__version__}".encode())
    spark = os.path.dirname(os.path.dirname(__file__))  # all of it, since features lay out parts of their own
    files = [*iglob(f"{escape(spark)}/**/*.py", recursive=True), _core.__file__]
    for path in sorted(files):
        with open(path, "rb") as file:
            digest = xxh64(file.read(), digest)
    return digest
