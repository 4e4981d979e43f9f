"""Queries return which runs are done, which run is the best, and which values runs share."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster import Config, ConfigBase, ConfigError, Manager, Replicate, Stateless, configclass, key_of
from trainmaster.errors import MetricNameError, SettingError, StoreError, UnknownRunError


class Echo(Manager):
    """A manager whose `eval` returns the entry in `results` for the config's `name`."""

    def __init__(self, *args: Any, verbose: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, verbose=verbose, **kwargs)
        self.results: dict[Any, dict[str, Any]] = {}

    def train(self) -> None: ...

    def eval(self) -> Any:
        return self.results.get(self.config.get("name"), {"loss_test": 1.0})

    def record(self, name: str, num_epochs: int = 1, /, **result: Any) -> str:
        self.results[name] = result
        self.process({"name": name}, num_epochs=num_epochs)
        return self.key


@pytest.fixture
def manager() -> Echo:
    return Echo()


def names(manager: Echo, **query: Any) -> list[str]:
    """Return the sorted names of the configs that `completed` finds."""
    return sorted(config["name"] for _, config in manager.completed(**query))


# ---- completed (J18)


def test_completed_yields_keys_and_configs(manager: Echo) -> None:
    key = manager.record("one", loss_test=0.5)
    found = manager.completed()
    assert iter(found) is found
    assert list(found) == [(key, {"name": "one"})]
    assert isinstance(manager.configs[key], Config)


def test_a_run_that_was_never_saved_is_not_completed(manager: Echo) -> None:
    manager.configs.add({"name": "never"})
    assert list(manager.completed()) == []
    assert list(manager.completed(min_epoch=-1)) == []


def test_a_run_that_failed_before_its_first_save_is_not_completed(manager: Echo) -> None:
    manager.results["bad"] = {"loss_test": object()}
    with pytest.raises(
        SettingError, match=r"`Echo\.eval\(\)` returned values that cannot be recorded\n  wrong   loss_test: builtins\.object"
    ):
        manager.process({"name": "bad"}, num_epochs=1)
    assert list(manager.completed()) == []


@pytest.mark.parametrize(("min_epoch", "found"), [(0, ["one", "two", "zero"]), (1, ["one", "two"]), (2, ["two"]), (3, [])])
def test_min_epoch_excludes_runs_that_were_trained_less(manager: Echo, min_epoch: int, found: list[str]) -> None:
    for num_epochs, name in enumerate(["zero", "one", "two"]):
        manager.record(name, num_epochs, loss_test=0.5)
    assert names(manager, min_epoch=min_epoch) == found


@pytest.fixture
def varied(manager: Echo) -> Echo:
    for config in (
        {"name": "a", "lr": 0.1, "optim": {"name": "sgd", "betas": [0.9, 0.99]}},
        {"name": "b", "lr": 0.01, "optim": {"name": "adam", "betas": [0.5, 0.9]}},
        {"name": "c", "lr": 1, "optim": {"name": "adam"}},
        {"name": "d", "lr": None},
        {"name": "e", "lr": float("nan")},
        {"name": "f", "lr": float("inf")},
        {"name": "g", "is_deep": True},
    ):
        manager.process(config, num_epochs=0)
    return manager


@pytest.mark.parametrize(
    ("cond", "found"),
    [
        ({}, "abcdefg"),
        ({"name": "a"}, "a"),
        ({"lr": 0.1}, "a"),
        ({"lr": None}, "d"),
        ({"lr": 1}, "c"),
        ({"lr": 1.0}, ""),  # as in a config's identity, 1 and 1.0 differ
        ({"lr": True}, ""),
        ({"is_deep": True}, "g"),
        ({"is_deep": 1}, ""),
        ({"optim.name": "adam"}, "bc"),
        ({"optim": {"name": "adam"}}, "bc"),
        ({"optim.name": "adam", "lr": 0.01}, "b"),
        ({"optim.betas": [[0.9, 0.99]]}, "a"),
        ({"optim.betas": [(0.9, 0.99)]}, "a"),
    ],
)
def test_a_condition_can_be_a_value(varied: Echo, cond: Any, found: str) -> None:
    assert names(varied, cond=cond) == list(found)


