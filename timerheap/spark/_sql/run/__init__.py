"""In a task: functions OVER rows, the first rows of windows, the sides of joins, the rows of sessions."""
