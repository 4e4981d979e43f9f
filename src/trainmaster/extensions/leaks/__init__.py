"""How a leak between examples is found: run the model with some of them replaced, and follow what changes."""