@pytest.mark.parametrize(
    ("cond", "found"),
    [({"name": ["a", "c", "z"]}, "ac"), ({"lr": [0.1, None]}, "ad"), ({"lr": []}, ""), ({"optim.name": ["sgd", "adam"]}, "abc")],
)
def test_a_condition_can_be_a_list_of_values(varied: Echo, cond: Any, found: str) -> None:
    assert names(varied, cond=cond) == list(found)


@pytest.mark.parametrize(
    ("cond", "found"),
    [
        ({"lr": (0.01, 0.1)}, "ab"),  # both ends are included
        ({"lr": (0.02, None)}, "acf"),
        ({"lr": (None, 0.05)}, "b"),
        ({"lr": (2, 3)}, ""),
        ({"name": (0, 1)}, ""),
        ({"is_deep": (0, 1)}, ""),  # a boolean is not a number
    ],
)
def test_a_condition_can_be_a_range(varied: Echo, cond: Any, found: str) -> None:
    assert names(varied, cond=cond) == list(found)


@pytest.mark.parametrize(
    "wanted",
    [0.5, [0.5, 7], (0.2, None), lambda lr: lr == 0.5, True, [], (None, 0.1), lambda lr: False, float("nan")],
)
def test_a_nested_condition_is_the_same_as_a_dotted_one(manager: Echo, wanted: Any) -> None:
    """Contracts J18 and J1: nested keys mean the same as dotted keys, even if the group has other keys."""
    for name, lr in (("a", 0.5), ("b", 0.1), ("c", float("nan"))):
        manager.process({"name": name, "optim": {"lr": lr, "kind": "sgd", "deep": {"x": 1}}}, num_epochs=1)
    dotted = names(manager, cond={"optim.lr": wanted})
    forms = [
        {"optim": {"lr": wanted}},
        Config({"optim.lr": wanted}),
        {"optim": {"lr": wanted, "deep.x": 1}},
        {"optim": {"lr": wanted}, "optim.kind": "sgd"},
    ]
    assert [names(manager, cond=form) for form in forms] == [dotted] * 4
    assert names(manager, cond={"optim": {"lr": wanted, "deep": {"x": 2}}}) == []
    assert names(manager, cond={"optim": {"lr": wanted, "absent": 1}}) == []


def test_an_empty_dict_in_a_condition_is_compared_as_a_value(manager: Echo) -> None:
    manager.process({"name": "a", "optim": {}}, num_epochs=1)
    manager.process({"name": "b", "optim": {"lr": 1}}, num_epochs=1)
    assert names(manager, cond={"optim": {}}) == ["a"]


@pytest.mark.parametrize("cond", [{"optim": {5: 1}}, {"": 1}, {"optim..lr": 1}, {5: 1}])
def test_a_condition_on_an_invalid_key_is_refused(varied: Echo, cond: Any) -> None:
    with pytest.raises(StoreError, match="a condition cannot have the key"):
        list(varied.completed(cond=cond))


def test_a_condition_can_be_a_numpy_number(manager: Echo) -> None:
    manager.process({"name": "one", "width": 4, "lr": 0.5})
    for cond in ({"lr": np.float64(0.5)}, {"width": np.int64(4)}, {"width": [np.int64(4), 5]}):
        assert names(manager, cond=cond) == ["one"]


@pytest.mark.parametrize(
    ("wanted", "advice"), [({4, 5}, "write a sorted list"), (np.arange(5), "write `.tolist()`"), (torch.ones(1), "write `.tolist()`")]
)
def test_a_condition_that_no_config_can_meet_is_an_error_with_a_suggestion(manager: Echo, wanted: Any, advice: str) -> None:
    with pytest.raises(StoreError, match=rf"a value that no config can have\n  wrong   width: .*{re.escape(advice)}"):
        list(manager.completed(cond={"width": wanted}))


