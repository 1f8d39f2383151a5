"""In a task: finds, runs and saves the key groups of a partition."""
