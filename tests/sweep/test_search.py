"""`Manager.search` records a search in the store, and any process can continue it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_search import EPOCHS, GRID, SPACE, RaisesUnpicklable, Toy, final_loss

from trainmaster import SearchSpace, configclass
from trainmaster.config import ConfigBase, Stateless
from trainmaster.errors import ConfigError, MetricNameError, MissingExtraError, SearchError, SettingError, StoreDamagedError
from trainmaster.store.attempt import request_stop
from trainmaster.sweep.search import SearchResult, plan_search
from trainmaster.sweep.search_records import find_search, search_names
from trainmaster.sweep.search_session import read_result

pytest.importorskip("optuna")


def toy(folder: Path | None = None, **settings: Any) -> Toy:
    return Toy(folder, verbose=False, **settings)


def run(manager: Toy, trials: int = 6, space: Any = None, **settings: Any) -> SearchResult:
    given = {"sampler": "random", "epochs": EPOCHS, "name": "test"} | settings
    return manager.search(SPACE if space is None else space, trials=trials, **given)


def points(result: SearchResult) -> list[Any]:
    return [trial.config for trial in result.trials]


# ---- trials


def test_each_trial_is_a_run_in_the_store_with_the_proposed_values() -> None:
    manager = toy()
    result = run(manager, 5)
    assert [trial.state for trial in result.trials] == ["complete"] * 5
    for trial in result.trials:
        config = manager.configs[trial.keys[0]]
        assert {key: config[key] for key in SPACE} == dict(trial.config)
        assert trial.values == pytest.approx((final_loss(config) * (1 + 2 / EPOCHS),))
        assert manager.stats[trial.keys[0]]["epoch"] == EPOCHS


def test_the_best_trial_has_the_lowest_loss_or_the_highest_metric() -> None:
    result = run(toy(), 5)
    values = [trial.values[0] for trial in result.trials if trial.values]
    assert result.best is not None
    assert result.best.values == (min(values),)
    highest = run(toy(), 5, mode="max").best
    assert highest is not None
    assert highest.values == (max(values),)


def test_the_same_call_continues_and_more_trials_extend_a_search(tmp_path: Path) -> None:
    whole = run(toy(tmp_path / "whole"), 8, sampler="tpe", window=2)
    part = run(toy(tmp_path / "part"), 3, sampler="tpe", window=2)
    more = run(toy(tmp_path / "part"), 8, sampler="tpe", window=2)
    assert points(part) == points(whole)[:3]
    assert points(more) == points(whole)
    assert all(toy(tmp_path / "part").store.run(key).attempts() == [1] for trial in more.trials for key in trial.keys)


def test_the_driver_and_the_live_view_can_read_the_same_new_trial_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The live view reads the trials in its own thread. A trial that was read twice would shift the numbers of later trials."""
    manager = toy()
    run(manager, 3)
    records = find_search(manager.store, "test")
    read, is_first = records._read, [True]

    def read_while_the_other_thread_reads(kind: str, number: int) -> Any:
        found = read(kind, number)
        if is_first.pop() if is_first else False:
            records.trials()
        return found

    monkeypatch.setattr(records, "_read", read_while_the_other_thread_reads)
    assert [trial.number for trial in records.trials()] == [0, 1, 2]


def test_a_complete_search_trains_nothing(tmp_path: Path) -> None:
    first = run(toy(tmp_path), 3)
    again = run(toy(tmp_path), 2)
    assert again.trials == first.trials


def test_changing_the_number_of_workers_later_does_not_change_the_window(tmp_path: Path) -> None:
    run(toy(tmp_path), 1, sampler="tpe", workers=0)
    assert run(toy(tmp_path), 2, sampler="tpe", workers=1).plan.window == 1


def test_without_a_name_the_same_settings_find_the_same_search(tmp_path: Path) -> None:
    first = run(toy(tmp_path), 2, name=None)
    assert run(toy(tmp_path), 3, name=None).name == first.name
    assert run(toy(tmp_path), 2, name=None, seed=1).name != first.name
    assert len(search_names(toy(tmp_path).store)) == 2


