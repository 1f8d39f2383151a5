"""The demos of ``python -m timerheap``, on real data."""
