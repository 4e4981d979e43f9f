"""`Manager(store, defaults, make_loop=make_loop)` works with a plain function instead of a subclass."""

from __future__ import annotations

import functools
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_training as tiny
import torch
from torch import nn

from trainmaster import ConfigBase, Manager, Stateless, TrainManager, configclass
from trainmaster.errors import ConfigError, OtherProgramError, SettingError, UnknownKeyError
from trainmaster.manager.local_workers import LocalWorkers
from trainmaster.manager.worker import WorkerSetup
from trainmaster.store import Store

if TYPE_CHECKING:
    from nowhere import OnlyForTypeCheckers

DEFAULTS = {"lr": 0.1, "width": 3}


@configclass
class Train(ConfigBase):
    lr: float = 0.1
    width: int = 3


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.draw_nothing(monkeypatch.setattr)


def loop_of(config: Any, epochs: int = 2) -> TrainManager:
    batches = [(torch.ones(2, 2) * number, torch.ones(2, 1)) for number in range(2)]
    model = nn.Sequential(nn.Linear(2, config.width), nn.Linear(config.width, 1))
    return TrainManager(
        nn.Sequential(_First(), model), _loss, epochs, batches, optimizer=lambda p: torch.optim.SGD(p, lr=config.lr), device="cpu"
    )


class _First(nn.Module):
    def forward(self, batch: Any) -> Any:
        return batch[0]


def _loss(batch: Any, prediction: Any) -> Any:
    return (prediction - batch[1]).pow(2).mean()


def make_loop(config):  # type: ignore[no-untyped-def]
    return loop_of(config)


def make_other(config):  # type: ignore[no-untyped-def]
    return loop_of(config)


def make_typed(config: Train) -> TrainManager:
    assert isinstance(config, Train)
    return loop_of(config)


def made(store_dir: Path | None = None, defaults: Any = DEFAULTS, make_loop: Any = make_loop, **settings: Any) -> Manager:
    return Manager(store_dir, defaults, make_loop=make_loop, verbose=False, **settings)


