"""``python -m timerheap inspect``: what a query's checkpoint holds, as tables and as a picture."""

import json


def printable(data: str) -> str:
    """Return data without characters that command a terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in data)


def escaped(text: str) -> str:
    """Return the text of a JSON object without characters that command a terminal; it means the same."""
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)
