"""Keeps the code that a training was run with: its commit, and all that differs from it."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainmaster.config import ConfigBase
from trainmaster.config.plain import plain
from trainmaster.config.secret_fields import config_secrets
from trainmaster.config.secrets import secret_values
from trainmaster.errors import LoopError, SettingError
from trainmaster.extensions.code.checkout import Restored, checkout_code
from trainmaster.extensions.code.git import GitFailedError, repository_of
from trainmaster.extensions.code.snapshot import CLEAN, FOLDER, Contents, Snapshot, write
from trainmaster.extensions.code.take import Limits, taken
from trainmaster.stages import Observer
from trainmaster.stages.open_stage import running

__all__ = ["CodeTracker", "Restored", "checkout_code"]

_MAX_SHOWN: Final = 5
_roots: dict[str, str | GitFailedError] = {}
"""The repositories of folders that were asked about, for as long as this process lives."""
_written: dict[Snapshot, str] = {}
"""Where a snapshot was last written to."""


class CodeTracker(Observer):
    """Keeps a snapshot of the program's git repository when a training starts: `trainmaster code KEY --checkout DIR` restores the tree.

    It lies below `train_dir/code`: the commit, uncommitted changes, and new source files, without what git ignores, what looks like a
    secret, and what is too large; all that is left out is named. Each checkpoint says which snapshot it was trained with, and a training
    that goes on with other code says so. Where git does not work that is a warning, and training goes on.

    Args:
        path: a file or folder of the repository; by default that of the manager's class, of the program, or of the current folder.
        require_clean: refuse to train where the commit alone is not the code.
        max_file_size: how many bytes a file may have to be kept.
        max_total_size: how many bytes all of them may have.
    """

    is_guarded = False  # it draws nothing, and git runs outside of this process

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        require_clean: bool = False,
        max_file_size: int = 1_000_000,
        max_total_size: int = 20_000_000,
    ) -> None:
        if path is not None and (not isinstance(path, str | os.PathLike) or not os.fspath(path)):
            raise SettingError(f"path={path!r}: wanted a file or folder of a repository", hint="leave it out: it is that of the program")
        if path is not None and not os.path.exists(path):
            raise SettingError(f"there is no file or folder `{os.fspath(path)}`", where=os.path.abspath(path), hint="CodeTracker(path=...)")
        if not isinstance(require_clean, bool):
            raise SettingError(f"require_clean={require_clean!r}: wanted True or False")
        for name, value in (("max_file_size", max_file_size), ("max_total_size", max_total_size)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingError(f"`{name}` is a whole number of bytes, not {value!r}", hint=f"CodeTracker({name}=1_000_000)")
        self.path = None if path is None else os.path.abspath(os.fspath(path))
        self.require_clean = require_clean
        self.limits = Limits(max_file_size, max_total_size)
        self.snapshot: Snapshot | None = None
        """That of this process, once a training has started."""
        self._before: dict[str, str | None] = _NOTHING
        """What the checkpoint was trained with that training goes on from."""
        self._told: set[str] = set()

    def pre_train(self, loop: Any) -> None:
        train_dir = getattr(loop, "train_dir", None)
        found, is_new = self._take(train_dir)
        if isinstance(found, GitFailedError):
            self._refuse_or_warn(str(found))
            return
        snapshot = self.snapshot = found.snapshot
        if self.require_clean and snapshot.is_dirty:
            raise _dirty_error(snapshot)
        if is_new:
            self._tell_lost(snapshot)
        self._tell_change(snapshot)
        if train_dir is None:
            self._warn("CodeTracker keeps no files: the loop has no train_dir; checkpoints name the commit all the same")
            return
        try:
            _written[snapshot] = write(found, os.path.join(train_dir, FOLDER), _written.get(snapshot))
        except OSError as error:
            self._warn(f"CodeTracker keeps no files: {error.strerror or error}: {error.filename or train_dir}")

    def _take(self, train_dir: Any) -> tuple[Contents | GitFailedError, bool]:
        """The snapshot of the first repository that is found, and whether it is new."""
        work = _work_at_hand()
        failure = GitFailedError("there is no folder to look into")
        for folder in [self.path] if self.path is not None else _candidates(work):
            root = _root_of(folder)
            if not isinstance(root, GitFailedError):
                config = work.get("config")
                tree = config.to_dict() if isinstance(config, ConfigBase) else plain(config) if config is not None else {}
                values = sorted({*secret_values(os.environ), *config_secrets(tree)})
                return taken(root, self.limits, values, [] if train_dir is None else [os.fspath(train_dir), *_store_of(train_dir)])
            failure = root
            if not root.is_no_repository:
                break
        if failure.is_no_repository:
            places = ", ".join([self.path] if self.path is not None else _candidates(work))
            failure = GitFailedError(f"there is no git repository at {places}")
        return failure, True

    def _refuse_or_warn(self, why: str) -> None:
        if self.require_clean:
            raise LoopError(
                "CodeTracker(require_clean=True) cannot tell whether the code is clean",
                why=why,
                hint="train in a git repository, or leave require_clean out",
            )
        self._warn(f"CodeTracker keeps no code: {why}")

    def _tell_lost(self, snapshot: Snapshot) -> None:
        if snapshot.commit is None:
            self._warn(f"the repository {snapshot.root} has no commit yet: CodeTracker keeps its source files")
        lost = [f"{each.path} ({each.reason})" for each in snapshot.lost()]
        lost += [f"{each.path}/ (a submodule with changes)" for each in snapshot.submodules if each.is_dirty]
        if lost:
            self._warn(f"CodeTracker leaves out {_listed(lost)}")

    def _tell_change(self, snapshot: Snapshot) -> None:
        """Say so where training goes on with other code."""
        now = _identity(snapshot)
        if self._before not in (_NOTHING, now):
            self._warn(f"the code is not what this training began with: it was {_named(self._before)}, and is {_named(now)}")

    def _warn(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            warnings.warn(line, stacklevel=3)

    # Its state: which code a checkpoint was trained with.

    def state_dict(self) -> dict[str, str | None]:
        return dict(self._before if self.snapshot is None else _identity(self.snapshot))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before = {name: state[name] for name in _NOTHING}


_NOTHING: Final[dict[str, str | None]] = {"commit": None, "changes": None}


def _identity(snapshot: Snapshot) -> dict[str, str | None]:
    return {"commit": snapshot.commit, "changes": snapshot.changes}


def _named(identity: Mapping[str, str | None]) -> str:
    commit = f"commit {identity['commit'][:12]}" if identity["commit"] else "a tree without a commit"
    return commit if identity["changes"] == CLEAN else f"{commit} with the changes {identity['changes']}"


def _dirty_error(snapshot: Snapshot) -> LoopError:
    if snapshot.commit is None:
        fact = "the repository has no commit yet, and CodeTracker(require_clean=True) wants one"
    else:
        fact = "the code is not clean, and CodeTracker(require_clean=True) wants it to be"
    paths = snapshot.dirty_paths()
    shown = [*paths[:_MAX_SHOWN], *([f"... and {len(paths) - _MAX_SHOWN:,} more"] if len(paths) > _MAX_SHOWN else [])]
    return LoopError(
        fact, where=snapshot.root, changed="\n".join(shown), hint="commit them or have git ignore them, or leave require_clean out"
    )


def _listed(lines: list[str]) -> str:
    more = f", and {len(lines) - _MAX_SHOWN:,} more" if len(lines) > _MAX_SHOWN else ""
    return ", ".join(lines[:_MAX_SHOWN]) + more


# ---- where the code is


def _candidates(work: Mapping[str, Any]) -> list[str]:
    """Where the program may be: the file of the manager that trains, that of the program, the current folder."""
    found = [_file_of(sys.modules.get(type(work["manager"]).__module__))] if "manager" in work else []
    found.append(_file_of(sys.modules.get("__main__")))
    with contextlib.suppress(FileNotFoundError):  # it was removed
        found.append(os.getcwd())
    return list(dict.fromkeys(each for each in found if each is not None))


def _file_of(module: Any) -> str | None:
    """The file of a module of the user's; a program that was installed, such as `trainmaster` itself, is none of theirs."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    whole = os.path.realpath(file)
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib", "scripts")]
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    is_theirs = not any(whole.startswith(os.path.realpath(each) + os.sep) for each in [*installed, ours] if each)
    return os.path.abspath(file) if is_theirs else None


def _root_of(place: str) -> str | GitFailedError:
    """The root of the repository that a file or folder lies in. It is asked for once."""
    folder = place if os.path.isdir(place) else os.path.dirname(place)
    if folder not in _roots:
        try:
            _roots[folder] = repository_of(folder)
        except GitFailedError as error:
            _roots[folder] = error
    return _roots[folder]


def _store_of(train_dir: Any) -> Iterator[str]:
    """The store that a run's folder lies in, if it lies in one: `previews/ab/KEY/attempt-0001` below it."""
    root = os.path.abspath(train_dir)
    for _ in range(4):
        root = os.path.dirname(root)
    if os.path.isfile(os.path.join(root, "store.json")):
        yield root


def _work_at_hand() -> Mapping[str, Any]:
    """The fixtures of the work that a loop is part of, if it works for a manager."""
    hosts = (host.fixtures for host in reversed(running.hosts))
    return next((each for each in hosts if "manager" in each and "config" in each), {})