def test_a_changed_space_is_refused_and_the_difference_is_listed(tmp_path: Path) -> None:
    run(toy(tmp_path), 2)
    with pytest.raises(SearchError, match="the search test exists with another plan") as caught:
        run(toy(tmp_path), 4, space={**SPACE, "y": "float(0,20)"})
    assert "space.y.value_range" in str(caught.value)
    assert "15.0" in str(caught.value)
    assert "20.0" in str(caught.value)
    with pytest.raises(SearchError, match="epochs"):
        run(toy(tmp_path), 4, epochs=EPOCHS + 1)


def test_a_driver_with_another_space_is_refused_while_the_search_runs(tmp_path: Path) -> None:
    refused: list[str] = []

    class StartsAnother(Toy):
        def train(self) -> None:
            if not refused:
                with pytest.raises(SearchError, match="the search test exists with another plan") as caught:
                    run(toy(tmp_path), 4, space={**SPACE, "y": "float(0,20)"})
                refused.append(str(caught.value))
            super().train()

    result = run(StartsAnother(tmp_path, verbose=False), 3)
    assert "space.y.value_range" in refused[0]
    assert result.count("complete") == 3
    assert points(result) == points(run(toy(), 3))


def test_a_run_that_was_trained_before_the_search_is_used_and_not_trained_again(tmp_path: Path) -> None:
    space = {"x": [1.0], "y": [3.0]}
    manager = toy(tmp_path)
    manager.process({"x": 1.0, "y": 3.0}, num_epochs=EPOCHS)
    result = run(manager, 1, space=space)
    assert result.best is not None
    assert manager.store.run(result.best.keys[0]).attempts() == [1]


def test_a_run_that_was_trained_further_has_the_value_at_the_target(tmp_path: Path) -> None:
    manager = toy(tmp_path)
    manager.process({"x": 2.0, "y": 3.0}, num_epochs=EPOCHS + 4)
    result = run(manager, 1, space={"x": [2.0], "y": [3.0]})
    assert result.trials[0].values == pytest.approx((1.0 * (1 + 2 / EPOCHS),))


# ---- points that are not run


def test_duplicates_are_recorded_but_not_run_and_end_an_exhausted_search() -> None:
    manager = toy()
    result = run(manager, 50, space={"kind": ["a", "b"]})
    assert [trial.state for trial in result.trials].count("complete") == 2
    assert result.end_reason == "the last 20 proposals were invalid or duplicates of earlier trials"
    assert result.trials[-1].reason.startswith("the same config as trial ")
    assert len(list(manager.configs)) == 2


def test_a_grid_search_tries_every_point_once_and_reports_that_it_is_exhausted() -> None:
    result = run(toy(), 100, space=GRID, sampler="grid")
    assert len({str(trial.config) for trial in result.trials}) == len(result.trials) == 24
    assert result.end_reason == "all 24 points of the grid have been tried"


class Sizes(ConfigBase):
    width: int = 8
    heads: int = 2
    wait: float = 0.0

    def problems(self) -> Any:
        if self.width % self.heads:
            yield "heads", "does not divide the width"


class Typed(Toy):
    defaults: Any = configclass(Sizes)

    def train(self) -> None: ...

    def eval(self) -> dict[str, float]:
        return {"loss": float(self.config.width)}


def test_an_invalid_point_is_recorded_with_its_reason_and_not_run() -> None:
    manager = Typed(verbose=False)  # A44
    result = manager.search({"width": [8, 9], "heads": [2, 3]}, 4, sampler="grid", epochs=1)
    assert {(trial.config["width"], trial.config["heads"]): trial.state for trial in result.trials} == {
        (8, 2): "complete", (8, 3): "invalid", (9, 2): "invalid", (9, 3): "complete",
    }  # fmt: skip
    assert [trial.reason for trial in result.trials if trial.state == "invalid"] == ["heads: does not divide the width"] * 2


