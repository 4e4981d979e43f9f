"""The code is saved when training starts, and each checkpoint records which code was used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainmaster import LoopComponent, TrainManager, TrainTestLoop
from trainmaster.errors import LoopError, SettingError
from trainmaster.extensions import code_tracker
from trainmaster.extensions.code import capture
from trainmaster.extensions.code import git as git_calls
from trainmaster.extensions.code.snapshot import read_snapshot
from trainmaster.extensions.code_tracker import CodeTracker, checkout_code
from trainmaster.testing import ExtensionContract


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def forget() -> None:
    """Clear the caches, as if this were a new process."""
    capture._captures.clear()
    code_tracker._written.clear()


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a repository with one commit, and make it the current folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    folder = tmp_path / "lab"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "model.py").write_text("width = 8\n")
    (folder / ".gitignore").write_text("out/\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a model")
    monkeypatch.chdir(folder)
    forget()
    yield folder
    forget()


@pytest.mark.filterwarnings("ignore:CodeTracker saves no files")
class TestCodeTracker(ExtensionContract):
    unsaved_attributes = ("_resumed",)  # the code of the checkpoint

    def make(self) -> CodeTracker:
        return CodeTracker()


def manager(*extensions: Any, epochs: int = 1, train_dir: str | Path | None = "out", **more: Any) -> TrainManager:
    torch.manual_seed(0)
    data = [torch.randn(4, 3) for _ in range(3)]
    return TrainManager(
        nn.Linear(3, 1),
        lambda batch, out: out.pow(2).mean(),
        epochs,
        data,
        extensions=extensions,
        train_dir=train_dir,
        device="cpu",
        **more,
    )


def snapshots(train_dir: str | Path = "out") -> list[str]:
    return sorted(each.name for each in (Path(train_dir) / "code").iterdir())


def commit(folder: Path, text: str) -> str:
    (folder / "model.py").write_text(text)
    git(folder, "commit", "-q", "-a", "-m", text.strip())
    return git(folder, "rev-parse", "HEAD")


def test_training_saves_its_code_and_the_files_can_be_restored(lab: Path, tmp_path: Path) -> None:
    (lab / "model.py").write_text("width = 16\n")
    (lab / "new.py").write_text("x\n")
    tracker = CodeTracker()
    manager(tracker).train()
    assert tracker.snapshot is not None
    assert (tracker.snapshot.branch, tracker.snapshot.subject, tracker.snapshot.is_dirty) == ("main", "a model", True)
    (lab / "model.py").write_text("width = 32\n")
    assert checkout_code("out/code", tmp_path / "then").is_exact
    assert (tmp_path / "then" / "model.py").read_text() == "width = 16\n"
    assert (tmp_path / "then" / "new.py").read_text() == "x\n"


def test_the_weights_are_the_same_with_it() -> None:
    found = []
    for extensions in ([], [CodeTracker()]):
        tm = manager(*extensions, epochs=2, train_dir=None if not extensions else "out")
        tm.train()
        found.append(tm.model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_a_checkpoint_records_its_commit_and_tree(lab: Path) -> None:
    tm = manager(CodeTracker())
    tm.train()
    head, tree = git(lab, "rev-parse", "HEAD"), git(lab, "rev-parse", "HEAD^{tree}")
    assert tm.capture().extensions["code_tracker"] == {"commit": head, "tree": tree}


def test_resuming_with_other_code_warns_and_saves_both_versions(lab: Path) -> None:
    before, tree = git(lab, "rev-parse", "HEAD")[:12], git(lab, "rev-parse", "HEAD^{tree}")[:8]
    manager(CodeTracker()).train()
    after = commit(lab, "width = 9\n")
    now = git(lab, "rev-parse", "HEAD^{tree}")[:8]
    forget()
    tm = manager(CodeTracker(), epochs=2)
    message = "the code has changed since this training run started"
    message += f": it was commit {before} (tree {tree}), and is now commit {after[:12]} (tree {now})"
    with pytest.warns(UserWarning, match="^" + re.escape(message)) as warned:
        tm.train()
    assert len(warned) == 1
    assert snapshots() == sorted([f"{before}-{tree}", f"{after[:12]}-{now}"])
    assert tm.capture().extensions["code_tracker"]["commit"] == after


def test_uncommitted_changes_count_as_other_code(lab: Path) -> None:
    manager(CodeTracker()).train()
    (lab / "model.py").write_text("width = 9\n")
    forget()
    with pytest.warns(UserWarning, match=r"it was commit (\w{12}) \(tree \w{8}\), and is now commit \1 \(tree \w{8}\)$"):
        manager(CodeTracker(), epochs=2).train()


def test_committing_the_changes_does_not_count_as_other_code(lab: Path) -> None:
    (lab / "model.py").write_text("width = 9\n")
    manager(CodeTracker()).train()
    commit(lab, "width = 9\n")
    forget()
    assert warnings_from(CodeTracker(), epochs=2) == []


def test_code_that_changed_within_an_epoch_causes_one_warning_and_is_saved(lab: Path) -> None:
    """Training that resumes in the middle of an epoch restores its extensions twice, but must warn only once."""
    manager(CodeTracker(), max_steps=2).train()
    after = commit(lab, "width = 9\n")
    forget()
    tm = manager(CodeTracker(), epochs=2)
    with pytest.warns(UserWarning, match="the code has changed since this training run started") as warned:
        tm.train()
    assert len(warned) == 1
    tm.epochs = 3
    tm.train()
    assert tm.capture().extensions["code_tracker"]["commit"] == after


def test_the_same_code_is_saved_once_without_a_warning() -> None:
    manager(CodeTracker()).train()
    forget()
    manager(CodeTracker(), epochs=2).train()
    assert len(snapshots()) == 1


def test_later_training_runs_of_a_process_do_not_run_git_again(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager(CodeTracker()).train()
    (lab / "model.py").write_text("edited after it was imported\n")
    monkeypatch.setattr(git_calls.subprocess, "Popen", lambda *_, **__: pytest.fail("git was called"))
    manager(CodeTracker(), train_dir="out/2").train()
    assert snapshots("out/2") == snapshots("out")


# ---- when nothing can be saved


def warnings_from(*extensions: Any, **more: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tm = manager(*extensions, **more)
        tm.train()
    assert tm.epoch_num == tm.epochs
    return [str(each.message) for each in caught]


def test_without_a_repository_there_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert warnings_from(CodeTracker()) == [f"CodeTracker saves no code: there is no git repository at {tmp_path}"]


def test_without_git_there_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert warnings_from(CodeTracker()) == ["CodeTracker saves no code: git is not installed: there is no program `git`"]


def test_without_a_commit_there_is_one_warning_and_files_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    (empty / "a.py").write_text("1\n")
    monkeypatch.chdir(empty)
    assert warnings_from(CodeTracker()) == [f"the repository {empty} has no commit yet; CodeTracker saves its files"]
    assert read_snapshot(str(next(Path("out/code").iterdir()))).new == ("a.py",)


def test_a_detached_head_has_no_branch(lab: Path) -> None:
    git(lab, "checkout", "-q", "--detach")
    assert warnings_from(tracker := CodeTracker()) == []
    assert tracker.snapshot is not None
    assert tracker.snapshot.branch is None


def test_only_the_first_run_waits_for_a_git_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    real = shutil.which("git")
    program.write_text(f'#!/bin/sh\ncase "$*" in *rev-parse*) exec {real} "$@";; esac\nsleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_calls, "TIMEOUT", 0.5)
    started = time.monotonic()
    assert warnings_from(CodeTracker()) == ["CodeTracker saves no code: git status did not finish within 0.5 s"]
    assert warnings_from(CodeTracker(), train_dir="out/2") == ["CodeTracker saves no code: git status did not finish within 0.5 s"]
    assert time.monotonic() - started < 5


def test_a_broken_repository_causes_one_warning(lab: Path) -> None:
    (lab / ".git" / "index").write_bytes(b"nonsense")
    (message,) = warnings_from(CodeTracker())
    assert message.startswith("CodeTracker saves no code: git status failed: ")


def test_an_unsafe_directory_causes_a_warning_that_says_what_git_needs(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr(git_calls, "_KEPT_VARIABLES", (*git_calls._KEPT_VARIABLES, "GIT_TEST_"))
    (message,) = warnings_from(CodeTracker())
    assert message.endswith(f"it does not trust the owner of {lab}; `git config --global --add safe.directory {lab}` allows it")


def test_a_full_disk_causes_one_warning(lab: Path) -> None:
    Path("out").mkdir()
    (Path("out") / "code").write_text("in the way")
    (message,) = warnings_from(CodeTracker())
    assert message.startswith("CodeTracker saves no files: ")


def test_without_a_train_dir_there_is_one_warning() -> None:
    assert warnings_from(CodeTracker(), train_dir=None) == [
        "CodeTracker saves no files because the loop has no train_dir; checkpoints still record the commit"
    ]


def test_files_that_are_left_out_cause_a_warning(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "q7Zt91kfX2")
    (lab / "model.py").write_text("key = 'q7Zt91kfX2'\n")
    (lab / "large.py").write_text("#" * 300)
    assert warnings_from(CodeTracker(max_file_size=200)) == [
        "CodeTracker leaves out model.py (it contains the value of a secret), large.py (its 300 bytes exceed max_file_size=200)"
    ]
    assert all(b"q7Zt91kfX2" not in path.read_bytes() for path in Path("out").rglob("*") if path.is_file())


def test_a_file_that_is_in_the_commit_is_left_out_without_a_warning(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_API_KEY", "q7Zt91kfX2")
    commit(lab, "key = 'q7Zt91kfX2'\n")
    assert warnings_from(tracker := CodeTracker()) == []
    assert tracker.snapshot is not None
    assert [str(each) for each in tracker.snapshot.left_out] == ["model.py (it contains the value of a secret; the commit has it)"]


# ---- require_clean


def test_a_dirty_tree_is_refused_before_the_first_batch(lab: Path) -> None:
    for number in range(7):
        (lab / f"new{number}.py").touch()
    (lab / "model.py").write_text("changed\n")
    tm = manager(CodeTracker(require_clean=True))
    with pytest.raises(LoopError) as caught:
        tm.train()
    assert str(caught.value).split("\n") == [
        "the code has uncommitted changes, which CodeTracker(require_clean=True) does not allow",
        f"  where   {lab}",
        "  changed model.py",
        "          new0.py",
        "          new1.py",
        "          new2.py",
        "          new3.py",
        "          ... and 3 more",
        "  try     commit these files or add them to .gitignore, or leave out require_clean",
    ]
    assert tm.step_num == 0


def test_a_clean_tree_is_accepted(lab: Path) -> None:
    (lab / "out").mkdir()
    (lab / "out" / "data.csv").write_text("ignored")
    assert warnings_from(CodeTracker(require_clean=True)) == []


def test_code_whose_state_is_unknown_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoopError, match="cannot tell whether the code is clean\n  why     git is not installed"):
        manager(CodeTracker(require_clean=True)).train()


# ---- which repository


def test_path_selects_the_repository(lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (lab, lab / "model.py", "lab"):
        tracker = CodeTracker(path)
        assert warnings_from(tracker) == []
        assert tracker.snapshot is not None
        assert tracker.snapshot.root == str(lab)


def test_the_repository_of_the_program_takes_precedence_over_that_of_the_folder(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(lab / "model.py"), raising=False)
    monkeypatch.chdir(tmp_path)
    assert warnings_from(tracker := CodeTracker()) == []
    assert tracker.snapshot is not None
    assert tracker.snapshot.root == str(lab)


MANAGER = """
import torch
from torch import nn
from trainmaster import Manager, TrainManager
from trainmaster.extensions.code_tracker import CodeTracker

