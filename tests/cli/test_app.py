"""The program as a whole: help, wrong input, exit codes, imports and output."""

from __future__ import annotations

import importlib
import json
import os
import pty
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm

from trainmaster.cli.app import COMMANDS
from trainmaster.store import Store

Call = Callable[..., Any]
HEAVY = ("torch", "numpy", "pydantic", "matplotlib")


def imported_by(*args: str) -> list[str]:
    """Return the heavy modules that a command imports."""
    code = (
        f"import sys; from trainmaster.cli import main; main({args!r}); print(*(m for m in {HEAVY} if m in sys.modules), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stderr.splitlines()[-1].split()


# ---- help


def test_help_lists_every_command_and_imports_nothing_heavy(call: Call) -> None:
    assert imported_by("--help") == []
    listed = [line[8:].split() for line in call("--help").out.splitlines() if line[8:9].isalpha() and line[26:27] == " "]
    assert [words[0] for words in listed if words[0] in COMMANDS] == [*COMMANDS]


def test_help_takes_at_most_400_ms() -> None:
    """The test measures CPU time, because wall time depends on what else the machine is doing."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def took() -> float:
        begun = used()
        subprocess.run([sys.executable, "-m", "trainmaster", "--help"], check=True, stdout=subprocess.DEVNULL)
        return used() - begun

    assert any(took() <= 0.4 for _ in range(20))


def test_reading_commands_never_import_torch(make: Any) -> None:
    one, other = make.run({"lr": 0.1}), make.run({"lr": 0.2})
    assert "torch" not in imported_by("show", one)  # the first call draws the curves of the run
    for args in (["ls", "--where", "lr<1 and loss>0", "--sort", "loss"], ["show", one], ["diff", one, other]):
        assert {*imported_by(*args)}.isdisjoint({"torch", "matplotlib"}), args


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(call: Call, name: str) -> None:
    found = call(name, "--help")
    assert found.code == 0
    assert call(name, "-h") == found
    assert f"trainmaster {name}" in found.out.split("Example")[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_starts_with_its_line_in_the_list_of_commands(name: str) -> None:
    command = importlib.import_module(f"trainmaster.cli.{'import_' if name == 'import' else name.replace('-', '_')}").command
    assert command.__doc__.splitlines()[0] == COMMANDS[name]


def test_without_arguments_the_help_goes_to_stderr_with_exit_code_2(call: Call) -> None:
    found = call()
    assert found.code == 2
    assert "Train   run" in found.err
    assert found.out == ""


def test_the_version_is_printed(call: Call) -> None:
    import trainmaster

    assert call("--version") == (0, f"{trainmaster.__version__}\n", "")


# ---- wrong input


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
        (["tag", "KEY", "a/b"], "is not a label"),
        (["logs", "KEY", "--attempt", "7"], "has no attempt 7"),
        (["logs", "KEY", "-f", "--json"], "use only one of them"),
        (["prune", "--keep", "0"], "Invalid value for '--keep'"),
    ],
)
def test_wrong_input_is_explained_and_exits_with_2(call: Call, make: Any, args: list[str], wanted: str) -> None:
    key = make.run({"lr": 0.1})
    found = call(*[key if each == "KEY" else each for each in args])
    assert found.code == 2
    assert wanted in found.err
    assert found.out == ""
    assert "Traceback" not in found.err


@pytest.mark.parametrize("args", [["--debug", "show", "ffff"], ["show", "ffff", "--debug"]])
def test_debug_raises_the_error_at_any_position_in_the_command(call: Call, make: Any, args: list[str]) -> None:
    make.run({"lr": 0.1})
    with pytest.raises(KeyError, match="no run has a key that starts with `ffff`"):
        call(*args)


# ---- stores


@pytest.mark.parametrize("command", ["ls", "verify", "prune"])
def test_a_missing_store_is_an_error_that_suggests_a_first_run_and_creates_nothing(call: Call, tmp_path: Path, command: str) -> None:
    found = call(command, "--store", tmp_path / "none")
    assert (found.code, found.out) == (0, "")
    assert "trainmaster run train.py" in found.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_a_missing_store_is_an_empty_list_in_json(call: Call, command: str) -> None:
    found = call(command, "--json")
    assert (found.code, json.loads(found.out)) == (0, [])


def test_an_empty_folder_stays_empty(call: Call, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert call("ls").code == 0
    assert not list((tmp_path / "runs").iterdir())


def test_a_store_without_runs_suggests_a_first_run(call: Call, store: Store) -> None:
    found = call("ls")
    assert found.code == 0
    assert "start a first one: trainmaster run train.py" in found.err


def test_a_folder_with_leftovers_of_a_killed_first_write_is_treated_as_empty(call: Call, make: Any, tmp_path: Path) -> None:
    key = make.run({"lr": 0.1})
    assert call("export", "all.tar").code == 0
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".0123456789abcdef.tmp").write_text('{"format"')
    for command in ("ls", "verify", "prune"):
        found = call(command, "--store", "new")
        assert (found.code, found.out) == (0, "")
        assert "no runs yet in `new`" in found.err
    assert "not created yet" in call("doctor", "--store", "new").out
    assert call("import", "all.tar", "--store", "new").out == f"{key}\nimported 1 run\n"
    assert key in call("ls", "new").out


@pytest.mark.integration
def test_concurrent_imports_into_an_empty_folder_all_succeed(call: Call, make: Any, tmp_path: Path) -> None:
    keys = [make.run({"lr": lr}) for lr in range(6)]
    for key in keys:
        assert call("export", f"{key}.tar", key).code == 0
    starting = (
        "import sys; from trainmaster.cli import main; import trainmaster.store; print(flush=True); input(); sys.exit(main(sys.argv[1:]))"
    )
    for number in map(str, range(10)):
        (tmp_path / number).mkdir()
        commands = [["import", f"{key}.tar", "--store", number] for key in keys] + [["ls", number]] * 3
        streams: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": tmp_path}
        racers = [warm.Popen([sys.executable, "-c", starting, *each], **streams) for each in commands]
        for racer in racers:
            assert racer.stdout.readline() == "\n"
        for racer in racers:
            racer.stdin.write("\n")
            racer.stdin.flush()
        said = [racer.communicate()[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * 9, said
        assert sorted(Store(number).configs) == sorted(keys)


def test_a_folder_that_is_not_a_store_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").touch()
    for args in (["ls", "photos"], ["show", "abcd", "--store", "photos"], ["import", "x.tar", "--store", "photos"]):
        found = call(*args)
        assert found.code == 2
        assert "`photos` is not a trainmaster store" in found.err
    assert [each.name for each in (tmp_path / "photos").iterdir()] == ["cat.png"]


def test_a_file_instead_of_a_store_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = call("ls", "file")
    assert found.code == 2
    assert "`file` is a file, not a store" in found.err


def test_an_option_overrides_the_store_in_the_environment(call: Call, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make.run({"lr": 0.1})
    monkeypatch.setenv("TRAINMASTER_STORE", str(tmp_path / "elsewhere"))
    assert "no runs yet" in call("ls").err
    assert key in call("ls", "--store", "runs").out
    assert key in call("ls", "runs").out


def test_two_stores_for_one_command_are_refused(call: Call) -> None:
    found = call("ls", "a", "--store", "b")
    assert found.code == 2
    assert "the store is given twice" in found.err


def test_a_read_only_store_can_be_listed_and_shown(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 0.1})
    call("show", key)  # draws the curves now, because root could still write them to the read-only store later

    def files() -> list[Path]:
        return sorted(each for each in Path(str(store.root)).rglob("*") if "index" not in each.parts)

    before = files()
    subprocess.run(["chmod", "-R", "a-w", str(store.root)], check=True)
    try:
        assert key in call("ls").out
        assert call("show", key).code == 0
        assert call("verify").code == 0
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(store.root)], check=True)
    assert files() == before


# ---- output (X08)


@pytest.mark.parametrize("is_unbuffered", ["", "1"])
def test_a_closed_pipe_ends_the_command_quietly(make: Any, program: Call, is_unbuffered: str) -> None:
    make.run({"lr": 0.1})
    for args in (["ls"], ["--help"]):
        found = program(*args, shell="| true; exit ${PIPESTATUS[0]}", PYTHONUNBUFFERED=is_unbuffered)
        assert (found.code, found.err) == (141, ""), args


def test_the_output_can_be_piped_to_head(make: Any, program: Call) -> None:
    make.run({"lr": 0.1})
    found = program("ls", shell="| head -1")
    assert found.out.startswith("KEY")
    assert found.err == ""


@pytest.mark.parametrize("is_unbuffered", ["", "1"])
def test_a_full_disk_at_stdout_gives_one_line_and_exit_code_1(make: Any, program: Call, is_unbuffered: str) -> None:
    make.run({"lr": 0.1})
    found = program("ls", shell="> /dev/full", PYTHONUNBUFFERED=is_unbuffered)
    assert found.code == 1
    assert found.err.splitlines() == ["cannot continue: No space left on device"]


@pytest.mark.parametrize("environment", [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONIOENCODING": "ascii"}])
def test_an_ascii_locale_gets_escapes_and_no_error(make: Any, program: Call, environment: dict[str, str]) -> None:
    key = make.run({"name": "größe 漢字"}, [{"läss": 1.0}, {"läss": 2.0}])
    found = program("show", key, **environment)
    assert (found.code, found.err) == (0, "")
    assert "gr" in found.out
    assert found.out.isascii()


def test_a_pipe_gets_no_colors_and_no_block_characters(make: Any, program: Call) -> None:
    key = make.run({"lr": 0.1}, [{"loss": 1.0}, {"loss": 0.5}])
    for args in (["show", key], ["--help"]):
        found = program(*args)
        assert found.out.isascii()
        assert "\x1b" not in found.out


def in_terminal(*args: str, columns: int = 80, **environment: str) -> str:
    """Return the output of a command in a terminal."""
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


def test_diff_dims_a_missing_value_so_that_it_differs_from_the_text(make: Any) -> None:
    one, other = make.run({"note": "-"}), make.run({"lr": 0.5})
    rows = [line for line in in_terminal("diff", one, other, NO_COLOR="").splitlines() if line.startswith(("note", "lr"))]
    assert [row.count("\x1b[2m-") for row in rows] == [1, 1]


def test_a_terminal_gets_colors_within_its_width_unless_no_color_is_set(make: Any) -> None:
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


def test_ctrl_c_ends_a_reading_command_with_code_130_and_no_traceback(make: Any, hold: Call, store: Store) -> None:
    key = make.run({"lr": 0.1}, log="hello\n")
    hold(store, key)
    command = [sys.executable, "-m", "trainmaster", "logs", key, "-f"]
    process = warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "hello\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (130, "")


# ---- stores that cannot be written


@pytest.fixture
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules that the test imports, as if each command ran in a new process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_store_that_cannot_be_created_is_an_error_with_the_path_and_the_reason(call: Call, tmp_path: Path, forgotten: None) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "no_store.py").write_text("def make_loop(config): ...\n")
    is_file = f"`{tmp_path}/file` is not a folder"
    for path, why in (("/proc/foo", "No such file or directory"), ("file/store", is_file), ("file", is_file)):
        found = call("run", "no_store.py", "--store", path)
        assert found.code == 1
        assert found.err.splitlines() == [
            "the folder of the store cannot be created",
            f"  where   {tmp_path / path}",
            f"  why     {why}",
            "  try     choose another folder: `--store PATH`",
        ]


def test_a_store_that_is_removed_during_a_run_exits_with_code_1(call: Call, tmp_path: Path, forgotten: None) -> None:
    code = "import shutil\nfrom tiny_training import Plain\nclass Mine(Plain):\n    def train(self):\n        shutil.rmtree('runs')\n"
    (tmp_path / "vanishing.py").write_text(code)
    found = call("run", "vanishing.py")
    assert (found.code, "are gone" in found.err) == (1, True), found
