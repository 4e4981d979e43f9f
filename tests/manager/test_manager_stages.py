"""The stages of a manager have hooks and fixtures, and errors in hooks are recorded."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from trainmaster import Extension, Manager, Observer, always, fixture
from trainmaster.errors import FixtureNotFoundError, UnknownHookError
from trainmaster.loop.stages import WORK

STAGES = ("work_setup", "work_load", "work_init", "work_train", "work_eval", "work_save")
FIXTURES = ("manager", "config", "key", "num_epochs", "epoch", "ckpt", "preview")


class Counting(Manager):
    def __init__(self, *args: Any, verbose: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, verbose=verbose, **kwargs)

    def init_ckpt(self) -> None:
        super().init_ckpt()
        self.ckpt["x"] = 0

    def train(self) -> None:
        self.ckpt["x"] += 1

    def eval(self) -> Any:
        return {"loss_test": float(self.ckpt["x"])}


class Drawing(Counting):
    def train(self) -> None:
        self.ckpt["x"] += float(torch.rand(())) + random.random() + random.gauss(0, 1) + float(np.random.rand())


def hooked(bases: type, body: Any, phases: tuple[str, ...] = ("pre", "post"), stages: tuple[str, ...] = STAGES) -> Any:
    """Return an extension whose hooks for all these stages call `body(stage, values)`."""

    def hook(name: str) -> Any:
        def call(self: Any, manager: Any, config: Any, key: Any, num_epochs: Any, epoch: Any, ckpt: Any, preview: Any) -> None:
            body(name, dict(zip(FIXTURES, (manager, config, key, num_epochs, epoch, ckpt, preview), strict=True)))

        return call

    return type("Hooked", (bases,), {f"{phase}_{stage}": hook(f"{phase}_{stage}") for phase in phases for stage in stages})()


def work(extension: Any, num_epochs: int = 1, kind: type[Counting] = Counting) -> Counting:
    manager = kind()
    manager.add_extension("mine", extension)
    manager.process({"a": 1}, num_epochs=num_epochs)
    return manager


# ---- stages and fixtures


def test_the_stage_names_are_as_documented() -> None:
    assert tuple(WORK.paths) == ("work", *STAGES)


def test_hooks_run_around_every_stage_of_a_new_run() -> None:
    seen: list[str] = []
    work(hooked(Extension, lambda name, _: seen.append(name)))
    parts = ["work_setup", "work_init", "work_eval", "work_save", "work_train", "work_eval", "work_save"]
    assert seen == [f"{phase}_{stage}" for stage in parts for phase in ("pre", "post")]


def test_hooks_run_around_every_stage_of_a_resumed_run() -> None:
    seen: list[str] = []
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    manager.add_extension("mine", hooked(Extension, lambda name, _: seen.append(name), ("pre",)))
    manager.process({"a": 1}, num_epochs=2)
    assert seen == ["pre_work_setup", "pre_work_load", "pre_work_train", "pre_work_eval", "pre_work_save"]


def test_a_run_that_has_reached_its_target_opens_no_stage() -> None:
    seen: list[str] = []
    manager = Counting()
    manager.process({"a": 1}, num_epochs=1)
    manager.add_extension("mine", hooked(Extension, lambda name, _: seen.append(name)))
    manager.process({"a": 1}, num_epochs=1)
    assert seen == []


def test_every_stage_has_the_manager_the_config_the_key_and_the_target() -> None:
    seen: list[Any] = []
    manager = work(hooked(Extension, lambda _, values: seen.append([values[name] for name in ("manager", "config", "key", "num_epochs")])))
    assert all(values == [manager, {"a": 1}, manager.key, 1] for values in seen)
    assert len(seen) == 14


def test_the_fixture_epoch_is_the_current_epoch() -> None:
    seen: list[Any] = []
    work(hooked(Extension, lambda name, values: seen.append((name, values["epoch"])), ("pre",)))
    assert seen == [
        ("pre_work_setup", -1), ("pre_work_init", -1), ("pre_work_eval", 0), ("pre_work_save", 0),
        ("pre_work_train", 1), ("pre_work_eval", 1), ("pre_work_save", 1),
    ]  # fmt: skip


def test_the_fixtures_ckpt_and_preview_have_the_current_values() -> None:
    seen: dict[str, Any] = {}
    work(hooked(Extension, lambda name, values: seen.update({name: copy.deepcopy((values["ckpt"], values["preview"]))})))
    assert seen["post_work_train"] == ({"eval_records": {0: {"loss_test": 0.0}}, "x": 1}, {"loss_test": 0.0})
    assert seen["post_work_eval"] == ({"eval_records": {0: {"loss_test": 0.0}, 1: {"loss_test": 1.0}}, "x": 1}, {"loss_test": 1.0})


def test_hooks_of_a_second_run_see_no_values_of_the_first() -> None:
    seen: list[Any] = []

    class First(Extension):
        def pre_work(self, manager: Any, key: str, epoch: int, ckpt: Any, preview: Any) -> None:
            seen.append((manager.key == key, epoch, copy.deepcopy(ckpt), dict(preview)))

        def pre_work_setup(self, manager: Any, key: str, epoch: int, ckpt: Any, preview: Any) -> None:
            self.pre_work(manager, key, epoch, ckpt, preview)

    manager = Counting()
    manager.add_extension("first", First())
    manager.batch([{"a": 1}, {"a": 2}], num_epochs=2)
    assert seen == [(True, -1, {"eval_records": {}}, {})] * 4


def test_a_value_that_a_hook_adds_to_ckpt_before_the_save_is_saved() -> None:
    class Tagging(Extension):
        def pre_work_save(self, ckpt: Any, preview: Any, epoch: int) -> None:
            ckpt["tag"], preview["tag"] = epoch, epoch

    manager = work(Tagging())
    assert manager.ckpts[manager.key]["tag"] == 1
    assert manager.previews[manager.key]["tag"] == 1


def test_a_hook_after_the_evaluation_sees_its_record() -> None:
    seen: list[Any] = []

    class AfterEval(Extension):
        def post_work_eval(self, ckpt: Any, epoch: int) -> None:
            seen.append(ckpt["eval_records"][epoch])

    work(AfterEval())
    assert seen == [{"loss_test": 0.0}, {"loss_test": 1.0}]


def test_the_stage_work_contains_all_the_others() -> None:
    seen: list[str] = []

    class Outer(Extension):
        def pre_work(self) -> None:
            seen.append("pre_work")

        def post_work(self) -> None:
            seen.append("post_work")

    manager = Counting()
    manager.add_extension("outer", Outer())
    manager.add_extension("inner", hooked(Extension, lambda name, _: seen.append(name)))
    manager.process({"a": 1}, num_epochs=0)
    assert (seen[0], seen[1], seen[-2], seen[-1]) == ("pre_work", "pre_work_setup", "post_work_save", "post_work")


def test_around_hooks_wrap_the_body_between_pre_and_post() -> None:
    seen: list[str] = []

    class Timer(Extension):
        def pre_work_train(self) -> None:
            seen.append("pre")

        def around_work_train(self) -> Iterator[None]:
            seen.append("open")
            yield
            seen.append("close")

        def post_work_train(self) -> None:
            seen.append("post")

    class Telling(Counting):
        def train(self) -> None:
            super().train()
            seen.append("train")

    work(Timer(), kind=Telling)
    assert seen == ["pre", "open", "train", "close", "post"]


def test_hooks_of_several_extensions_run_in_the_order_of_the_extensions() -> None:  # E2
    seen: list[str] = []
    manager = Counting()
    for name in ("one", "two"):
        manager.add_extension(name, hooked(Extension, lambda hook, _, name=name: seen.append(f"{name}.{hook}"), stages=("work_train",)))
    manager.process({"a": 1}, num_epochs=1)
    assert seen == ["one.pre_work_train", "two.pre_work_train", "one.post_work_train", "two.post_work_train"]


def test_a_lazy_fixture_of_one_extension_can_be_used_by_another() -> None:
    seen: list[Any] = []

    class Producer(Extension):
        @fixture("work")
        def seed_text(self, config: Any) -> str:
            return f"a is {config['a']}"

    class Consumer(Extension):
        def pre_work_train(self, seed_text: str) -> None:
            seen.append(seed_text)

    manager = Counting()
    manager.extensions = [Producer(), Consumer()]
    manager.process({"a": 7}, num_epochs=1)
    assert seen == ["a is 7"]


def test_extensions_in_the_class_body_are_attached() -> None:
    seen: list[str] = []

    class Equipped(Counting):
        extensions = [hooked(Extension, lambda name, _: seen.append(name), ("pre",), ("work_train",))]

    Equipped().process({"a": 1}, num_epochs=2)
    assert seen == ["pre_work_train"] * 2


# ---- the checker


def test_a_hook_for_an_unknown_stage_is_refused_when_it_is_attached() -> None:
    class Slip(Extension):
        def pre_work_trian(self) -> None: ...

    with pytest.raises(
        UnknownHookError, match=r"`Slip\.pre_work_trian` is named like a hook, but there is no stage `work_trian`"
    ) as caught:
        Counting().add_extension("slip", Slip())
    assert "did you mean `pre_work_train`" in str(caught.value)
    assert "known   work, work_setup, work_load, work_init, work_train, work_eval, work_save" in str(caught.value)


@pytest.mark.parametrize("name", ["epoc", "learning_rate"], ids=["near miss", "unknown"])
def test_a_parameter_that_is_not_a_fixture_is_refused_before_training(name: str) -> None:
    calls: list[str] = []

    class Starting(Counting):
        def setup(self, config: Any) -> None:
            super().setup(config)
            calls.append("setup")

    namespace: dict[str, Any] = {}
    exec(f"def pre_work_save(self, {name}): ...", namespace)
    extension = type("Asking", (Extension,), {"pre_work_save": namespace["pre_work_save"]})()
    with pytest.raises(FixtureNotFoundError, match=f"`Asking.pre_work_save` asks for `{name}`, which nothing provides") as caught:
        work(extension, kind=Starting)
    assert "open    ckpt, config, epoch, fixtures, key, manager, num_epochs, preview" in str(caught.value)
    assert calls == []


def test_a_parameter_with_a_default_need_not_be_a_fixture() -> None:
    seen: list[Any] = []

    class Modest(Extension):
        def pre_work_train(self, learning_rate: float = 0.5) -> None:
            seen.append(learning_rate)

    work(Modest())
    assert seen == [0.5]


# ---- observers


class Restless:
    """Draws from every generator.

    It draws an odd number of Gaussians from the generators that cache the second one of a pair.
    """

    @staticmethod
    def draw(*_: Any) -> None:
        torch.rand(3)
        np.random.randn(3)
        random.random()
        random.gauss(0, 1)


def test_an_observer_that_draws_random_numbers_does_not_affect_training() -> None:
    assert work(hooked(Observer, Restless.draw), 3, Drawing).ckpt["x"] == work(Extension(), 3, Drawing).ckpt["x"]


def test_an_extension_that_is_not_an_observer_may_change_the_random_numbers() -> None:
    assert work(hooked(Extension, Restless.draw), 3, Drawing).ckpt["x"] != work(Extension(), 3, Drawing).ckpt["x"]


# ---- errors in hooks


class Broken(Extension):
    def post_work_train(self, epoch: int) -> None:
        if epoch == 2:
            raise ValueError("the hook broke")


def test_an_error_in_a_hook_makes_the_run_fail_with_a_note() -> None:
    manager = Counting()
    manager.add_extension("broken", Broken())
    with pytest.raises(ValueError, match="the hook broke") as caught:
        manager.process({"a": 1}, num_epochs=3)
    (note,) = caught.value.__notes__
    assert note.startswith("in `Broken.post_work_train` (extension `broken`, ")
    assert note.endswith(f"stage work > work_train, key {manager.key}, epoch 2")


def test_an_error_in_a_hook_is_recorded_and_releases_the_run() -> None:  # J14
    manager = Counting()
    manager.add_extension("broken", Broken())
    with pytest.raises(ValueError, match="the hook broke"):
        manager.process({"a": 1}, num_epochs=3)
    run = manager.store.run(manager.key)
    found = run.outcome_of(run.newest())
    assert found is not None
    assert (found["outcome"], found["error"]) == ("failed", "ValueError: the hook broke")
    del manager.extensions["broken"]
    manager.process({"a": 1}, num_epochs=3)
    assert manager.stats[manager.key]["epoch"] == 3


def test_an_always_hook_sees_the_error_of_the_run() -> None:
    seen: list[Any] = []

    class Witness(Extension):
        @always
        def post_work(self, exc_type: Any = None, epoch: int = -5) -> None:
            seen.append((exc_type, epoch))

    manager = Counting()
    manager.extensions = [Broken(), Witness()]
    with pytest.raises(ValueError, match="the hook broke"):
        manager.process({"a": 1}, num_epochs=3)
    assert seen == [(ValueError, 2)]


def test_the_time_of_hooks_does_not_count_as_training_time() -> None:
    class Sleepy(Extension):
        def pre_work_train(self) -> None:
            time.sleep(0.1)

    manager = work(Sleepy())
    assert manager.stats[manager.key]["t_train"] < 0.05


# ---- describe


def test_describe_shows_the_stages_the_fixtures_and_the_hooks_that_will_run() -> None:
    manager = Counting()
    manager.add_extension("broken", Broken())
    text = str(manager.describe())
    lines = text.splitlines()
    assert lines[0].startswith("work ")
    assert "fixtures  manager, fixtures, config, key, num_epochs, epoch, ckpt, preview" in lines[1]
    assert [name for name in STAGES if not any(name in line for line in lines)] == []
    assert any("post" in line and "broken" in line.lower() for line in lines)
