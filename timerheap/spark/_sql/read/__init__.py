"""What a query says: its text, tokens and clauses. Nothing is decided here, and no tree is changed."""
