"""Captures the files of a repository as a git bundle, with their exact bytes on disk.

Git writes the bundle in a temporary repository. The files are written with `fast-import`, which ignores git attributes
and settings, so line endings are not converted and filters are not applied.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from trainmaster.config.masking import Mask
from trainmaster.extensions.code.git import GitError, deadline, git, raw, repository_of, text
from trainmaster.extensions.code.repository import patch_of, read_working_tree, remote_of
from trainmaster.extensions.code.secret_names import is_secret_name
from trainmaster.extensions.code.snapshot import BRANCH, Capture, LeftOut, Snapshot

MAX_NAMED: Final = 1000
"""The maximum number of new or left-out files that are listed. A folder of images may contain a million files."""
_OUTPUT = re.compile(
    r"(?:(.*)/)?(?:configs/[0-9a-f]{2}/[0-9a-f]{8,64}\.json|code/[^/]+/code\.json|checkpoints/step-\d+[^/]*/manifest\.json)", re.DOTALL
)
"""Matches files that are written only by training. A folder that contains such files is treated as an output folder."""
_OUTPUT_FOLDERS: Final = ("code", "checkpoints", "plots", "capsules", "tensorboard", "configs", "stats", "ckpts", "previews", "index")
_PACKING: Final = ("core.compression=1", "pack.compression=1", "pack.window=0", "fastimport.unpackLimit=0", "core.ignoreCase=false")
"""Git settings. Compression is fast rather than strong, and git writes one pack instead of many loose objects, because
training does not start until git is done."""


class Limits(NamedTuple):
    max_file_size: int = 1_000_000
    max_total_size: int = 20_000_000


_captures: dict[tuple[object, ...], Capture | GitError] = {}
_lock = threading.Lock()


def capture_once(paths: Sequence[str], limits: Limits, values: Sequence[str], outputs: Sequence[str]) -> tuple[Capture | GitError, bool]:
    """Return a snapshot of the first repository that contains one of `paths`, and whether the snapshot is new.

    Later training runs in the same process get the same snapshot, because they use the code that is already in memory.
    A failure is returned as a `GitError` and cached too, so if git hangs, only the first run waits for it.
    """
    key = (tuple(paths), limits, tuple(values))
    with _lock:
        is_new = key not in _captures
        if is_new:
            try:
                _captures[key] = capture(_first_repository(paths), limits, values, outputs)
            except Exception as error:  # a disk error or a git error must not stop training
                _captures[key] = error if isinstance(error, GitError) else GitError(f"{type(error).__name__}: {error}")
        return _captures[key], is_new


def _first_repository(paths: Sequence[str]) -> str:
    for path in paths:
        try:
            return repository_of(path if os.path.isdir(path) else os.path.dirname(path))
        except GitError as error:
            if not error.is_no_repository:
                raise
    raise GitError(f"there is no git repository at {', '.join(paths)}")


def capture(root: str, limits: Limits, values: Sequence[str] = (), outputs: Sequence[str] = ()) -> Capture:
    """Take a snapshot of the repository at `root`.

    Args:
        values: secrets. Files that contain a secret are left out, and secrets in the patch are replaced with `***`.
            Secrets that are plain words, such as the password `postgres`, are ignored, because these words are common
            in code.
        outputs: folders with the output of training, which are left out.
    """
    until, mask = deadline(), Mask(values).only_strong()
    with tempfile.TemporaryDirectory(prefix="trainmaster-code-") as scratch:
        tree = read_working_tree(root, scratch, until)
        folders = _output_folders(root, tree.untracked, outputs)
        new = [path for path in tree.untracked if path not in tree.changed and not path.startswith(folders)]
        # Changed files come first, then new files. Unchanged files come last, because the commit contains them anyway.
        ranks = {**dict.fromkeys(tree.tracked, 2), **dict.fromkeys(new, 1), **dict.fromkeys(tree.changed, 0)}
        on_disk = _on_disk(root, ranks)
        order = sorted(on_disk, key=lambda path: (ranks[path], on_disk[path].st_size, path))
        unchanged = {path for path in order if ranks[path] == 2}
        files, left_out = _read(root, {path: on_disk[path] for path in order}, unchanged, limits, mask, until)
        commit, branch = tree.repositories[0].commit, tree.repositories[0].branch
        tree_id, bundle = _bundle(commit, files, scratch, until)
        patch = patch_of(tree, (each.path for each in left_out), limits.max_file_size, until)
    unread = tree.unreadable | dict.fromkeys((path for path in new if path.endswith("/")), "it is a separate repository")
    left_out = [*(LeftOut(path, reason, False) for path, reason in unread.items()), *left_out]
    new = sorted(path for path in new if path in on_disk and not is_secret_name(path))
    changed = {path for path in tree.changed if path in on_disk or path in tree.submodules}
    subject = git(root, "rev-list", "--max-count=1", "--format=%s", commit, "--", until=until) if commit else b""
    snapshot = Snapshot(
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        root=root,
        commit=commit,
        branch=branch and mask(branch),
        remote=(remote := remote_of(root, until)) and mask(remote),
        subject=mask(subject.decode("utf-8", "replace").partition("\n")[2].rstrip("\n")),
        tree=tree_id,
        submodules=tree.submodules,
        changed=tuple(sorted(changed)),
        deleted=tuple(sorted(path for path, is_in_commit in tree.changed.items() if is_in_commit and path not in changed)),
        new=tuple(new[:MAX_NAMED]),
        num_new=len(new),
        left_out=tuple(left_out[:MAX_NAMED]),
        num_left_out=len(left_out),
    )
    return Capture(snapshot, bundle, raw(mask(text(patch))))


def _output_folders(root: str, untracked: Iterable[str], outputs: Iterable[str]) -> tuple[str, ...]:
    """Return the output folders, each with a slash at the end: those in `outputs`, and folders that contain typical output files."""
    relative = (os.path.relpath(os.path.realpath(each), os.path.realpath(root)) for each in outputs)
    folders = {"" if each == "." else each for each in relative if not each.startswith("..")}
    folders |= {match[1] or "" for path in untracked if (match := _OUTPUT.fullmatch(path))}
    if "" in folders:  # training writes to the root, so leave out only the folders that it creates there
        folders = folders - {""} | {*_OUTPUT_FOLDERS}
    return tuple(f"{each}/" for each in folders)


def _on_disk(root: str, paths: Iterable[str]) -> dict[str, os.stat_result]:
    """Return the `lstat` result of each path that exists and is not a folder. Paths below a symbolic link are left out."""
    top = os.path.realpath(raw(root))

    @functools.cache
    def is_plain(folder: bytes) -> bool:
        return os.path.realpath(folder) == folder

    statuses = {}
    for path in paths:
        full_path = top + b"/" + raw(path)
        try:
            status = os.lstat(full_path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            continue
        if not stat.S_ISDIR(status.st_mode) and is_plain(os.path.dirname(full_path)):
            statuses[path] = status
    return statuses


_File = tuple[bytes, bytes]
"""The mode and the bytes of a file."""


def _read(
    root: str, statuses: Mapping[str, os.stat_result], unchanged: set[str], limits: Limits, mask: Mask, until: float
) -> tuple[dict[str, _File], list[LeftOut]]:
    """Return all files that are within the limits and contain no secrets, and a list of the files that are left out, with the reasons."""
    files: dict[str, _File] = {}
    left_out = []
    total = 0
    for path, status in statuses.items():
        if time.monotonic() > until:
            raise GitError(f"reading the files of {root} takes too long")
        is_link, size, data, reason = stat.S_ISLNK(status.st_mode), status.st_size, b"", ""
        if not is_link and not stat.S_ISREG(status.st_mode):
            reason = "it is not a regular file"
        elif not is_link and is_secret_name(path):
            reason = "its name looks like a secret"
        elif path not in unchanged and size > limits.max_file_size:
            reason = f"its {size:,} bytes exceed max_file_size={limits.max_file_size:,}"
        elif total + size > limits.max_total_size:
            reason = f"with its {size:,} bytes, the files together exceed max_total_size={limits.max_total_size:,}"
        else:
            try:
                data = _content(raw(f"{root}/{path}"), is_link)
            except OSError as error:
                reason = f"it cannot be read: {error.strerror}"
            if mask and mask.is_in(text(data)):
                reason = "it contains the value of a secret"
        if reason:
            left_out.append(LeftOut(path, reason, path in unchanged))
        else:
            total += len(data)
            files[path] = (b"120000" if is_link else b"100755" if status.st_mode & stat.S_IXUSR else b"100644", data)
    return files, left_out


def _content(path: bytes, is_link: bool) -> bytes:
    """Return the bytes of a file, or the target of a symbolic link."""
    if is_link:
        return os.readlink(path)
    # Non-blocking, because the file may have become a pipe in the meantime.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        return file.read()


def _bundle(commit: str | None, files: Mapping[str, _File], scratch: str, until: float) -> tuple[str, bytes]:
    """Return the id of the git tree of `files`, and a git bundle that contains the files in one commit."""
    git(scratch, "init", "--quiet", "--bare", "--template=", "--object-format=sha1", until=until)
    message = f"Code at commit {commit}\n" if commit else "Code without a commit\n"
    head = f"commit {BRANCH}\ncommitter trainmaster <trainmaster@localhost> {int(time.time())} +0000\ndata {len(message)}\n{message}"
    lines = [head.encode()]
    for path, (mode, data) in files.items():
        name = b'"%b"' % raw(path).replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n")
        lines.append(b"M %b inline %b\ndata %d\n%b\n" % (mode, name, len(data), data))
    git(scratch, "fast-import", "--quiet", "--depth=0", stdin=b"".join(lines), until=until, settings=_PACKING)
    git(scratch, "bundle", "create", "--quiet", "bundle", BRANCH, until=until, settings=_PACKING)
    with open(os.path.join(scratch, "bundle"), "rb") as file:
        return text(git(scratch, "rev-parse", f"{BRANCH}^{{tree}}", until=until).strip()), file.read()
