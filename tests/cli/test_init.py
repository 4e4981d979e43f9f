"""`trainmaster init` writes projects that train, resume and can be swept, and never changes existing files."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm

from trainmaster.cli.init import TEMPLATES
from trainmaster.store import Store

Call = Callable[..., Any]
FILES = [".gitignore", "README.md", "test_train.py", "train.py"]
METRIC = {"supervised": "valid/accuracy", "wrapper": "valid/accuracy", "manager": "accuracy", "loop": "accuracy"}
WIDTH = {"wrapper": "model_config.width"}


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def train(folder: Path, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a `trainmaster` command in a folder."""
    return warm.run([sys.executable, "-m", "trainmaster", *words], cwd=folder, capture_output=True, text=True, **settings)


# ---- the files that it writes


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_has_a_program_a_test_a_readme_and_what_git_ignores(call: Call, tmp_path: Path, template: str) -> None:
    found = call("init", "lab", "--template", template)
    assert (found.code, found.err) == (0, "")
    assert names_in(tmp_path / "lab") == FILES
    assert (tmp_path / "lab" / "README.md").read_text().startswith("# lab\n")
    assert "PROJECT" not in (tmp_path / "lab" / "README.md").read_text()
    assert "runs/" in (tmp_path / "lab" / ".gitignore").read_text()


def test_the_files_and_the_next_two_commands_are_printed(call: Call) -> None:
    assert call("init", "my lab").out.splitlines() == [
        "wrote my lab/.gitignore",
        "      my lab/README.md",
        "      my lab/test_train.py",
        "      my lab/train.py",
        "next: cd 'my lab'",
        "      trainmaster run train.py",
    ]


@pytest.mark.parametrize("name", ["my-project", "2026 runs", "Größe", "a/b/c", "class", "torch", "a\nb"])
def test_any_name_of_a_folder_is_a_name_of_a_project(call: Call, tmp_path: Path, name: str) -> None:
    found = call("init", name)
    assert found.code == 0
    assert names_in(tmp_path / name) == FILES
    assert found.out.splitlines()[-1].strip() == "trainmaster run train.py"


def test_without_a_folder_the_current_one_is_used_and_hidden_files_stay(call: Call, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".env").write_text("x")
    found = call("init")
    assert found.code == 0
    assert found.out.splitlines()[-2:] == ["next: trainmaster run train.py", "      pytest"]
    assert names_in(tmp_path) == sorted([".env", ".git", *FILES])
    assert (tmp_path / "README.md").read_text().startswith(f"# {tmp_path.name}\n")


def test_git_is_not_needed(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert call("init", "lab").code == 0


# ---- existing files


@pytest.mark.parametrize(("folder", "name"), [("lab", "notes.txt"), ("lab", ".gitignore"), ("missing/../lab", "notes.txt")])
def test_a_folder_that_is_not_empty_is_refused_with_what_is_in_the_way(call: Call, tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / name).write_text("mine")
    found = call("init", folder)
    assert (found.code, found.out) == (2, "")
    assert f"the folder `{folder}` is not empty, so nothing was written" in found.err
    assert name in found.err
    assert names_in(tmp_path / "lab") == [name]
    assert (tmp_path / "lab" / name).read_text() == "mine"


def test_a_file_in_place_of_the_folder_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "lab").write_text("mine")
    for name in ("lab", "lab/inner"):
        found = call("init", name)
        assert found.code == 2
        assert "nothing was written" in found.err
    assert "`lab` is a file" in call("init", "lab").err
    assert (tmp_path / "lab").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 300])
def test_an_impossible_name_is_refused(call: Call, name: str) -> None:
    found = call("init", name)
    assert found.code == 2
    assert "try     " in found.err