# ---- pruning


def test_a_pruned_run_keeps_its_metrics_and_checkpoint_and_can_be_resumed(tmp_path: Path) -> None:
    manager = toy(tmp_path)
    result = run(manager, 20, sampler="random", pruner="median")
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned
    for trial in pruned:
        assert 1 <= trial.epochs < EPOCHS
        assert manager.stats[trial.keys[0]]["epoch"] == trial.epochs
        assert manager.store.run(trial.keys[0]).latest() is not None
    key = pruned[0].keys[0]
    manager.process(manager.configs[key], num_epochs=EPOCHS)
    assert manager.stats[key]["epoch"] == EPOCHS
    assert read_result(find_search(manager.store, "test")).trials == result.trials  # the recorded result does not change


def test_a_run_that_was_trained_outside_of_the_search_is_pruned_in_the_same_way(tmp_path: Path) -> None:
    alone = run(toy(tmp_path / "alone"), 20, pruner="median")
    manager = toy(tmp_path / "helped")
    for trial in alone.trials:
        manager.process({**trial.config}, num_epochs=EPOCHS)
    helped = run(manager, 20, pruner="median")
    assert [(trial.state, trial.values, trial.epochs) for trial in helped.trials] == [
        (trial.state, trial.values, trial.epochs) for trial in alone.trials
    ]


# ---- replicates, several metrics, warm start


def test_replicates_have_different_seeds_and_the_value_of_a_trial_is_their_mean() -> None:
    manager = toy()
    result = run(manager, 2, replicates=3)
    for trial in result.trials:
        assert [manager.configs[key].seed for key in trial.keys] == [0, 1, 2]
        losses = [final_loss(manager.configs[key]) * (1 + 2 / EPOCHS) for key in trial.keys]
        assert trial.values == pytest.approx((sum(losses) / 3,))


def test_wilcoxon_prunes_the_replicates_of_a_worse_trial() -> None:
    manager = toy()
    result = run(manager, 6, replicates=8, pruner="wilcoxon", seed=1)
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert pruned
    trained = [key for key in pruned[0].keys if manager.stats.get(key) is not None]
    assert len(trained) < 8


def test_a_search_with_several_metrics_returns_the_pareto_front() -> None:
    result = run(toy(), 12, sampler="nsga2", monitor=("loss", "size"), mode=("min", "min"))
    best = [trial.values for trial in result.ranking]
    others = [trial.values for trial in result.trials if trial not in result.ranking]
    assert best
    assert all(any(good[0] <= one[0] and good[1] <= one[1] for good in best if good) for one in others if one)


def test_the_warm_start_is_fixed_when_the_search_is_created(tmp_path: Path) -> None:
    manager = toy(tmp_path)
    for x in range(12):
        manager.process({"x": float(x - 2), "y": 3.0}, num_epochs=EPOCHS)
    manager.process({"x": 0.5, "y": 3.0, "seed": 7}, num_epochs=EPOCHS)  # matches no trial, because its seed differs
    manager.process({"x": 0.6, "y": 3.0}, num_epochs=EPOCHS - 1)  # matches no trial, because it has fewer epochs
    warm = run(manager, 2, sampler="tpe", warm_start=True)
    assert len(warm.plan.warm_start) == 12
    manager.process({"x": 0.75, "y": 3.0}, num_epochs=EPOCHS)
    assert len(run(manager, 3, sampler="tpe", warm_start=True).plan.warm_start) == 12
    assert points(warm) != points(run(toy(), 2, sampler="tpe"))


# ---- wrong input


def test_an_unknown_key_is_refused_before_anything_is_trained() -> None:
    manager = toy()
    with pytest.raises(ConfigError, match=r"the config has no such key; did you mean `kind`?"):
        run(manager, space={"kidn": ["a", "b"]})
    assert list(manager.configs) == []


