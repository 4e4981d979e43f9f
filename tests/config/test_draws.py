"""Draws: configs with values from distributions, functions and lists (J17)."""

from __future__ import annotations

import statistics

import pytest

from trainmaster.config import Beta, Config, Gamma, Gaussian, draw_configs
from trainmaster.errors import ConfigError


def test_the_same_seed_draws_the_same_configs() -> None:
    choices = {"lr": Gamma(2.0, 0.1, low=0.01), "arch": ["a", "b", "c"], "n": lambda rng: rng.randrange(1000)}
    assert list(draw_configs(choices, 20, seed=3)) == list(draw_configs(choices, 20, seed=3))
    assert list(draw_configs(choices, 20, seed=3)) != list(draw_configs(choices, 20, seed=4))


def test_one_more_key_leaves_the_other_values_as_they_were() -> None:
    few = list(draw_configs({"lr": Gaussian()}, 5))
    more = list(draw_configs({"width": [1, 2], "lr": Gaussian()}, 5))
    assert [each.lr for each in few] == [each.lr for each in more]


def test_bounds_are_kept() -> None:
    up = [each.x for each in draw_configs({"x": Gamma(2.0, 1.0, low=5.0)}, 200)]
    down = [each.x for each in draw_configs({"x": Gamma(2.0, 1.0, high=5.0)}, 200)]
    between = [each.x for each in draw_configs({"x": Beta(2.0, 3.0, -1.0, 1.0)}, 200)]
    assert min(up) >= 5.0 >= max(down)
    assert -1.0 <= min(between) <= max(between) <= 1.0


def test_a_gaussian_has_its_mean_and_spread() -> None:
    values = [each.x for each in draw_configs({"x": Gaussian(3.0, 0.5)}, 2000)]
    assert statistics.mean(values) == pytest.approx(3.0, abs=0.1)
    assert statistics.stdev(values) == pytest.approx(0.5, abs=0.05)


def test_dotted_keys_nest_and_fixed_values_stay() -> None:
    assert next(draw_configs({"train.lr": [0.1], "data": {"name": "digits"}}, 1)) == Config(
        {"train": {"lr": 0.1}, "data": {"name": "digits"}}
    )


@pytest.mark.parametrize(
    "wrong", [lambda: Gaussian(0, -1), lambda: Gamma(1, 1, low=0, high=1), lambda: Beta(1, 1, 2, 1), lambda: Gamma(0, 1)]
)
def test_what_is_no_distribution_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="does not make one"):
        wrong()  # type: ignore[operator]


def test_an_empty_list_and_a_value_that_cannot_be_stored_are_refused_by_key() -> None:
    with pytest.raises(ConfigError, match="no values to choose from"):
        draw_configs({"a.b": []}, 1)
    with pytest.raises(ConfigError, match=r"a\.b"):
        next(draw_configs({"a.b": lambda rng: object()}, 1))
