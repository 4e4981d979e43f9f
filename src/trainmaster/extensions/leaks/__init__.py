"""How a leak between examples is found: run the model with some examples replaced, and follow what changes."""
