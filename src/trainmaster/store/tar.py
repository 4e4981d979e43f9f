"""Exports runs to tar files and imports them again. Archives are not trusted: every member is checked before anything is imported."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, Any, BinaryIO, NamedTuple, cast

from trainmaster.errors import ArchiveError, StoreAccessError
from trainmaster.store.attempt_records import EVENTS
from trainmaster.store.checksummed_json import damaged, parse_record, record_bytes
from trainmaster.store.events import read_lines
from trainmaster.store.files import MAX_RECORD, access_error, sync_folder
from trainmaster.store.memory_files import MemoryFiles
from trainmaster.store.transfer import CONFIG, RUN, PackedRun, check_facts

FORMAT = 1
HEADER = "trainmaster.json"
MAX_MEMBERS = 2_000_000
MAX_RATIO = 200
"""The maximum ratio of unpacked to packed size. Model weights barely compress, while a zip bomb has a huge ratio."""
_SLACK = 64 * 2**20
_MAX_HEADER = 256 * 2**10
"""The maximum total size in bytes of the headers before one member."""
_MEMBER = re.compile(
    r"(?a)(?P<key>[0-9a-f]{8,64})/(?P<file>config\.json|run\.json|events\.jsonl|step-\d{6,18}(-\d{1,9})?/(manifest\.json|tree\.json|tensors\.safetensors))"
)


# ---- writing


def export_tar(path: str | os.PathLike[str], packed_runs: Iterable[PackedRun], compresslevel: int) -> int:
    """Write runs to a tar file and return their number. The file appears only when it is complete."""
    target = os.fspath(path)
    aside = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tmp")
    count = 0
    try:
        with open(aside, "xb") as file:
            how: dict[str, Any] = {"mode": "w:gz", "compresslevel": compresslevel} if compresslevel else {"mode": "w"}
            with tarfile.open(fileobj=file, format=tarfile.PAX_FORMAT, **how) as archive:
                _add(archive, HEADER, record_bytes({"format": FORMAT}))
                for packed in packed_runs:
                    with contextlib.closing(packed):
                        _add_run(archive, packed)
                    count += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
        sync_folder(os.path.dirname(target) or ".")
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if isinstance(error, OSError) and not isinstance(error, StoreAccessError):
            raise access_error(error, target, "written") from error
        raise
    return count


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    _add_file(archive, name, io.BytesIO(data), len(data))


def _add_file(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, file)


def _add_run(archive: tarfile.TarFile, packed: PackedRun) -> None:
    _add(archive, f"{packed.key}/{CONFIG}", packed.config)
    _add(archive, f"{packed.key}/{RUN}", record_bytes(packed.facts))
    _add(archive, f"{packed.key}/{EVENTS}", b"".join(packed.numbered_events()))
    for name, opened in packed.files.items():
        with opened() as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(0)
            _add_file(archive, f"{packed.key}/{name}", file, size)


# ---- reading


def read_tar(path: str | os.PathLike[str], room: int, max_bytes: int | None) -> Iterator[PackedRun]:
    """Yield the runs in a tar file, after checking that all members are valid and not too large.

    The unpacked size must not exceed `room` (the free disk space in bytes) or `max_bytes` (by default a multiple of the file size).
    """
    name = os.fspath(path)
    with _opened(name) as source:
        limit = source.size * MAX_RATIO + _SLACK if max_bytes is None else max_bytes
        runs = _survey(source, name, min(room, limit), is_own_limit=max_bytes is None and limit < room)
        for key, members in runs.items():
            yield _read_run(source, name, key, members)


class _Source:
    """The uncompressed content of an archive. It raises an error if `tarfile` reads a header that is too large to be genuine."""

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file, self._name = file, name
        self.size = size
        self.budget = 0
        """The number of bytes of the current header that may still be read."""

    def read(self, size: int = -1) -> bytes:
        self.budget -= size
        if size < 0 or self.budget < 0:
            raise refused(self._name, "one of its headers is too large")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def part(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, starting at `offset`."""
        self._file.seek(offset)
        return self._file.read(size)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[_Source]:
    import gzip

    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a blocking open would wait forever if the file is a pipe
    except OSError as error:
        raise ArchiveError(f"`{name}` cannot be read: {error.strerror}", where=name) from error
    with os.fdopen(fd, "rb") as raw:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise refused(name, "it is not a regular file")
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield _Source(cast(BinaryIO, gzip.GzipFile(fileobj=raw) if is_gzip else raw), name, status.st_size)


