"""In a task: runs the user's function on key groups."""
