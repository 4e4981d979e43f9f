"""The program in a real terminal and in a pipe: its progress bars, Ctrl-C, and the commands that it prints."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster.store import Store

_path = Path(tiny.__file__)

CTRL_C = b"\x03"
EVIL = "\x1b]0;pwned\x07\x1b[2J"
BIN = Path(sys.executable).parent


class Terminal:
    """A terminal with 40 lines, and a thread that reads its output."""

    def __init__(self, master: int, columns: int = 200) -> None:
        self._master = master
        self.raw = b""
        self._is_closed = False
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._thread = threading.Thread(target=self._watch, daemon=True)  # a process blocks if nothing reads its output
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_closed:
            if select.select([self._master], [], [], 0.05)[0]:
                try:
                    self.raw += os.read(self._master, 65536)
                except OSError:  # no process has the terminal open anymore
                    return

    def read(self) -> bytes:
        """Read until no more output arrives."""
        while True:
            before = len(self.raw)
            time.sleep(0.02)
            if len(self.raw) == before and not (self._thread.is_alive() and select.select([self._master], [], [], 0)[0]):
                return self.raw

    def close(self) -> None:
        self._is_closed = True
        self._thread.join()
        os.close(self._master)

    @property
    def text(self) -> str:
        """The output so far, without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.read().decode(errors="replace")).replace("\r", "")

    def until(self, text: str, patience: float = tiny.PATIENCE, start: int = 0) -> str:
        deadline = time.monotonic() + patience
        while text not in self.text[start:]:
            assert time.monotonic() < deadline, f"waited for {patience:g} s for `{text}` in:\n{self.text[-3000:]}"
        return self.text[start:]

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def rendered(self) -> list[str]:
        """Return the lines of the screen after all cursor movements and erasures. Scrolling is not emulated."""
        lines, row, column = [""], 0, 0
        for piece in re.findall(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\x1b\r\n]+", self.read().decode(errors="replace")):
            if piece == "\r":
                column = 0
            elif piece == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif piece.startswith("\x1b["):
                if piece.endswith("A"):
                    row = max(0, row - int(piece[2:-1] or 1))
                elif piece.endswith("K"):
                    lines[row] = "" if piece == "\x1b[2K" else lines[row][:column]
            else:
                lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece) :]
                column += len(piece)
        return [line.rstrip() for line in lines]

    @property
    def has_cursor(self) -> bool:
        return self.read().rfind(b"\x1b[?25h") >= self.raw.rfind(b"\x1b[?25l")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.draw_nothing(monkeypatch.setattr)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Any]:
    shutil.copy(_path, tmp_path / "train.py")
    with tiny.workshop(tmp_path) as found:
        yield found


@pytest.fixture
def open_terminal() -> Iterator[Callable[..., tuple[Terminal, str]]]:
    """Create a terminal, and return its name."""
    slaves: list[int] = []
    made: list[Terminal] = []

    def make(columns: int = 200) -> tuple[Terminal, str]:
        master, slave = pty.openpty()
        slaves.append(slave)
        made.append(Terminal(master, columns))
        return made[-1], os.ttyname(slave)

    yield make
    for terminal, slave in zip(made, slaves, strict=True):
        terminal.close()
        os.close(slave)


def key_of(store: Path) -> str:
    (key,) = Store(store).configs.keys()
    return key


# ---- bars


def test_bars_are_redrawn_in_place_and_leave_a_line_for_each_epoch(shop: Any, open_terminal: Any) -> None:
    terminal, name = open_terminal()
    process = shop.start("command_line", {"at": "forward", "nth": 10, "do": "wait"}, tty=name, words=["run", "train.py:Tiny"])
    process.until_at()
    terminal.until("epoch 3")
    shown = terminal.until("2/3 ")
    assert re.search(r"\d:\d\d left", shown), "the remaining time is missing"
    bars = [line for line in terminal.rendered() if "━" in line]
    assert [line.split()[0] for line in bars] == ["run", "epoch"]
    assert not terminal.has_cursor
    process.go_on()
    assert process.wait() == 0
    assert terminal.has_cursor
    assert b"\x1b[1A" in terminal.raw
    lines = terminal.rendered()
    assert not [line for line in lines if "━" in line], "bars are still on the screen"
    for epoch in (1, 2, 3):
        told = [line for line in lines if re.search(rf"epoch {epoch}\b", line) and "done" not in line]
        assert len(told) == 1, f"epoch {epoch} is printed {len(told)} times:\n" + "\n".join(lines)
    assert f"run {key_of(shop.folder / 'runs')} is done: epoch 3" in lines