def test_a_condition_can_be_a_function(varied: Echo) -> None:
    assert names(varied, cond={"optim.name": lambda name: name.startswith("s")}) == ["a"]
    assert names(varied, cond={"lr": lambda lr: lr is not None and lr > 0.5}) == ["c", "f"]


def test_a_config_without_the_key_does_not_meet_a_condition(varied: Echo) -> None:
    assert names(varied, cond={"momentum": lambda value: True}) == []
    assert names(varied, cond={"momentum": None}) == []
    assert names(varied, cond={"name.first": "a"}) == []
    assert names(varied, cond={"is_deep": lambda value: True}) == ["g"]


def test_nan_and_infinity_are_compared_like_other_values(varied: Echo) -> None:
    assert names(varied, cond={"lr": float("nan")}) == ["e"]
    assert names(varied, cond={"lr": [float("nan"), float("inf")]}) == ["e", "f"]
    assert names(varied, cond={"lr": lambda lr: lr is not None and math.isnan(lr)}) == ["e"]


def test_nan_and_infinity_inside_of_values_are_compared_as_numbers(manager: Echo) -> None:
    manager.process({"name": "x", "bounds": [float("nan"), 1.0], "clip": {"most": float("inf")}}, num_epochs=0)
    assert names(manager, cond={"bounds": [[float("nan"), 1.0]]}) == ["x"]
    assert names(manager, cond={"clip": {"most": float("inf")}}) == ["x"]
    assert names(manager, cond={"clip": lambda clip: clip["most"] > 1}) == ["x"]


@pytest.mark.parametrize("wanted", [(1,), (1, 2, 3), ()])
def test_a_tuple_that_is_not_a_range_is_refused(varied: Echo, wanted: Any) -> None:
    with pytest.raises(StoreError, match="is not a range\n  try     a tuple is a range"):
        list(varied.completed(cond={"lr": wanted}))


def test_within_hours_excludes_runs_that_were_saved_earlier(manager: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.record("one", loss_test=0.5)
    assert names(manager, within_hours=1) == ["one"]
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 7200)
    manager.record("two", loss_test=0.5)
    assert names(manager, within_hours=1) == ["two"]
    assert names(manager, within_hours=0) == []


def test_a_config_that_another_process_has_just_added_is_found(tmp_path: Path) -> None:
    one, two = Echo(tmp_path), Echo(tmp_path)
    one.record("one", loss_test=0.5)
    assert names(two) == ["one"]
    one.record("two", loss_test=0.5)
    assert names(two) == ["one", "two"]


def test_a_damaged_run_is_left_out_with_a_warning(tmp_path: Path) -> None:
    manager = Echo(tmp_path)
    manager.record("good", loss_test=0.5)
    key = manager.record("bad", loss_test=0.5)
    (path,) = tmp_path.glob(f"stats/*/{key}/attempt-0001/resume.json")
    path.write_text("{}")
    with pytest.warns(UserWarning, match=f"run {key} is skipped"):
        assert names(manager) == ["good"]


# ---- best_work (J19)


def test_the_best_run_has_the_lowest_loss(manager: Echo) -> None:
    manager.record("one", loss_test=0.5)
    key = manager.record("two", loss_test=0.25)
    manager.record("three", loss_test=0.75)
    assert manager.best_work() == key


@pytest.mark.parametrize("p_key", ["acc", "acc_test", "accuracy", "return", "return_mean"])
def test_the_best_run_has_the_highest_accuracy_or_return(manager: Echo, p_key: str) -> None:
    manager.record("one", **{p_key: 0.5})
    key = manager.record("two", **{p_key: 0.75})
    assert manager.best_work(p_key=p_key) == key


