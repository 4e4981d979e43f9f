"""`trainmaster launch`: real shells run the scripts, and only the Slurm and ssh programs are replaced."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster.store import Store

TARGET = """
from trainmaster import Manager

class Noted(Manager):
    defaults = {"note": "", "lr": 0.1}
"""
HOSTILE = 'it\'s "$HOME" `id` $(id) \\n; rm -rf * #!'
SLURM = {"SLURM_ARRAY_JOB_ID": "71", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "73"}


@pytest.fixture(autouse=True)
def clean_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    yield
    sys.path[:] = path
    for name in {"noted", "train"} & (set(sys.modules) - modules):
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a project in a folder whose name needs quoting."""
    folder = tmp_path / "my $lab's `x`"
    folder.mkdir()
    (folder / "noted.py").write_text(TARGET)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Return a function that creates a program on the PATH; the program records its arguments in a file."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def add(name: str, body: str = "") -> Path:
        calls = tmp_path / f"{name}.calls"
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\n{body}\n')
        program.chmod(0o755)
        return calls

    return add


SSH = 'while [ "$1" != -- ]; do shift; done; shift 2; exec sh -c "$*"'
"""A program that acts like ssh: it drops the options and the host, and passes the arguments to a shell."""


def record_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace the workers' Python with a program that only records its arguments."""
    python = tmp_path / "py thon"
    python.write_text(f"#!/bin/sh\nprintf '%s\\0' \"$@\" >{tmp_path}/words\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return tmp_path / "words"


def shellcheck(*paths: Path) -> None:
    program = Path(shutil.which("shellcheck") or Path(sys.executable).with_name("shellcheck"))
    found = subprocess.run([program, *paths], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize("place", ["slurm", "ssh"])
def test_every_argument_reaches_the_worker_unchanged(
    place: str, call: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: Any
) -> None:
    stand_ins("ssh", SSH)
    words = record_words(tmp_path, monkeypatch)
    where = ["--host", "me@alpha"] if place == "ssh" else ["--sbatch", 'comment=a "b" \\']
    done = call("launch", place, "noted.py", f"note=[{json.dumps(HOSTILE)}, x]", "lr=0.1", *where, "--workers", 2, "--epochs", 3)
    assert done.code == 0, done.err
    script = folder / f"noted-{place}.sh"
    ran = subprocess.run(["bash" if place == "slurm" else "sh", script], capture_output=True, text=True, cwd="/", check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    until(words.exists, "the worker")
    options = ["--store", str(folder / "runs"), "--workers", "2", "--epochs", "3"]
    wanted = ["-m", "trainmaster", "sweep", *options, "--", str(folder / "noted.py"), f"note=[{json.dumps(HOSTILE)}, x]", "lr=0.1"]
    assert words.read_text().split("\0")[:-1] == wanted
    assert os.access(script, os.X_OK)
    monkeypatch.undo()  # shellcheck is installed next to the real Python
    shellcheck(script)


def until(is_so: Callable[[], bool], what: str, patience: float = 120.0) -> None:
    tiny.until(is_so, what, patience)


def test_the_slurm_script_has_the_options_for_requeueing(call: Any, folder: Path) -> None:
    done = call("launch", "slurm", "noted.py", "lr=0.1,0.2,0.3", "--nodes", 3, "--sbatch", "time=2:00:00", "--sbatch", "--exclusive")
    assert done.code == 0, done.err
    lines = (folder / "noted-slurm.sh").read_text().splitlines()
    directives = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert {"array=1-3", "requeue", "signal=B:USR1@120", "open-mode=append", "time=2:00:00", "exclusive", "job-name=noted"} <= {*directives}
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:]), "Slurm ignores directives after the first command"
    assert f"submit it with: sbatch {shlex.quote(str(folder / 'noted-slurm.sh'))}" in done.out


def test_there_are_never_more_nodes_than_runs(call: Any, folder: Path) -> None:
    done = call("launch", "slurm", "noted.py", "lr=0.1,0.2,0.3", "--nodes", 10, "--workers", 2)
    assert "10 nodes for 3 runs: the script uses 2" in done.out
    assert "#SBATCH --array=1-2\n" in (folder / "noted-slurm.sh").read_text()


def test_a_store_in_tmp_causes_a_warning(call: Any, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as store:
        done = call("launch", "slurm", "noted.py", "lr=0.1", "--store", f"{store}/runs")
        assert f"warning: other machines may not have access to the store {store}/runs" in done.out


@pytest.mark.parametrize("place", ["slurm", "ssh"])
def test_a_machine_without_access_to_the_store_trains_nothing(
    place: str, call: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: Any
) -> None:
    stand_ins("ssh", SSH)
    words = record_words(tmp_path, monkeypatch)
    call("launch", place, "noted.py", "lr=0.1,1", *(["--host", "alpha", "--host", "beta"] if place == "ssh" else []), "--store", "shared")
    script = ["bash" if place == "slurm" else "sh", folder / f"noted-{place}.sh"]
    for change in ("another store", "none"):
        shutil.rmtree(folder / "shared")
        if change == "another store":
            Store(folder / "shared")
        ran = subprocess.run(script, capture_output=True, text=True, check=False)
        assert ran.returncode == (3 if place == "slurm" else 1)
        assert f"the store {folder / 'shared'} is not visible here" in ran.stderr
        assert place == "slurm" or "no worker was started on: alpha beta" in ran.stderr
    Path(sys.executable).unlink()
    assert "there is no program" in subprocess.run(script, capture_output=True, text=True, check=False).stderr
    assert not words.exists()


def test_submit_passes_the_script_to_sbatch(call: Any, folder: Path, stand_ins: Any) -> None:
    calls = stand_ins("sbatch", "echo Submitted batch job 5")
    assert call("launch", "slurm", "noted.py", "lr=0.1", "--submit").code == 0
    assert calls.read_text() == f"{folder / 'noted-slurm.sh'}\n"
    stand_ins("sbatch", "echo sbatch: error: invalid partition >&2; exit 1")
    failed = call("launch", "slurm", "noted.py", "lr=0.1", "--submit")
    assert (failed.code, "failed with exit code 1" in failed.err) == (1, True)


def test_one_unreachable_host_does_not_stop_the_others(
    call: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: Any
) -> None:
    calls = stand_ins("ssh", f'case "$*" in *alpha*) echo "ssh: no route to host" >&2; exit 255;; esac\n{SSH}')
    words = record_words(tmp_path, monkeypatch)
    (tmp_path / "hosts").write_text("# the lab\nalpha\n\nme@beta.lab  # fast\n10.0.0.7\n")
    done = call("launch", "ssh", "noted.py", "lr=0.1,0.2,0.3,0.4", "--hosts", tmp_path / "hosts", "--host", "[fe80::1]", "--submit")
    assert (done.code, "failed with exit code 1" in done.err) == (1, True)
    hosts = [line.split("-- ")[1].removesuffix(" sh -s ") for line in calls.read_text().splitlines()]
    assert hosts == ["[fe80::1]", "alpha", "me@beta.lab", "10.0.0.7"]
    logs = folder / "noted-ssh-logs"
    until(lambda: words.exists() and len([*logs.iterdir()]) == 3, "three workers")
    assert sorted(path.name for path in logs.iterdir()) == ["10.0.0.7.log", "_fe80__1_.log", "me@beta.lab.log"]


WRONG = [
    (["slurmm", "noted.py", "lr=1"], "did you mean `slurm`?"),
    (["slurm", "nothing.py", "lr=1"], "there is no file `nothing.py`"),
    (["slurm", "noted.py:Other", "lr=1"], "has no `Other`"),
    (["slurm", "noted.py", "lrr=1"], "did you mean `lr`?"),
    (["slurm", "noted.py", "lr=1", "--nodes", "0"], "--nodes"),
    (["slurm", "noted.py", "lr=1", "--host", "a"], "are for ssh"),
    (["slurm", "noted.py", "lr=1", "--submit"], "there is no program `sbatch` here"),
    (["slurm", "noted.py", "lr=1", "--sbatch", "array=1-9"], "`--array` cannot be changed"),
    (["slurm", "noted.py", "lr=1", "--sbatch", "time"], "--sbatch time=..."),
    (["slurm", "noted.py", "lr=1", "--sbatch", "time=1\nrm -rf /"], "expected an option of sbatch"),
    (["slurm", "noted.py", "lr=1", "--store", "a\nb"], "cannot be written into a script"),
    (["slurm", "noted.py", "lr=1", "-o", "."], "is a folder"),
    (["slurm", "noted.py", "lr=1", "-o", "no/such.sh"], "there is no folder"),
    (["slurm", "noted.py", "lr=1", "+api_token=hf_0123456789abcdef"], "is a secret, and the script would contain it"),
    (["ssh", "noted.py", "lr=1"], "no hosts"),
    (["ssh", "noted.py", "lr=1", "--hosts", "/dev/null"], "no hosts"),
    (["ssh", "noted.py", "lr=1", "--hosts", "missing"], "cannot read the hosts in `missing`: No such file"),
    (["ssh", "noted.py", "lr=1", "--host", "-oProxyCommand=id"], "is not a host"),
    (["ssh", "noted.py", "lr=1", "--host", "a b"], "is not a host"),
    (["ssh", "noted.py", "lr=1", "--host", "a", "--host", "a"], "is given twice"),
    (["ssh", "noted.py", "lr=1", "--host", "a", "--nodes", "2"], "--nodes 2 is more than the 1 host given"),
    (["ssh", "noted.py", "lr=1", "--host", "a", "--sbatch", "time=1"], "is for slurm"),
]


@pytest.mark.parametrize(("words", "text"), WRONG, ids=[text for _, text in WRONG])
def test_wrong_input_is_an_error_and_writes_no_script(
    words: list[str], text: str, call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = call("launch", *words)
    assert (done.code, text in done.err, "Traceback" in done.err) == (2, True, False), done.err
    assert [*folder.glob("*.sh")] == []


def test_an_edited_script_is_not_overwritten(call: Any, folder: Path) -> None:
    words = ["launch", "slurm", "noted.py", "lr=0.1"]
    assert [call(*words).code, call(*words).code] == [0, 0]
    script = folder / "noted-slurm.sh"
    script.write_text(script.read_text() + "# mine\n")
    done = call(*words)
    assert (done.code, "exists with other content" in done.err) == (2, True)
    assert script.read_text().endswith("# mine\n")


# ---- real workers


class Job:
    """Starts a Slurm script as Slurm does: only the shell receives signals."""

    def __init__(self, script: Path, folder: Path, plan: dict[str, Any] | None = None) -> None:
        self.place = folder / f"plan-{time.monotonic_ns()}"
        self.place.mkdir()
        env = {**os.environ, **SLURM}
        if plan is not None:
            env[tiny.PLAN] = json.dumps({**plan, "folder": str(self.place)})
        with open(self.place / "out", "wb") as out:
            self.process = subprocess.Popen(["bash", script], env=env, stdout=out, stderr=out, start_new_session=True, cwd="/")

    def until_at(self) -> None:
        until((self.place / "at").exists, "the worker to be at its point", 300.0)

    def until_said(self, text: str) -> None:
        until(lambda: text in self.out, text, 300.0)

    def go_on(self) -> None:
        (self.place / "go").touch()

    def wait(self) -> int:
        return self.process.wait(300)

    @property
    def out(self) -> str:
        return (self.place / "out").read_text()

    def kill(self) -> None:
        """Kill the shell and its worker, using the process group that this test created."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(script: Path, plan: dict[str, Any] | None = None) -> Job:
        jobs.append(Job(script, tmp_path, plan))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def tiny_script(call: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the script of a sweep with one run of `tiny_training`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(tiny.__file__).parent))
    (folder / "train.py").write_text("from tiny_training import Tiny\n\nclass Mine(Tiny): ...\n")
    done = call("launch", "slurm", "train.py:Mine", "lr=0.1")
    assert done.code == 0, done.err
    return folder / "train-slurm.sh"


@pytest.mark.integration
@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_sigusr1_saves_the_run_and_only_usr1_requeues_the_task(
    name: str, tiny_script: Path, start: Callable[..., Job], stand_ins: Any, folder: Path
) -> None:
    calls = stand_ins("scontrol")
    job = start(tiny_script, {"at": "forward", "nth": 6, "do": "wait"})
    job.until_at()
    number = signal.Signals[f"SIG{name}"]
    job.process.send_signal(number)
    job.until_said(f"SIG{name}: finishing the step and saving")
    if name == "USR1":
        job.process.send_signal(number)  # a second SIGUSR1 has no effect
    job.go_on()
    assert job.wait() == 128 + number, job.out
    store = folder / "runs"
    assert tiny.outcome_of(str(store))["outcome"] == "interrupted"
    if name == "TERM":
        assert not calls.exists(), "a task that the user cancelled was requeued"
        return
    assert calls.read_text() == "requeue 71_2\n"  # 71 is the id of the whole array; 73 is the id of this task
    again = start(tiny_script)
    assert again.wait() == 0, again.out
    assert tiny.result_of(str(store)) == tiny.undisturbed()
    assert len(Store(store).run(next(iter(Store(store).configs))).attempts()) == 2
    assert calls.read_text() == "requeue 71_2\n", "a finished task was requeued"


@pytest.mark.integration
def test_two_hosts_share_a_sweep(call: Any, folder: Path, stand_ins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins("ssh", SSH)
    monkeypatch.setenv("PYTHONPATH", str(Path(tiny.__file__).parent))
    (folder / "train.py").write_text("from tiny_training import Tiny\n\nclass Mine(Tiny): ...\n")
    done = call("launch", "ssh", "train.py:Mine", "lr=0.1,0.2,0.3", "--host", "alpha", "--host", "beta", "--submit")
    assert done.code == 0, done.err
    logs = [folder / "train-ssh-logs" / f"{host}.log" for host in ("alpha", "beta")]
    until(lambda: all(log.exists() and "batch: " in log.read_text() for log in logs), "both workers to end", 300.0)
    store = Store(folder / "runs")
    assert [len(store.run(key).attempts()) for key in store.configs] == [1, 1, 1], "a run was trained twice"
    assert all(tiny.outcome_of(store.root, key)["outcome"] == "finished" for key in store.configs)
