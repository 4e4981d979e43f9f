"""Records what a training runs on, and says so when it goes on somewhere else."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from trainmaster.errors import SettingError
from trainmaster.extensions.surroundings import facts_of, what_matters
from trainmaster.stages import Observer
from trainmaster.store.files import LocalFiles

FILE: Final = "environment.json"


class Environment(Observer):
    """Records Python, packages, torch, hardware and system at the start of each `train()`, as `environment.json` in the loop's `train_dir`.

    Of the environment variables only those are kept that change numbers, and the command line is kept without its secrets. Where a
    training goes on with another torch, Python, CPU, GPU or number of threads, one warning names what differs; the file of before is kept
    beside the new one, with a number. Nothing of it can stop a training.

    Args:
        path: the file; by default `environment.json` in the loop's `train_dir`. Without either the facts are only here, as `facts`.
    """

    is_guarded = False  # it draws no random numbers, and switches nothing

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        if path is not None and (not isinstance(path, str | os.PathLike) or not os.path.basename(os.fspath(path))):
            raise SettingError(f"path={path!r}: wanted a file", hint='Environment("out/environment.json")')
        self.path = None if path is None else os.fspath(path)
        self.facts: dict[str, Any] = {}
        """What the last training began with."""
        self._matters: dict[str, str] = {}

    def pre_train(self, loop: Any) -> None:
        self.facts = {"started": datetime.now(UTC).isoformat(timespec="seconds"), **facts_of()}
        now = what_matters(self.facts)
        changes = [f"{name} was {old}, and is {now.get(name, 'none')}" for name, old in self._matters.items() if now.get(name) != old]
        changes += [f"{name} was none, and is {new}" for name, new in now.items() if self._matters and name not in self._matters]
        if changes:
            warnings.warn(f"this training goes on in another environment: {'; '.join(changes)}", stacklevel=2)
        self._matters = now
        train_dir = getattr(loop, "train_dir", None)
        path = self.path if self.path is not None else None if train_dir is None else os.path.join(train_dir, FILE)
        if path is not None:
            self._write(path)

    def _write(self, path: str) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        try:
            os.makedirs(folder, exist_ok=True)
            files = LocalFiles(folder)
            self._keep_earlier(files, name)
            files.replace(name, (json.dumps(self.facts, indent=1, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))
        except Exception as error:  # a full disk, a folder that cannot be written: no reason to stop training
            warnings.warn(f"{path} is not written: {getattr(error, 'fact', None) or error}", stacklevel=2)

    def _keep_earlier(self, files: LocalFiles, name: str) -> None:
        """Give what stands in the file a number, unless it says the same as now."""
        try:
            data = files.read(name)
        except FileNotFoundError:
            return
        try:
            earlier = json.loads(data)
        except ValueError:  # somebody else's file; it is kept, too
            earlier = None
        if isinstance(earlier, dict) and {**earlier, "started": ""} == json.loads(json.dumps({**self.facts, "started": ""})):
            return
        stem, ending = os.path.splitext(name)
        pattern = re.compile(rf"{re.escape(stem)}\.([1-9]\d{{0,8}}){re.escape(ending)}")
        numbers = [int(found[1]) for found in map(pattern.fullmatch, files.names("")) if found]
        files.create(f"{stem}.{max(numbers, default=0) + 1}{ending}", data)

    def state_dict(self) -> dict[str, Any]:
        return {"matters": dict(self._matters)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._matters = {str(name): str(value) for name, value in state["matters"].items()}
