"""The timer queue on disk: `RocksDBTimerQueue`.

Timers are stored as bytes that sort in firing order (`queue`). RocksDB (`store`) holds all of them, and
memory also holds the first ones (`head`). A `journal` holds the latest writes until they are written in bulk.
"""

from timerheap.flink.rocksdb.queue import RocksDBTimerQueue

__all__ = ["RocksDBTimerQueue"]
