"""Numbers that remember how they were written, for fields of text: `version: 1.10` is not `1.1`."""

from __future__ import annotations


class WrittenInt(int):
    """An integer whose text Python would write otherwise."""

    text: str


class WrittenFloat(float):
    """A float whose text Python would write otherwise."""

    text: str


def written(value: int | float, text: str) -> int | float:
    """`value`, remembering its text if that says more."""
    if str(value) == text:
        return value
    kept: WrittenInt | WrittenFloat = WrittenInt(value) if isinstance(value, int) else WrittenFloat(value)
    kept.text = text
    return kept
