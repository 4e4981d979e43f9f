"""The parts of `sanity_check`: the checks themselves, a class that runs the loop for them, and the report of the results."""
