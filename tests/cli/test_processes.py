"""With `--processes N`, a command starts the ranks, watches them, and ends all of them if one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import rank_target
import warm

from trainmaster.manager import rank_processes
from trainmaster.manager.rank_processes import run_ranks
from trainmaster.store import Store

pytestmark = pytest.mark.integration
TARGET = f"{rank_target.__file__}:make_loop"
COMMAND = [sys.executable, "-m", "trainmaster"]


def pid_of(rank: int, wait: str) -> int:
    """Return the process ID of a rank after it has trained two batches."""
    path, deadline = Path(f"{wait}.{rank}"), time.monotonic() + 200
    while not (path.exists() and path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return int(path.read_text())


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the ranks by forking the warm interpreter (`programs/warm.py`), which is faster."""
    monkeypatch.setattr(rank_processes, "Popen", warm.Popen)


@pytest.mark.usefixtures("warm_ranks")
def test_all_ranks_train_one_run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_ranks([*COMMAND, "run", TARGET, "--processes", "2"], 2) == 0
    out, err = capfd.readouterr()
    assert "is done: epoch 3" in out
    assert "rank 1" not in err
    (key,) = Store(tmp_path / "runs").configs
    assert Store(tmp_path / "runs").run(key).attempts() == [1]


@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize(("rank", "what"), [(0, "raise"), (1, "raise"), (0, "kill"), (1, "kill")])
def test_a_failed_rank_ends_all_ranks_with_one_line_about_the_cause(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, rank: int, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run_ranks([*COMMAND, "run", TARGET, "--processes", "2", f"at={what}", f"rank={rank}", "step=12"], 2)
    lines = capfd.readouterr().err.splitlines()
    cause = "failed with exit code 1" if what == "raise" else "was killed by SIGKILL"
    assert code == 1
    assert lines[-1] == f"rank {rank} of 2 {cause}, so all ranks have ended"
    assert sum("RankFailedError" in line or "Connection" in line for line in lines) == 0, lines
    if what == "raise":
        assert ("rank 1: " if rank else "") + "ValueError: boom" in lines
    again = run_ranks([*COMMAND, "run", TARGET, "--processes", "2", f"at={what}", f"rank={rank}", "step=12"], 2)
    assert "resumes from epoch 1" in capfd.readouterr().out
    assert again == 1  # because the resumed run reaches step 12 again


def test_a_rank_that_hangs_is_killed_when_another_one_fails(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(100 * (os.environ['RANK'] == '0')); raise SystemExit(3)"
    started = time.monotonic()
    assert run_ranks([sys.executable, "-S", "-c", code], 2) == 3
    assert time.monotonic() - started < 10
    assert capfd.readouterr().err == "rank 1 of 2 failed with exit code 3, so all ranks have ended\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_once_and_prints_how_to_resume(tmp_path: Path, number: signal.Signals) -> None:
    wait = str(tmp_path / "here")
    command = [*COMMAND, "run", TARGET, f"wait={wait}", "sleep=0.1", "--processes", "2"]
    process = warm.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids = [pid_of(rank, wait) for rank in (0, 1)]
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 128 + number, err
    assert out.count("is saved at epoch 0") == 1
    assert "--processes 2" in next(line for line in out.splitlines() if line.startswith("resume it with"))
    assert "so all ranks have ended" not in err
    assert not any(is_running(pid) for pid in pids)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ranks_save_and_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    wait = str(tmp_path / "here")
    process = warm.Popen([*COMMAND, "run", TARGET, f"wait={wait}", "sleep=0.1", "--processes", "2"], cwd=tmp_path, stdout=-3, stderr=-3)
    pids = [pid_of(rank, wait) for rank in (0, 1)]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, pids))
    (key,) = Store(tmp_path / "runs").configs
    run: Any = Store(tmp_path / "runs").run(key)
    assert run.outcome_of(1)["reason"] == "the process that started the ranks is gone"


def test_invalid_numbers_of_processes_are_refused(tmp_path: Path) -> None:
    for words, message in (
        (["0"], "Invalid value for '--processes': Input should be greater than or equal to 1"),
        (["two"], "Invalid value for '--processes'"),
    ):
        found = warm.run([*COMMAND, "run", TARGET, "--processes", *words], cwd=tmp_path, capture_output=True, text=True)
        assert found.returncode == 2
        assert message in found.stderr
    torchrun = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    words = [*COMMAND, "run", TARGET, "--processes", "2"]
    found = warm.run(words, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **torchrun})
    assert found.returncode == 2
    assert found.stderr.startswith("--processes 2 starts processes, and this is already one of 2\n")
