"""Loads small archives that expand to large ones, each in a process with little memory, for `test_hostile_archive.py`.

Prints, as JSON, the result for each archive, the time and memory it took, and the files it left in the store.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainmaster.store import Store

MB, GB = 2**20, 2**30


def main() -> None:
    good, place = Path(sys.argv[1]), Path(sys.argv[2])
    with tarfile.open(good) as archive:
        names = archive.getnames()
    key = names[1].partition("/")[0]
    start = gzip.decompress(good.read_bytes())
    start = start[: len(start.rstrip(b"\0")) // 512 * 512 + 512]

    def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.type = size, kind
        return info.tobuf(tarfile.GNU_FORMAT)

    def zipped(*parts: bytes | tuple[bytes, int]) -> bytes:
        """Return a gzip file with several parts, each of which may be repeated many times."""
        found = b""
        for part in parts:
            data, times = part if isinstance(part, tuple) else (part, 1)
            found += (small_zeros if data is zeros else gzip.compress(data, 6)) * times
        return found

    def pax(**headers: str) -> bytes:
        data = b""
        for name, value in headers.items():
            name = name.replace("__", ".")
            length = len(f" {name}={value}\n") + 3
            data += f"{length:03} {name}={value}\n".encode()
        return header("x", len(data), tarfile.XHDTYPE) + data.ljust(-(-len(data) // 512) * 512, b"\0")

    def sparse_chain(blocks: int) -> bytes:
        head = bytearray(header(f"{key}/step-000099/tree.json", 0, tarfile.GNUTYPE_SPARSE))
        head[482] = 1
        head[148:156] = b" " * 8
        head[148:156] = b"%06o\0 " % sum(head)
        block = b"00000000001\0" * 42 + b"\1" + bytes(7)
        return zipped(start + bytes(head), (block * 2000, blocks // 2000))

    zeros = bytes(64 * MB)
    small_zeros = gzip.compress(zeros, 9)
    tensors, tree = f"{key}/step-000099/tensors.safetensors", f"{key}/step-000099/tree.json"
    BOMBS: dict[str, Callable[[], bytes]] = {
        "10 GB of zeros": lambda: zipped((zeros, 160)),
        "a member of 10 GB of zeros": lambda: zipped(start + header(tensors, 160 * 64 * MB), (zeros, 160)),
        "a record of 10 GB of zeros": lambda: zipped(start + header(tree, 160 * 64 * MB), (zeros, 160)),
        "many members of 2 GB in all": lambda: zipped(
            start, *(part for number in range(32) for part in (header(tensors.replace("0099", f"{number:04}"), 64 * MB), (zeros, 1)))
        ),
        "a pax header of 1 GB": lambda: zipped(start + header("x", GB, tarfile.XHDTYPE), (zeros, 16)),
        "a global pax header of 1 GB": lambda: zipped(start + header("x", GB, tarfile.XGLTYPE), (zeros, 16)),
        "a long name of 1 GB": lambda: zipped(start + header("x", GB, tarfile.GNUTYPE_LONGNAME), (zeros, 16)),
        "a long link of 1 GB": lambda: zipped(start + header("x", GB, tarfile.GNUTYPE_LONGLINK), (zeros, 16)),
        "2,000 nested pax headers": lambda: zipped(start, (header("x", 0, tarfile.XHDTYPE), 2000)),
        "400 global pax headers of 1 MB": lambda: zipped(
            start,
            *(
                header("x", MB, tarfile.XGLTYPE) + (f"{MB - 1} k{number:03}=".encode() + b"a" * MB)[: MB - 2] + b"\n\0"
                for number in range(400)
            ),
        ),
        "a sparse map of 10^9 parts": lambda: zipped(
            start + pax(GNU__sparse__major="1", GNU__sparse__minor="0") + header(tree, 512) + b"1000000000\n", (b"0\n" * (8 * MB), 40)
        ),
        "a chain of sparse headers": lambda: sparse_chain(1_000_000),
        "a sparse file of 10 TB": lambda: zipped(
            start + pax(GNU__sparse__size=str(10**13), GNU__sparse__map="0,0", GNU__sparse__name="x") + header(tree, 0), bytes(1024)
        ),
        "a million blocks between members": lambda: zipped(start + header(tensors, 10**12), (zeros, 8)),
    }

    def load(path: Path, root: Path) -> dict[str, Any]:
        """Load an archive in this process, which exits afterwards."""
        store = Store(root)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + 800 * MB, now + 800 * MB))
        signal.alarm(8)
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        try:
            said = f"imported {store.load_tar(path)}"
        except BaseException as error:
            said = f"{type(error).__name__}: {str(error)[:300]}"
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        left = sorted(str(each.relative_to(root)) for each in root.rglob("*"))
        return {"said": said, "seconds": time.process_time() - started, "grown_mb": grown / 1024, "files": left}

    found = {}
    for name, make in BOMBS.items():
        path = place / "bomb.tar.gz"
        path.write_bytes(make())
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                result = load(path, place / f"store-{zlib.crc32(name.encode())}")
            except BaseException as error:
                result = {"said": repr(error)}
            with open(writer, "w") as file:
                json.dump(result, file)
            os._exit(0)
        os.close(writer)
        with open(reader) as file:
            text = file.read()
        status = os.waitpid(child, 0)[1]
        found[name] = (
            json.loads(text) if text else {"said": f"ended by signal {os.WTERMSIG(status)}", "grown_mb": 0, "seconds": 0, "files": []}
        )
        found[name]["archive_bytes"] = path.stat().st_size
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
