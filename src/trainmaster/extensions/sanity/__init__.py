"""The parts of a sanity check: the trial, what is checked, and the report."""