@configclass
class Optional(ConfigBase):
    lr: float = 0.1
    num_workers: Stateless[int] = 0


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lrr": "float(0,1)"}, "did you mean `lr`?"),
        ({"num_workers": "int(0,4)"}, "not part of the config's identity"),
        ({"lr": ["a", "b"]}, "lr = 'a'"),
    ],
)
def test_a_space_with_values_that_a_typed_config_refuses_is_an_error(space: Any, message: str) -> None:
    manager = Toy(None, Optional, verbose=False)
    with pytest.raises(ConfigError) as caught:
        manager.search(space, 3, epochs=1)
    assert message in str(caught.value)


def test_a_metric_that_no_run_reports_ends_the_search_with_the_known_names() -> None:
    with pytest.raises(MetricNameError) as caught:
        run(toy(), monitor="los", mode="min")  # A47
    assert "did you mean `loss`?" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": "tpee"}, "unknown sampler 'tpee'"),
        ({"pruner": "media"}, "unknown pruner 'media'"),
        ({"trials": 0}, "`trials` must be"),
        ({"window": 0}, "`window` must be"),
        ({"monitor": "gap"}, "is a smaller or a larger `gap` better?"),
        ({"monitor": ("loss", "size"), "mode": ("min", "min"), "sampler": "cmaes"}, "one metric only"),
        ({"monitor": ("loss", "size"), "mode": ("min", "min"), "pruner": "median"}, "several metrics cannot use a pruner"),
        ({"replicates": 3, "pruner": "asha"}, "compares epochs, not replicates"),
        ({"pruner": "wilcoxon"}, "replicates=5"),
        ({"pruner": "hyperband", "epochs": None}, "hyperband needs the number of epochs"),
        ({"name": "../up"}, "name='../up'"),
        ({"timeout": -1}, "`timeout` must be"),
    ],
)
def test_invalid_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        run(toy(), **settings)
    assert message in str(caught.value)


class Failing(Toy):
    def train(self) -> None:
        if self.config.kind == "b" or self.config.wait:
            raise RuntimeError("no such kind")
        super().train()


def test_a_failed_trial_does_not_stop_the_search() -> None:
    result = run(Failing(verbose=False), 8, seed=3)
    assert {trial.state for trial in result.trials} == {"complete", "failed"}
    assert next(trial.reason for trial in result.trials if trial.state == "failed") == "RuntimeError: no such kind"


@pytest.mark.integration
def test_an_exception_that_cannot_be_pickled_only_makes_its_trial_fail(tmp_path: Path) -> None:
    result = run(RaisesUnpicklable(tmp_path, verbose=False), 8, seed=3, workers=2)
    states = {trial.config["kind"]: trial.state for trial in result.trials}
    assert states == {"a": "complete", "b": "failed"}
    assert {trial.reason for trial in result.trials if trial.state == "failed"} == {"CannotBePickledError: one and two"}


def test_a_search_ends_with_an_error_if_all_its_first_trials_fail() -> None:
    manager = Failing(verbose=False)
    with pytest.raises(SearchError, match="the first 3 trials failed") as caught:
        run(manager, 8, base={"wait": 0.001})
    assert "no such kind" in str(caught.value)


class NotANumber(Toy):
    def eval(self) -> dict[str, float]:
        return {"loss": float("nan") if self.config.kind == "b" else super().eval()["loss"]}


def test_nan_is_recorded_and_never_the_best() -> None:
    result = run(NotANumber(verbose=False), 10, sampler="tpe")
    values = {trial.config["kind"]: trial.values for trial in result.trials}
    assert values["b"] is not None
    assert values["b"][0] != values["b"][0]
    assert result.best is not None
    assert result.best.config["kind"] == "a"


