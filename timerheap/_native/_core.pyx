# cython: cdivision=True
"""The compiled module: the heaps and what Spark's workers do for each row, over the C code in csrc/.

A call that changes a structure first allocates all memory, then makes all changes while it holds the GIL. It is
therefore atomic, also with other threads, and if an allocation calls back; `_memory.pxi` has the rules.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Contains, PyDict_GetItemWithError
from cpython.genobject cimport PyGen_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.object cimport PyObject, PyObject_GenericSetAttr, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_REFCNT
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from cpython.version cimport PY_VERSION_HEX
from libc.errno cimport errno
from libc.stdint cimport (INT32_MAX, INT64_MAX, INT64_MIN, SIZE_MAX, int32_t, int64_t, uint8_t, uint16_t,
                          uint32_t, uint64_t)
from libc.string cimport memchr, memcpy, memset

from timerheap._native._csrc cimport *

import datetime
import operator
import os
import struct
from heapq import heappush

import numpy as np

from timerheap.errors import (ArgumentRangeError, ArgumentTypeError, ArgumentValueError, CheckpointMismatchError,
                              DamagedCheckpointError, ForeignCheckpointError)
from timerheap._moments import epoch_millis
from timerheap.timer import Timer, TimerBatch

cnp.import_array()

# In all files
include "_memory.pxi"  # rules of allocation, memory from NumPy, structures in memory that is lent, Timer and TimerBatch
include "_arguments.pxi"  # integers and columns of them, checked
include "_seal.pxi"  # the checksum and the envelope of stored bytes, and bytes as text

# Heaps of timers, and the index of ids
include "_heap_memory.pxi"  # how a heap grows, shrinks and is lent
include "_heap.pxi"  # the methods that all heaps have
include "_heaps.pxi"  # TimerHeap, KeyTimerHeap, NamedTimerHeap
include "_id_index.pxi"  # IdIndex

# Many rows of Arrow columns at a time
include "_arrays.pxi"  # ArrayView: values compared with stored ones, and hashed
include "_frames.pxi"  # Packing and read_frame: rows on their way to a shuffle partition
include "_codes.pxi"  # Codes: rows as bytes that order them
include "_code_tree.pxi"  # CodeTree: weighted codes by id
include "_sums.pxi"  # sums of doubles without rounding
include "_runs.pxi"  # Run: sorted records in a part of a file
include "_grouping.pxi"  # SliceGroups, PlaceNumbers, wave_order, row_order

# One row or timer at a time
include "_row_columns.pxi"  # rows read from columns, and records written to columns
include "_row_keys.pxi"  # CurrentKey, KnownKeys, KeyNumbers
include "_row_timers.pxi"  # RowTimers, RowTimerService, and the journal TimerChanges
include "_row_state.pxi"  # RowValue and RowCells: the handle of a value state
include "_row_loop.pxi"  # RowLoop, and the context RowContext
include "_matching.pxi"  # Matcher: the partial matches of a row pattern
