"""Finds leaks between examples by running the model with some examples replaced and tracing the changes."""