class Mine(Manager):
    extensions = [CodeTracker()]
    defaults = {"width": 3, "api_key": "q7Zt91kfX2"}
    secrets = ("api_key",)

    def make_loop(self, config):
        return TrainManager(nn.Linear(2, 1), lambda batch, out: out.mean(), 1, [torch.ones(3, 2)], device="cpu")
"""


def test_under_a_manager_the_repository_of_its_class_is_saved_in_the_attempt_without_secrets(
    lab: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli.target import Target
    from trainmaster.manager.attempt_checkpoints import AttemptCheckpoints

    monkeypatch.setattr(AttemptCheckpoints, "draw", lambda self: None)  # drawing takes longer than training
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # otherwise the bytecode would be a new file in the repository
    monkeypatch.setattr(sys, "path", list(sys.path))
    (lab / "lab_code.py").write_text(MANAGER)
    (lab / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    made = Target.parse(f"{lab}/lab_code.py:Mine").load_manager(str(lab / "runs"), is_quiet=True)
    with pytest.warns(UserWarning, match=r"CodeTracker leaves out lab_code.py \(it contains the value of a secret\)"):
        made.process({})
    (folder,) = (lab / "runs").glob("previews/*/*/attempt-0001/code/*")
    snapshot = read_snapshot(str(folder))
    assert snapshot.root == str(lab)
    assert [each.path for each in snapshot.left_out] == ["lab_code.py"]
    assert not any(path.startswith("runs/") for path in snapshot.new)
    assert all(b"q7Zt91kfX2" not in path.read_bytes() for path in folder.iterdir())
    del sys.modules["lab_code"]


# ---- TrainTestLoop and invalid arguments


def test_it_works_in_a_train_test_loop() -> None:
    loop: Any = TrainTestLoop(nn.Linear(3, 1), [LoopComponent(), CodeTracker()], [torch.ones(2, 3)], [])
    loop.train_dir = "out"
    loop.train(1)
    assert len(snapshots()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": ""}, "there is no file or folder ``"),
        ({"path": "nowhere"}, "there is no file or folder `nowhere`"),
        ({"max_file_size": -1}, "`max_file_size` must be a whole number of at least 0, not -1"),
        ({"max_file_size": True}, "`max_file_size` must be a whole number of at least 0, not True"),
        ({"max_total_size": 1.5}, "`max_total_size` must be a whole number of at least 0, not 1.5"),
        ({"max_total_size": None}, "`max_total_size` must be a whole number of at least 0, not None"),
    ],
)
def test_bad_arguments_are_refused_at_construction(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        CodeTracker(**arguments)
    assert str(caught.value).startswith(message)
