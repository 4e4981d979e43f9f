"""Search spaces can be written in Python, YAML or on the command line, and used by Optuna or a grid (A42, A43)."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster import SearchSpace
from trainmaster.errors import ConfigError
from trainmaster.sweep.space import Space, parse_space

optuna = pytest.importorskip("optuna")

CONDITIONAL = {
    "optim": SearchSpace(
        subspaces=[
            SearchSpace(sub_configuration={"name": "sgd", "lr": {"value_range": (0.1, 1.0), "n_bins": 3}}),
            SearchSpace(sub_configuration={"name": "adam", "options": {"eps": {"categorical_values": [1e-8, 1e-6]}}}),
        ]
    ),
    "act": ["relu", None],
}


def points(space: Space) -> list[dict[str, Any]]:
    return [space.suggest(optuna.trial.FixedTrial(space.point(index))) for index in range(space.num_points)]


# ---- the command line


def test_words_are_split_into_a_space_and_fixed_overrides() -> None:
    space, fixed = parse_space(["lr=log(1e-5,1e-1)", "dropout=float(0,0.5)", "width=int(8, 256)", "optim.name=sgd,adam", "epochs=5"])
    assert space is not None
    assert space.to_dict() == {
        "lr": {"value_range": (1e-5, 0.1), "log": True},
        "dropout": {"value_range": (0.0, 0.5)},
        "width": {"value_range": (8.0, 256.0), "value_type": "int"},
        "optim.name": {"categorical_values": ["sgd", "adam"]},
    }
    assert fixed == ["epochs=5"]


def test_values_are_read_as_yaml() -> None:
    space, _ = parse_space(["a=1,2.5,true,null,x", "b=[[1, 2], [3]]"])
    assert space is not None
    assert space.keys["a"].categorical_values == [1, 2.5, True, None, "x"]
    assert space.keys["b"].categorical_values == [[1, 2], [3]]


@pytest.mark.parametrize("word", ["epochs=5", "name=relu", "text='a,b'"])
def test_a_key_with_one_value_is_not_searched(word: str) -> None:
    assert parse_space([word]) == (None, [word])


def test_a_list_in_brackets_is_a_list_of_choices_as_in_a_sweep() -> None:
    assert parse_space(["sizes=[3]"]) == (None, ["sizes=3"])
    assert parse_space(["sizes=[[3]]"]) == (None, ["sizes=[3]"])


def test_bins_and_log_are_options_of_a_range() -> None:
    space, _ = parse_space(["lr=log(1e-3,1e-1,bins=3)", "n=int(1,100,bins=3,log=true)"])
    assert space is not None
    assert points(space)[:4] == [{"lr": 0.001, "n": 1}, {"lr": 0.001, "n": 10}, {"lr": 0.001, "n": 100}, {"lr": 0.01, "n": 1}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flot(0,1)", "did you mean `float`?"),
        ("float(1,0)", "the smaller one first"),
        ("log(0,1)", "value_range"),
        ("int(0.5,3)", "must have whole numbers as its ends"),
        ("int(1)", "expected a low and a high end, not 1 number"),
        ("float(a,b)", "expected a number, not `a`"),
        ("float(0,1,steps=3)", "unknown option `steps`; known: bins, log"),
        ("float(0,1,bins=0)", "n_bins"),
        ("float(0,inf)", "expected a number, not `inf`"),
    ],
)
def test_an_invalid_range_is_refused_with_its_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Space.of({"lr": text})
    assert message in str(caught.value)
    assert "lr" in str(caught.value)


def test_all_wrong_keys_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Space.of({"lr": "log(0,1)", "width": "int(9,3)", "x": 3})
    assert [each.key for each in caught.value.problems] == ["lr", "width", "x"]


def test_a_space_without_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no keys"):
        Space.of({})


# ---- grids


def test_a_grid_lists_every_point_of_a_conditional_space_once() -> None:
    found = points(Space.of(CONDITIONAL))
    sgd = [{"optim": {"name": "sgd", "lr": lr}, "act": act} for lr in (0.1, 0.55, 1.0) for act in ("relu", None)]
    adam = [{"optim": {"name": "adam", "options": {"eps": eps}}, "act": act} for eps in (1e-8, 1e-6) for act in ("relu", None)]
    assert found == sgd + adam


def test_a_grid_of_integers_has_no_repeated_values() -> None:
    assert [each["n"] for each in points(Space.of({"n": "int(1,3,bins=10)"}))] == [1, 2, 3]


def test_bins_are_rounded_to_short_decimal_numbers() -> None:
    assert [each["lr"] for each in points(Space.of({"lr": "log(1e-4,1e-1,bins=4)"}))] == [0.0001, 0.001, 0.01, 0.1]


def test_a_grid_needs_bins_for_every_range_even_in_sub_spaces() -> None:
    inner = SearchSpace(subspaces=[SearchSpace(sub_configuration={"lr": {"value_range": (0.0, 1.0)}})])
    with pytest.raises(ConfigError) as caught:
        Space.of({"lr": "float(0,1)", "optim": inner}).check_is_countable()
    assert [each.key for each in caught.value.problems] == ["lr", "optim"]
    assert "float(0,1,bins=5)" in str(caught.value)


# ---- Optuna


def test_the_space_contains_every_sampled_value() -> None:
    space = Space.of({**CONDITIONAL, "lr": "log(1e-5,1e-1)", "width": "int(8,256)", "binned": "float(0,1,bins=5)"})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(50):
        point = space.suggest(study.ask())
        assert all(space.keys[key].contains(value) for key, value in point.items())


def test_recorded_parameters_give_the_same_point_again() -> None:
    space = Space.of({**CONDITIONAL, "lr": "log(1e-5,1e-1)"})
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    point = space.suggest(trial)
    assert all(isinstance(value, int | float) for value in trial.params.values())
    assert space.suggest(optuna.trial.FixedTrial(trial.params)) == point


def test_a_space_is_read_back_from_its_plain_form() -> None:
    space = Space.of({**CONDITIONAL, "lr": "log(1e-5,1e-1,bins=4)"})
    again = Space.of(space.to_dict())
    assert again.to_dict() == space.to_dict()
    assert points(again) == points(space)


def test_the_parameters_of_a_config_can_be_recovered() -> None:
    space = Space.of({**CONDITIONAL, "lr": "log(1e-5,1e-1)", "binned": "float(0,1,bins=5)"})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(20):
        trial = study.ask()
        point = space.suggest(trial)
        assert space.parameters_of(point) == trial.params


@pytest.mark.parametrize("value", [{"lr": 1.0, "binned": 0.5}, {"lr": 0.01, "binned": 0.3}, {"lr": 0.01}, {"lr": "a", "binned": 0.5}])
def test_values_outside_the_space_have_no_parameters(value: dict[str, Any]) -> None:
    assert Space.of({"lr": "log(1e-5,1e-1)", "binned": "float(0,1,bins=5)"}).parameters_of(value) is None


@pytest.mark.parametrize("word", ["lr=log(1e-4", "lr=log(1e-4,1", "lr=log(1e-4,1)x"])
def test_an_unclosed_range_is_refused_and_not_treated_as_a_fixed_value(word: str) -> None:
    with pytest.raises(ConfigError, match=r"log\(low,high\)"):
        parse_space([word])
