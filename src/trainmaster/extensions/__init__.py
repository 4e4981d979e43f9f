"""The batteries: one extension, or one family of them, in each file."""
