"""Users' functions on key groups: what runs each kind of them, and what they are handed."""