def test_reverse_sets_the_direction(manager: Echo) -> None:
    low, high = manager.record("low", quality=1, acc=1), manager.record("high", quality=2, acc=2)
    assert (manager.best_work(p_key="quality", reverse=False), manager.best_work(p_key="quality", reverse=True)) == (low, high)
    assert (manager.best_work(p_key="acc"), manager.best_work(p_key="acc", reverse=False)) == (high, low)


def test_a_metric_whose_name_does_not_show_which_values_are_better_needs_a_direction(manager: Echo) -> None:
    manager.record("low", quality=1)
    with pytest.raises(SettingError) as error:
        manager.best_work(p_key="quality")
    assert "nothing says whether lower or higher is better for 'quality'" in str(error.value)
    assert 'best_work(p_key="quality", reverse=True)' in str(error.value)
    assert '`mode = "max"`' in str(error.value)


@pytest.mark.parametrize("reverse", [False, True])
def test_nan_is_never_the_best(manager: Echo, reverse: bool) -> None:
    manager.record("lost", loss_test=float("nan"))
    key = manager.record("found", loss_test=0.5)
    manager.record("lost too", loss_test=float("nan"))
    assert manager.best_work(reverse=reverse) == key


def test_infinity_is_compared_like_other_numbers(manager: Echo) -> None:
    bad, good = manager.record("bad", loss_test=float("inf")), manager.record("good", loss_test=float("-inf"))
    assert (manager.best_work(), manager.best_work(reverse=True)) == (good, bad)


def test_ties_always_give_the_same_best_run(manager: Echo) -> None:
    keys = [manager.record(str(number), loss_test=0.5) for number in range(8)]
    assert {manager.best_work() for _ in range(5)} == {min(keys)}
    assert {manager.best_work(reverse=True) for _ in range(5)} == {min(keys)}


def test_best_work_returns_none_if_no_run_has_a_number(manager: Echo) -> None:
    assert manager.best_work() is None
    manager.record("nan", loss_test=float("nan"))
    manager.record("text", loss_test="small")
    manager.record("truth", loss_test=True)
    manager.record("other", acc=0.5)
    assert manager.best_work() is None


def test_a_metric_that_no_run_has_is_an_error_that_lists_the_known_ones(manager: Echo) -> None:
    assert manager.best_work(p_key="loss_tset") is None  # the store has no runs yet
    manager.record("one", loss_test=0.5, acc=0.9)
    with pytest.raises(MetricNameError) as error:
        manager.best_work(p_key="loss_tset")
    assert str(error.value).split("\n") == [
        "there is no metric `loss_tset`",
        "  known   acc, loss_test",
        "  try     did you mean `loss_test`?",
    ]


def test_best_work_accepts_an_ending_of_a_metric_name_and_knows_its_direction(manager: Echo) -> None:
    low = manager.record("low", **{"valid/accuracy": 0.5, "valid/loss": 0.1, "train/loss": 0.9})
    high = manager.record("high", **{"valid/accuracy": 0.75, "valid/loss": 0.2, "train/loss": 0.1})
    assert (manager.best_work(p_key="accuracy"), manager.best_work(p_key="loss"), manager.best_work(p_key="train/loss")) == (
        high,
        low,
        high,
    )


def save(manager: Echo, name: str, best: Any, **preview: Any) -> str:
    """Save a run that monitors a metric, as a loop does."""
    key = manager.configs.add({"name": name})
    with manager.store.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.save(1, {}, {"epoch": 1, "best": best}, preview)
        attempt.release("finished")
    return key


def test_best_work_uses_the_metric_that_the_runs_monitor(manager: Echo) -> None:
    """The runs also define the direction, even if the name of the metric suggests the opposite."""
    best = {"metric": "valid/gap", "value": 0.0, "mode": "max"}
    save(manager, "low", best, **{"valid/gap": 0.5, "valid/loss": 0.1, "loss_test": 0.1})
    high = save(manager, "high", best, **{"valid/gap": 0.75, "valid/loss": 0.2, "loss_test": 0.2})
    manager.record("own", loss_test=0.0)
    assert manager.best_work() == high
    assert manager.best_work(p_key="gap", reverse=False) != high
    assert manager.configs[str(manager.best_work(p_key="loss_test"))].name == "own"


