"""Shortens the names of metrics and layers, and makes them safe to show in a figure."""

from __future__ import annotations

from trainmaster.text import printable


def shorten(name: str, max_chars: int) -> str:
    """Make a name printable. If it is too long, cut out its middle, because its ends usually carry the most information.

    >>> shorten("encoder.layers.11.attention.weight", 16)
    'encoder...weight'
    """
    name = printable(name)
    if len(name) <= max_chars:
        return name
    num_head = (max_chars - 2) // 2
    return f"{name[:num_head]}...{name[len(name) - (max_chars - 3 - num_head) :]}"
