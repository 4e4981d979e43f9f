"""The checks of `sanity_check`, the loop probe that they run on, and their report."""
