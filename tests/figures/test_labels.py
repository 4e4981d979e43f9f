"""Names are made safe to show in a figure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.figures.labels import shorten


def test_characters_that_cannot_be_printed_are_escaped() -> None:
    assert shorten("a\n\x1b\ud800b", 40) == r"a\n\x1b\ud800b"


def test_both_ends_of_a_long_name_are_kept() -> None:
    assert shorten("encoder.layers.11.attention.query.weight", 21) == "encoder.l...ry.weight"


@given(st.text(), st.integers(4, 40))
def test_a_shortened_name_does_not_exceed_the_limit(name: str, max_chars: int) -> None:
    assert len(shorten(name, max_chars)) <= max_chars
