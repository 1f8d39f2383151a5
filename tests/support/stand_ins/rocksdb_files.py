"""Keeps the files of RocksDB as a test writes them."""

from __future__ import annotations

from unittest import mock

from timerheap.flink import rocksdb_queue as store


def without_compaction():
    """Disable compaction, so that RocksDB's threads do not change files while a test copies them."""
    options_of = store._options

    def options(rocksdict):
        options = options_of(rocksdict)
        options.set_disable_auto_compactions(True)
        return options

    return mock.patch.object(store, "_options", options)
