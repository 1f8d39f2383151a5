"""How the live key groups of a task are kept, and handed to the worker that has them next."""
