"""Writes snapshots of a program's code to files, and reads them.

```text
code/3f2a91c0d1e2-8d1e02aa/     the commit, and the git tree of the files
  code.json                     commit, branch, remote, submodules; which files are changed, deleted, new or left out
  code.bundle                   the files, as a git bundle: `git clone --branch snapshot code.bundle` reads it without trainmaster
  changes.patch                 `git diff HEAD`
```
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from glob import escape, glob
from typing import Any, Final, NamedTuple

from trainmaster.errors import StoreDamagedError, StoreFormatError
from trainmaster.extensions.code.git import git, text
from trainmaster.store.checksummed_json import parse_record, record_bytes
from trainmaster.store.files import LocalFiles

FORMAT: Final = 1
FACTS, BUNDLE, PATCH = "code.json", "code.bundle", "changes.patch"
FOLDER: Final = "code"
"""The folder in `train_dir` that contains the snapshots."""
FAILURE: Final = "no-snapshot.txt"
"""The file in the folder `code` that gives the reason if there is no snapshot."""
BRANCH: Final = "refs/heads/snapshot"
"""The branch in the bundle. It has one commit, without a parent."""


@dataclass(frozen=True)
class LeftOut:
    path: str
    reason: str
    is_in_commit: bool
    """Whether the file is unchanged, which means that the commit contains it."""

    def __str__(self) -> str:
        return f"{self.path} ({self.reason}{'; the commit has it' if self.is_in_commit else ''})"


@dataclass(frozen=True)
class Snapshot:
    """A description of a code snapshot. Paths are relative to `root`, and their non-UTF-8 bytes are stored as surrogates."""

    taken: str
    root: str
    commit: str | None
    """The id of the commit, or None in a repository without commits."""
    branch: str | None
    """The name of the branch, or None if HEAD was detached."""
    remote: str | None
    subject: str
    tree: str
    """The id of the git tree in the bundle. Snapshots with the same tree contain the same files."""
    submodules: dict[str, str | None]
    """The commit of each submodule, by path, or None for a submodule that was not checked out."""
    changed: tuple[str, ...]
    deleted: tuple[str, ...]
    new: tuple[str, ...]
    """Untracked files that git does not ignore. At most 1000 files are listed here and in `left_out`."""
    num_new: int
    left_out: tuple[LeftOut, ...]
    num_left_out: int

    @property
    def is_dirty(self) -> bool:
        """Whether the code differs from the commit."""
        return self.commit is None or bool(self.changed or self.deleted or self.new)

    @property
    def name(self) -> str:
        return f"{(self.commit or 'no-commit')[:12]}-{self.tree[:8]}"


class Capture(NamedTuple):
    """A snapshot that has not been written yet."""

    snapshot: Snapshot
    bundle: bytes
    patch: bytes


def write_snapshot(capture: Capture, folder: str, like: str | None = None) -> str:
    """Write a snapshot to a new folder in `folder`, unless `folder` already contains it, and return the path of the snapshot.

    `code.json` is written last: a folder without it is not a snapshot.

    `like` is an existing folder with the same snapshot. If possible, its large files are hard-linked instead of copied,
    so that many runs share one copy.
    """
    path = os.path.join(folder, capture.snapshot.name)
    if os.path.exists(os.path.join(path, FACTS)):
        return path
    os.makedirs(path, exist_ok=True)
    files = LocalFiles(os.path.abspath(path))
    for name, data in ((BUNDLE, capture.bundle), (PATCH, capture.patch)):
        with contextlib.suppress(OSError):  # `like` is on another file system, or hard links are not supported
            if like is not None:
                os.link(os.path.join(like, name), os.path.join(path, name))
                continue
        files.replace(name, data)
    files.replace(FACTS, record_bytes({"format": FORMAT, **asdict(capture.snapshot)}))
    return path


def snapshots_in(folder: str) -> list[str]:
    """Return the paths of the snapshots in a `code` folder, oldest first."""
    found = glob(os.path.join(escape(folder), "*", FACTS))
    return [os.path.dirname(path) for path in sorted(found, key=lambda path: (os.stat(path).st_mtime_ns, path))]


def read_snapshot(folder: str) -> Snapshot:
    """Read `code.json`."""
    path = os.path.join(folder, FACTS)
    try:
        record = parse_record(LocalFiles(folder).read(FACTS), path, {"tree": str, "num_new": int, "num_left_out": int})
    except FileNotFoundError:
        raise StoreFormatError(f"`{folder}` is not a snapshot of code: it has no `{FACTS}`") from None
    if record.get("format") != FORMAT:
        raise StoreFormatError(f"`{path}` has format {record.get('format')!r:.20}, but this version reads format {FORMAT}")
    try:
        values: dict[str, Any] = {each.name: record[each.name] for each in fields(Snapshot)}
        values["left_out"] = [LeftOut(**each) for each in values["left_out"]]
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return Snapshot(**values)
    except (KeyError, TypeError) as error:
        raise damaged(path, f"it does not describe a snapshot: {error}") from None


def fetch_bundle(folder: str, bundle: str, branch: str, until: float | None = None, settings: Sequence[str] = ()) -> str:
    """Fetch the commit of a bundle into a branch of the repository at `folder`. Return the id of the commit's git tree."""
    options = ("--quiet", "--no-tags", "--no-recurse-submodules", "--update-head-ok")
    git(folder, "fetch", *options, bundle, f"+{BRANCH}:{branch}", until=until, settings=settings)
    return text(git(folder, "rev-parse", f"{branch}^{{tree}}", until=until).strip())


def damaged(path: str, why: str) -> StoreDamagedError:
    return StoreDamagedError.of(path, why, "the snapshot was not used; use a copy of the run")