def test_no_color_prints_no_colors(shop: Any, open_terminal: Any) -> None:
    terminal, name = open_terminal()
    process = shop.start("command_line", tty=name, env={"NO_COLOR": "1"}, words=["run", "train.py:Tiny"])
    assert process.wait() == 0
    styles = set(re.findall(rb"\x1b\[([0-9;]*)m", terminal.read()))
    assert {style for style in styles if any(30 <= int(each or 0) <= 107 for each in style.split(b";"))} == set()


def test_output_to_a_pipe_is_plain_lines(shop: Any) -> None:
    process = shop.start("command_line", words=["run", "train.py:Tiny"])
    assert (process.wait(), process.err) == (0, "")
    assert not set(process.out) & {"\x1b", "\r"}
    key = key_of(shop.folder / "runs")
    lines = process.out.splitlines()
    assert lines[0] == f"target {shop.folder / 'train.py'}:Tiny"
    assert [line.split("  ")[1] for line in lines if line.startswith(key)] == [f"epoch {number} of 3" for number in range(4)]
    assert lines[-2].startswith("next: ")
    assert f"trainmaster show {key}" in lines[-2]


@pytest.mark.parametrize("words", [["run", "train.py:Tiny"], ["sweep", "train.py:Plain", "lr=0.1,0.2"]], ids=["run", "sweep"])
@pytest.mark.integration
def test_quiet_prints_nothing_even_on_a_terminal(shop: Any, open_terminal: Any, words: list[str]) -> None:
    terminal, name = open_terminal()
    process = shop.start("command_line", tty=name, words=[*words, "--quiet"])
    assert process.wait() == 0
    assert terminal.read() == b""