def test_runs_that_monitor_different_metrics_are_only_ranked_by_a_named_metric(manager: Echo) -> None:
    one = save(manager, "one", {"metric": "valid/loss", "mode": "min"}, **{"valid/loss": 0.1})
    save(manager, "two", {"metric": "valid/accuracy", "mode": "max"}, **{"valid/loss": 0.2, "valid/accuracy": 0.9})
    with pytest.raises(MetricNameError, match=r"(?s)these runs monitor different metrics.*known   valid/accuracy, valid/loss"):
        manager.best_work()
    assert manager.best_work(p_key="loss") == one
    assert manager.best_work(cond={"name": "one"}) == one


@pytest.mark.parametrize("best", [None, 3, {}, {"metric": ["x"]}, {"metric": "gone"}])
def test_a_damaged_best_entry_in_a_status_is_ignored(manager: Echo, best: Any) -> None:
    key = save(manager, "one", best, loss_test=0.5)
    assert manager.best_work() == key


def test_best_work_considers_only_runs_that_meet_the_condition(manager: Echo) -> None:
    manager.record("one", 1, loss_test=0.1)
    two = manager.record("two", 2, loss_test=0.2)
    three = manager.record("three", 3, loss_test=0.3)
    assert manager.best_work(min_epoch=2) == two
    assert manager.best_work(cond={"name": ["three"]}) == three
    assert manager.best_work(min_epoch=9) is None


def test_best_work_reads_only_previews(manager: Echo) -> None:
    manager.record("one", loss_test=0.1)
    two = manager.record("two", loss_test=0.2)
    manager.previews[two] = {"loss_test": 0.01}
    assert manager.best_work() == two
    assert manager.ckpts[two]["eval_records"][1] == {"loss_test": 0.2}


def test_numpy_and_torch_scalars_can_be_ranked(manager: Echo) -> None:
    manager.record("one", loss_test=np.float32(0.5))
    key = manager.record("two", loss_test=torch.tensor(0.25))
    assert manager.best_work() == key


# ---- overview (J20)


def test_an_overview_has_epochs_times_and_previews_as_arrays(manager: Echo) -> None:
    one = manager.record("one", 1, loss_test=0.5, acc=0.9)
    two = manager.record("two", 2, loss_test=0.25)
    found = manager.overview([one, two])
    assert found.keys == [one, two]
    assert len(found) == 2
    assert found.epochs.tolist() == [1, 2]
    assert found.t_train.shape == found.t_eval.shape == (2,)
    assert (found.t_train > 0).all()
    assert found.previews["loss_test"].tolist() == [0.5, 0.25]
    np.testing.assert_array_equal(found.previews["acc"], [0.9, np.nan])


def test_an_overview_has_all_saved_runs_by_default(manager: Echo) -> None:
    keys = {manager.record(str(number), number, loss_test=0.5) for number in range(3)}
    manager.configs.add({"name": "never"})
    assert set(manager.overview().keys) == keys
    assert len(manager.overview(min_epoch=1)) == 2
    assert len(manager.overview(cond={"name": "0"})) == 1


def test_the_arguments_of_overview_are_configs_epoch_and_metrics_in_this_order(manager: Echo) -> None:  # J20
    one, two = manager.record("one", 1, loss_test=0.5, acc=0.9), manager.record("two", 2, loss_test=0.5, acc=0.8)
    found = manager.overview([one, two], 2, ["acc"])
    assert (found.keys, found.previews["acc"].tolist(), list(found.previews)) == ([two], [0.8], ["acc"])


def test_an_overview_accepts_configs_and_keys_and_leaves_out_unknown_ones(manager: Echo) -> None:
    one, two = manager.record("one", loss_test=0.5), manager.record("two", loss_test=0.5)
    assert manager.overview([{"name": "two"}, one, {"name": "never"}, "0" * 8]).keys == [two, one]


