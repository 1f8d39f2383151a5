"""Patterns of messages."""


def say(*parts: str) -> str:
    """Return a pattern of a message that has these parts in this order."""
    return "(?s)" + ".*".join(parts)
