"""Random configs draw their values from distributions, functions and lists (contract J17)."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster.config import Beta, Config, Gamma, Gaussian, choices2configs, draw_configs
from trainmaster.errors import ConfigError


def test_the_same_seed_draws_the_same_configs() -> None:
    choices = {"lr": Gamma(2.0, 0.1, low=0.01), "arch": ["a", "b", "c"], "n": lambda rng: rng.randrange(1000)}
    assert list(draw_configs(choices, 20, seed=3)) == list(draw_configs(choices, 20, seed=3))
    assert list(draw_configs(choices, 20, seed=3)) != list(draw_configs(choices, 20, seed=4))


def test_an_additional_key_does_not_change_the_other_values() -> None:
    few = list(draw_configs({"lr": Gaussian()}, 5))
    more = list(draw_configs({"width": [1, 2], "lr": Gaussian()}, 5))
    assert [each.lr for each in few] == [each.lr for each in more]


def test_values_are_within_their_bounds() -> None:
    up = [each.x for each in draw_configs({"x": Gamma(2.0, 1.0, low=5.0)}, 200)]
    down = [each.x for each in draw_configs({"x": Gamma(2.0, 1.0, high=5.0)}, 200)]
    between = [each.x for each in draw_configs({"x": Beta(2.0, 3.0, -1.0, 1.0)}, 200)]
    assert min(up) >= 5.0 >= max(down)
    assert -1.0 <= min(between) <= max(between) <= 1.0


def test_a_gaussian_has_the_given_mean_and_deviation() -> None:
    values = [each.x for each in draw_configs({"x": Gaussian(3.0, 0.5)}, 2000)]
    assert statistics.mean(values) == pytest.approx(3.0, abs=0.1)
    assert statistics.stdev(values) == pytest.approx(0.5, abs=0.05)


def test_dotted_keys_are_nested_and_fixed_values_are_kept() -> None:
    assert next(draw_configs({"train.lr": [0.1], "data": {"name": "digits"}}, 1)) == Config(
        {"train": {"lr": 0.1}, "data": {"name": "digits"}}
    )


@pytest.mark.parametrize(
    "wrong", [lambda: Gaussian(0, -1), lambda: Gamma(1, 1, low=0, high=1), lambda: Beta(1, 1, 2, 1), lambda: Gamma(0, 1)]
)
def test_an_invalid_distribution_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="is not valid for this distribution"):
        wrong()  # type: ignore[operator]


def test_an_empty_list_and_a_value_that_cannot_be_stored_are_refused_by_key() -> None:
    with pytest.raises(ConfigError, match="no values to choose from"):
        draw_configs({"a.b": []}, 1)
    with pytest.raises(ConfigError, match=r"a\.b"):
        next(draw_configs({"a.b": lambda rng: object()}, 1))


@pytest.mark.parametrize("values", [np.array([1, 2]), torch.tensor([1, 2]), range(1, 3), (1, 2)])
def test_arrays_and_ranges_are_lists_of_values(values: object) -> None:
    assert {each.x for each in draw_configs({"x": values, "fixed": np.float64(0.5)}, 20)} == {1, 2}
    assert {each.fixed for each in draw_configs({"x": values, "fixed": np.float64(0.5)}, 2)} == {0.5}


def test_choices2configs_returns_every_combination_filled_with_the_default() -> None:  # J17
    found = list(choices2configs({"lr": [0.1, 0.01], "net.width": [4, 8]}, default={"net": {"depth": 2, "width": 1}, "seed": 0}))
    assert sorted((each.lr, each.net.width) for each in found) == [(0.01, 4), (0.01, 8), (0.1, 4), (0.1, 8)]
    assert {(each.net.depth, each.seed) for each in found} == {(2, 0)}


def test_choices2configs_reads_a_default_file_once(tmp_path: Path) -> None:
    (tmp_path / "default.yaml").write_text("width: 8")
    found = choices2configs({"lr": [0.1, 0.01]}, default=tmp_path / "default.yaml")
    widths = [next(found).width]
    (tmp_path / "default.yaml").write_text("width: 9")
    assert [*widths, next(found).width] == [8, 8]


def test_choices2configs_stops_at_num_configs_and_repeats_none() -> None:  # J17
    some = list(choices2configs({"a": [1, 2, 3], "b": [1, 2]}, 4, seed=1))
    assert len(some) == len({(each.a, each.b) for each in some}) == 4
    assert len(list(choices2configs({"a": [1, 2, 3]}, 100))) == 3
    assert list(choices2configs({"a": [1, 2, 3]}, 0)) == []


def test_choices2configs_draws_from_distributions_and_functions() -> None:  # J17
    choices = {"lr": Beta(1, 1, 0.01, 0.1), "n": lambda rng: rng.randrange(9), "arch": ["a", "b"]}
    assert list(choices2configs(choices, 5, seed=2)) == list(draw_configs(choices, 5, seed=2))
    with pytest.raises(ConfigError, match="num_configs: expected a number, because random configs can be drawn forever"):
        choices2configs(choices)


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "3"])
def test_choices2configs_requires_a_number_of_configs(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"num_configs = .*: expected a whole number"):
        choices2configs({"a": [1]}, wrong)