def test_a_default_that_changed_after_the_search_was_created_is_an_error(tmp_path: Path) -> None:
    run(toy(tmp_path), 2)
    (tmp_path / "sweeps" / "test" / "outcomes" / "000001.json").unlink()

    class Changed(Toy):
        defaults: Any = {**Toy.defaults, "depth": 2}

    with pytest.raises(SearchError, match="exists with another plan"):
        run(Changed(tmp_path, verbose=False, same_program=True), 3)


def test_a_damaged_record_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    run(toy(tmp_path), 2)
    file = tmp_path / "sweeps" / "test" / "proposals" / "000000.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(StoreDamagedError, match=r"sweeps/test/proposals/000000.json"):
        run(toy(tmp_path), 3)


def test_the_runs_of_a_search_with_a_damaged_outcome_can_be_listed(tmp_path: Path) -> None:
    result = run(toy(tmp_path), 2)
    file = tmp_path / "sweeps" / "test" / "outcomes" / "000000.json"
    file.write_bytes(file.read_bytes()[:-20])
    trials = find_search(toy(tmp_path).store, "test").trials()
    assert [trial.keys for trial in trials] == [trial.keys for trial in result.trials]
    assert [trial.state for trial in trials] == ["running", "complete"]
    with pytest.raises(StoreDamagedError, match=r"sweeps/test/outcomes/000000.json"):
        run(toy(tmp_path), 3)


@pytest.mark.parametrize(("sampler", "pruner"), [("Sobol", "none"), ("random", "halving"), ("cma-es", "none"), ("NSGA-II", "none")])
def test_other_common_names_of_samplers_and_pruners_are_known(sampler: str, pruner: str) -> None:
    plan = plan_search(toy(), SPACE, sampler=sampler, pruner=pruner, epochs=EPOCHS)
    assert plan.sampler in ("qmc", "random", "cmaes", "nsga2")
    assert plan.pruner in ("none", "asha")


def test_search_space_objects_of_a_parallel_config_are_accepted() -> None:
    result = run(toy(), 3, space={"x": SearchSpace(value_range=(0.0, 1.0)), "kind": SearchSpace(categorical_values=["a", "b"])})
    assert all(0 <= trial.config["x"] <= 1 for trial in result.trials)


# ---- several jobs at the same time


class Recording:
    """An executor that trains in this process, but only after it has received all jobs of a round."""

    workers = 3

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self._tasks: list[Any] = []

    def open(self, manager: Any, run_task: Any) -> None:
        self._run_task = run_task

    def has_room(self) -> bool:
        return len(self._tasks) < self.workers

    def submit(self, task: Any) -> None:
        self._tasks.append(task)

    def reports(self, timeout: float) -> list[Any]:
        tasks, self._tasks = self._tasks, []
        self.rounds += [len(tasks)] if tasks else []
        return [self._run_task(task) for task in reversed(tasks)]

    def stop(self, reason: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"sampler": "random"}, [3, 3, 3]),
        ({"sampler": "grid", "space": GRID}, [3, 3, 3]),
        ({"sampler": "qmc"}, [3, 3, 3]),
        ({"sampler": "tpe"}, [3, 3, 3]),
        ({"sampler": "tpe", "window": None}, [3, 3, 3]),
        ({"sampler": "tpe", "window": 1}, [1] * 9),
        ({"sampler": "random", "pruner": "median"}, [3, 3, 3]),
    ],
)
def test_a_search_keeps_all_workers_busy(settings: Any, rounds: list[int]) -> None:
    executor = Recording()
    result = run(toy(), 9, workers=executor, **settings)
    assert executor.rounds == rounds
    assert all(trial.state in ("complete", "pruned") for trial in result.trials)


def test_a_random_search_prunes_the_same_trials_with_any_number_of_workers() -> None:
    together, alone = (run(toy(), 20, workers=workers, pruner="median", window=4) for workers in (Recording(), 0))
    assert "pruned" in {trial.state for trial in alone.trials}
    assert together.trials == alone.trials


# ---- problems that users found


class NeverFinite(Toy):
    def eval(self) -> dict[str, float]:
        return {"loss": float("nan")}


