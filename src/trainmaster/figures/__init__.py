"""Draws figures as PNG and as interactive HTML pages.

Import the modules of this package by name: `spark` works without numpy, and matplotlib is imported when something is drawn.
"""
