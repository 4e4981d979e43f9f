"""The keys in which configs differ are found, with short names and values."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.config.to_plain import is_same
from trainmaster.config.varying import VaryingKeys, short_names, short_values

VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6)


@given(st.lists(VALUES, max_size=6))
def test_different_values_have_different_texts(values: list[Any]) -> None:
    texts = short_values([each for each in values if not isinstance(each, str)])
    numbers = [each for each in values if not isinstance(each, str)]
    assert all(is_same(one, other) or texts[i] != texts[j] for i, one in enumerate(numbers) for j, other in enumerate(numbers))


@given(st.lists(st.text("ab/", min_size=1, max_size=12), unique=True, max_size=8))
def test_short_names_are_endings_that_no_other_name_has(names: list[str]) -> None:
    found = short_names(names, "/")
    assert [*found] == names
    assert len({*found.values()}) == len(names)
    assert all(name.endswith(short) for name, short in found.items())


def test_a_key_that_only_some_configs_have_varies() -> None:
    assert VaryingKeys([{"a": 1, "b": 1}, {"a": 1}, {"a": 1, "b": 1, "c": 2}]).names == ["b", "c"]


def test_keys_are_in_the_order_of_the_first_config() -> None:
    configs = [{"lr": 1, "width": 1}, {"lr": 1, "width": 2}, {"lr": 2, "width": 1}]
    assert VaryingKeys(configs).names == ["lr", "width"]


def test_nan_does_not_differ_from_nan_and_1_differs_from_1_0() -> None:
    assert VaryingKeys([{"a": float("nan"), "b": 1}, {"a": float("nan"), "b": 1.0}]).names == ["b"]