class _Position(NamedTuple):
    """The position of a member in the archive."""

    offset: int
    size: int


def _survey(source: _Source, name: str, limit: int, is_own_limit: bool) -> dict[str, dict[str, _Position]]:
    """For each run, return the positions of its members by name. Raise an error if any member is invalid."""
    runs: dict[str, dict[str, _Position]] = {}
    total, has_header = 0, False
    for count, member in enumerate(_members(source, name)):
        total += member.size + tarfile.BLOCKSIZE
        shown = ascii(member.name)[:100]
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None or member.size < 0:
            raise refused(name, f"{shown} is not a regular file")
        if count >= MAX_MEMBERS:
            raise refused(name, f"it has more than {MAX_MEMBERS:,} members")
        if total > limit:
            hint = f"nothing was imported from it; if you trust the file, `max_bytes={total * 10}` allows more" if is_own_limit else None
            raise refused(name, f"it unpacks to more than {limit:,} bytes", hint)
        position = _Position(member.offset_data, member.size)
        if member.name == HEADER:
            if parse_record(_data(source, position, name), HEADER).get("format") != FORMAT:
                raise refused(name, "it has another format: another version of trainmaster wrote it")
            has_header = True
            continue
        match = _MEMBER.fullmatch(member.name)
        if match is None:
            raise refused(name, f"{shown} is not a file of a run")
        files = runs.setdefault(match["key"], {})
        if match["file"] in files:
            raise refused(name, f"{shown} occurs twice")
        if match["file"].endswith(".json") and member.size > MAX_RECORD:
            raise refused(name, f"{shown} is too large: {member.size:,} bytes")
        files[match["file"]] = position
    if not has_header:
        raise refused(name, f"it has no `{HEADER}`: it is not an archive of runs, or only a part of one")
    for key, files in runs.items():
        if CONFIG not in files or RUN not in files:
            raise refused(name, f"its run {key} has no config or no record")
    return runs


def _members(source: _Source, name: str) -> Iterator[tarfile.TarInfo]:
    """Yield all members of an archive.

    Raise an error if the archive does not end with two empty blocks, because such an archive is incomplete.
    """
    source.budget = _MAX_HEADER
    with tarfile.open(fileobj=cast(Any, source), mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # otherwise tarfile keeps all of them
            yield member
            source.budget = _MAX_HEADER
        if source.part(archive.offset, 2 * tarfile.BLOCKSIZE) != bytes(2 * tarfile.BLOCKSIZE):
            raise refused(name, "it is truncated, or damaged in the middle")


def _read_run(source: _Source, name: str, key: str, members: dict[str, _Position]) -> PackedRun:
    config = _data(source, members[CONFIG], name)
    path = f"{key}/{RUN}"
    facts = check_facts(parse_record(_data(source, members[RUN], name), path), path)
    events: list[bytes] = []
    if EVENTS in members:
        log = MemoryFiles()
        log.replace(EVENTS, _data(source, members[EVENTS], name))
        events = read_lines(log, EVENTS)
        if sum(map(len, events)) != members[EVENTS].size:
            raise damaged(f"{key}/{EVENTS}", "a line in it is damaged")
    files = {file: partial(cast(Any, _Member), source, position) for file, position in members.items() if "/" in file}
    return PackedRun(key, config, facts, events, files)


class _Member(io.RawIOBase):
    """A member of an archive as a readable file."""

    def __init__(self, source: _Source, position: _Position) -> None:
        self._source, self._position = source, position
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        left = self._position.size - self._read
        data = self._source.part(self._position.offset + self._read, left if size < 0 else min(size, left))
        self._read += len(data)
        return data


def _data(source: _Source, position: _Position, name: str) -> bytes:
    data = source.part(position.offset, position.size)
    if len(data) != position.size:
        raise refused(name, "it is truncated")
    return data


def refused(name: str, why: str, hint: str | None = None) -> ArchiveError:
    return ArchiveError(f"`{os.path.basename(name)}` was not imported", where=name, why=why, hint=hint or "nothing was imported from it")
