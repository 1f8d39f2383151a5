"""One key group, live and in the checkpoint."""
