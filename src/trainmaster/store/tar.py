"""Archives: runs in one tar file, to be sent and read elsewhere. They are read member by member, and nothing in them is trusted."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import stat
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import IO, Any, BinaryIO, NamedTuple, cast

from trainmaster.errors import ArchiveError, StoreAccessError
from trainmaster.store.events import read_lines
from trainmaster.store.files import MAX_RECORD, access_error, sync_folder
from trainmaster.store.memory_files import MemoryFiles
from trainmaster.store.record import damaged, parse_record, record_bytes
from trainmaster.store.run import EVENTS
from trainmaster.store.transfer import CONFIG, RUN, Parcel, check_facts

FORMAT = 1
HEADER = "trainmaster.json"
MAX_MEMBERS = 2_000_000
MAX_RATIO = 200
"""How many times its own size an archive may unpack to: weights hardly shrink, bombs do."""
_SLACK = 64 * 2**20
_MAX_HEADER = 256 * 2**10
"""How many bytes of headers may stand before one member."""
_MEMBER = re.compile(
    r"(?a)(?P<key>[0-9a-f]{8,64})/(?P<file>config\.json|run\.json|events\.jsonl|step-\d{6,18}(-\d{1,9})?/(manifest\.json|tree\.json|tensors\.safetensors))"
)


# ---- out


def export_tar(path: str | os.PathLike[str], parcels: Iterable[Parcel], compresslevel: int) -> int:
    """Write parcels to a tar file, which appears whole or not at all; how many."""
    target = os.fspath(path)
    aside = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tmp")
    count = 0
    try:
        with open(aside, "xb") as file:
            with _writer(file, compresslevel) as archive:
                _add(archive, HEADER, record_bytes({"format": FORMAT}))
                for parcel in parcels:
                    with contextlib.closing(parcel):
                        _add_parcel(archive, parcel)
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


def _writer(file: BinaryIO, compresslevel: int) -> tarfile.TarFile:
    if compresslevel == 0:
        return tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)
    return tarfile.open(fileobj=file, mode="w:gz", compresslevel=compresslevel, format=tarfile.PAX_FORMAT)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    _add_file(archive, name, io.BytesIO(data), len(data))


def _add_file(archive: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, file)


def _add_parcel(archive: tarfile.TarFile, parcel: Parcel) -> None:
    _add(archive, f"{parcel.key}/{CONFIG}", parcel.config)
    _add(archive, f"{parcel.key}/{RUN}", record_bytes(parcel.facts))
    _add(archive, f"{parcel.key}/{EVENTS}", b"".join(parcel.numbered_events()))
    for name, opened in parcel.files.items():
        with opened() as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(0)
            _add_file(archive, f"{parcel.key}/{name}", file, size)


# ---- in


def read_tar(path: str | os.PathLike[str], room: int, max_bytes: int | None) -> Iterator[Parcel]:
    """The parcels of a tar file, once all its members are seen to be of the right kind and to fit into `room` bytes.

    What it unpacks to is limited by `max_bytes`, or else by its own size: weights hardly shrink, bombs do.
    """
    name = os.fspath(path)
    with _opened(name) as source:
        limit = source.size * MAX_RATIO + _SLACK if max_bytes is None else max_bytes
        runs = _survey(source, name, min(room, limit), is_own_limit=max_bytes is None and limit < room)
        for key, members in runs.items():
            yield _parcel(source, name, key, members)


class _Source(io.RawIOBase):
    """An archive, unpacked, of which nobody reads much at once: only a header that was made to fill the memory would ask for that."""

    def __init__(self, file: BinaryIO, name: str, size: int) -> None:
        self._file, self._name = file, name
        self.size = size
        self.budget = 0
        """How many bytes may be read of the header at hand."""

    def read(self, size: int = -1) -> bytes:
        self.budget -= size
        if size < 0 or self.budget < 0:
            raise refused(self._name, "a header in it claims too much")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def part(self, offset: int, size: int) -> bytes:
        """Some bytes of a member."""
        self._file.seek(offset)
        return self._file.read(size)


@contextlib.contextmanager
def _opened(name: str) -> Iterator[_Source]:
    import gzip

    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # not blocking: it may be a pipe
    except OSError as error:
        raise ArchiveError(f"`{name}` cannot be read: {error.strerror}", where=name) from error
    with os.fdopen(fd, "rb") as raw:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise refused(name, "it is no plain file")
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield _Source(cast(BinaryIO, gzip.GzipFile(fileobj=raw) if is_gzip else raw), name, status.st_size)


class _Place(NamedTuple):
    """Where a member lies in the archive."""

    offset: int
    size: int


def _survey(source: _Source, name: str, limit: int, is_own_limit: bool) -> dict[str, dict[str, _Place]]:
    """The members of each run, in the order they stand; the first that is not right refuses the whole archive."""
    runs: dict[str, dict[str, _Place]] = {}
    total, has_header = 0, False
    for count, member in enumerate(_members(source, name)):
        total += member.size + tarfile.BLOCKSIZE
        shown = ascii(member.name)[:100]
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None or member.size < 0:
            raise refused(name, f"{shown} is no plain file")
        if count >= MAX_MEMBERS:
            raise refused(name, f"it has more than {MAX_MEMBERS:,} members")
        if total > limit:
            hint = f"nothing of it was imported; if you trust it, `max_bytes={total * 10}` allows more" if is_own_limit else None
            raise refused(name, f"it unpacks to more than {limit:,} bytes", hint)
        place = _Place(member.offset_data, member.size)
        if member.name == HEADER:
            if parse_record(_data(source, place, name), HEADER).get("format") != FORMAT:
                raise refused(name, "it has another format: it was made by another version of trainmaster")
            has_header = True
            continue
        found = _MEMBER.fullmatch(member.name)
        if found is None:
            raise refused(name, f"{shown} is no file of a run")
        files = runs.setdefault(found["key"], {})
        if found["file"] in files:
            raise refused(name, f"{shown} is in it twice")
        if found["file"].endswith(".json") and member.size > MAX_RECORD:
            raise refused(name, f"{shown} claims {member.size:,} bytes")
        files[found["file"]] = place
    if not has_header:
        raise refused(name, f"it has no `{HEADER}`: it is no archive of runs, or only a part of one")
    for key, files in runs.items():
        if CONFIG not in files or RUN not in files:
            raise refused(name, f"run {key} in it has no config or no record")
    return runs


def _members(source: _Source, name: str) -> Iterator[tarfile.TarInfo]:
    """The members up to the two empty blocks that end an archive."""
    source.budget = _MAX_HEADER
    with tarfile.open(fileobj=cast(Any, source), mode="r:") as archive:
        while (member := archive.next()) is not None:
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
            yield member
            source.budget = _MAX_HEADER
        if source.part(archive.offset, 2 * tarfile.BLOCKSIZE) != bytes(2 * tarfile.BLOCKSIZE):
            raise refused(name, "it is cut off, or damaged in the middle")


def _parcel(source: _Source, name: str, key: str, members: dict[str, _Place]) -> Parcel:
    config = _data(source, members[CONFIG], name)
    path = f"{key}/{RUN}"
    facts = check_facts(parse_record(_data(source, members[RUN], name), path), path)
    events: list[bytes] = []
    if EVENTS in members:
        log = MemoryFiles()
        log.replace(EVENTS, _data(source, members[EVENTS], name))
        events = read_lines(log, EVENTS)
        if sum(map(len, events)) != members[EVENTS].size:
            raise damaged(f"{key}/{EVENTS}", "a line in it is not whole")
    files = {file: partial(_member, source, place) for file, place in members.items() if "/" in file}
    return Parcel(key, config, facts, events, files)


def _member(source: _Source, place: _Place) -> BinaryIO:
    return cast(BinaryIO, _Member(source, place))


class _Member(io.RawIOBase):
    """A member, to be read from its start."""

    def __init__(self, source: _Source, place: _Place) -> None:
        self._source, self._place = source, place
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        left = self._place.size - self._read
        data = self._source.part(self._place.offset + self._read, left if size < 0 else min(size, left))
        self._read += len(data)
        return data


def _data(source: _Source, place: _Place, name: str) -> bytes:
    data = source.part(place.offset, place.size)
    if len(data) != place.size:
        raise refused(name, "it is cut off")
    return data


def refused(name: str, why: str, hint: str | None = None) -> ArchiveError:
    return ArchiveError(f"`{os.path.basename(name)}` is not imported", where=name, why=why, hint=hint or "nothing of it was imported")


def free_space(root: str) -> int:
    return shutil.disk_usage(root).free
