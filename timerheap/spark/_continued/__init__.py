"""A changed query that goes on, on a new checkpoint, where an old one has stopped."""