@pytest.mark.parametrize(
    "words", [["run", "train.py:Tiny", "lr=0.5"], ["sweep", "train.py:Tiny", "lr=0.5,0.6", "--workers", "2"]], ids=["run", "sweep"]
)
def test_a_dry_run_changes_nothing(shop: Any, words: list[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in shop.folder.rglob("*") if "process-" not in str(path)}
    process = shop.start("command_line", words=[*words, "--dry-run"], env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert (process.wait(), process.err) == (0, "")
    after = {path: path.stat().st_mtime_ns for path in shop.folder.rglob("*") if "process-" not in str(path)}
    assert {path: after[path] for path in after if "__pycache__" not in str(path)} == before
    assert f"{shop.folder / 'runs'}" in process.out
    assert ("lr  0.1 -> 0.5" in process.out) if words[0] == "run" else ("runs     2" in process.out)


# ---- Ctrl-C


@pytest.mark.integration
def test_ctrl_c_prints_a_command_that_finishes_the_run_when_pasted(shop: Any) -> None:
    """The test runs the real program in a shell, and types what a user would type."""
    plan = {"at": "train", "nth": 2, "do": "wait", "folder": str(shop.folder)}
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TRAINMASTER_STORE")},
        "PS1": "$ ",
        "TERM": "xterm-256color",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(shop.folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
    terminal = Terminal(master, 400)
    try:
        terminal.until("$ ")
        terminal.type(f"{tiny.PLAN}={shlex.quote(json.dumps(plan))} trainmaster run train.py:Plain\n".encode())
        tiny.until(lambda: (shop.folder / "at").exists(), "the point")
        terminal.type(CTRL_C)
        terminal.until("Ctrl-C: finishing the step and saving; Ctrl-C again stops at once")
        (shop.folder / "go").touch()
        said = terminal.until("resume it with: ")
        said = terminal.until("$ ", start=terminal.text.index("resume it with: "))
        command = said.removeprefix("resume it with: ").splitlines()[0].strip()
        assert command.startswith("trainmaster resume ")
        key = key_of(shop.folder / "runs")
        assert tiny.outcome_of(shop.folder / "runs")["outcome"] == "interrupted"
        at = len(terminal.text)
        terminal.type(b"echo code $?\n")
        terminal.until("code 130", start=at)
        assert terminal.has_cursor
        terminal.type(f"{command}\n".encode())
        terminal.until(f"run {key} is done: epoch 3")
        terminal.type(b"exit\n")
        tiny.until(lambda: os.waitpid(pid, os.WNOHANG)[0], "the shell to end")
        assert tiny.result_of(shop.folder / "runs") == tiny.undisturbed("Plain")
    finally:
        for each in tiny.session_of(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        terminal.close()


def test_a_second_ctrl_c_ends_the_process_at_once_and_restores_the_cursor(shop: Any, open_terminal: Any) -> None:
    terminal, name = open_terminal()
    process = shop.start("command_line", {"at": "forward", "nth": 6, "do": "sleep"}, tty=name, words=["run", "train.py:Tiny"])
    process.until_at()
    terminal.type(CTRL_C)
    terminal.until("Ctrl-C: finishing the step and saving")
    terminal.type(CTRL_C)
    assert process.wait() == 130
    assert "given up" not in terminal.text
    assert "gives up" not in terminal.text
    assert Store(shop.folder / "runs").verify() == []
    assert terminal.has_cursor, "the cursor stays hidden"


@pytest.mark.integration
def test_a_sweep_has_one_view_and_ctrl_c_saves_all_runs_and_prints_how_to_resume(shop: Any, open_terminal: Any) -> None:
    terminal, name = open_terminal()
    plan = {"at": "train", "nth": 2, "do": "wait", "if": {"lr": 0.2}}
    words = ["sweep", "train.py:Plain", "lr=0.2,0.1,0.3,null", "--workers", "2"]
    process = shop.start("command_line", plan, tty=name, words=words)
    process.until_at()

    def shown() -> str:
        return "\n".join(terminal.rendered())

    view = re.compile(r"^runs +[━╸╺]+  3/4 .*\n2 done, 1 failed, 1 running$", re.MULTILINE)
    tiny.until(lambda: view.search(shown()), "the view, when the other worker has trained all others")
    row = re.compile(r"^[0-9a-f]{8}  [━╸╺]+ +1/3  0.2 +[0-9.]+$", re.MULTILINE)
    tiny.until(lambda: row.search(shown()), "the progress of the run that waits, with its swept value and its metric")
    assert len(re.findall(r"^runs +━", shown(), re.MULTILINE)) == 1, shown()
    assert re.search(r"^RUN +EPOCH +lr +loss_test$", shown(), re.MULTILINE), shown()
    terminal.type(CTRL_C)
    terminal.until("Ctrl-C: finishing the step and saving")
    store = Store(shop.folder / "runs")
    run = store.run(next(key for key, config in store.configs.items() if config["lr"] == 0.2))
    tiny.until(lambda: b"the batch ends" in store.files.read(run.path(1, "log")), "the worker to receive the request")
    process.go_on()
    assert process.wait() == 130
    assert terminal.has_cursor
    lines = terminal.rendered()
    last = "\n".join(lines[-12:])
    assert "1 stopped" in last
    assert shlex.join(["trainmaster", *words]) in last, "the command that resumes is missing:\n" + last
    assert not re.search(r"^runs +━|^RUN.*EPOCH", "\n".join(lines), re.MULTILINE), "the view is still on the screen:\n" + last
    tiny.until(lambda: not process.members(), "the workers to end")
    outcomes = [tiny.outcome_of(shop.folder / "runs", key)["outcome"] for key in store.configs.keys()]  # noqa: SIM118 - not a dict
    assert set(outcomes) <= {"finished", "stopped", "failed"}


def test_a_sweep_without_workers_has_the_same_view_and_ends_with_its_best_runs(shop: Any, open_terminal: Any) -> None:
    terminal, name = open_terminal(80)
    plan = {"at": "train", "nth": 2, "do": "wait"}
    process = shop.start("command_line", plan, tty=name, words=["sweep", "train.py:Plain", "lr=0.2,0.1"])
    process.until_at()
    row = re.compile(r"[0-9a-f]{8}  [━╸╺]+ +1/3  0.[12] +[0-9.]+$")
    tiny.until(lambda: any(row.search(line) for line in terminal.rendered()), "the row of the run")
    process.go_on()
    assert process.wait() == 0
    lines = [line for line in terminal.rendered() if line]
    assert not [line for line in lines if "━" in line or "epoch" in line], "\n".join(lines)
    assert lines[-6:-3] == ["batch: 2 done", "best runs by their last loss_test (lower is better)", lines[-4]]
    assert lines[-4].split() == ["RUN", "lr", "loss_test"]
    best = lines[-3].split()[0]
    assert float(lines[-3].split()[-1]) < float(lines[-2].split()[-1])
    assert lines[-1].startswith("next: ")
    assert f"trainmaster show {best}" in lines[-1]
    assert b"starts" in Store(shop.folder / "runs").files.read(Store(shop.folder / "runs").run(best).path(1, "log")), (
        "the lines of the run are in its log"
    )


@pytest.mark.integration
def test_a_run_in_tmux_redraws_its_bars_and_ends_properly_on_ctrl_c(shop: Any) -> None:
    if shutil.which("tmux") is None:
        assert not os.environ.get("CI"), "tmux is missing"
        pytest.skip("tmux is missing")
    plan = json.dumps({"at": "forward", "nth": 6, "do": "wait", "folder": str(shop.folder)})
    tmux = ["tmux", "-L", f"trainmaster-{uuid.uuid4().hex}", "-f", os.devnull]

    def screen() -> list[str]:
        found = subprocess.run([*tmux, "capture-pane", "-p", "-J"], capture_output=True, text=True, check=True)
        return [line for line in found.stdout.splitlines() if line.strip()]

    def cursor() -> str:
        return subprocess.run([*tmux, "display-message", "-p", "#{cursor_flag}"], capture_output=True, text=True, check=True).stdout.strip()

    planned = f"{tiny.PLAN}={shlex.quote(plan)} PATH={shlex.quote(str(BIN))}:$PATH"
    command = f"cd {shlex.quote(str(shop.folder))}; {planned} trainmaster run train.py:Tiny; echo code $?; cat"
    subprocess.run([*tmux, "new-session", "-d", "-x", "160", "-y", "30", "bash", "-c", command], check=True)
    try:
        tiny.until(lambda: (shop.folder / "at").exists(), "the point")
        tiny.until(lambda: any(re.match(r"epoch 2 +━", line) for line in screen()), "the bar of the epoch", pause=0.1)
        assert [line.split()[0] for line in screen() if "━" in line] == ["run", "epoch"]
        assert cursor() == "0"
        subprocess.run([*tmux, "send-keys", "C-c"], check=True)
        tiny.until(lambda: any(line.startswith("Ctrl-C: finishing the step") for line in screen()), "the word", pause=0.1)
        (shop.folder / "go").touch()
        tiny.until(lambda: "code 130" in screen(), "the end", pause=0.1)
        assert not [line for line in screen() if "━" in line or "^C" in line.replace("^C", "", 1)]
        assert [line for line in screen() if line.startswith("resume it with: trainmaster resume ")]
        assert cursor() == "1"
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["rnu", "train.py:Plain"], "`run`"),
        (["sweeep", "train.py:Plain", "lr=1,2"], "`sweep`"),
        (["run", "train.py:Plain", "--epochss", "3"], "`--epochs`"),
        (["sweep", "train.py:Plain", "lr=1,2", "--worker", "3"], "`--workers`"),
        (["run", "train.py:Plian"], "`Plain`"),
        (["run", "trian.py:Plain"], "`train.py`"),
        (["run", "train.py:Plain", "epohcs=3"], "`epochs`"),
        (["sweep", "train.py:Plain", "epohcs=3,4"], "`epochs`"),
        (["resume", "{wrong}"], "`{key}`"),
        (["stop", "{wrong}"], "`{key}`"),
        (["ls", "--where", "epohcs=3"], "`epochs`"),
    ],
)
def test_a_typo_gives_the_nearest_name_and_no_traceback(call: Any, shop: Any, words: list[str], meant: str) -> None:
    key = Store(shop.folder / "runs").configs.add({"lr": 0.1, "epochs": 3})
    wrong = key[:-2] + ("0" if key[-2] != "0" else "1") + key[-1]
    code, _, err = call(*(word.format(key=key, wrong=wrong) for word in words))
    sys.modules.pop("train", None)
    assert code == 2, err
    assert f"did you mean {meant.format(key=key)}" in err
    assert "Traceback" not in err


def test_an_error_in_user_code_shows_the_users_lines_first(shop: Any) -> None:
    plan = {"at": "train", "nth": 2, "do": "raise", "text": "the user's own words"}
    process = shop.start("command_line", plan, words=["run", "train.py:Plain"])
    assert process.wait() == 1
    lines = process.err.splitlines()
    number = 1 + next(number for number, line in enumerate(_path.read_text().splitlines()) if 'at("train", lr' in line)
    assert lines[0].strip().startswith(("train.py:", f"{shop.folder / 'train.py'}:")), process.err
    assert f"train.py:{number}, in train" in process.err
    assert "RuntimeError: the user's own words" in lines
    assert any(line.startswith("in stage work > work_train, key ") for line in lines), "the note with the position is missing"
    assert sum("--debug" in line for line in lines) == 1
    assert "Traceback" not in process.err
    assert "site-packages" not in process.err
    debug = shop.start("command_line", plan, words=["run", "train.py:Plain", "lr=0.2", "--debug"])
    assert debug.wait() == 1
    assert "Traceback (most recent call last):" in debug.err
    assert "manager.py" in debug.err


# ---- output of text from a store


def test_escape_sequences_in_names_and_errors_are_not_printed_raw(shop: Any, open_terminal: Any) -> None:
    terminal, name = open_terminal()
    plan = {"at": "train", "do": "raise", "text": EVIL}
    words = ["run", "train.py:Plain", f"+name={json.dumps(EVIL)}"]
    assert shop.start("command_line", plan, tty=name, words=words).wait() == 1
    key = key_of(shop.folder / "runs")
    for more in (
        ["tag", key, EVIL],
        ["ls"],
        ["ls", "--where", f"name={EVIL}"],
        ["show", key],
        ["logs", key],
        ["run", f"train.py:{EVIL}"],
        ["run", f"{EVIL}.py:Plain"],
        ["run", "train.py:Plain", f"{EVIL}=3"],
        ["resume", EVIL],
        ["sweep", "train.py:Plain", f"+name={json.dumps(EVIL)}", "--dry-run"],
        [EVIL],
        ["run", "train.py:Plain", f"--{EVIL}"],
    ):
        shop.start("command_line", tty=name, words=more).wait()
    found = terminal.read()
    assert b"\x1b]" not in found
    assert b"\x07" not in found
    assert b"\x1b[2J" not in found
    assert found.count(b"pwned") >= 5, "the text is shown and escaped"


@pytest.mark.parametrize("deed", [None, "print"], ids=["its own lines", "the user's prints"])
@pytest.mark.integration
def test_a_closed_pipe_does_not_stop_a_run(program: Any, shop: Any, deed: str | None) -> None:
    plan = {tiny.PLAN: json.dumps({"at": "train", "nth": 0, "do": deed, "text": "hello"})} if deed else {}
    found = program("run", "train.py:Plain", shell="| head -1", **plan)
    assert found == (0, f"target {shop.folder / 'train.py'}:Plain\n", "")
    assert tiny.outcome_of(shop.folder / "runs")["outcome"] == "finished"
    assert Store(shop.folder / "runs").stats[key_of(shop.folder / "runs")]["epoch"] == 3
