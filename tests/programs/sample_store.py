"""A store with two runs of two attempts each, and functions that resume a run and list every file for comparison."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainmaster.store import Store

CONFIG = {"arch": "ResNet18", "lr": 0.1, "sizes": [1, 2, 3]}
OTHER = {"arch": "ResNet50", "lr": 0.3, "sizes": [4, 5, 6]}
THIRD = {"arch": "VGG", "lr": 0.5, "sizes": [7]}
LAST = 4
"""The step of the newest checkpoint. Attempt 1 saved steps 1 and 2, and attempt 2 continued with steps 3 and 4."""


@contextmanager
def fast_folder() -> Iterator[Path]:
    """Return a folder in memory if possible, because tests write a thousand small stores there."""
    in_memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=in_memory if os.access(in_memory, os.W_OK) else None) as folder:
        yield Path(folder)


def value_at(config: dict[str, Any], step: int) -> dict[str, Any]:
    """Return the value that the checkpoint of a step contains."""
    return {"weights": np.arange(6.0).reshape(2, 3) + 10 * step + config["lr"], "step": step, "arch": config["arch"], "sizes": (1, step)}


def status_at(step: int) -> dict[str, Any]:
    return {"epoch": step, "toc": 1000.0 + step, "t_train": 0.5, "t_eval": None}


def preview_at(config: dict[str, Any], step: int) -> dict[str, Any]:
    return {"loss": config["lr"] / step, "arch": config["arch"]}


def events_at(config: dict[str, Any], step: int) -> list[dict[str, Any]]:
    """Return all events up to a step.

    The second config has more events, so that its log could be mistaken for the log of the first one.
    """
    per_step = 2 if config == CONFIG else 3
    return [{"epoch": epoch, "part": part, "arch": config["arch"]} for epoch in range(1, step + 1) for part in range(per_step)]


def is_value(value: Any, config: dict[str, Any], step: int) -> bool:
    wanted = value_at(config, step)
    return (
        isinstance(value, dict)
        and value.keys() == wanted.keys()
        and np.array_equal(value["weights"], wanted["weights"])
        and all(value[name] == wanted[name] for name in wanted if name != "weights")
    )


def train(store: Store, config: dict[str, Any], steps: range, seen: Any = None) -> str:
    """Run one attempt over `steps`, and call `seen` after each step."""
    key = store.configs.add(config)
    with store.attempt(key, "process") as attempt:
        attempt.start(store.run(key).latest())
        for step in steps:
            for event in events_at(config, step)[len(events_at(config, step - 1)) :]:
                attempt.log.append(event)
            attempt.save(step, value_at(config, step), status_at(step), preview_at(config, step), keep=9)
            store.files.beat(f"stats/{key[:2]}/{key}/attempt-{attempt.number:04}/lease")
            if seen is not None:
                seen()
    return key


class Sample(NamedTuple):
    """The contents of a store as bytes."""

    files: dict[str, bytes]
    older: dict[str, bytes]
    """An earlier version of each file that was written more than once."""
    key: str
    other: str

    def write(self, root: Path) -> Path:
        for path, data in self.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        return root

    def stats(self, name: str, attempt: int, key: str | None = None) -> str:
        key = key or self.key
        return f"{'previews' if name == 'preview.json' else 'stats'}/{key[:2]}/{key}/attempt-{attempt:04}/{name}"

    def ckpt(self, name: str, step: int, key: str | None = None) -> str:
        key = key or self.key
        return f"ckpts/{key[:2]}/{key}/attempt-{(step + 1) // 2:04}/step-{step:06}/{name}"

    def config(self, key: str | None = None) -> str:
        key = key or self.key
        return f"configs/{key[:2]}/{key}.json"


def build(root: Path) -> Sample:
    store = Store(root)
    older: dict[str, bytes] = {}

    def keep() -> None:
        for path, data in contents(root).items():
            if data != before.get(path, data):
                older[path] = before[path]
            before[path] = data

    before: dict[str, bytes] = {}
    keys = []
    for config in (CONFIG, OTHER):
        train(store, config, range(1, 3), keep)
        keys.append(train(store, config, range(3, 5), keep))
        list(store.index)
        keep()
    return Sample(contents(root), older, *keys)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def listing(root: Path) -> dict[str, tuple[Any, ...]]:
    """List everything below a folder without following links: the kind, mode, number of hard links, and content."""
    found = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            about = os.lstat(path)
            content: Any = None
            if stat.S_ISLNK(about.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(about.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            found[os.path.relpath(path, root)] = (about.st_mode, about.st_nlink if name in files else 0, content)
    return found


class Started(NamedTuple):
    """The result of resuming a run."""

    step: int | None
    """The step of the checkpoint that the run resumed from, or None if there was no checkpoint."""
    value: Any = None
    status: Any = None
    events: Any = None
    warned: str = ""
    error: Exception | None = None


def start(root: Path, config: dict[str, Any], is_going_on: bool = True) -> Started:
    """Resume a run and save one more checkpoint, or only find the checkpoint that it would resume from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found: dict[str, Any] = {"step": None}
        error = None
        try:
            store = Store(root, lease_time=0.02)
            key = store.configs.add(config)
            if is_going_on:
                with store.attempt(key, "process") as attempt:
                    latest = store.run(key).latest()
                    attempt.start(latest)
                    found |= {"step": latest and latest.name.step, "value": latest and latest.value}
                    found |= {"status": store.run(key).status(), "events": store.run(key).events()}
                    step = 1 + (found["step"] or 0)
                    attempt.save(step, value_at(config, step), status_at(step), preview_at(config, step), keep=9)
            else:
                latest = store.run(key).latest()
                found |= {"step": latest and latest.name.step, "value": latest and latest.value}
                if found["step"] == LAST:
                    found |= {"status": latest and store.stats[key], "events": store.run(key).events()}
        except Exception as raised:
            error = raised
    return Started(**found, warned="\n".join(str(each.message) for each in caught), error=error)
