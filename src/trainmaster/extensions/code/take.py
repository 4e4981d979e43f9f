"""Taking a snapshot: git says what may differ from the commit, the bytes on the disk say what does.

Nothing here depends on the user's settings of git, and nothing of the repository is changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from trainmaster.config.secrets import Mask
from trainmaster.extensions.code.git import Deadline, GitFailedError, raw, text
from trainmaster.extensions.code.repository import (
    GITLINK,
    State,
    Tracked,
    converted_in,
    patch_of,
    remote_of,
    state_of,
    subject_of,
    submodules_in,
    tracked_in,
)
from trainmaster.extensions.code.snapshot import (
    CHANGED,
    FILE_MODE,
    HIDDEN,
    IGNORED,
    LINK_MODE,
    OTHER,
    PROGRAM_MODE,
    UNTRACKED,
    Contents,
    KeptFile,
    LeftOut,
    Snapshot,
    archive_of,
    is_new_source,
)
from trainmaster.extensions.code.sources import has_ending, is_script, is_secret_name, is_source_name
from trainmaster.extensions.code.tree import GONE, Tree

MAX_NAMED: Final = 1000
"""How many of the new and ignored files that are left out are named: a folder of images has a million."""
_LOOK: Final = 8000
"""How many bytes tell whether a file is text."""
_OUTPUT = re.compile(r"(?:(.*)/)?(store\.json|code/[^/]+/code\.json|checkpoints/step-\d+[^/]*/manifest\.json)", re.DOTALL)
"""Files by which a folder that trainings wrote is known."""
_OUTPUT_FOLDERS: Final = ("code", "checkpoints", "plots", "capsules", "tensorboard", "configs", "stats", "ckpts", "previews", "index")
"""What they make there."""


class Limits(NamedTuple):
    max_file_size: int = 1_000_000
    max_total_size: int = 20_000_000


_taken: dict[tuple[object, ...], Contents | GitFailedError] = {}
_lock = threading.Lock()


def taken(root: str, limits: Limits, values: Sequence[str], outputs: Sequence[str]) -> tuple[Contents | GitFailedError, bool]:
    """The snapshot of a repository, and whether it is new. It is taken once: the code in memory is that of the first time.

    Why none could be taken is kept as well: a git that hangs is waited for once.
    """
    key = (root, limits, tuple(values))
    with _lock:
        is_new = key not in _taken
        if is_new:
            try:
                _taken[key] = take(root, limits, values, outputs)
            except GitFailedError as error:
                _taken[key] = error
            except Exception as error:  # whatever a disk or another version of git comes up with, training goes on
                _taken[key] = GitFailedError(f"{root} cannot be read: {type(error).__name__}: {error}")
        return _taken[key], is_new


def take(root: str, limits: Limits, values: Sequence[str] = (), outputs: Sequence[str] = ()) -> Contents:
    """The snapshot of the repository at `root`.

    Args:
        values: secrets; a file that has one of them is left out, and the patch is without them. Plain words among them are passed over:
            the code of a training is full of `postgres`, whatever somebody's password is.
        outputs: folders that trainings write to, of which nothing new is kept.
    """
    deadline, mask = Deadline(), Mask(values).of_strong()
    state = state_of(root, deadline)
    tracked = tracked_in(root, deadline)
    tree = Tree(root)
    try:
        kept = _Keeper(tree, limits, mask)
        deleted = []
        for each in state.changed:
            status = tree.find(each.path)
            if status is not None and not stat.S_ISDIR(status.st_mode):
                kept.keep(each.path, CHANGED, status)
            elif each.is_in_commit and (status is None or each.mode != GITLINK):
                deleted.append(each.path)
        shown = [each.path for each in state.changed]
        for one, found in _unlike(root, state, tracked, limits, deadline):
            if found is None:
                deleted.append(one.path)
            elif isinstance(found, str):
                kept.leave_out(one.path, HIDDEN, found)
            else:
                kept.keep(one.path, CHANGED if one.is_skipped else HIDDEN, found)
        is_changed = bool(state.changed) or any(each.kind == CHANGED for each in kept.files) or bool(kept.lost(CHANGED))
        _keep_untracked(state, kept, tree, _places(root, state, outputs))
    finally:
        tree.close()
    patch = b""
    if state.commit is not None:
        lost = kept.lost(CHANGED)
        patch = patch_of(root, [path for path in shown if path not in {*lost}], lost, limits.max_file_size, deadline)
    submodules = tuple(submodules_in(root, tracked, deadline))
    snapshot = Snapshot(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        root=root,
        commit=state.commit,
        branch=None if state.branch is None else mask(state.branch),
        remote=None if (remote := remote_of(root, deadline)) is None else mask(remote),
        subject="" if state.commit is None else mask(subject_of(root, state.commit, deadline)),
        is_dirty=is_changed or any(map(is_new_source, kept.named())) or state.commit is None,
        submodules=submodules,
        files=tuple(sorted(kept.files)),
        deleted=tuple(sorted(deleted)),
        left_out=tuple(kept.left_out),
        num_unnamed=kept.num_unnamed,
    )
    return Contents(snapshot, raw(mask(text(patch))), archive_of(kept.bytes_by_path))


class _Keeper:
    """Collects the bytes of files, within limits and without secrets."""

    def __init__(self, tree: Tree, limits: Limits, mask: Mask) -> None:
        self._tree, self._limits, self._mask = tree, limits, mask
        self.files: list[KeptFile] = []
        self.left_out: list[LeftOut] = []
        self.num_unnamed = 0
        self.bytes_by_path: dict[str, tuple[str, bytes]] = {}
        self._total = 0

    def keep(self, path: str, kind: str, status: os.stat_result) -> None:
        """Keep a file, or name it with the reason why not."""
        is_link = stat.S_ISLNK(status.st_mode)
        data = b""
        why = self._wrong(path, status)
        if not why:
            try:
                data = self._tree.read(path, self._limits.max_file_size)
            except OSError as error:
                why = f"it cannot be read: {error.strerror}"
        why = why or self._wrong_bytes(data)
        if why:
            self.leave_out(path, kind, why)
            return
        mode = LINK_MODE if is_link else PROGRAM_MODE if status.st_mode & stat.S_IXUSR else FILE_MODE
        self._total += len(data)
        self.bytes_by_path[path] = (mode, data)
        self.files.append(KeptFile(path, mode, len(data), hashlib.sha256(data).hexdigest(), kind))

    def leave_out(self, path: str, kind: str, why: str) -> None:
        """Name a file that is not kept. What the commit has is always named."""
        if kind in (OTHER, IGNORED) and len(self.left_out) >= MAX_NAMED:
            self.num_unnamed += 1
        else:
            self.left_out.append(LeftOut(path, kind, why))

    def named(self) -> list[KeptFile | LeftOut]:
        return [*self.files, *self.left_out]

    def lost(self, kind: str) -> list[str]:
        return [each.path for each in self.left_out if each.kind == kind]

    def _wrong(self, path: str, status: os.stat_result) -> str:
        is_link, size, most = stat.S_ISLNK(status.st_mode), status.st_size, self._limits.max_file_size
        if not is_link and not stat.S_ISREG(status.st_mode):
            return "it is no plain file"
        if not is_link and is_secret_name(path):
            return "its name is that of a secret"
        if size > most:
            return f"its {size:,} bytes are above max_file_size={most:,}"
        if self._total + size > self._limits.max_total_size:
            return f"all files together are above max_total_size={self._limits.max_total_size:,}"
        return ""

    def _wrong_bytes(self, data: bytes) -> str:
        if len(data) > self._limits.max_file_size:
            return f"it grows beyond max_file_size={self._limits.max_file_size:,}"
        if self._mask and (said := text(data)) != self._mask(said):
            return "it has the value of a secret"
        return ""


def _unlike(
    root: str, state: State, tracked: Sequence[Tracked], limits: Limits, deadline: Deadline
) -> Iterator[tuple[Tracked, os.stat_result | str | None]]:
    """The files that git shows no change of, and that are not on the disk as in the commit: by line endings, filters, modes, flags.

    Each comes with its status, None where it is not there, or the reason why it cannot be kept.
    """
    shown = {each.path for each in state.changed}
    calm = [each for each in tracked if each.mode != GITLINK and each.path not in shown]
    converted = converted_in(root, [each.path for each in calm], deadline)
    folder = raw(root)
    for each in calm:
        place = os.path.join(folder, raw(each.path))
        try:
            status = os.lstat(place)
        except OSError as error:
            if error.errno not in GONE:
                raise
            yield each, None
            continue
        is_program = bool(status.st_mode & stat.S_IXUSR)
        mode = LINK_MODE if stat.S_ISLNK(status.st_mode) else PROGRAM_MODE if is_program else FILE_MODE
        if mode == each.mode and not each.is_skipped and (each.path not in converted or mode == LINK_MODE):
            continue
        if converted.get(each.path) and status.st_size > limits.max_file_size:
            why = f"git's filter `{converted[each.path]}` writes it, and its {status.st_size:,} bytes are above max_file_size"
            yield each, why
        elif mode != each.mode or _blob(place, status, each.blob) != each.blob:
            yield each, status


def _blob(place: bytes, status: os.stat_result, like: str) -> str:
    """The name that git has for the bytes of a file."""
    found = hashlib.new("sha1" if len(like) == 40 else "sha256", usedforsecurity=False)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(place)
        found.update(b"blob %d\0%b" % (len(target), target))
        return found.hexdigest()
    found.update(b"blob %d\0" % status.st_size)
    try:
        with open(place, "rb") as file:
            while part := file.read(2**20):
                found.update(part)
    except OSError:
        return ""
    return found.hexdigest()


def _keep_untracked(state: State, kept: _Keeper, tree: Tree, places: set[str]) -> None:
    """Keep the new source files. What is ignored, or written by trainings, is named."""
    named = set()
    seen = {each.path for each in state.changed}  # taken out of the index, and still there
    for path in sorted(state.untracked):
        place = next((each for each in _parents(path) if each in places), None)
        if place is not None:
            if place not in named:
                named.add(place)
                kept.leave_out(f"{place}/", OTHER, "trainings write there")
        elif path.endswith("/"):
            kept.leave_out(path, OTHER, "it is a repository of its own")
        elif path not in seen:
            status = tree.find(path)
            if status is not None and _is_source(path, status, tree):
                kept.keep(path, UNTRACKED, status)
            elif status is not None:
                kept.leave_out(path, OTHER, "it is no source file")
    for path in sorted(state.ignored):
        if path not in seen:
            kept.leave_out(path, IGNORED, "git ignores it")


def _is_source(path: str, status: os.stat_result, tree: Tree) -> bool:
    """Whether a new file is part of the code: by its name, and text. Links are: they say where data lies. So are secrets, to be named."""
    if stat.S_ISLNK(status.st_mode) or is_secret_name(path):
        return True
    if has_ending(path) and not is_source_name(path):
        return False
    try:
        start = tree.read(path, _LOOK)
    except OSError:  # whoever reads all of it says why
        return True
    return b"\0" not in start and (is_source_name(path) or is_script(start))


def _places(root: str, state: State, outputs: Sequence[str]) -> set[str]:
    """The folders, below `root`, that trainings write to: those that are known, and those that look so."""
    top = os.path.realpath(root)
    places = set()
    for each in outputs:
        inside = os.path.relpath(os.path.realpath(each), top)
        if not inside.startswith(".."):
            places.add("" if inside == "." else inside)
    for path in state.untracked:
        found = _OUTPUT.fullmatch(path)
        if found is not None:
            place = found[1] or ""
            start = f"{place}/configs/" if place else "configs/"
            if found[2] != "store.json" or any(other.startswith(start) for other in state.untracked):
                places.add(place)
    if "" in places:  # not all of the repository: only what they make
        places.remove("")
        places |= {*_OUTPUT_FOLDERS}
    return places


def _parents(path: str) -> Iterator[str]:
    at = path.find("/")
    while at >= 0:
        yield path[:at]
        at = path.find("/", at + 1)
