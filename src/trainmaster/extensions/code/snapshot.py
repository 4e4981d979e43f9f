"""A snapshot of a program's code: the commit, and the bytes of all that differs from it.

```text
code/3f2a91c0d1e2-8d1e02aa/     the commit and a hash of the changes, or `-clean`
  code.json                     commit, branch, remote, submodules; each file that is kept, deleted or left out
  changes.patch                 `git diff HEAD`, for people
  files.tar                     the bytes of each changed or new file
```
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any, Final, NamedTuple

from trainmaster.errors import StoreDamagedError, StoreFormatError
from trainmaster.extensions.code.sources import is_secret_name
from trainmaster.store.files import MAX_RECORD
from trainmaster.store.record import parse_record, record_bytes

FORMAT: Final = 1
FACTS, PATCH, ARCHIVE = "code.json", "changes.patch", "files.tar"
FOLDER: Final = "code"
"""Where snapshots lie below `train_dir`."""
CLEAN: Final = "clean"
FILE_MODE, PROGRAM_MODE, LINK_MODE = "100644", "100755", "120000"
CHANGED, UNTRACKED, HIDDEN, OTHER, IGNORED = "changed", "untracked", "hidden", "other", "ignored"
"""What kept and left-out files are. *Hidden* ones differ from the commit's bytes though git shows no change (line endings, filters);
*other* ones are new, and no source files."""

_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK: Final = 4096
"""More than the headers of one member of an archive take, its name apart."""


class KeptFile(NamedTuple):
    path: str
    mode: str
    size: int
    sha256: str
    kind: str


class LeftOut(NamedTuple):
    path: str
    kind: str
    reason: str


class Submodule(NamedTuple):
    path: str
    commit: str | None
    """None where it is not there: `git submodule update --init` was not called."""
    is_dirty: bool


@dataclass(frozen=True)
class Snapshot:
    """All that is known of the code. Paths are below `root`, with slashes; bytes that are no UTF-8 are surrogates in them."""

    taken: str
    root: str
    commit: str | None
    """None in a repository without any commit."""
    branch: str | None
    """None where the head is detached."""
    remote: str | None
    subject: str
    is_dirty: bool
    """The commit alone is not the code: something is changed, deleted or new."""
    submodules: tuple[Submodule, ...]
    files: tuple[KeptFile, ...]
    deleted: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    num_unnamed: int
    """How many more were left out: new or ignored ones, beyond the first thousand."""

    @property
    def changes(self) -> str:
        """A hash of all that differs from the commit."""
        lost = [each for each in self.left_out if each.kind in (CHANGED, HIDDEN) or is_new_source(each)]
        if not (self.is_dirty or self.files or self.deleted or lost):
            return CLEAN
        parts = [self.files, self.deleted, self.submodules, lost]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        return f"{(self.commit or 'no-commit')[:12]}-{self.changes}"

    def count(self, kind: str) -> int:
        """How many files of a kind are kept."""
        return sum(each.kind == kind for each in self.files)

    def lost(self) -> list[LeftOut]:
        """What was left out and is part of the code."""
        return [each for each in self.left_out if each.kind not in (OTHER, IGNORED)]

    def dirty_paths(self) -> list[str]:
        """What is not as in the commit."""
        named: list[KeptFile | LeftOut] = [*self.files, *self.left_out]
        files = [each.path for each in named if each.kind == CHANGED or is_new_source(each)]
        return sorted({*files, *self.deleted, *(each.path for each in self.submodules if each.is_dirty)})


def is_new_source(file: KeptFile | LeftOut) -> bool:
    """Whether a file is new and part of the code, kept or not. One that is named like a secret is named, and no code."""
    return file.kind == UNTRACKED and not is_secret_name(file.path)


class Contents(NamedTuple):
    """A snapshot with the bytes of its files."""

    snapshot: Snapshot
    patch: bytes
    archive: bytes


def archive_of(files: Mapping[str, tuple[str, bytes]]) -> bytes:
    """Files, by path with mode and bytes, as a tar file; the same files are the same bytes."""
    stream = io.BytesIO()
    # GNU's format has names as bytes, of any encoding.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape") as archive:
        for path, (mode, data) in sorted(files.items()):
            member = tarfile.TarInfo(path)
            if mode == LINK_MODE:
                member.type, member.mode, member.linkname = tarfile.SYMTYPE, 0o777, data.decode("utf-8", "surrogateescape")
                archive.addfile(member)
            else:
                member.size, member.mode = len(data), 0o755 if mode == PROGRAM_MODE else 0o644
                archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


# ---- out


def write(contents: Contents, folder: str, like: str | None = None) -> str:
    """Write a snapshot below `folder`, unless it is there already; its path. It appears whole or not at all.

    `like` is a folder that has the same snapshot: where it can be, its large files are linked, so that a thousand runs take one's space.
    """
    path = os.path.join(folder, contents.snapshot.name)
    if os.path.exists(os.path.join(path, FACTS)):
        return path
    os.makedirs(folder, exist_ok=True)
    aside = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    os.mkdir(aside)
    try:
        for name, data in ((PATCH, contents.patch), (ARCHIVE, contents.archive)):
            if like is None or not _is_linked(os.path.join(like, name), os.path.join(aside, name)):
                _write_file(os.path.join(aside, name), data)
        _write_file(os.path.join(aside, FACTS), _facts(contents.snapshot))
        os.rename(aside, path)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError) and os.path.exists(os.path.join(path, FACTS)):  # somebody else was first
            return path
        raise
    return path


def _is_linked(source: str, target: str) -> bool:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        return False
    return True


def _write_file(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _facts(snapshot: Snapshot) -> bytes:
    lists = {name: [each._asdict() for each in getattr(snapshot, name)] for name in ("submodules", "files", "left_out")}
    return record_bytes({"format": FORMAT, **asdict(snapshot), **lists, "changes": snapshot.changes})


# ---- in


def snapshots_in(folder: str) -> list[str]:
    """The folders of the snapshots below a folder `code`, oldest first."""
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [os.path.join(folder, name) for name in names if os.path.isfile(os.path.join(folder, name, FACTS))]
    return sorted(found, key=lambda path: (os.stat(os.path.join(path, FACTS)).st_mtime_ns, path))


def read(folder: str) -> Snapshot:
    """The facts of a snapshot; nothing in them is trusted to be what this version wrote."""
    path = os.path.join(folder, FACTS)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_RECORD + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreFormatError(f"`{folder}` is no snapshot of code: it has no `{FACTS}`") from None
    if len(data) > MAX_RECORD:
        raise damaged(path, f"it has more than {MAX_RECORD:,} bytes")
    record = parse_record(data, path)
    if record.get("format") != FORMAT:
        raise StoreFormatError(f"`{path}` has the format {record.get('format')!r:.20}, and this version reads {FORMAT}")
    try:
        return _checked(record)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"it does not say what a snapshot says: {error}") from None


def _checked(record: Mapping[str, Any]) -> Snapshot:
    """The snapshot of a record; a `ValueError` for values of a wrong kind. Paths are checked by whoever writes to them."""

    def of(kind: type, value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r:.40} is no {kind.__name__}")
        return value

    def commit(value: Any) -> str | None:
        if value is not None and _COMMIT.fullmatch(of(str, value)) is None:
            raise ValueError(f"{value!r:.60} is no commit")
        return value if value is None else str(value)

    files = []
    for each in of(list, record["files"]):
        file = KeptFile(of(str, each["path"]), each["mode"], of(int, each["size"]), of(str, each["sha256"]), of(str, each["kind"]))
        if file.mode not in (FILE_MODE, PROGRAM_MODE, LINK_MODE) or file.size < 0 or _SHA256.fullmatch(file.sha256) is None:
            raise ValueError(f"mode, size or hash of {file.path!r:.60} are wrong")
        files.append(file)
    return Snapshot(
        taken=of(str, record["taken"]),
        root=of(str, record["root"]),
        commit=commit(record["commit"]),
        branch=record["branch"] if record["branch"] is None else of(str, record["branch"]),
        remote=record["remote"] if record["remote"] is None else of(str, record["remote"]),
        subject=of(str, record["subject"]),
        is_dirty=of(bool, record["is_dirty"]),
        submodules=tuple(
            Submodule(of(str, each["path"]), commit(each["commit"]), of(bool, each["is_dirty"])) for each in of(list, record["submodules"])
        ),
        files=tuple(files),
        deleted=tuple(of(str, each) for each in of(list, record["deleted"])),
        left_out=tuple(LeftOut(*(of(str, each[name]) for name in LeftOut._fields)) for each in of(list, record["left_out"])),
        num_unnamed=of(int, record["num_unnamed"]),
    )


class Member(NamedTuple):
    """One file of an archive, to be read before the next one is asked for."""

    path: str
    is_link: bool
    size: int
    stream: IO[bytes]


@contextlib.contextmanager
def opened_archive(folder: str, files: Mapping[str, KeptFile]) -> Iterator[Iterator[Member]]:
    """The members of an archive. One that is larger than the files it should have, or has others, is refused."""
    path = os.path.join(folder, ARCHIVE)
    room = 16 * _BLOCK + sum(each.size + _BLOCK + 2 * len(each.path.encode("utf-8", "surrogateescape")) for each in files.values())
    if not os.path.isfile(path):
        raise damaged(path, "it is missing")
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size > room:
            raise damaged(path, "it is larger than the files that it should have")
        try:
            with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
                yield _members(archive, path, files)
        except tarfile.TarError as error:
            raise damaged(path, f"it is no tar file: {error}") from None


def _members(archive: tarfile.TarFile, path: str, files: Mapping[str, KeptFile]) -> Iterator[Member]:
    left = dict(files)
    for member in archive:
        wanted = left.pop(member.name, None)
        is_link = member.type == tarfile.SYMTYPE
        if wanted is None or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.SYMTYPE) or member.sparse is not None:
            raise damaged(path, f"{member.name!r:.100} in it is not one of the files that it should have")
        target = member.linkname.encode("utf-8", "surrogateescape")
        size = len(target) if is_link else member.size
        if is_link != (wanted.mode == LINK_MODE) or size != wanted.size:
            raise damaged(path, f"{member.name!r:.100} in it is of another kind or size than `{FACTS}` says")
        stream = io.BytesIO(target) if is_link else archive.extractfile(member)
        assert stream is not None  # only folders and devices have none
        yield Member(member.name, is_link, size, stream)
    if left:
        raise damaged(path, f"{next(iter(left))!r:.100} is missing in it")


def damaged(path: str, why: str) -> StoreDamagedError:
    return StoreDamagedError.of(path, why, "nothing of it is used; take it from a copy of the run")
