"""ConstructorArgs stores constructor arguments with each checkpoint, and a loop can be rebuilt from them (E39)."""

from __future__ import annotations

import copy
import functools
import gc
import json
import math
import pickle
import re
import sys
import weakref
from collections import OrderedDict, deque
from dataclasses import dataclass

import pytest
import torch
import warm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import (
    CheckpointLoader,
    CheckpointSaver,
    Config,
    ConstructorArgs,
    Extension,
    Manager,
    Observer,
    Recipe,
    TrainManager,
    init_from_checkpoint,
    parameters_in,
    tracked,
)
from trainmaster.errors import SettingError, StateError
from trainmaster.loop.blueprint import KIND, leaves_of, unknowns_in
from trainmaster.loop.blueprint_reader import build, overridden
from trainmaster.loop.blueprint_writer import blueprint_of
from trainmaster.stages.recorded_call import recorded_call
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits

LAB = '''
import torch
from torch import nn
from torch.utils.data import Dataset
from trainmaster import Extension, tracked


@tracked
class Net(nn.Module):
    def __init__(self, body, threshold=0.5, *, scale=1.0, dtype=torch.float32):
        super().__init__()
        self.body, self.threshold, self.scale, self.dtype = body, threshold, scale, dtype

    def forward(self, batch):
        return self.body(batch[0].to(self.dtype)) * self.scale

    def decide(self, batch):
        return (self(batch).sigmoid() > self.threshold).long()


@tracked
class Points(Dataset):
    def __init__(self, number, seed=0, ignored={}):
        drawn = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(number, 4, generator=drawn)
        self.targets = (self.inputs.sum(1, keepdim=True) > 0).float()

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def bce(batch, prediction):
    return nn.functional.binary_cross_entropy_with_logits(prediction, batch[1])


class Noise(Extension):
    """Adds random noise to a weight in each batch, and counts the batches."""

    def __init__(self, size, start=0):
        self.size, self.count = size, start

    def post_train_step_batch(self, model):
        self.count += 1
        with torch.no_grad():
            next(model.parameters()).add_(torch.randn(1), alpha=self.size)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]
'''

TRAIN = """
import sys
import torch
from functools import partial
from torch import nn
from torch.utils.data import DataLoader
from trainmaster import CheckpointSaver, Manager, ConstructorArgs, Recipe, TrainManager, tracked
from LAB import Net, Noise, Points, bce


def make(epochs, train_dir=None):
    torch.manual_seed(3)
    body = Recipe(nn.Sequential, Recipe(nn.Linear, 4, 8), Recipe(nn.ReLU), Recipe(nn.Dropout, 0.2), Recipe(nn.Linear, 8, 1))
    return TrainManager(
        Recipe(Net, body, scale=2.0)(), bce, epochs, Recipe(DataLoader, Recipe(Points, 32, seed=1), batch_size=8, shuffle=True)(),
        {"valid": Recipe(DataLoader, Recipe(Points, 16, seed=2), 8)()}, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        lr_schedule=Recipe(torch.optim.lr_scheduler.StepLR, step_size=5), schedule_by="update",
        extensions=[ConstructorArgs(), Noise(0.01)], train_dir=train_dir,
    )


@tracked
class OwnNet(Net): ...


class OwnLoop(TrainManager):
    def __init__(self, width, epochs, train_dir=None):
        data = Recipe(DataLoader, Recipe(Points, 8))()
        model = OwnNet(Recipe(nn.Sequential, Recipe(nn.Linear, 4, width), Recipe(nn.Linear, width, 1))())
        super().__init__(model, bce, epochs, data, {"valid": data}, extensions=[ConstructorArgs()], train_dir=train_dir)


class Lab(Manager):
    def make_loop(self, config):
        data = Recipe(DataLoader, Recipe(Points, 8))()
        return TrainManager(
            OwnNet(Recipe(nn.Linear, 4, 1)(), config.threshold), bce, 2, data, {"valid": data},
            extensions=[ConstructorArgs(), CheckpointSaver(keep=2)],
        )


if __name__ == "__main__":
    OwnLoop(3, 2, sys.argv[1] + "/own").train()
    Lab(sys.argv[1] + "/runs", verbose=False).process({"threshold": 0.25})
    make(2, sys.argv[1]).train()
    whole = make(3)
    whole.train()
    losses, count = whole.history["valid/loss"], whole["noise"].count
    torch.save({"weights": whole.model.state_dict(), "losses": losses, "count": count}, sys.argv[2])
"""

EVALUATE = """
import json, sys
from trainmaster import init_from_checkpoint
tm = init_from_checkpoint(sys.argv[1], package_dir=sys.argv[2])
tm.eval()
print(json.dumps(tm.history["valid/loss"]))
print(sorted(name for name in sys.modules if name.startswith(("LAB", "train_of"))))
"""


