"""Windows of SQL on DataFrames, over the slices and sessions of `timerheap.tvf`."""