def test_a_function_trains_resumes_and_fetches_like_a_subclass() -> None:
    manager = made()
    manager.process({"lr": 0.2})
    manager.process({"lr": 0.2}, num_epochs=3)
    assert manager.epoch == 3
    assert dict(manager.configs[manager.key]) == {"lr": 0.2, "width": 3}

    class Same(Manager):
        defaults = DEFAULTS

        def make_loop(self, config: Any) -> TrainManager:
            return loop_of(config)

    other = Same(verbose=False)
    other.process({"lr": 0.2}, num_epochs=3)
    weights = [each.fetch(manager.key).model.state_dict() for each in (manager, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_fetched_run_has_no_model_without_make_loop_and_the_error_says_so(tmp_path: Path) -> None:
    made(tmp_path).process({"lr": 0.2})
    key = made(tmp_path).best_work(p_key="train/loss")
    assert key is not None
    fetched = Manager(tmp_path, verbose=False).fetch(key)
    assert not hasattr(fetched, "model")
    with pytest.raises(AttributeError, match=r"it has no `make_loop`: pass the function .*`Manager\(store_dir, make_loop=make_loop\)`"):
        fetched.model  # noqa: B018
    with pytest.raises(AttributeError, match=r"no run is set up, .*`fetch\(key\)` first"):
        made(tmp_path).model  # noqa: B018


@pytest.mark.parametrize("function", [make_typed, functools.wraps(make_typed)(lambda config: make_typed(config))])
def test_the_annotation_sets_the_class_of_configs(function: Any) -> None:
    manager = made(defaults=None, make_loop=function)
    assert manager.defaults is Train
    manager.process({"lr": "0.2"}, num_epochs=1)
    assert manager.config == Train(lr=0.2)
    with pytest.raises(UnknownKeyError, match=r"lrr.*did you mean `lr`\?"):
        manager.process({"lrr": 0.2})


def test_the_annotation_of_a_method_is_used_too() -> None:
    class Typed(Manager):
        def make_loop(self, config: Train) -> TrainManager:
            return make_typed(config)

    assert Typed(verbose=False).get_config({"lr": 0.3}) == Train(lr=0.3)


def test_defaults_of_the_annotated_class_are_accepted() -> None:
    manager = made(defaults=Train(width=5), make_loop=make_typed)
    assert manager.get_config({"lr": 0.3}) == Train(lr=0.3, width=5)


def test_an_unreadable_annotation_is_an_error_unless_there_are_defaults() -> None:
    def hidden(config: OnlyForTypeCheckers) -> TrainManager:
        return loop_of(config)

    with pytest.raises(SettingError, match=r"the annotation of `config` in .*hidden` cannot be read: name 'OnlyForTypeCheckers'"):
        made(defaults=None, make_loop=hidden)


def _needs_two(config: Any, more: Any) -> Any: ...


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TrainManager, "expected a function that takes the config and returns a TrainManager"),
        (functools.partial(loop_of, epochs=3), "put everything that it needs into the config, which identifies a run"),
        ("train.py:make_loop", "expected a function"),
        (_needs_two, "`_needs_two` cannot be called with a config: missing a required argument: 'more'"),
        (lambda: None, "cannot be called with a config"),
    ],
)
def test_an_invalid_make_loop_is_refused_before_a_store_is_created(tmp_path: Path, wrong: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        made(tmp_path / "runs", make_loop=wrong)
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_subclass_must_write_make_loop_as_a_method() -> None:
    with pytest.raises(SettingError, match=r"Tiny is a subclass of Manager\n  try     write `make_loop\(self, config\)` as its method"):
        tiny.Tiny(make_loop=make_loop)


def test_defaults_of_another_class_than_the_annotation_are_refused() -> None:
    with pytest.raises(SettingError, match="`make_typed` takes a Train, but the defaults are a Config"):
        made(defaults={"lr": 0.2}, make_loop=make_typed)


def test_a_wrong_return_value_is_reported_with_the_name_of_the_function() -> None:
    def returns_nothing(config: Any) -> Any: ...

    with pytest.raises(SettingError, match=r"`returns_nothing\(\)` returned None: expected a TrainManager"):
        made(make_loop=returns_nothing).process()


def test_a_missing_key_suggests_defaults_if_there_are_none() -> None:
    with pytest.raises(ConfigError, match="the config has no key `width`") as caught:
        made(defaults=None).process({"lr": 0.1})
    assert any("`defaults = {...}` next to `make_loop`" in note for note in caught.value.__notes__)


def test_another_function_is_another_program(tmp_path: Path) -> None:
    first = made(tmp_path)
    first.process(num_epochs=1)
    made(tmp_path).process(num_epochs=1)
    with pytest.raises(OtherProgramError, match=r"test_make_loop\.py:make_loop, not .*test_make_loop\.py:make_other"):
        made(tmp_path, make_loop=make_other).process(num_epochs=1)


def test_the_setup_of_a_worker_contains_the_function_by_reference(tmp_path: Path) -> None:
    kind, args, kwargs, _ = pickle.loads(WorkerSetup.of(made(tmp_path), pickle.dumps, 1).spec)
    again = kind(*args, **kwargs)
    assert again.definition is make_loop
    assert again.defaults == DEFAULTS


def test_a_function_that_workers_cannot_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="cannot be sent to another process"):
        WorkerSetup.of(made(tmp_path, make_loop=lambda config: loop_of(config)), pickle.dumps, 1)
    monkeypatch.setattr(make_other, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(SettingError, match="workers cannot import make_other, which was defined in a notebook or at a prompt"):
        manager = made(tmp_path, make_loop=make_other)
        LocalWorkers(1).open(manager, manager.job_runner.run_task)


def test_a_notebook_function_is_compared_by_its_code(tmp_path: Path) -> None:
    scope: dict[str, Any] = {"__name__": "notebook_cell", "loop_of": loop_of}
    for number, body in enumerate(["return loop_of(config)", "return loop_of(config, 1)"]):
        exec(f"def make_loop(config):\n    {body}\n", scope)
        manager = made(tmp_path, make_loop=scope["make_loop"])
        if number == 0:
            manager.process()
        else:
            with pytest.warns(UserWarning, match="changed since this run was trained: the code of the notebook"):
                manager.process()
    assert len(list(Store(tmp_path).configs.keys())) == 1


@pytest.mark.parametrize("defaults", [DEFAULTS, Train], ids=["free", "typed"])
def test_a_make_loop_that_changes_its_config_is_refused(defaults: Any) -> None:
    def changing(config):  # type: ignore[no-untyped-def]
        config.width = 99
        return loop_of(config)

    manager = made(defaults=defaults, make_loop=changing)
    with pytest.raises(SettingError, match="`make_loop` changed the config of run"):
        manager.process({"lr": 0.2})


def test_a_sweep_over_a_stateless_field_is_refused() -> None:
    @configclass
    class Loading(Train):
        num_workers: Stateless[int] = 0

    manager = made(defaults=Loading, make_loop=make_loop)
    with pytest.raises(ConfigError, match="num_workers: all its values give the same run: it is not part of the config's identity"):
        manager.sweep({"lr": [0.1, 0.2], "num_workers": [0, 2, 4]})
    assert len(manager.configs) == 0
    assert len(manager.sweep({"lr": [0.1, 0.2], "num_workers": 4}).done) == 2
