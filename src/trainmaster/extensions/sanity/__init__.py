"""The checks of `sanity_check`, the class that runs the loop for them, and the report of their results."""
