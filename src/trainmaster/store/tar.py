"""Archives: runs in one tar file, to be sent and read elsewhere. They are read member by member, and nothing in them is trusted."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, BinaryIO, cast

from trainmaster.errors import ArchiveError, StoreAccessError
from trainmaster.store.events import read_lines
from trainmaster.store.files import MAX_RECORD
from trainmaster.store.memory_files import MemoryFiles
from trainmaster.store.record import damaged, parse_record, record_bytes
from trainmaster.store.run import EVENTS
from trainmaster.store.transfer import CONFIG, RUN, Parcel, check_facts, facts_record

FORMAT = 1
HEADER = "trainmaster.json"
MAX_MEMBERS = 2_000_000
MAX_RATIO = 200
"""How many times its own size an archive may unpack to: weights hardly shrink, bombs do."""
_SLACK = 64 * 2**20
_LONGEST_READ = 2 * 2**20
_MEMBER = re.compile(
    r"(?P<key>[0-9a-f]{8,64})/(?P<file>config\.json|run\.json|events\.jsonl|step-\d{6,18}(-\d{1,9})?/(manifest\.json|tree\.json|tensors\.safetensors))"
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
        _sync_folder(os.path.dirname(target) or ".")
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        if isinstance(error, OSError) and not isinstance(error, StoreAccessError):
            raise StoreAccessError(f"`{target}` cannot be written: {error.strerror}", where=target) from error
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
    _add(archive, f"{parcel.key}/{RUN}", facts_record(parcel))
    _add(archive, f"{parcel.key}/{EVENTS}", b"".join(parcel.numbered_events()))
    for name, opened in parcel.files.items():
        with opened() as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(0)
            _add_file(archive, f"{parcel.key}/{name}", file, size)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


# ---- in


def read_tar(path: str | os.PathLike[str], room: int) -> Iterator[Parcel]:
    """The parcels of a tar file, once all its members are seen to be of the right kind and to fit into `room` bytes."""
    name = os.fspath(path)
    try:
        with _opened(name) as archive:
            runs = _survey(archive, name, room)
        with _opened(name) as archive:
            for key, members in runs.items():
                yield _parcel(archive, name, key, members)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, ArchiveError | StoreAccessError):
            raise
        raise ArchiveError(f"`{name}` cannot be read: {getattr(error, 'strerror', None) or error}", where=name) from error


@contextlib.contextmanager
def _opened(name: str) -> Iterator[tarfile.TarFile]:
    import gzip

    with open(name, "rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        source = cast(BinaryIO, gzip.GzipFile(fileobj=raw) if is_gzip else raw)
        with tarfile.open(fileobj=cast(Any, _Careful(source, name)), mode="r:") as archive:
            yield archive


class _Careful(io.RawIOBase):
    """A file of which nobody reads much at once: only a header that was made to fill the memory would ask for that."""

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source, self._name = source, name

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_READ:
            raise refused(self._name, f"a header in it claims {size:,} bytes")
        return self._source.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _survey(archive: tarfile.TarFile, name: str, room: int) -> dict[str, dict[str, tarfile.TarInfo]]:
    """The members of each run, in the order they stand; the first that is not right refuses the whole archive."""
    limit = min(room, os.stat(name).st_size * MAX_RATIO + _SLACK)
    runs: dict[str, dict[str, tarfile.TarInfo]] = {}
    total, count, has_header = 0, 0, False
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
        count, total = count + 1, total + member.size
        shown = ascii(member.name)[:100]
        if not member.isreg() or member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
            raise refused(name, f"{shown} is no plain file")
        if count > MAX_MEMBERS:
            raise refused(name, f"it has more than {MAX_MEMBERS:,} members")
        if total > limit:
            raise refused(name, f"it unpacks to more than {limit:,} bytes")
        if member.name == HEADER:
            data = _data(archive, member, name)
            if parse_record(data, HEADER).get("format") != FORMAT:
                raise refused(name, "it has another format: it was made by another version of trainmaster")
            has_header = True
            continue
        found = _MEMBER.fullmatch(member.name)
        if found is None:
            raise refused(name, f"{shown} is no file of a run")
        files = runs.setdefault(found["key"], {})
        if found["file"] in files:
            raise refused(name, f"{shown} is in it twice")
        if not found["file"].endswith(".safetensors") and member.size > MAX_RECORD:
            raise refused(name, f"{shown} claims {member.size:,} bytes")
        files[found["file"]] = member
    if not has_header:
        raise refused(name, f"it has no `{HEADER}`: it is no archive of runs, or only a part of one")
    for key, files in runs.items():
        if CONFIG not in files or RUN not in files:
            raise refused(name, f"run {key} in it has no config or no record")
    return runs


def _parcel(archive: tarfile.TarFile, name: str, key: str, members: dict[str, tarfile.TarInfo]) -> Parcel:
    config = _data(archive, members[CONFIG], name)
    path = f"{key}/{RUN}"
    facts = check_facts(parse_record(_data(archive, members[RUN], name), path), path)
    events: list[bytes] = []
    if EVENTS in members:
        log = MemoryFiles()
        log.replace(EVENTS, _data(archive, members[EVENTS], name))
        events = read_lines(log, EVENTS)
        if sum(map(len, events)) != members[EVENTS].size:
            raise damaged(f"{key}/{EVENTS}", "a line in it is not whole")
    files = {file: _opener(archive, member, name) for file, member in members.items() if "/" in file}
    return Parcel(key, config, facts, events, files)


def _opener(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Callable[[], BinaryIO]:
    return lambda: cast(BinaryIO, _Member(archive, member, name))


class _Member(io.RawIOBase):
    """A member, read in small pieces."""

    def __init__(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
        self._source = archive.extractfile(member)
        self._name = name

    def read(self, size: int = -1) -> bytes:
        assert self._source is not None
        return self._source.read(min(size, _LONGEST_READ) if size >= 0 else _LONGEST_READ)


def _data(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> bytes:
    parts = []
    file = _Member(archive, member, name)
    while part := file.read(_LONGEST_READ // 2):
        parts.append(part)
    data = b"".join(parts)
    if len(data) != member.size:
        raise refused(name, f"{ascii(member.name)[:100]} is cut off")
    return data


def refused(name: str, why: str) -> ArchiveError:
    return ArchiveError(f"`{os.path.basename(name)}` is not imported", where=name, why=why, hint="nothing of it was imported")


def free_space(root: str) -> int:
    return shutil.disk_usage(root).free
