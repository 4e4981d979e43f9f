"""Processes forked from the warm interpreter behave like new interpreters."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm


def run(code: str, *words: str, **options: Any) -> Any:
    return warm.run([sys.executable, "-c", code, *words], capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    "code",
    ["", "raise SystemExit(7)", "raise SystemExit(-1)", "import sys; sys.stdout.close()",
     "import sys; sys.exit('no')", "1 / 0", "import os; os._exit(9)", "raise KeyboardInterrupt",
     "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "import atexit; atexit.register(print, 'bye'); print('hi')",
     "import threading, time; threading.Timer(0.05, print, ['late']).start()", "import sys; print(sys.argv, sys.path[0], __name__)"],
)  # fmt: skip
def test_a_program_ends_and_prints_as_in_a_new_interpreter(tmp_path: Path, code: str) -> None:
    (tmp_path / "program.py").write_text(code)
    command = [sys.executable, str(tmp_path / "program.py"), "word"]
    real, found = (call(command, capture_output=True, text=True, check=False) for call in (subprocess.run, warm.run))
    assert (found.returncode, found.stdout, found.stderr) == (real.returncode, real.stdout, real.stderr)


def test_a_file_and_a_module_run_as_main_with_their_folder_first(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("number = 3\n")
    (tmp_path / "program.py").write_text("import sys, beside\nprint(__name__, __file__, beside.number, sys.argv)\n")
    for words in (["program.py", "a"], ["-m", "program", "a"]):
        real, found = (
            call([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, check=True) for call in (subprocess.run, warm.run)
        )
        assert found.stdout == real.stdout


def test_it_has_the_given_environment_folder_and_input(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['MINE'], 'PATH' in os.environ, os.getcwd(), sys.stdin.read())"
    assert run(code, env={"MINE": "é", **own()}, cwd=tmp_path, input="words").stdout == f"é False {tmp_path} words\n"


def own() -> dict[str, str]:
    return {name: os.environ[name] for name in warm.READ_AT_START if name in os.environ}


def test_variables_that_an_interpreter_reads_at_startup_cannot_be_changed() -> None:
    with pytest.raises(AssertionError, match="reads PYTHONHASHSEED when it starts: use subprocess"):
        run("", env={**os.environ, "PYTHONHASHSEED": "1"})


FOREVER = "import time\nwhile True: time.sleep(0.01)"
"""A program that never ends.

One long sleep could miss a signal: Python checks for signals just before the system call and again only after it.
"""


@pytest.fixture
def ignored() -> Iterator[None]:
    """Ignore signals, as under `nohup` and in background jobs of a script."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("ignored")
def test_a_process_receives_signals_as_soon_as_it_exists() -> None:
    for _ in range(20):
        process = warm.Popen([sys.executable, "-c", FOREVER], stderr=subprocess.DEVNULL)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(100) == -signal.SIGINT


@pytest.mark.usefixtures("ignored")
def test_signals_work_even_if_the_tests_ignore_them() -> None:
    process = warm.Popen([sys.executable, "-c", "print('ready', flush=True)\n" + FOREVER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(100) == -signal.SIGINT
    process.stdout.close()


def test_processes_have_different_random_numbers() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    one, other = run(code).stdout.split(), run(code).stdout.split()
    assert not {*one} & {*other}


def test_a_terminal_becomes_the_controlling_terminal() -> None:
    leader, follower = pty.openpty()
    code = "import os, sys\nprint(os.ttyname(0), os.getpgrp() == os.tcgetpgrp(0), sys.stdout.isatty(), flush=True)\n" + FOREVER
    process = warm.Popen([sys.executable, "-c", code], stdin=follower, stdout=follower, stderr=follower)
    name = os.ttyname(follower)
    os.close(follower)
    assert os.read(leader, 1000).decode().split() == [name, "True", "True"]
    os.write(leader, b"\x03")  # Ctrl-C
    assert process.wait(100) == -signal.SIGINT
    os.close(leader)


def test_many_processes_compute_at_once_and_none_is_left_behind() -> None:
    code = "import torch; print(float((torch.ones(300, 300) @ torch.ones(300, 300)).sum()))"
    processes = [warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert {process.communicate(timeout=100)[0] for process in processes} == {"27000000.0\n"}
    assert not [process.pid for process in processes if Path(f"/proc/{process.pid}").exists()]
