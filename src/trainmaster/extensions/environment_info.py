"""Records the environment in which training runs, and warns if training resumes in a different one."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.extensions.environment_facts import collect_facts, relevant_facts
from trainmaster.extensions.train_dir import path_in_train_dir
from trainmaster.stages import Observer
from trainmaster.store.files import LocalFiles

FILE: Final = "environment.json"


class EnvironmentInfo(Observer):
    """Records the versions of Python, torch and all packages, the hardware and the system at the start of each `train()`.

    It also records the command line without secrets, and the environment variables that affect results or speed. If
    training resumes with a different torch, Python, CPU, GPU or number of threads, one warning lists the differences,
    and the previous file is kept under a numbered name. An error in this extension never stops training.

    Args:
        path: the file to write. The default is `environment.json` in the loop's `train_dir`. Without a `train_dir`, no
            file is written by default, but the attribute `facts` still contains the information.
    """

    is_guarded = False  # no random numbers are drawn and no mode is changed here

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.facts: dict[str, Any] = {}
        """The information that the last call to `train()` recorded."""
        self._relevant: dict[str, str] = {}

    def pre_train(self, loop: Any) -> None:
        self.facts = {"started": datetime.now(UTC).isoformat(timespec="seconds"), **collect_facts()}
        before, now = self._relevant, relevant_facts(self.facts)
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)] if before else []
        if names:
            changes = "; ".join(f"{name} was {before.get(name, 'none')} and is now {now.get(name, 'none')}" for name in names)
            warnings.warn(f"this training run resumes in a different environment: {changes}", stacklevel=2)
        self._relevant = now
        path = path_in_train_dir(self.path, loop, FILE)
        if path is not None:
            self._write(path)

    def _write(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files = LocalFiles(str(path.parent.absolute()))
            self._keep_previous(files, path.name)
            files.replace(path.name, (json.dumps(self.facts, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))
        except Exception as error:  # a full disk or a read-only folder must not stop training
            warnings.warn(f"cannot write {path}: {getattr(error, 'fact', None) or error}", stacklevel=2)

    def _keep_previous(self, files: LocalFiles, name: str) -> None:
        """Copy the existing file to a numbered name, unless the new file will differ from it only in the start time."""
        try:
            data = files.read(name)
        except FileNotFoundError:
            return
        try:
            previous = json.loads(data)
        except ValueError:  # the file was not written by this extension, but is kept too
            previous = None
        if isinstance(previous, dict) and {**previous, "started": ""} == json.loads(json.dumps({**self.facts, "started": ""})):
            return
        stem, ending = os.path.splitext(name)
        names, number = set(files.names("")), 1
        while f"{stem}.{number}{ending}" in names:
            number += 1
        files.create(f"{stem}.{number}{ending}", data)

    def state_dict(self) -> dict[str, Any]:
        return {"relevant_facts": dict(self._relevant)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._relevant = {str(name): str(value) for name, value in state["relevant_facts"].items()}
