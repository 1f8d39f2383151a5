"""Tables kept up to date from a changelog: functions for ``foreachBatch``."""
