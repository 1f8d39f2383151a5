"""``python -m timerheap inspect``: what a query's checkpoint holds, as tables and as a picture."""


def printable(data: str) -> str:
    """Return data without characters that command a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in data)
