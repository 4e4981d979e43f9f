"""Writes and reads the safetensors file of a checkpoint.

NumPy and torch are imported only if they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainmaster.errors import CodecError, StoreDamagedError
from trainmaster.store.layout import CODES, bytes_of, dtype_name

MAX_HEADER = 100_000_000
"""The maximum size of a header in bytes. The safetensors library has the same limit."""
PIECE = 8 * 2**20


def chunks(tensors: Mapping[str, Any]) -> Iterator[memoryview | bytes]:
    """Yield the content of a safetensors file with these tensors, in chunks and without copying the data.

    The tensors are sorted by decreasing item size, so each of them is aligned and can be memory-mapped.

    >>> import numpy as np
    >>> b"".join(chunks({"a": np.zeros(2, np.int16)}))[8:]
    b'{"a":{"dtype":"I16","shape":[2],"data_offsets":[0,4]}}  \\x00\\x00\\x00\\x00'
    """
    header: dict[str, Any] = {}
    data: list[memoryview] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        view = memoryview(bytes_of(tensor))
        start, end = end, end + view.nbytes
        header[name] = {"dtype": CODES[dtype_name(tensor)], "shape": list(tensor.shape), "data_offsets": [start, end]}
        data.append(view)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise CodecError(f"{len(tensors):,} tensors are more than one file can hold", why="the names and shapes are at most 100 MB")
    return _pieces(len(text).to_bytes(8, "little") + text, data)


def _pieces(header: bytes, data: Iterable[memoryview]) -> Iterator[memoryview | bytes]:
    yield header
    for view in data:
        for start in range(0, view.nbytes, PIECE):
            yield view[start : start + PIECE]


def read(source: str | bytes, arrays: Iterable[str], tensors: Iterable[str]) -> dict[str, Any]:
    """Read arrays and tensors by name from a safetensors file, given as a path or as bytes. Each result has its own memory.

    Raise `StoreDamagedError` if the file is invalid. torch is imported only if `tensors` is not empty.
    """
    where = source if isinstance(source, str) else f"{len(source):,} bytes"
    try:
        return _read_bytes(source, [*arrays], [*tensors]) if isinstance(source, bytes) else _read_path(source, [*arrays], [*tensors])
    except MemoryError:  # safetensors has checked the sizes against the file length, so the file really does not fit into memory
        raise
    except Exception as error:  # for an invalid file, safetensors, NumPy, torch and the system raise various errors
        why = str(error.args[0]) if isinstance(error, KeyError) and error.args else f"{error}"
        raise StoreDamagedError("a file of tensors cannot be read", where=where, why=why or type(error).__name__) from error


def _read_path(path: str, arrays: list[str], tensors: list[str]) -> dict[str, Any]:
    from safetensors import safe_open

    found: dict[str, Any] = {}
    # Use `pread` instead of a memory map, because the process would crash if a mapped file were truncated.
    with safe_open(path, framework="np", backend="pread") as file:
        with open(path, "rb") as raw:
            _check_duplicates(raw.read(int.from_bytes(raw.read(8), "little")))
        _check_missing(file.keys(), arrays, tensors)
        for name in arrays:
            found[name] = file.get_tensor(name)
    if tensors:
        with safe_open(path, framework="pt", backend="pread") as file:
            for name in tensors:
                found[name] = file.get_tensor(name).clone()  # torch can resize the copy, but not the original
    return found


def _read_bytes(data: bytes, arrays: list[str], tensors: list[str]) -> dict[str, Any]:
    import safetensors

    deserialize: Any = safetensors.deserialize  # safetensors has no type annotations for it
    stored = dict(deserialize(data))
    _check_duplicates(data[8 : 8 + int.from_bytes(data[:8], "little")])
    _check_missing(stored, arrays, tensors)
    names = {code: name for name, code in CODES.items()}
    found: dict[str, Any] = {}
    for name in arrays:
        import numpy

        raw, dtype = stored[name]["data"], names[stored[name]["dtype"]]
        found[name] = numpy.frombuffer(raw, dtype=numpy.dtype(dtype)).reshape(stored[name]["shape"])
    for name in tensors:
        import torch

        raw, dtype, shape = stored[name]["data"], getattr(torch, names[stored[name]["dtype"]]), stored[name]["shape"]
        flat = torch.frombuffer(raw, dtype=dtype).clone() if raw else torch.empty(0, dtype=dtype, device="cpu")
        found[name] = flat.reshape(shape)
    return found


def _check_missing(names: Iterable[str], arrays: list[str], tensors: list[str]) -> None:
    missing = sorted({*arrays, *tensors} - {*names})
    if missing:
        raise ValueError(f"{', '.join(f'`{name}`' for name in missing[:5])}{' ...' if len(missing) > 5 else ''} is missing")


def _check_duplicates(header: bytes) -> None:
    """Raise an error if a name appears twice in the header. The safetensors library does not check for this."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("its header has a name twice")

    json.loads(header, object_pairs_hook=check)
