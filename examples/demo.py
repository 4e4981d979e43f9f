"""Show what trainmaster does in five acts, with real commands. Run `make demo`, or `make demo FAST=1` for a shorter version.

Everything happens in the folder `demo`. The runs stay there, and you can open them with `trainmaster ui demo/runs`.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from digits import Digits, make_loop
from rich.console import Console
from rich.panel import Panel

from trainmaster import Manager, Store
from trainmaster import cli as command_line
from trainmaster.analysis import Results, read_ablation

PROGRAM = os.path.relpath(Path(__file__).with_name("digits.py"))
BIN = Path(sys.executable).parent
FOLDER = Path("demo")
RUNS, KILLED, RECIPE, REPORT = FOLDER / "runs", FOLDER / "killed", FOLDER / "parts.yaml", FOLDER / "report.html"

IS_FAST = os.environ.get("FAST", "") not in ("", "0")
EPOCHS, SEEDS = (4, 3) if IS_FAST else (20, 8)
CHOICES = ["lr=0.003,0.01"] if IS_FAST else ["lr=0.001,0.003,0.01,0.03", "width=8,16"]
PARTS = f"""\
name: digits
on: valid/accuracy
seeds: {SEEDS}
base: {{epochs: 2}}
factors:
  batch norm: {{batch_norm: false}}
  noise: {{noise: false}}
""" + ("" if IS_FAST else "  dropout: {dropout: 0}\n")

console = Console(highlight=False, soft_wrap=True)


def main() -> None:
    begun = time.monotonic()
    command = "trainmaster" if shutil.which("trainmaster") else os.path.relpath(BIN / "trainmaster")
    os.environ["PATH"] = os.pathsep.join([str(BIN), os.environ["PATH"]])
    make_folder()
    results = [train(), kill_and_resume(), sweep(), ablate(), report()]
    lines = [f"[bold]{act}[/]  {result}" for act, result in enumerate(results, 1)]
    console.print()
    console.print(Panel("\n".join(lines), title=f"Five acts in {time.monotonic() - begun:.0f} s", title_align="left", expand=False))
    next_commands = {
        f"ui {RUNS}": "the dashboard",
        f"show {Results(RUNS).best().key} --store {RUNS}": "the best run",
        f"report {RUNS} --where 'seed=0'": "some of the runs",
    }
    console.print(f"\nNext, for example (the program is {PROGRAM}):")
    for words, purpose in next_commands.items():
        console.print(f"  {command} {words:36}  [dim]{purpose}[/]")


def train() -> str:
    headline(1, "Train a CNN on handwritten digits")
    trainmaster("run", PROGRAM, f"epochs={EPOCHS}", "--store", RUNS)
    accuracy = Results(RUNS).best().metrics["valid/accuracy"]
    return f"trained to a validation accuracy of {accuracy:.1%}"


def kill_and_resume() -> str:
    """Train the config of the first act again in a separate store, kill the process, and resume the run."""
    headline(2, "Kill the same training with kill -9, and resume it")
    key = Digits(epochs=EPOCHS).key
    training = start("run", PROGRAM, f"epochs={EPOCHS}", "--store", KILLED)
    while training.poll() is None and saved_epoch(key) < EPOCHS // 2:
        time.sleep(0.01)
    training.kill()
    if training.wait() != -signal.SIGKILL:
        raise SystemExit("the training ended before it could be killed")
    console.print(f"\n[bold red]kill -9 {training.pid}[/] after epoch {saved_epoch(key)}\n")
    trainmaster("resume", key, "--store", KILLED)
    undisturbed, resumed = digest_weights(RUNS, key), digest_weights(KILLED, key)
    console.print(f"\n  sha256 of the weights, undisturbed         {undisturbed}")
    console.print(f"  sha256 of the weights, killed and resumed  {resumed}")
    if undisturbed != resumed:
        raise SystemExit("the weights differ: please report this bug")
    return f"killed after epoch {EPOCHS // 2}, resumed, and every weight is [green]identical[/]"


def sweep() -> str:
    headline(3, "Sweep on two workers: each config is trained once")
    trainmaster("sweep", PROGRAM, *CHOICES, f"epochs={EPOCHS}", "--workers", 2, "--store", RUNS)
    results = Results(RUNS)
    best = results.best()
    return f"best of {len(results)} runs: lr={best.config['lr']} width={best.config['width']}, {best.metrics['valid/accuracy']:.1%}"


def ablate() -> str:
    headline(4, f"Which parts help? Retrain without each of them, {SEEDS} seeds")
    RECIPE.write_text(PARTS)
    trainmaster("ablate", PROGRAM, RECIPE, "--workers", 2, "--store", RUNS)
    return ", ".join(f"{effect.part} {effect.verdict}" for effect in read_ablation(Store(RUNS), "digits").contributions)


def report() -> str:
    headline(5, "Write a report: one file for your colleagues")
    trainmaster("report", RUNS, "--title", "What works on digits", "-o", REPORT)
    return f"report written to {REPORT}"


def headline(act: int, text: str) -> None:
    console.print()
    console.rule(f"[bold]{act} of 5  {text}", align="left")


def start(*words: Any) -> subprocess.Popen[bytes]:
    """Start a command in a separate process."""
    return subprocess.Popen([sys.executable, "-m", "trainmaster", *show(*words)])


def trainmaster(*words: Any) -> None:
    """Run a command in this process. A new process would need seconds to import torch."""
    sys.argv = [str(BIN / "trainmaster"), *show(*words)]  # the command prints how it was called, and the store records it
    if command_line.main() != 0:
        raise SystemExit("the demo ends here, because this command failed")


def show(*words: Any) -> list[str]:
    command = [str(word) for word in words]
    console.print(f"[dim]$[/] trainmaster {shlex.join(command)}\n")
    return command


def saved_epoch(key: str) -> int:
    """Return the last saved epoch of a run, from which training would resume after a kill."""
    status = Store(KILLED).run(key).status() if KILLED.exists() else None
    return int(status["epoch"]) if status else 0


def digest_weights(store: Path, key: str) -> str:
    model = Manager(store, make_loop=make_loop, verbose=False).fetch(key, "last").model
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def make_folder() -> None:
    """Create an empty folder for the demo. If an earlier demo left such a folder, it is deleted first."""
    marker = FOLDER / ".demo"
    if FOLDER.exists() and not marker.exists():
        raise SystemExit(f"the demo needs the name {FOLDER.resolve()}: please rename what is there")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    marker.touch()


if __name__ == "__main__":
    main()
