"""The program as such: help, mistakes, exit codes, what it imports, what becomes of its output."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm

from trainmaster.cli.app import COMMANDS
from trainmaster.store import Store

Call = Callable[..., Any]
HEAVY = ("torch", "numpy", "pydantic", "matplotlib")


def imported_by(*args: str) -> list[str]:
    """Which heavy modules a command imports."""
    code = (
        f"import sys; from trainmaster.cli import main; main({args!r}); print(*(m for m in {HEAVY} if m in sys.modules), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stderr.splitlines()[-1].split()


# ---- help


def test_help_lists_every_command_and_imports_nothing_heavy(call: Call) -> None:
    assert imported_by("--help") == []
    listed = call("--help").out.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "] == [*COMMANDS]


def test_help_takes_at_most_400_ms() -> None:
    def took() -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "trainmaster", "--help"], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun

    assert any(took() <= 0.4 for _ in range(20))  # other tests run beside this one


def test_reading_commands_never_import_torch(make: Any) -> None:
    one, other = make.run({"lr": 0.1}), make.run({"lr": 0.2})
    for args in (["ls", "--where", "lr<1 and loss>0", "--sort", "loss"], ["show", one], ["diff", one, other]):
        assert {*imported_by(*args)}.isdisjoint({"torch", "matplotlib"}), args


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(call: Call, name: str) -> None:
    found = call(name, "--help")
    assert found.code == 0
    assert f"trainmaster {name}" in found.out.split("Example")[1]


def test_no_word_at_all_shows_the_help_and_is_no_success(call: Call) -> None:
    found = call()
    assert found.code == 2
    assert "Commands:" in found.err
    assert found.out == ""


def test_the_version_is_told(call: Call) -> None:
    import trainmaster

    assert call("--version") == (0, f"{trainmaster.__version__}\n", "")


# ---- mistakes


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["sho"], "did you mean `show`?"),
        (["xyzzy"], "`trainmaster --help` lists all commands"),
        (["ls", "--limt", "3"], "did you mean `--limit`?"),
        (["ls", "--state", "faild"], "did you mean `failed`?"),
        (["ls", "--sort", "los"], "did you mean `loss`?"),
        (["ls", "--where", "los<1"], "did you mean `loss`?"),
        (["ls", "--limit", "many"], "Invalid value for '--limit'"),
        (["show"], "Missing argument 'KEY'"),
        (["ls", "a", "b"], "unexpected extra argument"),
        (["tag", "KEY", "a/b"], "is no label"),
        (["logs", "KEY", "--attempt", "7"], "has no attempt 7"),
        (["logs", "KEY", "-f", "--json"], "give one of them"),
        (["prune", "--keep", "0"], "Invalid value for '--keep'"),
    ],
)
def test_a_mistake_says_what_to_write_and_ends_with_2(call: Call, make: Any, args: list[str], wanted: str) -> None:
    key = make.run({"lr": 0.1})
    found = call(*[key if each == "KEY" else each for each in args])
    assert found.code == 2
    assert wanted in found.err
    assert found.out == ""
    assert "Traceback" not in found.err


@pytest.mark.parametrize("args", [["--debug", "show", "ffff"], ["show", "ffff", "--debug"]])
def test_debug_raises_the_error_wherever_it_stands(call: Call, make: Any, args: list[str]) -> None:
    make.run({"lr": 0.1})
    with pytest.raises(KeyError, match="no run has a key that starts with `ffff`"):
        call(*args)


# ---- stores


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_a_missing_store_is_told_with_the_first_step_and_not_made(call: Call, tmp_path: Path, command: str) -> None:
    found = call(command, "--store", tmp_path / "none")
    assert (found.code, found.out) == (0, "")
    assert "trainmaster run train.py:MyManager" in found.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_missing_store_is_an_empty_list_in_json(call: Call, command: str) -> None:
    found = call(command, "--json")
    assert (found.code, json.loads(found.out)) == (0, [])


def test_an_empty_folder_stays_empty(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert call("ls").code == 0
    assert not list((tmp_path / "runs").iterdir())


def test_a_store_without_runs_says_how_to_make_one(call: Call, store: Store) -> None:
    found = call("ls")
    assert found.code == 0
    assert "make a first one: trainmaster run train.py:MyManager" in found.err


def test_a_folder_that_is_no_store_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    for args in (["ls", "photos"], ["show", "abcd", "--store", "photos"], ["import", "x.tar", "--store", "photos"]):
        found = call(*args)
        assert found.code == 2
        assert "`photos` is no store of trainmaster" in found.err
    assert [each.name for each in (tmp_path / "photos").iterdir()] == ["cat.png"]


def test_a_file_in_place_of_a_store_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = call("ls", "file")
    assert found.code == 2
    assert "`file` is a file, not a store" in found.err


def test_the_store_comes_from_the_environment_and_an_option_is_stronger(
    call: Call, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make.run({"lr": 0.1})
    monkeypatch.setenv("TRAINMASTER_STORE", str(tmp_path / "elsewhere"))
    assert "no runs yet" in call("ls").err
    assert key in call("ls", "--store", "runs").out
    assert key in call("ls", "runs").out


def test_two_stores_for_one_command_are_refused(call: Call) -> None:
    found = call("ls", "a", "--store", "b")
    assert found.code == 2
    assert "the store is given twice" in found.err


def test_a_store_that_can_only_be_read_is_listed_and_shown(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 0.1})
    before = sorted(Path(str(store.root)).rglob("*"))
    subprocess.run(["chmod", "-R", "a-w", str(store.root)], check=True)
    try:
        assert key in call("ls").out
        assert call("show", key).code == 0
        assert call("verify").code == 0
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(store.root)], check=True)
    assert sorted(Path(str(store.root)).rglob("*")) == before


# ---- output (X08)


@pytest.mark.parametrize("is_unbuffered", ["", "1"])
def test_a_closed_pipe_ends_it_quietly(make: Any, program: Call, is_unbuffered: str) -> None:
    make.run({"lr": 0.1})
    for args in (["ls"], ["--help"]):
        found = program(*args, shell="| true; exit ${PIPESTATUS[0]}", PYTHONUNBUFFERED=is_unbuffered)
        assert (found.code, found.err) == (141, ""), args


def test_the_first_line_alone_can_be_had(make: Any, program: Call) -> None:
    make.run({"lr": 0.1})
    found = program("ls", shell="| head -1")
    assert found.out.startswith("KEY")
    assert found.err == ""


@pytest.mark.parametrize("is_unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_one_line_and_exit_1(make: Any, program: Call, is_unbuffered: str) -> None:
    make.run({"lr": 0.1})
    found = program("ls", shell="> /dev/full", PYTHONUNBUFFERED=is_unbuffered)
    assert found.code == 1
    assert found.err.splitlines() == ["cannot go on: No space left on device"]


@pytest.mark.parametrize("environment", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}])
def test_a_poor_locale_shows_escapes_and_no_error(make: Any, program: Call, environment: dict[str, str]) -> None:
    key = make.run({"name": "größe 漢字"}, [{"läss": 1.0}, {"läss": 2.0}])
    found = program("show", key, **environment)
    assert (found.code, found.err) == (0, "")
    assert "gr" in found.out
    assert found.out.isascii()


def test_a_pipe_has_no_colours_and_no_boxes(make: Any, program: Call) -> None:
    key = make.run({"lr": 0.1}, [{"loss": 1.0}, {"loss": 0.5}])
    for args in (["show", key], ["--help"]):
        found = program(*args)
        assert found.out.isascii()
        assert "\x1b" not in found.out


def in_terminal(*args: str, columns: int = 80, **environment: str) -> str:
    """What a terminal is sent."""
    parent, child = pty.openpty()
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", **environment}
    env = {name: value for name, value in env.items() if value}
    with subprocess.Popen([sys.executable, "-m", "trainmaster", *args], stdin=child, stdout=child, stderr=child, env=env) as process:
        os.close(child)
        data = b""
        while True:
            try:
                block = os.read(parent, 4096)
            except OSError:
                break
            if not block:
                break
            data += block
        process.wait()
    os.close(parent)
    return data.decode()


def test_a_terminal_has_colours_within_its_width_unless_they_are_not_wanted(make: Any) -> None:
    for number in range(3):
        make.run({"a_rather_long_name_of_a_key": number, "another_long_name_of_a_key": f"{number}" * 50}, [{"loss": 1.0}, {"loss": 0.5}])
    coloured = in_terminal("ls", NO_COLOR="")
    assert "\x1b[32mfinished\x1b[0m" in coloured
    plain = in_terminal("ls", NO_COLOR="1")
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert "too narrow for" in plain


def test_a_terminal_gets_a_sparkline_of_blocks(make: Any) -> None:
    key = make.run({"lr": 0.1}, [{"loss": 1.0}, {"loss": 0.5}])
    assert "█▁" in in_terminal("show", key, PYTHONUTF8="1")


def test_ctrl_c_ends_a_reading_command_with_130_and_no_traceback(make: Any, hold: Call, store: Store) -> None:
    key = make.run({"lr": 0.1}, log="hello\n")
    hold(store, key)
    command = [sys.executable, "-m", "trainmaster", "logs", key, "-f"]
    process = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "")
