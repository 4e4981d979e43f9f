"""Reads checkpoints with malicious tensor files, with a memory limit; `test_hostile_store.py` runs this program.

Prints, as JSON, the result for each file and the peak memory. Every manifest matches its files, because an attacker
controls all of them.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import sys
import warnings
from pathlib import Path

import safetensors.numpy  # noqa: F401 - before the memory is limited

from trainmaster.store import Store
from trainmaster.store.checksummed_json import parse_record, record_bytes

MB = 2**20


def memory(field: str) -> float:
    """Return a field of `/proc/self/status` in MB: `VmRSS` is the current use, `VmHWM` the peak since `forget_peak`."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def main() -> None:
    root, key, folder, seed, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    tensors, manifest_path = root / folder / "tensors.safetensors", root / folder / "manifest.json"
    original = tensors.read_bytes()
    manifest = parse_record(manifest_path.read_bytes(), "")
    size = int.from_bytes(original[:8], "little")
    header, data = json.loads(original[8 : 8 + size]), original[8 + size :]
    (name,) = header
    about = header[name]

    def file_of(text: bytes, rest: bytes = data, length: int | None = None) -> bytes:
        return (len(text) if length is None else length).to_bytes(8, "little") + text + rest

    def with_about(**changes: object) -> bytes:
        return file_of(json.dumps({name: {**about, **changes}}).encode())

    plain = json.dumps(header).encode()
    twice = json.dumps(header)[:-1] + ", " + json.dumps(header)[1:]
    named = {
        "empty": b"",
        "four bytes": original[:4],
        "a header alone": original[: 8 + size],
        "no end": original[:-1],
        "a byte more": original + b"\0",
        "a header of 2^63 bytes": file_of(plain, length=2**63),
        "a header of 2^64-1 bytes": file_of(plain, length=2**64 - 1),
        "a header of 2^62 bytes": file_of(plain, length=2**62),
        "a header that claims 100 MB": file_of(plain, length=100 * MB),
        "a header of nothing": file_of(b""),
        "100 MB of spaces": file_of(plain + b" " * (101 * 10**6)),
        "5 MB of names": file_of(
            json.dumps({f"{number:060}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(42_000)}).encode(), b""
        ),
        "a name of 5 MB": file_of(json.dumps({"a" * 5_000_000: about}).encode()),
        "nested deep": file_of(b'{"a":' * 100_000),
        "no JSON": file_of(b"\xff" * 100),
        "a list": file_of(b"[]"),
        "no tensors": file_of(b"{}", b""),
        "another name": file_of(json.dumps({"other": about}).encode()),
        "a name twice": file_of(twice.encode()),
        "two that overlap": file_of(json.dumps({**header, "second": about}).encode()),
        "a gap": file_of(json.dumps({**header, "second": {**about, "data_offsets": [64, 112]}}).encode(), data + data + bytes(16)),
        "offsets backwards": with_about(data_offsets=[48, 0]),
        "offsets behind the end": with_about(data_offsets=[0, 2**40]),
        "negative offsets": with_about(data_offsets=[-48, 0]),
        "offsets of 2^64": with_about(data_offsets=[2**64 - 48, 2**64 - 1]),
        "one offset": with_about(data_offsets=[0]),
        "a dtype nobody knows": with_about(dtype="O"),
        "a dtype of another size": with_about(dtype="F32"),
        "a shape that is too large": with_about(shape=[2, 2**40]),
        "a shape that overflows": with_about(shape=[2**32, 2**32, 2**32]),
        "a shape of no size": with_about(shape=[0]),
        "a negative shape": with_about(shape=[-2, -3]),
        "a shape of 100,000 dimensions": with_about(shape=[1] * 100_000),
        "metadata of another kind": file_of(json.dumps({**header, "__metadata__": {"a": [1]}}).encode()),
        "a zip": b"PK\3\4" + bytes(1000),
        "zeros": bytes(10_000),
    }

    def put(content: bytes) -> None:
        tensors.write_bytes(content)
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest_path.write_bytes(record_bytes({**manifest, "files": {**manifest["files"], "tensors.safetensors": facts}}))

    def read() -> str:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                latest = Store(root).run(key).latest()
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        assert latest is not None
        return f"StoreDamagedError: {caught[0].message}" if caught else f"read step {latest.name.step}"

    read()
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 1500 * MB, now + 1500 * MB))
    said, grown = {}, {}
    for each, content in named.items():
        put(content)
        forget_peak()
        before = memory("VmRSS")
        said[each] = read()
        grown[each] = memory("VmHWM") - before

    chance = random.Random(seed)
    counts: dict[str, int] = {}
    crashes = {}
    for number in range(count):
        content = bytearray(original)
        for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
            where = chance.randrange(len(content)) if chance.random() < 0.2 else chance.randrange(8 + size)
            act = chance.randrange(4)
            if act == 0:
                content[where] ^= 1 << chance.randrange(8)
            elif act == 1:
                content[where] = chance.choice(b'0123456789-[]{}",:\0\xff')
            elif act == 2:
                del content[where : where + chance.randrange(1, 9)]
            else:
                content[where:where] = bytes(chance.choice(b'09-[]{},"e.\0') for _ in range(chance.randrange(1, 9)))
            if not content:
                break
        if chance.random() < 0.7 and len(content) > 8:  # often, the length field matches the header
            content[:8] = max(0, size + len(content) - len(original)).to_bytes(8, "little")
        put(bytes(content))
        kind = read().partition(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
        if kind not in ("StoreDamagedError", f"read step {4}"):
            crashes[number] = kind
    json.dump({"named": said, "counts": counts, "crashes": crashes, "wanted": count, "grown_mb": grown}, sys.stdout)


if __name__ == "__main__":
    main()
