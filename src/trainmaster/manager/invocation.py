"""`Invocation`: describes how a manager was started, which callbacks it reports to, and which commands resume its runs."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainmaster.loop.ranks import num_ranks
from trainmaster.manager.executor import Report
from trainmaster.store import Store


def _ignore(report: Report) -> None: ...


def _none() -> None:
    return None


@dataclass(frozen=True)
class Invocation:
    """Describes how a manager was started. The default values describe a manager that the user's own program has created."""

    target: str | None = None
    """The manager's location, as written on the command line: `file.py:Name`."""
    program: tuple[str, ...] = ("trainmaster",)
    """The command that starts `trainmaster` in a shell, split into words."""
    report: Callable[[Report], None] = _ignore
    """Receives the progress of each run."""
    stop_reason: Callable[[], str | None] = _none
    """Returns why all training should stop, or None to continue."""
    flush: Callable[[], None] | None = None
    """In a worker, writes captured output to the log of the run."""
    is_store_temporary: bool = False
    """Whether the store is deleted at the end, so that an interrupted run cannot be resumed."""
    file: str | None = None
    """The source file of the target."""
    target_name: str = ""
    """The name of the target, if the target is a function or an object instead of the manager's class."""
    is_strict_code: bool = False
    """Whether runs whose code has changed are refused."""
    is_same_program: bool = False
    """Whether runs that were trained by a different program are accepted."""
    cells: str = ""
    """In a worker, the digest of the notebook that defines the manager."""
    num_processes: int = 1
    """The number of processes that train one run together, started by `--processes`."""

    def attempt_facts(self, num_epochs: int | None) -> dict[str, Any]:
        """Return what an attempt must record so that its run can later be resumed, or trained again with bit-identical results."""
        torch: Any = sys.modules.get("torch")
        threads = {} if torch is None else {"num_threads": torch.get_num_threads()}
        target = {} if self.target is None else {"target": self.target, "folder": os.getcwd()}
        ranks = {"num_ranks": num_ranks()} if num_ranks() > 1 else {}
        return {**target, "num_epochs": num_epochs, **threads, **ranks}

    def resume_command(self, store: Store, key: str) -> str:
        """Return the command that resumes an interrupted run."""
        if self.is_store_temporary:
            return self.restart_command()
        is_script = self.target is None and len(sys.orig_argv) > 1 and not hasattr(sys, "ps1")
        return shlex.join(sys.orig_argv) if is_script else self.train_command(store, key)

    def restart_command(self) -> str:
        """Return the command that started this process. Running it again continues a batch."""
        return shlex.join([*self.program, *sys.argv[1:]] if self.target is not None else sys.orig_argv)

    def show_command(self, store: Store, key: str) -> str:
        return self.command(store, "show", key) if self.target is not None else f'manager.fetch("{key}")'

    def groups_command(self, store: Store, metric: str, is_greater_better: bool) -> str:
        """Return the shell command or Python call that lists all settings, with the means of their metrics over seeds."""
        sort = f"-{metric}" if is_greater_better else metric
        return self.command(store, "ls", "--group", "--sort", sort) if self.target is not None else "Results(manager).groups(min_runs=2)"

    def command(self, store: Store, *words: str) -> str:
        """Return a `trainmaster` command. The option `--store` is added unless `store` is the default store."""
        is_default = store.root == os.path.abspath(os.environ.get("TRAINMASTER_STORE") or "runs")
        return shlex.join([*self.program, *words, *([] if is_default else ["--store", str(store.root)])])

    def train_command(self, store: Store, key: str, num_epochs: int | None = None) -> str:
        """Return the shell command or Python call that trains a stored run up to `num_epochs` epochs."""
        if self.target is not None:
            epochs = [] if num_epochs is None else ["--epochs", str(num_epochs)]
            processes = [] if self.num_processes == 1 else ["--processes", str(self.num_processes)]
            return shlex.join([*self.program, "resume", key, *epochs, *processes, "--store", str(store.root)])
        return f'manager.process(manager.configs["{key}"]{"" if num_epochs is None else f", num_epochs={num_epochs}"})'
