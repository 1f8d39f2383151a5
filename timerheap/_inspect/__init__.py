"""``python -m timerheap inspect``: what a query's checkpoint holds, as tables and as a picture."""