def test_an_unknown_template_is_refused_with_the_nearest_one(call: Call, tmp_path: Path) -> None:
    found = call("init", "lab", "--template", "suprvised")
    assert found.code == 2
    assert "did you mean `supervised`?" in found.err
    assert all(name in found.err for name in TEMPLATES)
    assert not (tmp_path / "lab").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a user without permission")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    """The process first reads the template as root, because other users may not be able to read the Python environment.

    Then it drops its root privileges, because root can write anywhere.
    """
    code = (
        "import os, sys; from trainmaster.cli.init import read_template, write_project; texts = read_template('loop', 'lab')\n"
        "os.setuid(65534)\ntry: write_project(sys.argv[1], texts)\nexcept ValueError as error: print(error)"
    )
    (tmp_path / "home").mkdir(mode=0o755)
    found = warm.run([sys.executable, "-c", code, str(tmp_path / "home" / "lab")], capture_output=True, text=True)
    assert "Permission denied; nothing was written" in found.stdout, found.stderr
    assert names_in(tmp_path / "home") == []


@pytest.mark.parametrize("exists", [False, True])
def test_a_disk_that_is_full_half_way_leaves_nothing(tmp_path: Path, exists: bool) -> None:
    """A file size limit simulates the full disk: .gitignore fits, but README.md does not."""
    code = (
        "import resource, signal, sys; from trainmaster.cli import main; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); sys.exit(main(sys.argv[1:]))"
    )
    lab = tmp_path / "new" / "lab"
    if exists:
        lab.mkdir(parents=True)
    found = warm.run([sys.executable, "-c", code, "init", str(lab)], capture_output=True, text=True)
    assert found.returncode == 1
    assert "File too large" in found.stderr
    assert (names_in(lab) == []) if exists else (names_in(tmp_path) == [])


# ---- the projects


@pytest.mark.integration
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_commands_of_the_readme_work_as_written(tmp_path: Path, template: str) -> None:
    """The commands train, sweep, list the runs, and run the project's tests with warnings as errors."""
    assert train(tmp_path, "init", "lab", "--template", template).returncode == 0
    text = (tmp_path / "lab" / "README.md").read_text()
    commands = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert commands is not None
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    printed = ""
    for line in commands[1].splitlines():
        words = shlex.split(line, comments=True)
        env = {**os.environ, "PATH": path, "PYTHONWARNINGS": "error" if words[0] == "pytest" else "default"}
        command = {"trainmaster": [sys.executable, "-m", *words], "python": [sys.executable, *words[1:]]}.get(
            words[0], [sys.executable, "-m", *words]
        )
        done = warm.run(command, cwd=tmp_path / "lab", capture_output=True, text=True, env=env)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed += done.stdout
        if words[1:2] == ["ls"]:
            listed = re.findall(r"^[0-9a-f]{8}", done.stdout, re.MULTILINE)
    assert "4 passed" in printed if template == "loop" else "3 passed" in printed
    runs = Store(tmp_path / "lab" / "runs")
    accuracies = [(runs.run(key).preview() or {}).get(METRIC[template], 0) for key in runs.configs]
    assert len(accuracies) == 4
    assert max(accuracies) > 0.95
    assert (runs.run(listed[0]).preview() or {})[METRIC[template]] == max(accuracies)
    assert names_in(tmp_path / "lab") == sorted([*FILES, *({"runs", ".pytest_cache", "__pycache__"} & {*names_in(tmp_path / "lab")})])


@pytest.mark.integration
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_that_is_killed_resumes_bit_for_bit(tmp_path: Path, template: str) -> None:
    assert train(tmp_path, "init", "lab", "--template", template).returncode == 0
    lab, width = tmp_path / "lab", f"{WIDTH.get(template, 'width')}=16"
    started = warm.Popen(
        [sys.executable, "-m", "trainmaster", "run", "train.py", width],
        cwd=lab,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with started:
        assert started.stdout is not None
        for line in started.stdout:
            if re.search(r"\bepoch 3 of 20\b", line):
                started.send_signal(signal.SIGKILL)
    assert started.returncode == -signal.SIGKILL
    resumed = train(lab, "run", "train.py", width)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "resumes from" in resumed.stdout
    [key] = Store(lab / "runs").configs
    assert train(lab, "rerun", key).stdout.splitlines()[-1].startswith("same: ")


@pytest.mark.integration
def test_the_code_of_every_project_is_clean(tmp_path: Path) -> None:
    """ruff uses the rules of the templates, and mypy is strict, except that it allows torch's untyped `backward`."""
    root = Path(__file__).parents[2]
    rules = str(root / "src/trainmaster/cli/templates/ruff.toml")
    settings = "[mypy]\nstrict = true\npython_version = 3.11\n[mypy-train,test_train]\ndisallow_untyped_calls = false\n"
    (tmp_path / "mypy.ini").write_text(settings)
    mypy = ["mypy", "--config-file", "../mypy.ini", "--cache-dir", str(root / ".mypy_cache")]
    for template in TEMPLATES:
        assert train(tmp_path, "init", template, "--template", template).returncode == 0
        for words in (
            ["ruff", "check", "--config", rules, "."],
            ["ruff", "format", "--check", "--config", rules, "."],
            [*mypy, "train.py", "test_train.py"],
        ):
            done = subprocess.run([sys.executable, "-m", *words], cwd=tmp_path / template, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
