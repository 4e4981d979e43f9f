"""Saves a snapshot of a training program's git repository."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainmaster.arguments import check_int
from trainmaster.config.declared_secrets import secret_texts
from trainmaster.config.masking import secret_values
from trainmaster.errors import LoopError, SettingError
from trainmaster.extensions.code.capture import Limits, capture_once
from trainmaster.extensions.code.checkout import Restored, checkout_code
from trainmaster.extensions.code.git import GitError
from trainmaster.extensions.code.snapshot import FAILURE, FOLDER, Capture, Snapshot, write_snapshot
from trainmaster.extensions.manager_fixtures import manager_fixtures
from trainmaster.stages import Observer
from trainmaster.text import first_lines

__all__ = ["CodeTracker", "Restored", "checkout_code"]

_MAX_SHOWN: Final = 5
_NOTHING: Final[dict[str, str | None]] = {"commit": None, "tree": None}
_written: dict[str, str] = {}
"""Maps the name of each snapshot to the folder that it was last written to."""


class CodeTracker(Observer):
    """Saves a snapshot of the program's git repository when training starts; `trainmaster code KEY --checkout DIR` restores it.

    The snapshot is a git bundle in `train_dir/code`. It leaves out files that git ignores, files that may contain
    secrets, and files that are too large, and it lists the secret and large files that were left out. Each checkpoint
    records the commit and the git tree of the code that wrote it, and you get a warning if training resumes with
    different code. If git fails, you also get a warning, and training continues.

    Args:
        path: a file or folder in the repository. By default, the tracker uses the first of these that is in a
            repository: the file of the manager's class or `make_loop`, the program, the current folder.
        require_clean: refuse to train with uncommitted changes.
        max_file_size: the size in bytes above which a changed or new file is left out.
        max_total_size: the maximum size in bytes of all files together, including committed ones. Files that would
            exceed it are left out.
    """

    is_guarded = False  # no random numbers are drawn here, and git runs in its own process

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        require_clean: bool = False,
        max_file_size: int = 1_000_000,
        max_total_size: int = 20_000_000,
    ) -> None:
        if path is not None and not os.path.exists(path):
            raise SettingError(f"there is no file or folder `{os.fspath(path)}`", where=os.path.abspath(path), hint="CodeTracker(path=...)")
        for name, value in (("max_file_size", max_file_size), ("max_total_size", max_total_size)):
            check_int(name, value, min=0, hint=f"CodeTracker({name}=1_000_000)")
        self.path = None if path is None else os.path.abspath(path)
        self.require_clean = require_clean
        self.limits = Limits(max_file_size, max_total_size)
        self.snapshot: Snapshot | None = None
        """The snapshot that was taken for this process, or None if there is none yet."""
        self._resumed = _NOTHING
        """Identifies the code of the checkpoint that training resumes from."""
        self._warned: set[str] = set()

    def pre_train(self, loop: Any) -> None:
        train_dir = getattr(loop, "train_dir", None)
        captured, is_new = self._capture(train_dir)
        if isinstance(captured, GitError):
            if self.require_clean:
                hint = "train in a git repository, or leave out require_clean"
                raise LoopError("CodeTracker(require_clean=True) cannot tell whether the code is clean", why=str(captured), hint=hint)
            self._warn(f"CodeTracker saves no code: {captured}")
            _write_failure(train_dir, str(captured))
            return
        snapshot = self.snapshot = captured.snapshot
        if self.require_clean and snapshot.is_dirty:
            raise _dirty_error(snapshot)
        if is_new and snapshot.commit is None:
            self._warn(f"the repository {snapshot.root} has no commit yet; CodeTracker saves its files")
        missing = [str(each) for each in snapshot.left_out if not each.is_in_commit]
        if is_new and missing:
            count = len(missing) + snapshot.num_left_out - len(snapshot.left_out)
            self._warn(f"CodeTracker leaves out {', '.join(first_lines(missing, count, _MAX_SHOWN))}")
        now = _identity(snapshot)
        if self._resumed["tree"] not in (None, now["tree"]):
            self._warn(f"the code has changed since this training run started: it was {_named(self._resumed)}, and is now {_named(now)}")
        if train_dir is None:
            self._warn("CodeTracker saves no files because the loop has no train_dir; checkpoints still record the commit")
            return
        try:
            _written[snapshot.name] = write_snapshot(captured, os.path.join(train_dir, FOLDER), _written.get(snapshot.name))
        except OSError as error:
            self._warn(f"CodeTracker saves no files: {error.strerror or error}: {error.filename or train_dir}")

    def _capture(self, train_dir: Any) -> tuple[Capture | GitError, bool]:
        fixtures = manager_fixtures()
        config = fixtures.get("config")
        values = sorted({*secret_values(os.environ), *(secret_texts(config) if config is not None else ())})
        outputs = [] if train_dir is None else [os.fspath(train_dir), *_store_of(train_dir)]
        return capture_once([self.path] if self.path is not None else _candidate_paths(fixtures), self.limits, values, outputs)

    def _warn(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            warnings.warn(line, stacklevel=3)

    # The state identifies the code that wrote a checkpoint.

    def state_dict(self) -> dict[str, str | None]:
        return dict(self._resumed if self.snapshot is None else _identity(self.snapshot))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._resumed = {name: state[name] for name in _NOTHING}


def _write_failure(train_dir: Any, why: str) -> None:
    """Save the reason why there is no snapshot, so that `trainmaster code` can show it."""
    if train_dir is not None:
        with contextlib.suppress(OSError):  # the user was warned already
            os.makedirs(os.path.join(train_dir, FOLDER), exist_ok=True)
            with open(os.path.join(train_dir, FOLDER, FAILURE), "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{why}\n")


def _identity(snapshot: Snapshot) -> dict[str, str | None]:
    return {"commit": snapshot.commit, "tree": snapshot.tree}


def _named(identity: Mapping[str, str | None]) -> str:
    tree = (identity["tree"] or "")[:8]
    return f"commit {identity['commit'][:12]} (tree {tree})" if identity["commit"] else f"a tree without a commit ({tree})"


def _dirty_error(snapshot: Snapshot) -> LoopError:
    fact = "the repository has no commit yet" if snapshot.commit is None else "the code has uncommitted changes"
    paths = sorted({*snapshot.changed, *snapshot.deleted, *snapshot.new})
    count = len(paths) + snapshot.num_new - len(snapshot.new)
    return LoopError(
        f"{fact}, which CodeTracker(require_clean=True) does not allow",
        where=snapshot.root,
        changed="\n".join(first_lines(paths, count, _MAX_SHOWN)),
        hint="commit these files or add them to .gitignore, or leave out require_clean",
    )


# ---- locating the code


def _candidate_paths(fixtures: Mapping[str, Any]) -> list[str]:
    """Return paths that may be in the repository: the file of the manager's class or `make_loop`, the program, and the current folder."""
    manager = fixtures.get("manager")
    paths = [] if manager is None else [_file_of(sys.modules.get(getattr(manager, "definition", type(manager)).__module__))]
    paths.append(_file_of(sys.modules.get("__main__")))
    with contextlib.suppress(FileNotFoundError):  # the current folder was deleted
        paths.append(os.getcwd())
    return list(dict.fromkeys(each for each in paths if each is not None))


def _file_of(module: Any) -> str | None:
    """Return the file of a module, or None if the module has no file or belongs to an installed package or to trainmaster."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.isfile(file):
        return None
    installed = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib", "scripts")]
    ours = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    folders = tuple(os.path.realpath(each) + os.sep for each in [*installed, ours] if each)
    return None if os.path.realpath(file).startswith(folders) else os.path.abspath(file)


def _store_of(train_dir: Any) -> list[str]:
    """Return a list with the root of the store that contains `train_dir`, or an empty list if `train_dir` is not in a store.

    In a store, `train_dir` is the folder of one attempt, such as `previews/ab/KEY/attempt-0001`.
    """
    return [str(root) for root in list(Path(train_dir).absolute().parents)[3:4] if (root / "store.json").is_file()]
