"""The help lists all commands on one screen, and its examples are valid commands."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import TyperException

from trainmaster.cli.app import COMMANDS, GROUPS, _make_app
from trainmaster.errors import TrainmasterError

Call = Callable[..., Any]
EXAMPLE = re.compile(r"^ {4}(trainmaster .*)$", re.MULTILINE)


def examples_of(text: str) -> list[str]:
    """Return the commands in the examples of a help text, without pipes and redirections."""
    lines = EXAMPLE.findall(text.partition("Example")[2])
    return [re.split(r" (?:\||>|&&) ", line)[0] for line in lines]


def parse(line: str) -> None:
    """Parse a command line without running it. A wrong command, option or value is an error."""
    words = shlex.split(line)
    assert words[0] == "trainmaster"
    group = _make_app()
    with group.make_context("trainmaster", words[1:]) as ctx:
        name, command, rest = group.resolve_command(ctx, words[1:])
        with command.make_context(name, rest, parent=ctx):
            pass


def test_the_help_of_the_program_fits_on_one_screen(call: Call) -> None:
    lines = call("--help").out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


def test_every_group_of_the_help_starts_with_its_name(call: Call) -> None:
    lines = call("-h").out.splitlines()
    for group, commands in GROUPS.items():
        assert any(line.split()[:2] == [group, next(iter(commands))] for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_every_help_are_valid_commands(call: Call, name: str) -> None:
    examples = examples_of(call(name, "-h").out)
    assert any(line.split()[1] == name for line in examples)
    for line in examples:
        parse(line)


@pytest.mark.parametrize("line", ["trainmaster lss", "trainmaster ls --sorted x", "trainmaster ls --limit many", "trainmaster show"])
def test_the_check_of_examples_finds_a_wrong_one(line: str) -> None:
    with pytest.raises((TyperException, TrainmasterError)):
        parse(line)


def test_the_help_and_the_docs_name_the_command_that_installs_completion(call: Call) -> None:
    assert "--install-completion" in call("--help").out
    assert "trainmaster --install-completion" in (Path(__file__).parents[2] / "docs" / "command_line.md").read_text()


# ---- completion in real shells

FILES = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/trainmaster.fish"}


@pytest.fixture
def shell_environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a new home folder and with the command on the path."""
    home = tmp_path / "home"
    home.mkdir()
    path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
    return {"HOME": str(home), "PATH": path, "TERM": "dumb", "PS1": "$ ", "LANG": "C.UTF-8"}


def install(shell: str, environment: dict[str, str]) -> str:
    """Install completion from a shell, and return the content of the file that is written."""
    # The program detects the shell from its parent process. Because a second command follows, the shell stays the parent.
    done = subprocess.run(
        [shell, "-c", "trainmaster --install-completion; true"], env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert f"{shell} completion installed" in done.stdout, done.stdout + done.stderr
    return (Path(environment["HOME"]) / FILES[shell]).read_text()


@pytest.mark.integration
@pytest.mark.parametrize("shell", FILES)
def test_one_command_installs_completion(shell: str, shell_environment: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert "trainmaster" in install(shell, shell_environment) or shell == "zsh"
    home = Path(shell_environment["HOME"])
    if shell == "zsh":
        assert "_TRAINMASTER_COMPLETE=complete_zsh" in (home / ".zfunc" / "_trainmaster").read_text()
    before = (home / FILES[shell]).read_text()
    assert install(shell, shell_environment).split() == before.split()  # installing it twice changes nothing


@pytest.mark.integration
def test_a_tab_in_bash_completes_a_command_and_the_key_of_a_run(shell_environment: dict[str, str], make: Any) -> None:
    key = make.run({"lr": 0.1})
    install("bash", shell_environment)
    with Bash(shell_environment) as bash:
        assert bash.type("trainmaster resu\t", until="resume ")
        assert bash.type(f"\x15trainmaster show {key[:3]}\t", until=key)  # Ctrl-U clears the line


class Bash:
    """An interactive bash in a separate terminal."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.terminal, inner = pty.openpty()
        termios.tcsetwinsize(inner, (50, 300))  # no line is long enough to be wrapped
        self.process = subprocess.Popen(
            ["bash", "-i"], env=environment, stdin=inner, stdout=inner, stderr=inner, start_new_session=True, close_fds=True
        )
        os.close(inner)

    def __enter__(self) -> Bash:
        assert self.type("echo rea''dy\n", until="ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)

    def type(self, text: str, until: str) -> str:
        """Type `text`, and read the output until it contains `until`."""
        os.write(self.terminal, text.encode())
        seen, deadline = "", time.monotonic() + 120
        while until not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([self.terminal], [], [], 1)[0]:
                seen += os.read(self.terminal, 4096).decode(errors="replace")
        return seen
