# The envelope of all bytes that timerheap stores: a header of 24 bytes, then the payload. Little-endian.
#   0 magic "TMRH"   4 format version u16   6 kind u16   8 payload bytes u64   16 XXH64 of bytes 0-15 and the payload
# Kinds: 1 TimerHeap, 2 KeyTimerHeap (an IdIndex, 3, is never sealed), 16 and more for the Spark layer.

cdef object _HEADER = struct.Struct("<4sHHQQ")
cdef bytes _MAGIC = b"TMRH"
cdef enum:
    _FORMAT_VERSION = 1


cdef object _bytes_of(object data, str name):
    """Return a read-only view of the bytes of a C-contiguous buffer."""
    try:
        return memoryview(data).toreadonly().cast("B")
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"{name} must be bytes or another contiguous buffer, got {_shown(data)}: "
                                f"{error}") from None


cdef void _add(th_xxh64 *state, const unsigned char[::1] data) noexcept:
    if data.shape[0]:
        th_xxh64_add(state, &data[0], data.shape[0])


def xxh64(data, seed=0):
    """Return the XXH64 of a buffer, unsigned, 64 bits, as `xxh64_intdigest` of the `xxhash` package does.

    The seed is unsigned, 64 bits. O(size), about 0.1 ns a byte. Raises TypeError or OverflowError if `data` is not a
    C-contiguous buffer, or `seed` is not an integer in its range.

    >>> hex(xxh64(b"timer", seed=42))
    '0x72fed4129577aae7'
    """
    cdef th_xxh64 state
    cdef uint64_t start
    try:
        start = operator.index(seed)
    except OverflowError:
        raise ArgumentRangeError(f"seed must be from 0 to 2**64 - 1, got {seed}") from None
    th_xxh64_begin(&state, start)
    _add(&state, _bytes_of(data, "data"))
    return th_xxh64_end(&state)


def seal(kind, *parts):
    """Return the parts, concatenated, as versioned, typed and checksummed bytes, 24 bytes longer. O(size).

    `kind` is the type of the payload, 0 to 65535. Raises ArgumentTypeError or ArgumentValueError if a part
    is not a C-contiguous buffer, or `kind` is not an integer in its range.

    >>> bytes(unseal(16, seal(16, b"some ", b"state")))
    b'some state'
    """
    cdef int64_t number = _kind(kind)
    cdef list views = []
    cdef const unsigned char[::1] view
    cdef size_t size = 0, at = _HEADER.size
    cdef bytes result
    cdef unsigned char *out
    cdef th_xxh64 state
    for k, part in enumerate(parts):
        view = _bytes_of(part, f"part {k}")
        size += view.shape[0]
        views.append(view)
    header = _HEADER.pack(_MAGIC, _FORMAT_VERSION, number, size, 0)
    result = PyBytes_FromStringAndSize(NULL, at + size)
    out = <unsigned char *>PyBytes_AS_STRING(result)
    ask_huge_pages(out, at + size)
    th_xxh64_begin(&state, 0)
    _add(&state, header[:16])
    for view in views:
        if view.shape[0]:
            memcpy(out + at, &view[0], view.shape[0])
            th_xxh64_add(&state, out + at, view.shape[0])
            at += view.shape[0]
    header = _HEADER.pack(_MAGIC, _FORMAT_VERSION, number, size, th_xxh64_end(&state))
    memcpy(out, PyBytes_AS_STRING(header), _HEADER.size)
    return result


def unseal(kind, data):
    """Verify what `seal` has returned, and return its payload, a view. O(size); raise CheckpointError if it is not."""
    cdef int64_t number = _kind(kind)
    cdef th_xxh64 state
    view = _bytes_of(data, "data")
    if len(view) < _HEADER.size:
        raise DamagedCheckpointError(f"data is too short: {len(view)} bytes, a header alone has {_HEADER.size}")
    magic, version, found, size, checksum = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise ForeignCheckpointError(f"not timerheap's data: it begins with {magic!r}, not {_MAGIC!r}")
    if version != _FORMAT_VERSION:
        raise ForeignCheckpointError(f"format version {version}: this build of timerheap reads version "
                                     f"{_FORMAT_VERSION}")
    if found != number:
        raise CheckpointMismatchError(f"data holds {_kind_name(found)}, not {_kind_name(number)}")
    payload = view[_HEADER.size:]
    if size != len(payload):
        raise DamagedCheckpointError(f"data is cut off or too long: the payload has {len(payload)} bytes, its header "
                                     f"says {size}")
    th_xxh64_begin(&state, 0)
    _add(&state, view[:16])
    _add(&state, payload)
    if checksum != th_xxh64_end(&state):
        raise DamagedCheckpointError("data is damaged: its checksum is wrong")
    return payload


cdef int64_t _kind(object kind) except -1:
    cdef int64_t number = _int64(kind, "kind")
    if not 0 <= number < 1 << 16:
        raise ArgumentValueError(f"kind must be from 0 to 65535, got {number}")
    return number


cdef str _kind_name(int64_t kind):
    names = {_TIMER_HEAP: "a TimerHeap", _KEY_TIMER_HEAP: "a KeyTimerHeap", _ID_INDEX: "an IdIndex"}
    return names.get(kind, f"kind {kind}")


cdef str _broken(th_status status):
    if status == TH_DISORDER:
        return "a timer comes before its parent"
    if status == TH_DUPLICATE:
        return "two timers have the same identity"
    return "the columns do not match the index"

# Bytes as ASCII text, 7 bits a character (csrc/th_text.h).

cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    void *PyUnicode_DATA(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


def to_text(data):
    """Return bytes as ASCII text, for a channel that passes text faster than bytes."""
    # It is a seventh longer than `data`, and has control characters. O(size), about 0.3 ns a byte.
    cdef const unsigned char[::1] view = _bytes_of(data, "data")
    cdef size_t n = view.shape[0]
    cdef str text = PyUnicode_New(th_text_size(n), 127)
    if n:
        th_text_write(&view[0], n, <uint8_t *>PyUnicode_DATA(text))
    return text


def from_text(text):
    """Return the bytes of `to_text`; raise DamagedCheckpointError for other text. O(size), about 0.3 ns a byte."""
    cdef Py_ssize_t size, unused
    cdef const uint8_t *characters
    cdef bytes data
    if not isinstance(text, str):
        raise ArgumentTypeError(f"text must be a str, got {_shown(text)}")
    if not str.isascii(text) or str.__len__(text) % 8 == 1:
        raise _not_of_to_text(text)
    characters = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
    unused = 7 * size - 8 * <Py_ssize_t>th_text_bytes(size)  # high bits of the last character, which are 0
    if unused and characters[size - 1] >> (7 - unused):
        raise _not_of_to_text(text)
    data = PyBytes_FromStringAndSize(NULL, th_text_bytes(size))
    th_text_read(characters, size, <uint8_t *>PyBytes_AS_STRING(data))
    return data


cdef _not_of_to_text(object text):
    return DamagedCheckpointError(f"text must be what to_text() returned, got {str.__len__(text)} other characters")
