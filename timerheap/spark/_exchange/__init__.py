"""Between tasks: rows to packed columns by key group, and back."""