def test_an_overview_of_given_configs_respects_the_condition(manager: Echo) -> None:
    one, two = manager.record("one", loss_test=0.5), manager.record("two", loss_test=0.5)
    assert manager.overview([one, two], cond={"name": "two"}).keys == [two]


def test_an_overview_has_only_the_requested_metrics(manager: Echo) -> None:
    manager.record("one", loss_test=0.5, acc=0.9, name="text")
    assert list(manager.overview().previews) == ["acc", "loss_test"]
    manager.record("two", loss_test=0.5)
    found = manager.overview(p_keys=["acc"]).previews["acc"]
    assert sorted(found, key=np.isnan)[0] == 0.9
    assert np.isnan(found).sum() == 1
    assert list(manager.overview(p_keys=[]).previews) == []


def test_an_overview_accepts_endings_of_metric_names_and_refuses_unknown_ones(manager: Echo) -> None:
    manager.record("one", **{"valid/loss": 0.5, "train/loss": 0.25, "valid/accuracy": 0.9})
    assert {name: each.tolist() for name, each in manager.overview(p_keys=["loss", "accuracy"]).previews.items()} == {
        "loss": [0.5],
        "accuracy": [0.9],
    }
    with pytest.raises(MetricNameError, match=r"(?s)there is no metric `acuracy`.*known   train/loss, valid/accuracy, valid/loss"):
        manager.overview(p_keys=["acuracy"])


def test_a_single_metric_name_is_not_split_into_letters(manager: Echo) -> None:
    manager.record("one", loss_test=0.5)
    assert list(manager.overview(p_keys="loss_test").previews) == ["loss_test"]


def test_a_run_at_epoch_0_has_no_training_time(manager: Echo) -> None:
    manager.record("one", 0, loss_test=0.5)
    assert np.isnan(manager.overview().t_train).all()


def test_an_overview_of_an_empty_store_is_empty(manager: Echo) -> None:
    found = manager.overview()
    assert (found.keys, found.epochs.tolist(), found.previews) == ([], [], {})
    assert str(found) == "0 runs, 0 of them saved"


def test_an_overview_is_printed_as_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    manager = Echo()
    for number, loss in enumerate([0.5, 0.25, 1.0, float("nan")]):
        manager.record(str(number), number, loss_test=loss)
    assert capsys.readouterr().out == ""
    loud = Echo(verbose=True)
    loud.store = manager.store
    loud.overview()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 runs, 4 of them saved"
    told = [" ".join(line.split()) for line in lines]
    assert told[1] == "epochs min 0, median 1.5, max 3 (4)"
    assert told[-1] == "loss_test min 0.25, median 0.5, max 1 (3)"  # NaN is left out


def test_an_overview_accepts_numbers_that_are_too_large_for_a_float(manager: Echo) -> None:
    key = manager.configs.add({"name": "big"})
    manager.ckpts[key] = {}
    manager.previews[key] = {"num_paths": 10**400}
    assert manager.overview([key]).previews["num_paths"].tolist() == [math.inf]


# ---- compare and group (J20)


def test_compare_returns_the_shared_values_and_the_remaining_values_of_each(manager: Echo) -> None:
    shared, rest = manager.compare(
        [{"lr": 0.1, "optim": {"name": "sgd", "momentum": 0.9}}, {"lr": 0.2, "optim": {"name": "sgd"}}, {"lr": 0.1, "optim.name": "sgd"}]
    )
    assert shared == {"optim": {"name": "sgd"}}
    assert rest == [{"lr": 0.1, "optim": {"momentum": 0.9}}, {"lr": 0.2}, {"lr": 0.1}]


def test_compare_accepts_keys(manager: Echo) -> None:
    keys = [manager.record(name, loss_test=0.5) for name in ("one", "two")]
    assert manager.compare(keys) == ({}, [{"name": "one"}, {"name": "two"}])
    assert manager.compare(key for key in keys[:1]) == ({"name": "one"}, [{}])