def test_a_search_without_a_finite_value_has_no_best_trial(capsys: pytest.CaptureFixture[str]) -> None:
    result = run(NeverFinite(), 3)
    assert (result.best, result.ranking) == (None, [])
    assert "3 trials ended with a loss that is not finite" in capsys.readouterr().out


def test_a_missing_metric_raises_the_same_error_again_and_makes_no_trial_fail(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(MetricNameError):
            run(toy(tmp_path), monitor="los", mode="min")
    assert [trial.state for trial in read_result(find_search(toy(tmp_path).store, "test")).trials] == ["running"]
    assert len(list(toy(tmp_path).configs)) == 1


def test_a_group_of_keys_cannot_be_searched_as_a_value() -> None:
    class Grouped(Toy):
        defaults: Any = {**Toy.defaults, "optim": {"name": "sgd", "lr": 0.1}}

    with pytest.raises(ConfigError, match="is a group of keys") as caught:
        run(Grouped(verbose=False), space={"optim": "log(1e-4,1)"})
    assert "optim.lr" in str(caught.value)


def test_the_progress_of_a_continued_search_counts_the_remaining_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(toy(tmp_path), 3)
    run(Toy(tmp_path), 5)
    assert "[2/2] done" in capsys.readouterr().out


def test_a_run_that_was_removed_is_not_trained_again_by_the_search(tmp_path: Path) -> None:
    manager = toy(tmp_path)
    first = run(manager, 3)
    manager.store.remove(first.trials[0].keys[0])
    assert run(toy(tmp_path), 3).trials == first.trials
    assert len(list(manager.configs)) == 2


class Stopping(Toy):
    is_on = True

    def init_ckpt(self) -> None:
        super().init_ckpt()
        if self.is_on:
            request_stop(self.store.run(self.key))
            time.sleep(2.5)  # requests are polled once a second


def test_stopping_a_run_ends_the_search_and_the_next_call_resumes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = run(Stopping(tmp_path, verbose=False), 3)
    assert [trial.state for trial in stopped.trials] == ["running"]
    assert "was stopped" in stopped.end_reason
    monkeypatch.setattr(Stopping, "is_on", False)
    assert [trial.state for trial in run(Stopping(tmp_path, verbose=False), 3).trials] == ["complete"] * 3


class FullDisk(Toy):
    is_full = True

    def train(self) -> None:
        if self.is_full and self.config.kind == "b":
            raise OSError(28, "No space left on device")
        super().train()


def test_a_full_disk_ends_the_search_and_the_next_call_resumes_the_trial(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="could not be saved") as caught:
        run(FullDisk(tmp_path, verbose=False), 8, seed=3)
    assert "No space left on device" in str(caught.value)

    class Freed(FullDisk):
        is_full = False

    result = run(Freed(tmp_path, verbose=False, same_program=True), 8, seed=3)
    assert [trial.state for trial in result.trials] == ["complete"] * 8


def test_a_search_without_a_limit_shows_no_total(capsys: pytest.CaptureFixture[str]) -> None:
    Toy(None).search({"kind": ["a", "b"]}, trials=sys.maxsize, sampler="random", epochs=1, name="endless")
    shown = capsys.readouterr().out
    assert "search endless: trials until you stop it, by random" in shown
    assert "/9,223" not in shown


@pytest.mark.parametrize(("module", "message"), [("optuna", "search"), ("cmaes", "the sampler cmaes")])
def test_a_missing_package_is_named_in_the_error(module: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as caught:
        run(toy(), sampler="cmaes")
    assert str(caught.value) == f"{message} needs: pip install 'trainmaster[search]'"


def test_a_manager_that_cannot_be_pickled_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    class Local(Toy): ...

    with pytest.raises(SettingError, match="Local"):
        run(Local(tmp_path, verbose=False), 2, workers=1)
    assert not list(tmp_path.glob("stats/*/*"))
