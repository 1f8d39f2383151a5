# Bytes as ASCII text, 7 bits a character (csrc/th_text.h).

cdef extern from "Python.h":
    str PyUnicode_New(Py_ssize_t size, Py_UCS4 maxchar)
    void *PyUnicode_DATA(object text)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


def to_text(data):
    """Return bytes as ASCII text, for a channel that passes text faster than bytes. O(size), about 0.3 ns a byte.

    The text is a seventh longer, and has control characters.

    >>> to_text(b"timer")
    'tR5+&\\x0e'
    >>> from_text(to_text(b"timer"))
    b'timer'
    """
    cdef const unsigned char[::1] view = _bytes_of(data, "data")
    cdef size_t n = view.shape[0]
    cdef str text = PyUnicode_New(th_text_size(n), 127)
    if n:
        th_text_write(&view[0], n, <uint8_t *>PyUnicode_DATA(text))
    return text


def from_text(text):
    """Return the bytes of `to_text`. O(size), about 0.3 ns a byte.

    Raises ValueError if `text` is not the result of `to_text`: it has other characters, or a length that none has.
    """
    cdef Py_ssize_t size
    cdef const uint8_t *characters
    cdef bytes data
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {_shown(text)}")
    if not str.isascii(text) or str.__len__(text) % 8 == 1:
        raise ValueError(f"text must be what to_text() returned, got {str.__len__(text)} other characters")
    characters = <const uint8_t *>PyUnicode_AsUTF8AndSize(text, &size)
    data = PyBytes_FromStringAndSize(NULL, th_text_bytes(size))
    th_text_read(characters, size, <uint8_t *>PyBytes_AS_STRING(data))
    return data
