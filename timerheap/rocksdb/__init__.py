"""The timer queue on disk: `RocksDBTimerQueue`.

Timers are bytes that sort as they fire (`queue`); the first of them are in memory (`head`) and all of them in
RocksDB (`store`), but for the latest, which wait to be written together and lie in a `journal` meanwhile.
"""

from timerheap.rocksdb.queue import RocksDBTimerQueue

__all__ = ["RocksDBTimerQueue"]