def run(program: str, *args: object, folder) -> str:
    done = warm.run(
        [sys.executable, *([program] if program.endswith(".py") else ["-c", program]), *map(str, args)],
        capture_output=True, text=True, cwd=folder, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Run a training program for two epochs in a separate process.

    Return its folder, the checkpoint, and the result after three epochs.
    """
    folder = tmp_path_factory.mktemp("lab")
    name = "lab_of_parameters"
    (folder / f"{name}.py").write_text(LAB)
    (folder / "train_of_parameters.py").write_text(TRAIN.replace("LAB", name))
    run("train_of_parameters.py", folder / "out", folder / "whole.pt", folder=folder)
    return folder, folder / "out" / "checkpoints" / "2.ckpt", torch.load(folder / "whole.pt", weights_only=True)


@pytest.fixture
def here(lab, monkeypatch):
    monkeypatch.syspath_prepend(str(lab[0]))
    return lab


class TestParameters(ExtensionContract):
    @pytest.mark.filterwarnings("ignore:ConstructorArgs")  # the contract's loop is not built from recipes
    def make(self) -> ConstructorArgs:
        return ConstructorArgs()

    pytestmark = pytest.mark.filterwarnings("ignore:ConstructorArgs")


class TestRebuilding:
    """Covers contract E39."""

    def test_a_process_that_imports_only_the_classes_gets_the_same_metrics(self, lab) -> None:
        folder, checkpoint, whole = lab
        program = EVALUATE.replace("LAB", "lab_of_parameters")
        losses, modules = run(program, checkpoint, folder, folder=folder.parent).splitlines()  # runs in another folder
        assert json.loads(losses)[0][1] == whole["losses"][2][1]
        assert modules == "['lab_of_parameters']"  # the training program itself is not imported

    def test_training_continues_bit_for_bit(self, here) -> None:
        _, checkpoint, whole = here
        tm = init_from_checkpoint(checkpoint, {"epochs": 3})
        assert tm.epoch_num == 0  # the checkpoint is loaded when the loop runs
        tm.train()
        assert same_bits(tm.model.state_dict(), whole["weights"])
        assert tm["noise"].count == whole["count"]
        assert tm.history["valid/loss"] == whole["losses"]

    def test_an_override_changes_only_its_parameter(self, here) -> None:
        _, checkpoint, _ = here
        batch = [torch.randn(64, 4)]
        decided = {}
        for threshold in (0.5, 0.9):
            tm = init_from_checkpoint(checkpoint, {"model.threshold": threshold})
            tm.eval()
            decided[threshold] = tm.model.eval().decide(batch)
        assert decided[0.9].sum() < decided[0.5].sum()
        assert same_bits(tm.model.state_dict(), init_and_load(checkpoint).model.state_dict())

    def test_the_lineage_lists_all_ancestors(self, here, tmp_path) -> None:
        _, checkpoint, _ = here
        first = init_from_checkpoint(checkpoint, {"model.threshold": 0.7, "epochs": 3, "train_dir": tmp_path / "a"})
        first.train()
        assert first.history["lineage"][0][1] == f"{checkpoint}, epoch 2, step 8, model.threshold=0.7, epochs=3"
        second = init_from_checkpoint(tmp_path / "a" / "checkpoints" / "3.ckpt", {"model.scale": 1.0, "epochs": 4})
        second.train()
        assert second["constructor_args"].overrides["model.threshold"] == 0.7  # merged with the stored overrides
        assert second["constructor_args"].overrides["model.scale"] == 1.0
        assert [(each["file"], each["epoch"], each["step"]) for each in second["constructor_args"].lineage] == [
            (str(checkpoint), 2, 8),
            (str(tmp_path / "a" / "checkpoints" / "3.ckpt"), 3, 12),
        ]
        assert second.model.threshold == 0.7

    def test_a_rebuilt_loop_that_resumes_keeps_its_lineage(self, here, tmp_path) -> None:
        _, checkpoint, _ = here
        init_from_checkpoint(checkpoint, {"model.threshold": 0.7, "epochs": 3, "train_dir": tmp_path / "a"}).train()
        again = init_from_checkpoint(tmp_path / "a" / "checkpoints" / "3.ckpt")
        again.extensions["checkpoint_loader"] = CheckpointLoader(tmp_path / "a" / "checkpoints")
        again["constructor_args"].lineage.clear()
        again["constructor_args"]._is_rebuilt = False
        again.train()
        assert [each["epoch"] for each in again["constructor_args"].lineage] == [2]

    def test_a_loop_rebuilt_from_the_middle_of_an_epoch_keeps_its_lineage(self, tmp_path) -> None:
        points, saver = Points(3), CheckpointSaver(tmp_path, every_steps=1)
        data = Recipe(DataLoader, points, batch_size=None)()
        Forwarding(Recipe(nn.Linear, 3, 1)(), square, 1, data, {"valid": points}, extensions=[ConstructorArgs(), saver]).train()
        tm = init_from_checkpoint(tmp_path / "0+2.ckpt", {"optimizer.lr": 0.5, "extensions.checkpoint_saver.path": tmp_path / "b"})
        tm.train()
        assert tm["constructor_args"].overrides["optimizer.lr"] == 0.5
        again = init_from_checkpoint(tmp_path / "b" / "1.ckpt", {"train_data": Points(4)})
        assert [each["step"] for each in again["constructor_args"].lineage] == [2, 3]
        assert len(again.eval_data["valid"]) == 3  # the old points, which were also the train_data before it was replaced

    def test_without_a_train_dir_override_nothing_is_written(self, here) -> None:
        _, checkpoint, _ = here
        before = sorted(path.name for path in checkpoint.parent.iterdir())
        init_from_checkpoint(checkpoint, {"epochs": 3}).train()
        assert sorted(path.name for path in checkpoint.parent.iterdir()) == before

    def test_every_parameter_is_listed_with_the_defaults(self, here) -> None:
        found = parameters_in(here[1])
        assert found["model.threshold"] == 0.5
        assert found["model.scale"] == 2.0
        assert found["model.dtype"] == "torch:float32"
        assert found["model.body.args.0.in_features"] == 4
        assert found["model.body.args.2.inplace"] is False
        assert found["train_data.dataset.number"] == 32
        assert found["train_data.drop_last"] is False
        assert found["eval_data.valid.batch_size"] == 8
        assert (found["optimizer.lr"], found["optimizer.momentum"], found["optimizer.nesterov"]) == (0.1, 0.9, False)
        assert (found["lr_schedule.step_size"], found["lr_schedule.gamma"]) == (5, 0.1)
        assert found["loss"] == "lab_of_parameters:bce"
        assert found["extensions.noise.size"] == 0.01

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("model.treshold", "there is no parameter `model.treshold`; did you mean `model.threshold`?"),
            ("modle.threshold", "there is no parameter `modle.threshold`; did you mean `model.threshold`?"),
            ("optimizer.learning", "there is no parameter `optimizer.learning`"),
            ("model.threshold.deeper", "there is no parameter `model.threshold.deeper`; did you mean `model.threshold`?"),
            ("", "there is no parameter ``"),
        ],
    )
    def test_an_unknown_override_is_an_error_that_suggests_the_nearest_name(self, here, name: str, message: str) -> None:
        with pytest.raises(SettingError) as caught:
            init_from_checkpoint(here[1], {name: 1})
        assert message in str(caught.value)

    def test_all_unknown_overrides_are_reported_at_once(self, here) -> None:
        with pytest.raises(SettingError) as caught:
            init_from_checkpoint(here[1], {"model.treshold": 1, "optimizer.lrr": 1, "model.scale": 1.0})
        assert "model.treshold" in str(caught.value)
        assert "optimizer.lrr" in str(caught.value)
        assert "model.scale`;" not in str(caught.value)

    def test_overrides_reach_every_part(self, here) -> None:
        changes = {
            "optimizer.lr": 0.5, "train_data.batch_size": 4, "eval_data.valid.dataset.number": 8, "extensions.noise.size": 0.0,
            "lr_schedule.gamma": 0.5, "model.body.args.2.p": 0.0, "max_steps": 9, "epochs": 9,
        }  # fmt: skip
        tm = init_from_checkpoint(here[1], changes)
        assert tm.train_data.batch_size == 4
        assert len(tm.eval_data["valid"].dataset) == 8
        assert tm["noise"].size == 0.0
        assert tm.model.body[2].p == 0.0
        assert (tm.max_steps, tm.epochs) == (9, 9)
        assert {name: value for name, value in leaves(tm).items() if name in changes} == changes

    def test_overrides_can_be_whole_objects(self, here) -> None:
        other = DataLoader(TensorDataset(torch.zeros(4, 4), torch.zeros(4, 1)), 2)
        tm = init_from_checkpoint(here[1], {"eval_data": {"zeros": other}})
        assert tm.eval_data == {"zeros": other}

    def test_a_recipe_as_an_override_is_called(self, here) -> None:
        body = Recipe(nn.Sequential, Recipe(nn.Linear, 4, 1))
        assert isinstance(init_from_checkpoint(here[1], {"model.body": body}).model.body, nn.Sequential)

    def test_overrides_can_replace_all_extensions(self, here) -> None:
        tm = init_from_checkpoint(here[1], {"extensions": [own := ConstructorArgs()]})
        assert tm["constructor_args"] is own
        assert "noise" not in tm.extensions
        assert len(own.lineage) == 1

    @pytest.mark.parametrize("overrides", [["model.threshold"], {1: 2}, "model.threshold=0.7"])
    def test_overrides_must_map_names_to_values(self, here, overrides) -> None:
        with pytest.raises(SettingError, match="must map dotted names to values"):
            init_from_checkpoint(here[1], overrides)

    def test_a_package_dir_that_does_not_exist_is_refused(self, here, tmp_path) -> None:
        with pytest.raises(SettingError, match="there is no such folder"):
            init_from_checkpoint(here[1], package_dir=tmp_path / "nowhere")

    def test_classes_in_the_main_program_and_a_loop_with_its_own_constructor_are_rebuilt(self, here) -> None:
        tm = init_from_checkpoint(here[1].parents[1] / "own" / "checkpoints" / "2.ckpt", {"epochs": 3})
        assert (type(tm).__name__, type(tm).__module__, type(tm.model).__name__) == ("OwnLoop", "train_of_parameters", "OwnNet")
        tm.train()
        assert tm.epoch_num == 3

    def test_a_run_in_a_store_is_rebuilt_and_continues_without_its_manager(self, here) -> None:
        (checkpoint,) = here[1].parents[1].glob("runs/ckpts/*/*/*/step-000016")
        tm = init_from_checkpoint(checkpoint, {"epochs": 3})
        assert tm.model.threshold == 0.25
        tm.train()
        assert (tm.epoch_num, tm.step_num) == (3, 24)

    def test_a_missing_checkpoint_is_an_error(self, tmp_path) -> None:
        with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
            init_from_checkpoint(tmp_path / "3.ckpt")

    def test_a_checkpoint_without_parameters_says_how_to_get_them(self, tmp_path) -> None:
        ExtensionContract().loop().train()
        tm = ExtensionContract().loop(CheckpointSaver(tmp_path))
        tm.train()
        with pytest.raises(StateError, match=r"does not contain constructor arguments(.|\n)*extensions=\[ConstructorArgs\(\)\]"):
            init_from_checkpoint(tmp_path / "3.ckpt")

    def test_a_custom_checkpoint_loader_is_an_error(self, here, monkeypatch) -> None:
        """Contract E39: rebuilding raises an error if the loader does not accept the path of the checkpoint."""
        monkeypatch.setattr(
            TrainManager, "add_default_extensions", lambda self, extensions: extensions.add("checkpoint_loader", Extension())
        )
        with pytest.raises(SettingError, match="`checkpoint_loader` is a Extension, not a CheckpointLoader"):
            init_from_checkpoint(here[1])


def init_and_load(checkpoint) -> TrainManager:
    tm = init_from_checkpoint(checkpoint)
    tm.eval()
    return tm


def leaves(tm: TrainManager) -> dict:
    return dict(leaves_of(blueprint_of(tm)))


class TestWhatHasChanged:
    """The program is edited after its checkpoint is written."""

    @pytest.fixture
    def changed(self, lab, tmp_path, monkeypatch):
        """Return a function that edits a copy of the module with the classes.

        The function returns the path of a checkpoint that refers to the edited module.
        """
        _, checkpoint, _ = lab

        def edit(name: str, *pairs: tuple[str, str]):
            text = LAB
            for old, new in pairs:
                assert old in text
                text = text.replace(old, new)
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.syspath_prepend(str(tmp_path))
            monkeypatch.delitem(sys.modules, "lab_of_parameters", raising=False)
            monkeypatch.setitem(sys.modules, "lab_of_parameters", __import__(name))
            return checkpoint

        return edit

    def test_a_class_that_moved_is_named_by_its_old_path(self, changed) -> None:
        checkpoint = changed("lab_moved", ("class Net(", "class Network("))
        with pytest.raises(StateError) as caught:
            init_from_checkpoint(checkpoint)
        assert "`model` was a `lab_of_parameters:Net`, which no longer exists" in str(caught.value)
        assert "`lab_of_parameters` has no `Net`" in str(caught.value)
        assert "import it in `lab_of_parameters` from its new module" in str(caught.value)

    def test_a_module_that_no_longer_exists_is_named(self, lab, monkeypatch) -> None:
        monkeypatch.delitem(sys.modules, "lab_of_parameters", raising=False)
        with pytest.raises(StateError) as caught:
            init_from_checkpoint(lab[1])
        text = str(caught.value)
        assert "was a `lab_of_parameters:Net`, which no longer exists" in text
        assert "there is no module `lab_of_parameters`" in text
        assert "pass package_dir" in text

    def test_a_new_default_does_not_change_the_rebuilt_loop(self, changed) -> None:
        checkpoint = changed("lab_default", ("threshold=0.5", "threshold=0.9"))
        assert init_from_checkpoint(checkpoint).model.threshold == 0.5

    def test_a_parameter_that_no_longer_exists_is_named(self, changed) -> None:
        checkpoint = changed(
            "lab_gone", ("threshold=0.5", "cut=0.5"), ("threshold, self.scale", "cut, self.scale"), ("body, threshold,", "body, cut,")
        )
        with pytest.raises(StateError, match=r"`model.threshold` is stored, but Net no longer takes `threshold`"):
            init_from_checkpoint(checkpoint)

    def test_a_new_parameter_without_a_default_can_be_overridden(self, changed) -> None:
        checkpoint = changed("lab_new", ("*, scale=1.0", "*, depth, scale=1.0"))
        with pytest.raises(StateError, match=r"missing a required argument: 'depth'|missing a required keyword-only argument: 'depth'"):
            init_from_checkpoint(checkpoint)
        init_from_checkpoint(checkpoint, {"model.depth": 3})


class TestWhatIsKept:
    """Some kinds of arguments can be stored; for the others, the reason why they cannot is reported."""

    def manager(self, **changes) -> TrainManager:
        data = [(torch.zeros(2, 3), torch.zeros(2, 1))]
        settings = {"model": Recipe(nn.Linear, 3, 1)(), "loss": square, "epochs": 1, "train_data": data} | changes
        return TrainManager(**settings)

    def node(self, name: str, **changes):
        return blueprint_of(self.manager(**changes))["with"][name]

    def test_an_optimizer_class_is_stored_with_its_defaults(self) -> None:
        node = self.node("optimizer", optimizer=torch.optim.Adam)
        assert (node["!"], node["of"], node["with"]["lr"]) == ("recipe", "torch.optim.adam:Adam", 0.001)

    def test_an_optimizer_object_is_stored_with_its_settings(self) -> None:
        model = Recipe(nn.Linear, 3, 1)()
        node = self.node("optimizer", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.1))
        assert (node["of"], node["with"]["lr"], node["with"]["momentum"]) == ("torch.optim.sgd:SGD", 0.3, 0.1)

    def test_an_optimizer_with_several_groups_is_unknown(self) -> None:
        model = Recipe(nn.Linear, 3, 1)()
        groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias]}]
        assert (
            "exactly one group with all trainable parameters"
            in self.node("optimizer", model=model, optimizer=torch.optim.SGD(groups, lr=0.3))["why"]
        )

    def test_a_schedule_created_by_a_recipe_is_stored(self) -> None:
        model = Recipe(nn.Linear, 3, 1)()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        schedule = Recipe(torch.optim.lr_scheduler.StepLR, 7, gamma=0.3)
        for made in (schedule(optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 7)):
            node = self.node("lr_schedule", model=model, optimizer=optimizer, lr_schedule=made)
            assert node.get("with", {}).get("step_size") == (7 if recorded_call(made) else None)
        assert "pass a Recipe" in node["why"]

    def test_an_object_that_is_used_twice_is_built_once(self) -> None:
        data = Recipe(TensorDataset, torch.zeros(4, 3), torch.zeros(4, 1))()
        tm = self.manager(train_data=Recipe(DataLoader, data)(), eval_data={"same": Recipe(DataLoader, data)()})
        blueprint = blueprint_of(tm)
        assert blueprint["with"]["eval_data"]["same"]["with"]["dataset"] == {"!": "same", "as": "train_data.dataset"}
        made = build(blueprint, "here")
        assert made.train_data.dataset is made.eval_data["same"].dataset
        other, path = Points(2), "train_data.dataset"
        made = build(overridden(blueprint, {path: other}, "here"), "here", blueprint)
        assert made.train_data.dataset is made.eval_data["same"].dataset is other
        made = build(overridden(blueprint, {"train_data": other}, "here"), "here", blueprint)
        assert (made.train_data, len(made.eval_data["same"].dataset)) == (other, 4)
        with pytest.raises(SettingError, match=rf"`eval_data.same.dataset.number`; it is the same object as `{path}`: override it there"):
            overridden(blueprint, {"eval_data.same.dataset.number": 3}, "here")

    def rebuilt(self, value, generations: int = 2):
        """Return an argument of the model after storing and rebuilding it."""
        tm = self.manager(model=Keeper(value))
        for _ in range(generations):  # a rebuilt object can be stored again, like the original
            tm = build(blueprint_of(tm), "here")
        return tm.model.value

    @pytest.mark.parametrize(
        "value",
        [
            {0: "cat", 1: "dog"}, {"!": 1}, OrderedDict(b=1, a=2), [(1, [None]), {"a.b": 1j}], Config({"a": {"b": 1}}), torch.tanh,
            torch.nn.functional.relu, torch.bfloat16, math.sqrt,
        ],
    )  # fmt: skip
    def test_values_are_restored_unchanged(self, value) -> None:
        found = self.rebuilt(value)
        assert type(found) is type(value)
        assert found == value

    @pytest.mark.parametrize(
        ("make", "look"),
        [
            (lambda: functools.partial(three, 1), lambda found: (type(found), found(5, 6))),
            (lambda: functools.partial(three, c=1), lambda found: found(5, 6)),
            (lambda: Recipe(three, 1, 2), lambda found: (found(), found(5))),
            (lambda: Recipe(three, c=1), lambda found: found(5, 6)),
            (lambda: Recipe(Keeper, Recipe(Keeper, 1)), lambda found: found().value.value),
            (lambda: Keeper(Recipe(Keeper, 1)), lambda found: type(found.value)),
            (lambda: Recipe(Keeper, Recipe(Keeper, 1))(), lambda found: type(found.value)),
            (lambda: [Recipe(Keeper, one := Keeper(1)), functools.partial(Keeper, one)], lambda two: two[0]().value is two[1]().value),
            (lambda: same_again(same_again(Keeper(1))), lambda found: (found.value, found.count)),
            (lambda: Recipe(same_again, Keeper(1))(), lambda found: (found.value, found.count)),
            (lambda: Recipe(nn.Sequential, OrderedDict(a=Recipe(nn.Linear, 3, 1)))(), str),
            (lambda: Recipe(Keeper.of, 5)(), lambda found: (type(found), found.value)),
            (lambda: Recipe(SubKeeper.of, 5)(), lambda found: (type(found), found.value)),
            (lambda: FrozenSettings(5), repr),
            (lambda: MoreSettings(5, 6), repr),
            (lambda: Stream(3), lambda found: found.number),
            (lambda: only_places(), lambda found: found.value == (NOTHING, 2)),
            (lambda: torch.Size([3, 4]), tuple),
            (lambda: Recipe(torch.full, (2,), 3.0)(), torch.Tensor.tolist),
        ],
    )  # fmt: skip
    def test_objects_are_rebuilt_by_the_calls_that_created_them(self, make, look) -> None:
        value = make()
        assert look(self.rebuilt(value)) == look(value)

    @pytest.mark.parametrize(
        ("make", "why"),
        [
            (lambda: {(1, 2): 3}, "its keys are not plain names or numbers"),
            (lambda: {1: 2, "1": 3}, "its keys are not plain names or numbers"),
            (lambda: {1, 2}, "a value of this type is not stored"),
            (lambda: cyclic(), "it contains itself, or is nested too deeply"),
            (lambda: functools.reduce(lambda inner, _: [inner], range(3000), 1), "nested too deep"),
            (lambda: Keeper(1).forward, "it is a method of an object"),
            (lambda: Recipe(deque, [1])(), "`collections:deque` is in Python's standard library"),
            (lambda: torch.zeros(2**23), "too large to store in each checkpoint"),
            (lambda: same_again(nn.Linear(1, 1)), "a recorded call received it as an argument and returned it"),
            (lambda: value_of(Keeper(Points(1))), "it is among the arguments of the call that created it"),
            (lambda: re.A | re.I, "it is a union of flags"),
            (lambda: Recipe(taking_any, 1, value=2)(), "two arguments with the name `value`"),
        ],
    )  # fmt: skip
    def test_values_that_are_not_stored_have_a_reason(self, make, why: str) -> None:
        assert why in next(iter(unknowns_in(self.node("model", model=Keeper(make()))).values()))

    def test_leaving_out_an_observer_does_not_affect_shared_objects(self) -> None:
        shared = Keeper(1)
        tm = self.manager(extensions=[("a", Watching(shared, lambda: 1)), ("b", Greedy(shared))])
        assert build(blueprint_of(tm), "here")["b"].options.value == 1

    @pytest.mark.parametrize("kind", ["Passing", "Adding", "Bringing"])
    def test_a_loop_that_adds_extensions_itself_has_each_once(self, kind: str) -> None:
        tm = globals()[kind](Recipe(nn.Linear, 3, 1)(), square, 1, Points(2), extensions=[Greedy("given"), ("named", Greedy("more"))])
        made = build(blueprint_of(build(blueprint_of(tm), "here")), "here")
        assert {name: type(each) for name, each in made.extensions.items()} == {name: type(each) for name, each in tm.extensions.items()}
        assert (made["greedy"].options, made["named"].options) == ("given", "more")

    def test_an_optimizer_whose_defaults_lack_an_argument_is_unknown(self) -> None:
        class Noisy(torch.optim.SGD):
            def __init__(self, params, lr, noise=0.0) -> None:
                super().__init__(params, lr)

        model = Recipe(nn.Linear, 3, 1)()
        made = Noisy(model.parameters(), 0.1, noise=0.3)
        assert (
            self.node("optimizer", model=model, optimizer=made)["why"]
            == "its argument `noise` is not in its defaults: create it with a Recipe"
        )

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (lambda batch, prediction: prediction.sum(), "it is a lambda"),
            (nn.MSELoss(), "mark its class @tracked, or create it with a Recipe"),
            (functools.partial(lambda batch, prediction: prediction.sum()), "it is a lambda"),
        ],
    )
    def test_objects_that_cannot_be_rebuilt_have_a_reason(self, value, why: str) -> None:
        node = self.node("loss", loss=value)
        assert node["!"] == "unknown"
        assert why in node["why"]

    def test_the_reason_for_a_nested_function_says_so(self) -> None:
        def inner(batch, prediction): ...

        assert self.node("loss", loss=inner)["why"] == "`inner` is defined inside a function"

    def test_a_warning_at_the_start_of_training_lists_what_cannot_be_rebuilt(self) -> None:
        tm = self.manager(model=nn.Linear(3, 1), extensions=[ConstructorArgs()])
        tm.model_forward = lambda batch: tm.model(batch[0])
        with pytest.warns(
            UserWarning,
            match=r"needs overrides for parts that cannot be rebuilt: `model` \(Linear: its arguments were not recorded",
        ):
            tm.train()

    def test_the_error_names_the_override_that_is_needed(self, tmp_path) -> None:
        tm = Forwarding(
            nn.Linear(3, 1), square, 1, [(torch.zeros(2, 3), torch.zeros(2, 1))], extensions=[ConstructorArgs(), CheckpointSaver(tmp_path)]
        )
        with pytest.warns(UserWarning, match="init_from_checkpoint needs overrides"):
            tm.train()
        with pytest.raises(StateError, match=r"`model` was not recorded(.|\n)*overrides=\{\"model\": \.\.\.\}"):
            init_from_checkpoint(tmp_path / "1.ckpt")
        given = nn.Linear(3, 1)
        again = init_from_checkpoint(tmp_path / "1.ckpt", {"model": given})
        again.eval()
        assert same_bits(given.state_dict(), tm.model.state_dict())

    def test_a_loop_that_cannot_be_imported_gives_a_warning_and_trains(self, tmp_path) -> None:
        class Inner(Forwarding): ...

        tm = Inner(
            nn.Linear(3, 1), square, 1, [(torch.zeros(2, 3), torch.zeros(2, 1))], extensions=[ConstructorArgs(), CheckpointSaver(tmp_path)]
        )
        with pytest.warns(
            UserWarning,
            match=r"overrides for parts that cannot be rebuilt: the loop \(.*Inner: `Inner` is defined inside a function\)",
        ):
            tm.train()
        with pytest.raises(StateError, match=r"the loop of this checkpoint cannot be rebuilt(.|\n)*defined inside a function"):
            init_from_checkpoint(tmp_path / "1.ckpt")

    def test_a_secret_is_not_stored(self, monkeypatch) -> None:
        monkeypatch.setenv("DB_PASSWORD", "CANARY-ONE-1234")
        tm = self.manager(train_data=Recipe(Remote, "CANARY-ONE-1234", api_key="CANARY-TWO")())
        assert "CANARY" not in str(blueprint_of(tm))
        assert blueprint_of(tm)["with"]["train_data"]["with"]["api_key"]["why"] == "it looks like a secret, so it is not stored"

    def test_a_call_of_the_standard_library_is_refused(self, tmp_path) -> None:
        for path in ("os:system", "subprocess:run", "builtins:exec", "shutil:rmtree", "posix:system", "torch:os.system", "this:c"):
            with pytest.raises(StateError, match="which is refused"):
                build({"!": "call", "of": path, "with": {"command": f"touch {tmp_path}/x"}}, "a file")
        assert not list(tmp_path.iterdir())
        assert "this" not in sys.modules  # the module is not even imported

    @pytest.mark.parametrize("place", ["nowhere", "model", ""])
    def test_a_reference_to_a_missing_object_is_refused(self, place: str) -> None:
        model = {"!": "call", "of": "torch.nn.modules.linear:Linear", "with": {"in_features": {"!": "same", "as": place}}}
        with pytest.raises(StateError, match=f"`model.in_features` should be the same object as `{place}`, which does not exist"):
            build({"!": "call", "of": "trainmaster.loop.train_manager:TrainManager", "with": {"model": model}}, "a file")

    def test_a_copy_of_a_model_has_no_recorded_call(self) -> None:
        assert self.node("model", model=copy.deepcopy(Recipe(nn.Linear, 3, 1)()))["!"] == "unknown"

    @pytest.mark.parametrize("argument", [lambda: 1, (each for each in ())])
    def test_an_extension_can_be_pickled_even_if_an_argument_cannot(self, argument) -> None:
        assert recorded_call(pickle.loads(pickle.dumps(Forgetful(argument)))) is None

    def test_a_decorated_constructor_that_accepts_only_keywords_is_called_with_keywords(self) -> None:
        node = {KIND: "call", "of": f"{__name__}:KeywordsOnly", "with": {"width": 3}}
        assert build(node, "file", node).sizes == (3, 2)

    def test_a_state_of_another_format_is_not_loaded(self) -> None:
        state = {**ConstructorArgs().state_dict(), "format": 2}
        with pytest.raises(ValueError, match="the constructor arguments have format 2, but this version reads 1"):
            ConstructorArgs().load_state_dict(state)

    def test_a_pickled_extension_forgets_a_call_with_a_recipe_that_cannot_be_pickled(self) -> None:
        made = Recipe(Greedy, Recipe(Forgetful, lambda: 1))()
        assert recorded_call(pickle.loads(pickle.dumps(made))) is None

    def test_a_pickled_extension_keeps_its_recorded_arguments(self) -> None:
        assert recorded_call(pickle.loads(pickle.dumps(Greedy("x")))).args == ("x",)

    def test_freeing_an_object_at_the_end_of_a_program_raises_no_error(self, monkeypatch) -> None:
        """When a program ends, the module that records the arguments may be gone before the objects are."""
        made = Recipe(DataLoader, [1])()
        monkeypatch.setattr("trainmaster.stages.recorded_call._calls", None)
        del made

    def test_recorded_arguments_are_freed_with_the_object(self) -> None:
        from trainmaster.stages.recorded_call import _calls

        before = len(_calls)
        made = Points(3)
        assert len(_calls) == before + 1
        del made
        assert len(_calls) == before

    def test_a_model_is_freed_even_if_one_of_its_arguments_refers_to_it(self) -> None:
        class Experiment:
            def __init__(self) -> None:
                self.model = Keeper(self.act)

            def act(self) -> None: ...

        model = weakref.ref(Experiment().model)
        gc.collect()
        assert model() is None

    def test_a_pickled_model_does_not_need_trainmaster(self) -> None:
        model = Recipe(nn.Linear, 3, 1)()
        assert b"trainmaster" not in pickle.dumps(model)
        assert [recorded_call(each) for each in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)))] == [None] * 3

    def test_arguments_are_recorded_as_passed_even_if_the_constructor_changes_them(self) -> None:
        assert recorded_call(Greedy({"a": 1})).args == ({"a": 1},)

    def test_an_extension_that_is_a_dataclass_is_stored(self) -> None:
        assert self.node("extensions", extensions=[Sized(0.3)])["sized"]["with"] == {"size": 0.3}

    def test_a_program_whose_name_cannot_be_imported_gives_the_reason(self, monkeypatch) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
        monkeypatch.setattr(sys.modules["__main__"], "__file__", "my-program.py", raising=False)
        monkeypatch.setattr(sys.modules["__main__"], "three", three, raising=False)
        monkeypatch.setattr(three, "__module__", "__main__")
        node = self.node("initialization", initialization=three)
        assert node["why"] == "`three` is in the file my-program.py, whose name cannot be imported"

    def test_an_iterator_among_the_arguments_is_unknown(self) -> None:
        assert recorded_call(Greedy(iter([1]))).args[0].what == "list_iterator"


class TestWithoutMarks:
    """A manager stores the arguments of classes that are not marked `@tracked`; a loop reports them as missing."""

    def test_under_a_manager_every_argument_of_a_module_is_stored(self, tmp_path) -> None:
        Unmarked(tmp_path, verbose=False).process({"width": 5, "threshold": 0.4})
        (checkpoint,) = tmp_path.glob("ckpts/*/*/*/step-000003")
        found = parameters_in(checkpoint)
        assert (found["model.width"], found["model.threshold"], found["model.body.args.0.p"]) == (5, 0.4, 0.25)
        assert found["loss.module.reduction"] == "mean"

    def test_a_run_is_rebuilt_with_another_threshold_and_continues(self, tmp_path) -> None:
        Unmarked(tmp_path, verbose=False).process({"width": 5, "threshold": 0.4})
        (checkpoint,) = tmp_path.glob("ckpts/*/*/*/step-000003")
        tm = init_from_checkpoint(checkpoint, {"model": {"threshold": 0.7}, "epochs": 2})
        tm.train()
        assert (tm.model.threshold, tm.model.last.in_features, tm.epoch_num, tm.step_num) == (0.7, 5, 2, 6)
        assert tm["constructor_args"].overrides == {"model.threshold": 0.7, "epochs": 2}

    @pytest.mark.parametrize("is_wanted", [True, False])
    def test_arguments_are_recorded_only_if_an_extension_stores_them(self, is_wanted: bool) -> None:
        manager = Unmarked(verbose=False)
        manager.has_parameters = is_wanted
        assert (recorded_call(manager.job_runner.build_loop({"width": 5, "threshold": 0.4}).model) is not None) == is_wanted
        assert recorded_call(Unkeeping(1)) is None

    def test_a_constructor_args_extension_of_the_manager_counts(self) -> None:
        manager = Unmarked(verbose=False)
        manager.has_parameters = False
        manager.add_extension("parameters", ConstructorArgs())
        assert recorded_call(manager.job_runner.build_loop({"width": 5, "threshold": 0.4}).model) is not None

    def test_without_a_manager_an_unmarked_model_is_named(self, tmp_path) -> None:
        tm = Forwarding(Unkeeping(3), square, 1, Points(2), extensions=[ConstructorArgs(), CheckpointSaver(tmp_path)])
        with pytest.warns(
            UserWarning, match=r"needs overrides for parts that cannot be rebuilt: `model` \(Unkeeping: its arguments were not recorded"
        ):
            tm.train()
        with pytest.raises(StateError) as caught:
            init_from_checkpoint(tmp_path / "1.ckpt")
        assert "`model` was not recorded, and cannot be built again" in str(caught.value)
        assert "build the loop in a manager's `make_loop`, mark its class @tracked, or create it with a Recipe" in str(caught.value)
        assert 'pass it: overrides={"model": ...}' in str(caught.value)
        again = init_from_checkpoint(tmp_path / "1.ckpt", {"model": Unkeeping(3, 0.7)})
        again.eval()
        assert same_bits(again.model.state_dict(), tm.model.state_dict())

    def test_overriding_a_part_that_was_not_stored_is_an_error_with_the_reason(self, tmp_path) -> None:
        tm = Forwarding(nn.Sequential(nn.Linear(3, 1)), square, 1, Points(2), extensions=[ConstructorArgs(), CheckpointSaver(tmp_path)])
        with pytest.warns(UserWarning, match=r"needs overrides for parts that cannot be rebuilt: `model` \(Sequential"):
            tm.train()
        for overrides in ({"model": {"threshold": 0.7}}, {"model.threshold": 0.7}):
            with pytest.raises(
                SettingError, match=r"no parameter `model\.threshold`; the object that contains it was not recorded: Sequential: its arg"
            ):
                init_from_checkpoint(tmp_path / "1.ckpt", overrides)

    def test_nested_overrides_change_objects_and_errors_show_full_names(self, here) -> None:
        tm = init_from_checkpoint(here[1], {"model": {"scale": 3.0, "body.args.2": {"p": 0.1}}, "optimizer": {"lr": 0.5}})
        assert (tm.model.scale, tm.model.body[2].p, leaves(tm)["optimizer.lr"]) == (3.0, 0.1, 0.5)
        with pytest.raises(SettingError, match=r"there is no parameter `model.treshold`; did you mean `model.threshold`\?"):
            init_from_checkpoint(here[1], {"model": {"treshold": 0.7}})
        with pytest.raises(SettingError, match=r"the override `model\.threshold` is given twice"):
            init_from_checkpoint(here[1], {"model": {"threshold": 0.7}, "model.threshold": 0.8})


class Body(nn.Module):
    def __init__(self, *args) -> None:
        super().__init__()
        self.layers = nn.ModuleList(args)


class Unkeeping(nn.Module):
    """A module that does not store its width in any attribute."""

    def __init__(self, width, threshold=0.5, body=None) -> None:
        super().__init__()
        self.threshold = threshold
        self.body = body
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 1)

    def forward(self, inputs):
        return self.last(self.first(inputs))


class OfPair(nn.Module):
    def __init__(self, module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch, prediction):
        return self.module(prediction, batch[1])


class Unmarked(Manager):
    has_parameters = True

    def make_loop(self, config):
        body = Body(nn.Dropout(0.25))
        extensions = [ConstructorArgs()] if self.has_parameters else []
        model = Unkeeping(config.width, config.threshold, body)
        return Forwarding(model, OfPair(nn.MSELoss()), 1, Points(3), extensions=extensions)


@tracked
class Keeper(nn.Module):
    count = 0

    def __init__(self, value) -> None:
        super().__init__()
        self.value = value

    @classmethod
    def of(cls, value):
        return cls(value)

    def forward(self, batch): ...


class SubKeeper(Keeper): ...


@tracked
class Points(list):
    def __init__(self, number) -> None:
        super().__init__([(torch.ones(2, 3), torch.zeros(2, 1))] * number)


@tracked
@dataclass(frozen=True)
class FrozenSettings:
    width: int = 3


@dataclass(frozen=True)
class MoreSettings(FrozenSettings):
    depth: int = 4


@tracked
class Stream:
    def __init__(self, number) -> None:
        self.number = number

    def __iter__(self):
        return self

    def __next__(self): ...


def three(a, b=2, c=3):
    return a, b, c


@tracked
def same_again(model):
    model.count = getattr(model, "count", 0) + 1
    return model


@tracked
def value_of(keeper):
    return keeper.value


NOTHING = object()


@tracked
def only_places(a=NOTHING, b=2, /):
    return Keeper((a, b))


def taking_any(value, /, **more):
    return Keeper(more)


def cyclic() -> list:
    found: list = []
    found.extend([found, found])
    return found


class Remote(list):
    def __init__(self, address, api_key):
        super().__init__([(torch.zeros(2, 3), torch.zeros(2, 1))])


class Forgetful(Extension):
    def __init__(self, options) -> None: ...


class Greedy(Extension):
    def __init__(self, options) -> None:
        self.options = options
        if isinstance(options, dict):
            options.clear()


@dataclass
class Sized(Extension):
    size: float = 0.1


class Watching(Observer):
    def __init__(self, *parts) -> None: ...


class Forwarding(TrainManager):
    def model_forward(self, batch):
        return self.model(batch[0])


class Passing(TrainManager):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)


class Adding(TrainManager):
    def __init__(self, *args, extensions=(), **kwargs) -> None:
        super().__init__(*args, extensions=[("own", Greedy("own")), *extensions], **kwargs)


class Bringing(TrainManager):
    extensions = {"own": Greedy("own")}


def square(batch, prediction):
    return (prediction - batch[1]).square().mean()


def with_keywords_only(init):
    @functools.wraps(init)
    def wrapper(self, **kwargs):
        return init(self, **kwargs)

    return wrapper


class KeywordsOnly:
    @with_keywords_only
    def __init__(self, width, depth=2) -> None:
        self.sizes = width, depth
