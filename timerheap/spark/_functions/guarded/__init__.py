"""What becomes of calls of a function that raise an exception, with errors="emit"."""
