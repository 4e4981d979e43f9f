"""A hook that asks for an unknown fixture causes an error before the first batch, with any included extension attached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import all_program as program
import pytest
import torch
from torch import nn

from trainmaster import Extension, Manager, Supervised, Tracker, TrainManager
from trainmaster.errors import FixtureNotFoundError
from trainmaster.stages.hooks import find_hooks

INCLUDED = {**program.one_of_each_kind(), "Tracker": Tracker("trackio", project="unused")}


class AsksForZebra(Extension):
    def post_train(self, zebra: Any) -> None: ...


class AsksForEpoch(Extension):
    def post_train_step_epoch(self, epoch: int) -> None: ...


class AsksForAccuracy(Extension):
    def post_train_step_epoch(self, accuracy: float) -> None: ...


class AsksForOpt(Extension):
    def pre_optimizer_step(self, opt: Any) -> None: ...


def supervised(*extensions: object, **options: Any) -> Supervised:
    batches = [(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(4)]
    return Supervised(nn.Linear(3, 1), nn.MSELoss(), 2, batches, batches, extensions=[*extensions], **options)


def assert_refused(loop: TrainManager, name: str) -> FixtureNotFoundError:
    with pytest.raises(FixtureNotFoundError, match=f"asks for `{name}`, which nothing provides") as caught:
        loop.train()
    assert loop.step_num == 0
    assert not loop.history
    return caught.value


@pytest.mark.parametrize("asks", [AsksForZebra, AsksForEpoch, AsksForAccuracy, AsksForOpt])
@pytest.mark.parametrize("options", [{}, {"train_dir": "run"}, {"progress": False}, {"metrics": {"mae": nn.L1Loss()}}])
def test_an_unknown_fixture_is_refused_before_the_first_batch(
    asks: type[Extension], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = asks.__name__.removeprefix("AsksFor").lower()
    assert_refused(supervised(asks(), **options), name)
    assert_refused(program.training(None, asks()), name)


@pytest.mark.parametrize("kind", INCLUDED)
def test_no_included_extension_hides_an_unknown_fixture(kind: str, tmp_path: Path) -> None:
    assert_refused(program.training(str(tmp_path), INCLUDED[kind], AsksForZebra()), "zebra")


@pytest.mark.parametrize("kind", INCLUDED)
def test_included_extensions_that_can_create_fixtures_declare_them(kind: str) -> None:
    """This also covers hooks that are not attached in the test above."""
    takes = [hook.title for hook in find_hooks("each", INCLUDED[kind]) if "fixtures" in (*hook.needs, *hook.takes)]
    assert not takes or getattr(INCLUDED[kind], "creates", None) is not None


def test_all_kinds_together_do_not_hide_an_unknown_fixture(tmp_path: Path) -> None:
    assert_refused(program.training(str(tmp_path), *program.passive_extensions(), AsksForZebra()), "zebra")


def test_a_manager_refuses_an_unknown_fixture_of_its_own_stages_before_the_work_starts(tmp_path: Path) -> None:
    class Asks(Extension):
        def post_work_save(self, zebra: Any) -> None: ...

    class Small(Manager):
        extensions = [Asks()]

        def make_loop(self, config: Any) -> TrainManager:
            raise AssertionError("the work has started")

    with pytest.raises(FixtureNotFoundError, match="asks for `zebra`, which nothing provides"):
        Small(tmp_path, verbose=False).process({"seed": 1}, 1)


def test_a_loop_under_a_manager_refuses_an_unknown_fixture_before_the_first_batch(tmp_path: Path) -> None:
    loops = []

    class Small(Manager):
        extensions = [AsksForZebra()]

        def make_loop(self, config: Any) -> TrainManager:
            loops.append(program.training(None))
            return loops[-1]

    with pytest.raises(FixtureNotFoundError, match="asks for `zebra`, which nothing provides"):
        Small(tmp_path, verbose=False).process({"seed": 1}, 1)
    assert [loop.step_num for loop in loops] == [0]


@pytest.mark.parametrize(
    ("asks", "name", "suggestion"),
    [(AsksForEpoch, "epoch", "`epoch_index` or `epoch_num`"), (AsksForOpt, "opt", "`optimizer`")],
)
def test_a_common_guess_gets_a_suggestion(asks: type[Extension], name: str, suggestion: str) -> None:
    assert f"did you mean {suggestion}?" in str(assert_refused(supervised(asks()), name))


@pytest.mark.parametrize("base", [object, Extension])
def test_an_extension_of_the_user_that_takes_the_fixtures_may_create_any_name(base: type) -> None:
    class Creates(base):  # type: ignore[misc]
        def pre_run(self, fixtures: Any) -> None:
            fixtures["zebra"] = "striped"

    loop = supervised(Creates(), AsksForZebra())
    loop.train()
    assert loop.step_num == 8


def test_an_extension_of_the_user_with_empty_creates_creates_nothing() -> None:
    class Reads(Extension):
        creates = {}

        def pre_run(self, fixtures: Any) -> None: ...

    assert_refused(supervised(Reads(), AsksForZebra()), "zebra")
