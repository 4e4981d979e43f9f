"""Restores the code of a snapshot: git fetches the bundle and checks it out into a new folder.

A snapshot may come from an untrusted source. All files are written by git, which rejects paths outside of the new
folder and paths in its `.git`. The folder is created only if all files were restored.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Final, NamedTuple

from trainmaster.errors import SettingError, StoreFormatError
from trainmaster.extensions.code.git import GitError, git, split
from trainmaster.extensions.code.snapshot import BRANCH, BUNDLE, FACTS, FOLDER, Snapshot, damaged, fetch_bundle, read_snapshot, snapshots_in

_RAW: Final = "* -text -ident -filter -working-tree-encoding\n"
"""Attributes that make git write files exactly as they are stored."""
_AS_STORED: Final = ("core.symlinks=true", "core.fileMode=true")


class Restored(NamedTuple):
    """The result of restoring a snapshot."""

    folder: str
    commit: str | None
    num_files: int
    missing: tuple[str, ...]
    """The files that the snapshot does not contain, each with the reason."""

    @property
    def is_exact(self) -> bool:
        return not self.missing


def checkout_code(code_folder: str | os.PathLike[str], to: str | os.PathLike[str]) -> Restored:
    """Restore the files of a snapshot into a new or empty folder, byte for byte.

    Args:
        code_folder: the folder of a snapshot, `train_dir/code/...`, or `train_dir/code` itself if it contains only one
            snapshot.
    """
    source, target = _snapshot_folder(os.fspath(code_folder)), os.path.abspath(os.fspath(to))
    snapshot = read_snapshot(source)
    parent = os.path.dirname(target)
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target) or os.listdir(target)):
        raise SettingError(f"`{target}` is not a new or empty folder", hint="choose another one: nothing is overwritten")
    if not os.path.isdir(parent):
        raise SettingError(f"there is no folder `{parent}`", hint="create it first")
    temporary = tempfile.mkdtemp(prefix=f".{os.path.basename(target)[:100]}.", suffix=".tmp", dir=parent)
    folder = os.path.join(temporary, "code")  # this folder has the usual permissions, whereas mkdtemp gives access only to the owner
    os.mkdir(folder)
    try:
        num_files = _check_out(source, snapshot, folder)
        os.rename(folder, target)  # this also replaces an empty folder
    except GitError as error:
        raise SettingError("the code was not restored", why=str(error)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    more = snapshot.num_left_out - len(snapshot.left_out)
    return Restored(target, snapshot.commit, num_files, (*map(str, snapshot.left_out), *([f"... and {more:,} more files"] if more else [])))


def _snapshot_folder(folder: str) -> str:
    if os.path.isfile(os.path.join(folder, FACTS)):
        return folder
    found = snapshots_in(folder) or snapshots_in(os.path.join(folder, FOLDER))
    if not found:
        raise StoreFormatError(
            f"`{folder}` has no snapshot of code", hint="the extension CodeTracker() saves one in train_dir/code when training starts"
        )
    if len(found) > 1:
        raise SettingError(f"`{folder}` has {len(found)} snapshots of code", known="\n".join(found), hint="choose one of them")
    return found[0]


def _check_out(source: str, snapshot: Snapshot, folder: str) -> int:
    """Create a repository from the bundle, and check out its files. Return the number of files."""
    git(folder, "init", "--quiet", "--template=", "--object-format=sha1")
    bundle = os.path.abspath(os.path.join(source, BUNDLE))
    if not os.path.isfile(bundle):
        raise damaged(bundle, "it is missing")
    try:  # git computes the id of each object from its bytes, so comparing the id of the tree verifies all files
        tree = fetch_bundle(folder, bundle, BRANCH)
    except GitError as error:
        raise damaged(bundle, str(error)) from None
    if tree != snapshot.tree:
        raise damaged(bundle, f"its files differ from those that `{FACTS}` describes")
    os.makedirs(os.path.join(folder, ".git", "info"), exist_ok=True)
    with open(os.path.join(folder, ".git", "info", "attributes"), "w") as file:
        file.write(_RAW)
    git(folder, "symbolic-ref", "HEAD", BRANCH)
    git(folder, "read-tree", BRANCH)
    git(folder, "checkout-index", "--all", settings=_AS_STORED)
    git(folder, "update-index", "--refresh", settings=_AS_STORED)  # reads all files, and fails if one differs from the index
    return len(split(git(folder, "ls-files", "-z")))
