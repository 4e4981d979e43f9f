"""Finds leaks between examples: runs the model with some examples replaced, and traces what changes."""