def test_compare_distinguishes_values_like_the_identity(manager: Echo) -> None:
    assert manager.compare([{"a": 1}, {"a": 1.0}])[0] == {}
    assert manager.compare([{"a": True}, {"a": 1}])[0] == {}
    assert manager.compare([{"a": [1, 2]}, {"a": (1, 2)}])[0] == {"a": [1, 2]}
    shared, rest = manager.compare([{"a": float("nan")}, {"a": float("nan")}])
    assert math.isnan(shared["a"])
    assert rest == [{}, {}]


def test_a_value_in_one_config_that_is_a_group_in_another_is_not_shared(manager: Echo) -> None:
    assert manager.compare([{"a": 1}, {"a": {"b": 1}}]) == ({}, [{"a": 1}, {"a": {"b": 1}}])


def test_compare_without_configs_returns_empty_results(manager: Echo) -> None:
    assert manager.compare([]) == ({}, [])


def test_configs_in_a_group_differ_only_in_keys_that_end_in_seed(manager: Echo) -> None:
    configs = [
        {"lr": 0.1, "seed": 1},
        {"lr": 0.2, "seed": 1},
        {"lr": 0.1, "seed": 2, "data": {"split_seed": 5}},
        {"lr": 0.1, "seed": 3},
        {"lr": 0.1},
    ]
    groups = manager.group(configs)
    assert [[config.get("seed") for config in group] for group in groups] == [[1, 3, None], [1], [2]]
    assert groups[0] == [configs[0], configs[3], configs[4]]


def test_group_accepts_keys(manager: Echo) -> None:
    for seed in (1, 2):
        manager.process({"name": "one", "seed": seed}, num_epochs=0)
    (group,) = manager.group(key for key, _ in manager.completed())
    assert sorted(config["seed"] for config in group) == [1, 2]


@pytest.mark.parametrize("method", ["compare", "group"])
def test_an_unknown_key_is_an_error(manager: Echo, method: str) -> None:
    with pytest.raises(UnknownRunError, match="no config has the key 00000000"):
        getattr(manager, method)(["00000000"])


@pytest.mark.parametrize("method", ["compare", "group"])
def test_an_invalid_config_is_an_error(manager: Echo, method: str) -> None:
    with pytest.raises(ConfigError, match="expected a dict"):
        getattr(manager, method)([3])


@configclass
class Typed(ConfigBase):
    lr: float = 0.1
    fold: Replicate[int] = 0
    note: Stateless[str] = ""


def test_replicate_fields_of_a_typed_config_do_not_create_another_group() -> None:
    manager = Echo(None, Typed)
    assert len(manager.group([Typed(fold=1), Typed(fold=2), {"fold": 3}])) == 1


def test_stateless_fields_of_a_typed_config_do_not_create_another_group() -> None:
    manager = Echo(None, Typed)
    assert len(manager.group([Typed(note="mine"), Typed(note="yours")])) == 1


def test_typed_runs_can_be_grouped_by_their_keys() -> None:
    manager = Echo(None, Typed)
    keys = [manager.configs.add(Typed(fold=fold)) for fold in (1, 2)]
    assert len(manager.group(keys)) == 1


def test_typed_configs_are_compared_by_all_their_values() -> None:
    manager = Echo(None, Typed)
    shared, rest = manager.compare([Typed(lr=0.2, note="mine"), {"note": "yours"}])
    assert shared == {"fold": 0}
    assert rest == [{"lr": 0.2, "note": "mine"}, {"lr": 0.1, "note": "yours"}]


def test_a_condition_can_use_every_field_of_a_typed_config() -> None:
    manager = Echo(None, Typed)
    manager.configs.add(Typed(lr=0.3))
    key = manager.configs.add(Typed(lr=0.2, note="mine"))
    for each in list(manager.configs):
        manager.ckpts[each] = {}
    assert [found for found, _ in manager.completed(cond={"note": "mine"})] == [key]
    assert key == key_of(Typed(lr=0.2))
