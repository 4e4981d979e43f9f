"""`ParallelTrainer` runs ablator's example program, and every config field has an effect (A41, A42, A45 to A47)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")

import cifar_program
from cifar_program import CifarRun, CifarSearch, MyModel, MyModelWrapper, config_for, weights_digest
from synthetic_torchvision import KILL_AFTER

from trainmaster import ParallelConfig, ParallelTrainer, ProtoTrainer, RunConfig, SearchSpace
from trainmaster.errors import ConfigError, SettingError
from trainmaster.sweep.search import SearchResult
from trainmaster.sweep.space import Space

LR = "train_config.optimizer_config.arguments.lr"
LRS = {LR: {"categorical_values": [0.05, 0.2]}}


def launched(folder: Any, wrapper: Any = None, **values: Any) -> SearchResult:
    values = {"search_space": LRS, **values}
    return ParallelTrainer(wrapper or MyModelWrapper(MyModel), config_for(CifarSearch, folder, eval_epoch=1, **values)).launch()


def test_a_trial_has_the_same_weights_as_a_separate_run_of_its_config(tmp_path: Path) -> None:
    result = launched(tmp_path / "search")
    assert [trial.state for trial in result.trials] == ["complete", "complete"]
    alone = ProtoTrainer(MyModelWrapper(MyModel), config_for(CifarRun, tmp_path / "alone", eval_epoch=1).override(f"{LR}=0.2"))
    alone.launch()
    trial = next(trial for trial in result.trials if trial.config[LR] == 0.2)
    assert trial.keys[0] == alone.manager.key
    trainer = ParallelTrainer(MyModelWrapper(MyModel), config_for(CifarSearch, tmp_path / "search", eval_epoch=1, search_space=LRS))
    assert weights_digest(trainer.manager.fetch(trial.keys[0]).model) == weights_digest(alone.manager.model)


PROGRAM = [sys.executable, cifar_program.__file__, "parallel"]


@pytest.mark.integration
def test_a_killed_search_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Contract A46, corrected: a trial continues from its checkpoint."""
    whole = subprocess.run([*PROGRAM, str(tmp_path / "whole")], capture_output=True, text=True, check=True)
    program = [*PROGRAM, str(tmp_path / "killed")]
    killed = subprocess.run(program, env={**os.environ, KILL_AFTER: "110"}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    resumed = subprocess.run(program, capture_output=True, text=True, check=True)
    assert resumed.stdout == whole.stdout
    assert resumed.stdout.count("complete") == 2


@pytest.mark.integration
def test_a_search_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    whole = subprocess.run([*PROGRAM, str(tmp_path / "whole")], capture_output=True, text=True, check=True)
    marker = tmp_path / "killed once"
    program = [*PROGRAM, str(tmp_path / "killed"), "concurrent_trials=2"]
    killed = subprocess.run(program, env={**os.environ, KILL_AFTER: f"110:{marker}"}, capture_output=True, text=True, check=True)
    assert marker.exists()
    assert killed.stdout == whole.stdout


class Fails(MyModel):
    def __init__(self, config: Any) -> None:
        if config.width == 5:
            raise RuntimeError("this width does not work")
        super().__init__(config)


class Diverges(MyModel):
    def forward(self, x: Any, labels: Any = None, custom_input: Any = None) -> Any:
        out, loss = super().forward(x, labels, custom_input)
        return out, loss * (1 if self.training or self.layers[1].out_features != 5 else float("nan"))


@pytest.mark.parametrize("model", [Fails, Diverges])
def test_a_failed_trial_does_not_stop_the_others(model: Any, tmp_path: Path) -> None:
    """Covers contract A41."""
    widths = {"model_config.width": {"categorical_values": [5, 6, 7]}}
    result = launched(tmp_path, MyModelWrapper(model), search_space=widths)
    assert sorted(trial.state for trial in result.trials) == ["complete", "complete", "failed"]


def test_a_run_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="`config` is a ParallelConfig"):
        ParallelTrainer(MyModelWrapper(MyModel), config_for(CifarRun, tmp_path))  # type: ignore[arg-type]


