"""Results that change: tables kept as changes of their rows, and what is computed of them incrementally."""
