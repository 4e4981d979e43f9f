"""Figures as PNG and as interactive HTML.

Import the modules of this package by name: `spark` works without numpy, and matplotlib is imported when something is drawn.
"""