def test_a_wrapper_that_cannot_be_pickled_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot be sent to another process"):
        launched(tmp_path, MyModelWrapper(lambda config: MyModel(config)), concurrent_trials=2)


# ---- the fields

Check = Callable[[Any], None]


def values_of(folder: Any, **values: Any) -> list[Any]:
    return [trial.config[LR] for trial in launched(folder, **values).trials]


def check_search_space(folder: Any) -> None:
    assert sorted(values_of(folder, search_space={LR: {"categorical_values": [0.1, 0.2, 0.3]}})) == [0.1, 0.2, 0.3]


def check_search_algo(folder: Any) -> None:
    space = {LR: {"value_range": [0.01, 0.1]}}
    found = values_of(folder, search_algo="random", total_trials=2, search_space=space)
    assert len(set(found)) == 2
    assert found != values_of(folder, search_algo="qmc", total_trials=2, search_space=space)
    with pytest.raises(ConfigError, match="a grid needs bins for a range"):
        values_of(folder, search_algo="grid", search_space=space)


def check_total_trials(folder: Any) -> None:
    assert len(values_of(folder, total_trials=1)) == 1
    assert len(values_of(folder, total_trials=2)) == 2  # the same search continues


def check_concurrent_trials(folder: Any) -> None:
    class Recorder(MyModelWrapper):
        pids: list[int] = []

        def create_model(self, config: Any) -> Any:
            self.pids.append(os.getpid())
            return super().create_model(config)

    launched(folder / "here", Recorder(MyModel))
    assert set(Recorder.pids) == {os.getpid()}
    Recorder.pids.clear()
    launched(folder / "workers", concurrent_trials=2)
    assert Recorder.pids == []


def space_of(**values: Any) -> Space:
    return Space.of({"x": SearchSpace(**values)})


def points(**values: Any) -> list[Any]:
    from optuna.trial import FixedTrial

    space = space_of(**values)
    return [space.suggest(FixedTrial(space.point(index)))["x"] for index in range(space.num_points)]


SPACES: dict[str, Check] = {
    "value_range": lambda _: _equal(points(value_range=(0, 1), n_bins=3), [0.0, 0.5, 1.0]),
    "value_type": lambda _: _equal(points(value_range=(0, 1), n_bins=3, value_type="int"), [0, 1]),
    "categorical_values": lambda _: _equal(points(categorical_values=["a", None]), ["a", None]),
    "subspaces": lambda _: _equal(
        points(subspaces=[SearchSpace(categorical_values=["a"]), SearchSpace(value_range=(1, 2), n_bins=2)]), ["a", 1.0, 2.0]
    ),
    "sub_configuration": lambda _: _equal(
        points(sub_configuration={"name": "sgd", "lr": SearchSpace(categorical_values=[1, 2])}),
        [{"name": "sgd", "lr": 1}, {"name": "sgd", "lr": 2}],
    ),
    "n_bins": lambda _: _equal(len(points(value_range=(0, 1), n_bins=5)), 5),
    "log": lambda _: _equal(points(value_range=(1, 100), n_bins=3, log=True), [1.0, 10.0, 100.0]),
}


def _equal(found: Any, expected: Any) -> None:
    assert found == expected


FIELDS: dict[type, dict[str, Check]] = {
    ParallelConfig: {
        "search_space": check_search_space,
        "search_algo": check_search_algo,
        "total_trials": check_total_trials,
        "concurrent_trials": check_concurrent_trials,
    },
    SearchSpace: SPACES,
}


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_has_a_check(kind: Any) -> None:
    inherited = set(RunConfig._schema().fields) if kind is ParallelConfig else set()
    assert set(FIELDS[kind]) == set(kind._schema().fields) - inherited


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, checks in FIELDS.items() for name in checks])
def test_each_field_has_its_documented_effect(kind: Any, name: str, tmp_path: Any) -> None:
    FIELDS[kind][name](tmp_path)
