"""On the driver: checks arguments and builds the query."""
