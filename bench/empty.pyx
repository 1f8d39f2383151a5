# What a call into a compiled module costs at least.
from libc.stdint cimport int64_t


cdef class Empty:
    def call(self, int64_t timestamp, int64_t key_hash, int64_t namespace):
        pass
