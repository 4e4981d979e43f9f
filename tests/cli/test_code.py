"""`trainmaster code` shows and restores the code that a run was trained with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainmaster.extensions.code.capture import Limits, capture
from trainmaster.extensions.code.snapshot import read_snapshot, write_snapshot
from trainmaster.extensions.code_tracker import CodeTracker
from trainmaster.store.keys import attempt_folder


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a repository with a change, a new file, and a secret."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    folder = tmp_path / "lab"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "model.py").write_text("width = 8\n")
    (folder / "gone.py").touch()
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "a \x1b[2J model")
    git(folder, "remote", "add", "origin", "https://host.org/lab.git")
    (folder / "model.py").write_text("width = 16\n")
    (folder / "gone.py").unlink()
    (folder / "new.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def key(make: Any) -> str:
    return str(make.run({"lr": 0.1}))


def save(lab: Path, store: Any, key: str, attempt: int = 1) -> Path:
    folder = Path(store.root) / "previews" / key[:2] / key / f"attempt-{attempt:04}" / "code"
    return Path(write_snapshot(capture(str(lab), Limits()), str(folder)))


def test_a_snapshot_is_shown_with_its_commit_and_counts(call: Any, lab: Path, store: Any, key: str) -> None:
    (lab / ".env").write_text("KEY=1")
    folder = save(lab, store, key)
    found = call("code", key[:4])
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines() == [
        f"snapshot {folder.name}",
        f"  commit    {git(lab, 'rev-parse', 'HEAD')}  a \\x1b[2J model",
        "  branch    main",
        "  state     dirty",
        "  changed   1 changed, 1 deleted, 1 new",
        "  left out  .env (its name looks like a secret)",
        "  remote    https://host.org/lab.git",
        f"  folder    {lab}",
        f"  taken     {read_snapshot(str(folder)).taken}",
        "  attempts  1",
        f"  files     {folder}",
    ]


def test_a_snapshot_of_a_clean_detached_head_is_shown(call: Any, lab: Path, store: Any, key: str) -> None:
    git(lab, "add", "-A")
    git(lab, "commit", "-q", "-m", "all")
    git(lab, "checkout", "-q", "--detach")
    save(lab, store, key)
    out = call("code", key).out
    assert "  branch    none: HEAD was detached\n  state     clean\n  changed   0 changed, 0 deleted, 0 new\n" in out


def test_json_contains_all_facts(call: Any, lab: Path, store: Any, key: str) -> None:
    save(lab, store, key)
    (found,) = json.loads(call("code", key, "--json").out)
    assert found["commit"] == git(lab, "rev-parse", "HEAD")
    assert found["deleted"] == ["gone.py"]
    assert (found["changed"], found["new"], found["is_dirty"]) == (["model.py"], ["new.py"], True)


def test_the_patch_is_printed_unchanged(call: Any, lab: Path, store: Any, key: str) -> None:
    (lab / "model.py").write_bytes(b"\twidth = 16\r\n")
    folder = save(lab, store, key)
    found = call("code", key, "--diff")
    assert found.out.encode() == (folder / "changes.patch").read_bytes()
    assert "+\twidth = 16\r\n" in found.out
    assert found.err == "1 new file not in the patch; --checkout DIR restores all files\n"


def test_the_exact_files_are_restored(call: Any, lab: Path, store: Any, key: str, tmp_path: Path) -> None:
    folder = save(lab, store, key)
    lab.rename(tmp_path / "moved")
    found = call("code", key, "--checkout", "then")
    assert (found.code, found.out) == (0, f"restored {folder.name} into {tmp_path}/then: the files are exact\n")
    assert sorted(each.name for each in (tmp_path / "then").iterdir()) == [".git", "model.py", "new.py"]
    assert (tmp_path / "then" / "model.py").read_text() == "width = 16\n"
    again = call("code", key, "--checkout", "then")
    assert again.code == 2
    assert again.err.startswith("--checkout then: this folder is not empty\n")


@pytest.mark.parametrize(("folder", "said"), [("runs/then", "this folder is inside the store"), ("", "cannot be the path of a folder")])
def test_files_are_not_restored_into_an_unsuitable_folder(call: Any, lab: Path, store: Any, key: str, folder: str, said: str) -> None:
    save(lab, store, key)
    found = call("code", key, "--checkout", folder)
    assert (found.code, said in found.err) == (2, True)


def test_missing_files_are_listed_with_exit_code_1(call: Any, lab: Path, store: Any, key: str, tmp_path: Path) -> None:
    (lab / ".env").write_text("KEY=1")
    folder = save(lab, store, key)
    found = call("code", key, "--checkout", "then")
    assert found.code == 1
    assert found.out == f"restored {folder.name} into {tmp_path}/then, except for\n  .env (its name looks like a secret)\n"


def test_the_newest_of_several_snapshots_is_the_default(call: Any, lab: Path, store: Any, make: Any, key: str) -> None:
    first = save(lab, store, key)
    make.run({"lr": 0.1})
    save(lab, store, key, attempt=2)
    (lab / "model.py").write_text("width = 32\n")
    second = save(lab, store, key, attempt=2)
    out = call("code", key).out
    assert [line for line in out.splitlines() if line.startswith(("snapshot", "  attempts"))] == [
        f"snapshot {first.name}",
        "  attempts  1, 2",
        f"snapshot {second.name}",
        "  attempts  2",
    ]
    assert "+width = 32" in call("code", key, "--diff").out
    assert "+width = 16" in call("code", key, "--diff", "--at", first.name).out
    wrong = call("code", key, "--diff", "--at", first.name[:13])
    assert wrong.code == 2
    assert wrong.err.startswith(f"run {key} has 2 snapshots whose name starts with '{first.name[:13]}'\n  known   {first.name}\n")


def test_a_run_without_a_snapshot_prints_how_to_get_one(call: Any, key: str) -> None:
    found = call("code", key)
    assert found.code == 2
    assert found.err.splitlines() == [
        f"run {key} has no snapshot of its code",
        "  try     train in a git repository with the extension CodeTracker: pass `extensions=[CodeTracker()]` to the loop",
    ]


def test_a_run_outside_of_a_repository_prints_the_reason(
    call: Any, store: Any, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = SimpleNamespace(train_dir=tmp_path / "runs" / attempt_folder("previews", key, 1))
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.warns(UserWarning, match="CodeTracker saves no code: there is no git repository"):
        CodeTracker(tmp_path / "plain").pre_train(loop)
    found = call("code", key)
    assert found.code == 2
    assert found.err.splitlines() == [
        f"run {key} has no snapshot of its code",
        f"  why     there is no git repository at {tmp_path}/plain",
        "  try     put the program into a git repository: `git init`, then `git add` and `git commit`",
    ]


def test_a_damaged_snapshot_is_an_error(call: Any, lab: Path, store: Any, key: str) -> None:
    (save(lab, store, key) / "code.json").write_text("{}")
    found = call("code", key)
    assert found.code == 1
    assert found.err.startswith("`")
    assert "code.json` is damaged\n" in found.err


@pytest.mark.parametrize("options", [["--diff", "--json"], ["--checkout", "x", "--diff"]])
def test_options_that_cannot_be_combined_are_refused(call: Any, key: str, options: list[str]) -> None:
    assert call("code", key, *options).code == 2


def test_the_command_does_not_import_torch() -> None:
    code = "import trainmaster.cli.code, trainmaster.extensions.code.checkout, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
