"""The batch on which training failed is saved, and replaying it in another process raises the same error."""

from __future__ import annotations

import enum
import functools
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import capsule_program
import pytest
import torch
import warm
from torch import nn

from trainmaster import DivergenceGuard, Extension, NaNGuard, Observer, TrainManager
from trainmaster.errors import LossDivergedError, SettingError, StateError, StoreFormatError
from trainmaster.extensions.capsule import Capsule, newest_replayable
from trainmaster.extensions.failure_capsule import FailureCapsule
from trainmaster.extensions.replay import replay
from trainmaster.store.checkpoint_folder import CheckpointFolder, Moment
from trainmaster.store.files import LocalFiles
from trainmaster.testing import ExtensionContract

PROGRAM = Path(capsule_program.__file__)
KINDS = [*capsule_program.KINDS]


class TestFailureCapsule(ExtensionContract):
    unsaved_attributes = ("_epoch_starts",)  # after resuming in the middle of an epoch, its start is unknown

    def make(self) -> FailureCapsule:
        return FailureCapsule()


# in another process


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the output for each kind of failure, from one process that trains and one that replays."""
    folder = tmp_path_factory.mktemp("capsules")
    said: dict[str, dict[str, Any]] = {}
    for act in ("fail", "replay"):
        ran = warm.run([sys.executable, PROGRAM, act, "."], capture_output=True, text=True, check=False, cwd=folder)
        assert ran.returncode == 0, ran.stderr
        for line in ran.stdout.splitlines():
            found = json.loads(line)
            said.setdefault(found.pop("kind"), {})[act] = found
    return said


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_in_a_new_process_raises_the_same_type_and_message(lines: dict[str, Any], kind: str) -> None:
    failed, again = lines[kind]["fail"], lines[kind]["replay"]
    if failed["type"] is not None:  # one kind of failure is saved but not raised
        assert (again["type"], again["message"]) == (failed["type"], failed["message"])
    assert again["is_same"], again
    assert f"trainmaster replay {kind}/1.capsule" in "\n".join(failed["notes"])


def test_there_are_at_least_ten_kinds_of_failure(lines: dict[str, Any]) -> None:
    assert len(lines) == len(KINDS) >= 20


def test_only_safe_formats_are_written(lines: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "capsules0"
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"manifest.json", "tree.json", "tensors.safetensors"}


# in this process


class Net(nn.Module):
    def __init__(self, check: Callable[[torch.Tensor], Any] | None = None) -> None:
        super().__init__()
        self.layer, self.dropout, self.check = nn.Linear(3, 2), nn.Dropout(0.5), check

    def forward(self, batch: Any) -> torch.Tensor:
        output: torch.Tensor = self.dropout(self.layer(batch))
        if self.check is not None:
            self.check(output)
        return output


class FailAt(Extension):
    """Raises an error in one hook of one batch."""

    def __init__(self, batch: int, error: BaseException) -> None:
        self.batch, self.error = batch, error

    def post_forward(self, fixtures: Any, batch_num: int) -> None:
        if batch_num == self.batch and "is_update" in fixtures:
            raise self.error


def manager(*extensions: Any, check: Any = None, **more: Any) -> TrainManager:
    data = [torch.full((4, 3), float(number)) for number in range(5)]
    arguments = {"evaluate_first": False, "device": "cpu", **more}
    return TrainManager(Net(check), lambda batch, output: output.pow(2).mean(), 2, data, extensions=extensions, **arguments)


def failed(loop: TrainManager, kind: type[BaseException] = RuntimeError) -> BaseException:
    with pytest.raises(kind) as caught:
        loop.train()
    return caught.value


def notes(error: BaseException) -> list[str]:
    return [note for note in error.__notes__ if note.startswith("FailureCapsule: ")]


def test_the_note_is_a_command_that_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = failed(manager(FailureCapsule(), FailAt(2, RuntimeError("no")), train_dir="my runs"))
    assert notes(error) == ["FailureCapsule: reproduce it with `trainmaster replay 'my runs/capsules/1.capsule' --target FILE.py:NAME`"]


def test_a_capsule_contains_the_error_and_its_location(tmp_path: Path) -> None:
    loop = manager(FailureCapsule(tmp_path), FailAt(3, ValueError("too bad")))
    failed(loop, ValueError)
    capsule = Capsule.load(tmp_path / "1.capsule")
    assert capsule.error["type"] == "ValueError"
    assert capsule.error["message"] == "too bad"
    assert "raise self.error" in capsule.error["traceback"]
    assert capsule.location["stage"] == "run > train > train_step_epoch > train_step_batch > forward"
    assert {name: capsule.location[name] for name in ("routine", "epoch_num", "batch_num", "step_num")} == {
        "routine": "train", "epoch_num": 0, "batch_num": 3, "step_num": 3,
    }  # fmt: skip
    assert torch.equal(capsule.batch, torch.full((4, 3), 3.0))
    assert torch.equal(capsule.objects["model"]["layer.weight"], loop.model.state_dict()["layer.weight"])
    assert "state" in capsule.objects["optimizer"]
    assert capsule.fixtures["prediction"].shape == (4, 2)
    assert capsule.versions["torch"] == torch.__version__
    manifest = json.loads((tmp_path / "1.capsule" / "manifest.json").read_text())
    assert manifest["status"]["error"]["message"] == "too bad"


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_is_not_saved(tmp_path: Path, ending: BaseException) -> None:
    failed(manager(FailureCapsule(tmp_path / "kept"), FailAt(1, ending)), type(ending))
    assert not (tmp_path / "kept").exists()


def test_a_stop_is_not_saved(tmp_path: Path) -> None:
    class Stop(Extension):
        def post_forward(self, train_manager: TrainManager) -> None:
            train_manager.stop("enough")

    manager(FailureCapsule(tmp_path / "kept"), Stop()).train()
    assert not (tmp_path / "kept").exists()


def test_an_error_that_passes_many_stages_is_saved_once(tmp_path: Path) -> None:
    error = failed(manager(FailureCapsule(tmp_path), FailAt(1, RuntimeError("no"))))
    assert len(notes(error)) == 1
    assert sorted(os.listdir(tmp_path)) == ["1.capsule"]


def test_the_oldest_capsules_are_deleted(tmp_path: Path) -> None:
    for _ in range(4):
        failed(manager(FailureCapsule(tmp_path, max_capsules=2), FailAt(1, RuntimeError("no"))))
    assert sorted(os.listdir(tmp_path)) == ["3.capsule", "4.capsule"]


def test_of_batches_that_are_only_reported_the_first_ones_are_saved_with_their_stage(tmp_path: Path) -> None:
    bad = [torch.full((4, 3), math.inf) for _ in range(3)]
    data = [torch.ones(4, 3), *bad]
    loop = manager(FailureCapsule(tmp_path, max_capsules=2), NaNGuard("skip"))
    loop.train_data = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loop.train()
    assert sorted(os.listdir(tmp_path)) == ["1.capsule", "2.capsule"]
    locations = [Capsule.load(tmp_path / f"{number}.capsule").location for number in (1, 2)]
    assert [each["batch_num"] for each in locations] == [1, 2]
    assert {each["stage"] for each in locations} == {"run > train > train_step_epoch > train_step_batch"}


@pytest.mark.parametrize("policy", ["skip", "continue"])
def test_each_capsule_of_a_batch_that_is_only_reported_replays(tmp_path: Path, policy: str) -> None:
    def make() -> TrainManager:
        loop = manager(FailureCapsule(tmp_path), NaNGuard(policy))
        loop.train_data = [torch.ones(4, 3), *(torch.full((4, 3), math.inf) for _ in range(4))]
        return loop

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make().train()
        replays = [replay(tmp_path / f"{number}.capsule", make()) for number in (1, 2, 3)]
    assert [each.is_same for each in replays] == [True, True, True]
    assert "module" in getattr(replays[0].error, "rows", {})


def test_the_repr_of_a_replay_is_short(tmp_path: Path) -> None:
    failed(manager(FailureCapsule(tmp_path), FailAt(1, RuntimeError("no\nmore"))))
    replayed = replay(tmp_path / "1.capsule", manager(FailAt(1, RuntimeError("no\nmore"))))
    assert repr(replayed).startswith("Replayed(capsule=<Capsule: RuntimeError: no, stage run > train > ")
    assert len(repr(replayed)) < 300


def test_a_capsule_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    error = failed(manager(FailureCapsule(tmp_path / "taken"), FailAt(1, RuntimeError("the real one"))))
    assert str(error) == "the real one"
    assert notes(error)[0].startswith("FailureCapsule: saved nothing: StoreAccessError: ")


def test_an_error_in_a_state_dict_does_not_hide_the_original_error(tmp_path: Path) -> None:
    class Broken(Observer):
        def pre_run(self) -> None: ...

        def state_dict(self) -> Any:
            raise LookupError("no state")

        def load_state_dict(self, state: Any) -> None: ...

    error = failed(manager(FailureCapsule(tmp_path / "kept"), Broken(), FailAt(1, RuntimeError("the real one"))))
    assert str(error) == "the real one"
    assert notes(error) == ["FailureCapsule: saved nothing: LookupError: no state"]


def test_without_a_folder_a_note_says_that_nothing_was_saved() -> None:
    error = failed(manager(FailureCapsule(), FailAt(1, RuntimeError("no"))))
    assert notes(error) == ["FailureCapsule: saved nothing, because there is no folder; set its `path`, or the `train_dir` of the loop"]


class Draws(Extension):
    """Draws a random number at the start of each batch, and fails if it is small."""

    def pre_train_step_batch(self) -> None:
        self.drawn = torch.rand(()).item()

    def post_forward(self, fixtures: Any, prediction: torch.Tensor) -> None:
        if self.drawn < 0.3:
            raise RuntimeError(f"{self.drawn!r} {prediction.sum().item()!r}")


def test_hooks_draw_the_same_random_numbers_in_a_replay(tmp_path: Path) -> None:
    torch.manual_seed(0)
    failed(manager(FailureCapsule(tmp_path), Draws()))
    torch.manual_seed(77)
    assert replay(tmp_path / "1.capsule", manager(FailureCapsule(), Draws())).is_same


def test_the_random_state_is_restored_at_the_position_of_the_extension_among_the_hooks(tmp_path: Path) -> None:
    def check(output: torch.Tensor) -> None:
        if torch.rand(()) < 0.3:
            raise RuntimeError(f"{output.sum().item()!r} {torch.rand(()).item()!r}")

    class DrawOnly(Extension):
        def pre_train_step_batch(self) -> None:
            torch.rand(7)

    torch.manual_seed(0)
    failed(manager(DrawOnly(), FailureCapsule(tmp_path), check=check))
    torch.manual_seed(77)
    assert replay(tmp_path / "1.capsule", manager(DrawOnly(), FailureCapsule(), check=check)).is_same


def test_an_error_in_an_earlier_hook_is_saved_with_a_list_of_what_is_missing(tmp_path: Path) -> None:
    class First(Extension):
        def pre_train_step_batch(self, batch_num: int) -> None:
            if batch_num == 2:
                raise RuntimeError(f"batch {batch_num}")

    failed(manager(First(), FailureCapsule(tmp_path)))
    capsule = Capsule.load(tmp_path / "1.capsule")
    assert capsule.missing["rng"].endswith("put FailureCapsule first")
    assert torch.equal(capsule.batch, torch.full((4, 3), 2.0))


def test_an_error_in_a_later_hook_at_the_end_of_the_batch_is_saved_with_the_batch(tmp_path: Path) -> None:
    class Last(Extension):
        def post_train_step_batch(self, batch_num: int) -> None:
            if batch_num == 2:
                raise RuntimeError(f"batch {batch_num}")

    failed(manager(FailureCapsule(tmp_path), Last()))
    assert torch.equal(Capsule.load(tmp_path / "1.capsule").batch, torch.full((4, 3), 2.0))
    assert replay(tmp_path / "1.capsule", manager(FailureCapsule(), Last())).is_same


def test_an_evaluation_within_a_batch_does_not_replace_that_batch(tmp_path: Path) -> None:
    class Evaluate(Extension):
        def pre_forward(self, fixtures: Any, train_manager: TrainManager, batch_num: int) -> None:
            if batch_num == 3 and "is_update" in fixtures:
                train_manager.eval()

    failed(manager(FailureCapsule(tmp_path), Evaluate(), FailAt(3, RuntimeError("no")), eval_data={"valid": [torch.zeros(4, 3)] * 2}))
    capsule = Capsule.load(tmp_path / "1.capsule")
    assert torch.equal(capsule.batch, torch.full((4, 3), 3.0))
    assert "rng" not in capsule.missing


def test_an_error_that_was_fixed_does_not_occur_again(tmp_path: Path) -> None:
    failed(manager(FailureCapsule(tmp_path), FailAt(1, RuntimeError("no"))))
    replayed = replay(tmp_path / "1.capsule", manager(FailureCapsule()))
    assert replayed.error is None
    assert not replayed.is_same


def test_a_loop_without_the_extension_can_replay(tmp_path: Path) -> None:
    failed(manager(FailureCapsule(tmp_path), FailAt(1, RuntimeError("no"))))
    assert replay(tmp_path / "1.capsule", manager(FailAt(1, RuntimeError("no")))).is_same


def test_a_replay_writes_nothing_to_the_train_dir_of_the_loop(tmp_path: Path) -> None:
    failed(manager(FailureCapsule(tmp_path / "kept"), FailAt(1, RuntimeError("no"))))
    loop = manager(FailureCapsule(), FailAt(1, RuntimeError("no")), train_dir=tmp_path / "run")
    assert replay(tmp_path / "kept" / "1.capsule", loop).is_same
    assert not (tmp_path / "run").exists()
    assert os.listdir(tmp_path / "kept") == ["1.capsule"]


def test_a_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    failed(manager(FailureCapsule(tmp_path), FailAt(1, RuntimeError("no"))))
    loop = manager(FailureCapsule())
    loop.model.layer = nn.Linear(3, 5)
    with pytest.raises(StateError, match="the captured `model` does not fit this Net"):
        replay(tmp_path / "1.capsule", loop)


def test_an_error_outside_of_a_batch_is_saved_but_cannot_be_replayed(tmp_path: Path) -> None:
    class AtEnd(Extension):
        def post_train_step_epoch(self) -> None:
            raise RuntimeError("at the end")

    failed(manager(FailureCapsule(tmp_path), AtEnd()))
    failed(manager(AtEnd(), FailureCapsule(tmp_path)))
    assert sorted(os.listdir(tmp_path)) == ["1.capsule", "2.capsule"]
    for number in (1, 2):
        with pytest.raises(StateError, match="the error occurred outside of a batch, but a replay runs only one batch"):
            replay(tmp_path / f"{number}.capsule", manager(AtEnd()))


def test_the_note_of_an_error_outside_of_a_batch_does_not_suggest_a_replay(tmp_path: Path) -> None:
    data = {"valid": [torch.ones(4, 3)]}
    diverging = DivergenceGuard(factor=1e-9, warm_up_epochs=0)
    optimizer = functools.partial(torch.optim.SGD, lr=1.0, maximize=True)
    loop = manager(FailureCapsule(tmp_path), diverging, eval_data=data, evaluate_first=True, optimizer=optimizer)
    error = failed(loop, LossDivergedError)
    assert notes(error) == [f"FailureCapsule: saved the state in {tmp_path / '1.capsule'}; there is no batch that can be replayed"]
    assert newest_replayable(LocalFiles(str(tmp_path)), "") is None


def test_names_that_are_enums_are_stored_as_plain_text(tmp_path: Path) -> None:
    class Split(enum.StrEnum):
        VALID = "valid"

    def check(output: torch.Tensor) -> None:
        if not torch.is_grad_enabled():
            raise RuntimeError("no")

    failed(manager(FailureCapsule(tmp_path), check=check, eval_data={Split.VALID: [torch.ones(4, 3)]}))
    location = Capsule.load(tmp_path / "1.capsule").location
    assert (location["datasource_name"], type(location["datasource_name"])) == ("valid", str)
    assert replay(tmp_path / "1.capsule", manager(check=check, eval_data={Split.VALID: [torch.ones(4, 3)]})).is_same


def test_it_does_not_change_training_that_fails_and_continues(tmp_path: Path) -> None:
    def end(*extensions: Any) -> dict[str, torch.Tensor]:
        torch.manual_seed(5)
        once = FailAt(3, RuntimeError("no"))
        loop = manager(*extensions, once)
        failed(loop)
        once.batch = -1
        loop.train()
        return loop.model.state_dict()

    plain, kept = end(), end(FailureCapsule(tmp_path))
    assert all(torch.equal(plain[name], kept[name]) for name in plain)


# invalid capsules


def spoil_checksum(folder: Path) -> None:
    path = folder / "tree.json"
    path.write_bytes(path.read_bytes().replace(b"RuntimeError", b"RuntimeErroR"))


def spoil_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("{}")


def cut(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_checksum, "its checksum does not match"),
        (spoil_manifest, "it is truncated, or was not written by trainmaster"),
        (cut, "it has 100 of its"),
        (remove_manifest, "it has no `manifest.json`"),
    ],
)
def test_a_damaged_capsule_is_refused_with_one_line(tmp_path: Path, spoil: Any, message: str) -> None:
    failed(manager(FailureCapsule(tmp_path), FailAt(1, RuntimeError("no"))))
    spoil(tmp_path / "1.capsule")
    with pytest.raises(StoreFormatError) as caught:
        Capsule.load(tmp_path / "1.capsule")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_and_checkpoints_are_not_accepted_as_capsules(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    CheckpointFolder(tmp_path).save(Moment(3, 0, 9, True), {"a": 1})
    for name, reason in (("file", "it is a file"), ("none", "there is no such folder"), ("3.ckpt", "its format is None")):
        with pytest.raises(StoreFormatError) as caught:
            Capsule.load(tmp_path / name)
        assert str(caught.value).startswith(f"`{tmp_path / name}` is not a capsule: {reason}")


def test_a_class_in_a_capsule_is_not_imported(tmp_path: Path) -> None:
    from trainmaster.extensions.capsule import unpack

    for name in ("antigravity:Nothing", "subprocess:Popen", "os:system", "pathlib:Path"):
        with pytest.raises(StoreFormatError, match="no loaded module has such a dataclass or named tuple"):
            unpack({(".class",): name, "args": ["true"]})
    assert "antigravity" not in sys.modules


# bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_capsules": 0}, "`max_capsules` must be a whole number of at least 1, not 0"),
        ({"max_capsules": True}, "`max_capsules` must be a whole number of at least 1, not True"),
        ({"target": "train.py"}, "`target` must name a function or a manager, not 'train.py'"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        FailureCapsule(**arguments)
    assert str(caught.value).startswith(message)
