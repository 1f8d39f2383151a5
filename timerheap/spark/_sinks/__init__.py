"""Functions for ``foreachBatch``: tables kept up to date from a changelog, and rows in Kafka once each."""
