"""Names as they can be drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties

from trainmaster.figures.lettering import DPI, fitted, legible, literal, printable, shortened, width


def test_what_cannot_be_printed_is_a_question_mark() -> None:
    assert printable("a\n\x1b\ud800b") == "a???b"


def test_what_the_font_has_no_sign_for_is_a_question_mark() -> None:
    assert legible("é β 層") == "é β ?"


def test_both_ends_of_a_long_name_stay() -> None:
    assert shortened("encoder.layers.11.attention.query.weight", 21) == "encoder.l...ry.weight"


@given(st.text(), st.integers(4, 40))
def test_a_shortened_name_is_as_short_as_asked(name: str, max_chars: int) -> None:
    assert len(shortened(name, max_chars)) == min(len(name), max_chars)


@pytest.mark.parametrize("name", ["i" * 500, "W" * 500, "encoder.layers.11.attention.weight"])
def test_a_name_fits_into_its_room_and_uses_it(name: str) -> None:
    text = fitted(name, 8, 1.5)
    assert 1.2 < width(text, 8) <= 1.5


@pytest.mark.parametrize("name", ["encoder.layers.11.attention.weight", "c" * 40, "i" * 40, "W" * 20])
@pytest.mark.parametrize("size", [7, 8, 9, 10])
def test_a_name_is_never_drawn_wider_than_it_is_said_to_be(name: str, size: float) -> None:
    renderer = RendererAgg(10, 10, DPI)
    drawn, _, _ = renderer.get_text_width_height_descent(name, FontProperties(size=size), ismath=False)
    assert width(name, size) == pytest.approx(drawn / DPI, rel=0.03)
    assert width(name, size) >= 0.99 * drawn / DPI


def test_dollars_are_no_formula() -> None:
    assert literal("a $x$ b") == r"a \$x\$ b"
