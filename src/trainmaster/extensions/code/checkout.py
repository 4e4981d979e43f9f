"""Putting code back: the commit from a repository at hand, then the changes of a snapshot, each verified.

A snapshot may come from anywhere: nothing is written outside of the new folder, nor to what belongs to git in it. The folder appears whole
or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from typing import Final, NamedTuple

from trainmaster.errors import SettingError, StoreFormatError
from trainmaster.extensions.code.git import GitFailedError, git, has_commit, text
from trainmaster.extensions.code.snapshot import (
    ARCHIVE,
    FACTS,
    FOLDER,
    LINK_MODE,
    PROGRAM_MODE,
    KeptFile,
    Snapshot,
    damaged,
    opened_archive,
    read,
    snapshots_in,
)
from trainmaster.extensions.code.tree import Tree, wrong_paths

_AS_THEY_ARE: Final = "* -text !eol !crlf -ident -filter -working-tree-encoding\n"
"""The attributes by which git writes the bytes of a commit and no others; line endings and filters are in the snapshot."""
_PART: Final = 2**20
_BLOCKED: Final = (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ENOENT)
"""How a file system says that something else is in the way."""


class Restored(NamedTuple):
    """A tree that was put back."""

    folder: str
    commit: str | None
    num_files: int
    """How many files of the snapshot were written over the commit, or deleted."""
    missing: tuple[str, ...]
    """What is not as it was, each with its reason."""

    @property
    def is_exact(self) -> bool:
        return not self.missing


def checkout_code(code_folder: str | os.PathLike[str], to: str | os.PathLike[str], repo: str | os.PathLike[str] | None = None) -> Restored:
    """Restore the exact tree that a snapshot was taken of, into a folder that is new or empty.

    Args:
        code_folder: a snapshot, `train_dir/code/...`; or `train_dir/code` itself, where it has only one.
        repo: a repository that has the commit; by default the one it was taken of, if that is still there, else that of the current folder.
    """
    source, target = _snapshot_folder(os.fspath(code_folder)), os.path.abspath(os.fspath(to))
    snapshot = read(source)
    files = {each.path: each for each in snapshot.files}
    others = [*snapshot.deleted, *(each.path for each in snapshot.submodules)]
    why = wrong_paths([each.path for each in snapshot.files]) or next(filter(None, (wrong_paths([path]) for path in others)), "")
    if why:
        raise damaged(os.path.join(source, FACTS), why)
    _check_empty(target)
    repository = None if snapshot.commit is None else _repository(snapshot, None if repo is None else os.fspath(repo))
    parent = os.path.dirname(target)
    if not os.path.isdir(parent):
        raise SettingError(f"there is no folder `{parent}` to put the tree into", hint="make it first")
    _check_room(parent, sum(each.size for each in snapshot.files))
    aside = tempfile.mkdtemp(prefix=f".{os.path.basename(target)[:100]}.", suffix=".tmp", dir=parent)
    try:
        os.chmod(aside, 0o777 & ~_umask())  # of mkdtemp it is the owner's alone
        missing = _restore(snapshot, source, files, aside, repository)
        os.rename(aside, target)  # over an empty folder, too
    except GitFailedError as error:
        raise SettingError(f"the code is not restored: {error}", where=repository, hint="`--repo DIR` names another repository") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return Restored(target, snapshot.commit, len(files) + len(snapshot.deleted), tuple(missing))


# ---- what is asked first


def _snapshot_folder(folder: str) -> str:
    if os.path.isfile(os.path.join(folder, FACTS)):
        return folder
    found = snapshots_in(folder) or snapshots_in(os.path.join(folder, FOLDER))
    if not found:
        raise StoreFormatError(
            f"`{folder}` has no snapshot of code", hint="the extension CodeTracker() keeps one below train_dir/code when a training starts"
        )
    if len(found) > 1:
        raise SettingError(f"`{folder}` has {len(found)} snapshots of code", known="\n".join(found), hint="name one of them")
    return found[0]


def _check_empty(target: str) -> None:
    if os.path.islink(target) or (os.path.lexists(target) and not os.path.isdir(target)):
        raise SettingError(f"`{target}` is no folder", hint="name one that is new or empty")
    if os.path.isdir(target) and os.listdir(target):
        raise SettingError(f"the folder `{target}` is not empty", hint="name one that is new or empty: nothing is overwritten")


def _repository(snapshot: Snapshot, repo: str | None) -> str:
    """A repository that has the commit."""
    if repo is not None and not os.path.isdir(repo):
        raise SettingError(f"there is no folder `{repo}`", hint="`repo` is a folder of a repository that has the commit")
    is_there = os.path.isabs(snapshot.root) and os.path.isdir(snapshot.root)
    folder = os.path.abspath(repo) if repo is not None else snapshot.root if is_there else os.getcwd()
    assert snapshot.commit is not None
    fetch = f"fetch it there, from {snapshot.remote}" if snapshot.remote else "fetch it there"
    try:
        has_it = has_commit(folder, snapshot.commit)
    except GitFailedError as error:
        raise SettingError(
            f"there is no repository to take commit {snapshot.commit} from",
            where=folder,
            why=str(error),
            hint=None
            if not error.is_no_repository
            else "name one: `--repo DIR`" + (f"; a clone of {snapshot.remote} may have it" if snapshot.remote else ""),
        ) from None
    if not has_it:
        raise SettingError(
            f"the repository `{folder}` does not have the commit {snapshot.commit}", hint=f"{fetch}, or name another one: `--repo DIR`"
        )
    return folder


def _check_room(folder: str, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise SettingError(f"the snapshot claims {size:,} bytes, and `{folder}` has room for {free:,}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---- what is done


def _restore(snapshot: Snapshot, source: str, files: Mapping[str, KeptFile], folder: str, repository: str | None) -> list[str]:
    """Make the tree in `folder`; what is not as it was in it."""
    if repository is None or snapshot.commit is None:
        git(folder, "init", "--quiet", "--template=", is_look=False)
    else:
        _check_out(repository, snapshot.commit, folder)
    tree = Tree(folder)
    try:
        for path in snapshot.deleted:
            tree.delete(path)
        _write(tree, source, files)
        _verify(tree, source, files)
        lost = _restore_submodules(snapshot, tree, folder, repository)
    except OSError as error:
        if error.errno not in _BLOCKED:
            raise
        raise damaged(os.path.join(source, FACTS), f"a file of it cannot be where it says: {error.strerror}") from None
    finally:
        tree.close()
    return [f"{each.path} ({each.reason})" for each in snapshot.lost()] + lost


def _check_out(repository: str, commit: str, folder: str) -> None:
    """Clone a repository into an empty folder, and write the files of a commit there, byte for byte."""
    shared = text(git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir", is_look=False).removesuffix(b"\n"))
    words = ("--quiet", "--no-checkout", "--local", "--template=", "--no-recurse-submodules", "--origin=origin")
    git(os.path.dirname(folder), "clone", *words, "--", shared, folder, is_look=False, settings=("clone.rejectShallow=false",))
    info = os.path.join(folder, ".git", "info")
    os.makedirs(info, exist_ok=True)
    attributes = os.path.join(info, "attributes")
    with open(attributes, "w") as file:
        file.write(_AS_THEY_ARE)
    settings = ("core.autocrlf=false", "core.symlinks=true", "core.fileMode=true", "core.sparseCheckout=false")
    git(folder, "checkout", "--quiet", "--force", "--detach", commit, is_look=False, settings=settings)
    os.unlink(attributes)


def _write(tree: Tree, source: str, files: Mapping[str, KeptFile]) -> None:
    with opened_archive(source, files) as members:
        links = []
        for member in members:
            if member.is_link:
                links.append((member.path, member.stream.read()))
                continue
            with tree.new_file(member.path, files[member.path].mode == PROGRAM_MODE) as file:
                shutil.copyfileobj(member.stream, file, _PART)
        for path, target in links:  # last, so that nothing is written where they lead
            tree.link(path, target)


def _verify(tree: Tree, source: str, files: Mapping[str, KeptFile]) -> None:
    """Read all that was written, and compare it with what the snapshot says."""
    for each in files.values():
        status = tree.status(each.path)
        is_as_wanted = stat.S_ISLNK(status.st_mode) if each.mode == LINK_MODE else stat.S_ISREG(status.st_mode)
        if each.mode != LINK_MODE:
            is_as_wanted &= bool(status.st_mode & stat.S_IXUSR) == (each.mode == PROGRAM_MODE)
        if not is_as_wanted or hashlib.sha256(tree.read(each.path, each.size)).hexdigest() != each.sha256:
            raise damaged(os.path.join(source, ARCHIVE), f"{each.path!r:.100} did not come out as `{FACTS}` says")


def _restore_submodules(snapshot: Snapshot, tree: Tree, folder: str, repository: str | None) -> list[str]:
    """Put the submodules back whose commits are at hand; what is missing of them."""
    lost = []
    for each in snapshot.submodules:
        if each.commit is None:
            continue  # it was not there, either
        tree.make_folder(each.path)
        place = f"{repository}/{each.path}"
        try:
            is_own = git(place, "rev-parse", "--show-prefix", is_look=False) == b"\n"  # else it is a folder of the repository around it
            if not is_own or not has_commit(place, each.commit):
                raise GitFailedError("it is not there")
            _check_out(place, each.commit, f"{folder}/{each.path}")
        except GitFailedError:
            lost.append(
                f"{each.path}/ (the submodule's commit {each.commit[:12]} is not at hand: `git submodule update --init` may fetch it)"
            )
            continue
        if each.is_dirty:
            lost.append(f"{each.path}/ (the submodule had changes, which are not kept)")
    return lost
