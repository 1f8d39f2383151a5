# An empty method, for the minimum cost of a call into a compiled module.
from libc.stdint cimport int64_t


cdef class Empty:
    def call(self, int64_t timestamp, int64_t key_hash, int64_t namespace):
        pass
