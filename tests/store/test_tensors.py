"""Tensor files are valid safetensors files, and every kind of damage is reported."""

from __future__ import annotations

import json
import pathlib
import tracemalloc
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainmaster.errors import StoreDamagedError
from trainmaster.store.codec import encode
from trainmaster.store.tensors import CODES, PIECE, chunks, read

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
NUMPY_DTYPES = [np.dtype(name) for name in CODES if hasattr(np, name)]
ARRAYS = hnp.arrays(st.sampled_from(NUMPY_DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def file(header: Any, data: bytes = b"") -> bytes:
    """Return a safetensors file with the given header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(start: int = 0, end: int = 8, dtype: str = "F64", shape: Iterable[int] = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [start, end]}


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, ARRAYS, max_size=5))
def test_arrays_are_read_by_safetensors_and_by_us(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    path = tmp_path_factory.mktemp("file", numbered=True) / "a.safetensors"
    data = b"".join(chunks(arrays))
    path.write_bytes(data)
    for found in (safetensors.numpy.load_file(path), read(str(path), arrays, []), read(data, arrays, [])):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape, found[name].tobytes()) == (array.dtype, array.shape, array.tobytes())


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, st.tuples(st.sampled_from([*CODES]), st.lists(st.integers(0, 4), max_size=3)), max_size=5))
def test_tensors_are_read_by_safetensors_and_by_us(
    tmp_path_factory: pytest.TempPathFactory, specs: dict[str, tuple[str, list[int]]]
) -> None:
    tensors = {name: torch.rand(shape).mul(9).to(getattr(torch, dtype)) for name, (dtype, shape) in specs.items()}
    path = tmp_path_factory.mktemp("file", numbered=True) / "a.safetensors"
    data = b"".join(chunks(tensors))
    path.write_bytes(data)
    for found in (safetensors.torch.load_file(path), read(str(path), [], tensors), read(data, [], tensors)):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape, bytes_of(found[name])) == (tensor.dtype, tensor.shape, bytes_of(tensor))


def test_the_data_is_in_order_of_decreasing_alignment() -> None:
    tensors = {"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(1, dtype=torch.float64), "c": np.ones(1, np.float32), "d": np.ones(1)}
    data = b"".join(chunks(tensors))
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert [*header] == ["b", "d", "c", "a"]
    assert length % 8 == 0
    assert all(each["data_offsets"][0] % tensors[name].itemsize == 0 for name, each in header.items())


def test_chunks_have_at_most_8_mib_and_are_not_copies() -> None:
    tensor = torch.zeros(5_000_000, dtype=torch.bfloat16)
    _, first, second = chunks({"a": tensor})
    assert [len(first), len(second)] == [PIECE, 10_000_000 - PIECE]
    tensor[0] = 1
    assert isinstance(first, memoryview)
    assert first[:2].tobytes() == bytes_of(tensor[:1])


def test_writing_100_mb_allocates_almost_no_memory() -> None:
    value = {
        "model": {f"{number}": torch.zeros(2_500_000) for number in range(9)},
        "array": np.zeros(1_250_000),
        "half": torch.zeros(5_000).half(),
    }
    addresses = {tensor.data_ptr() for tensor in value["model"].values()}  # type: ignore[attr-defined]
    tracemalloc.start()
    encoded = encode(value)
    size = sum(len(piece) for piece in chunks(encoded.tensors))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 100_000_000
    assert peak < 1_000_000  # memory that Python and NumPy allocate
    assert addresses <= {tensor.data_ptr() for tensor in encoded.tensors.values() if isinstance(tensor, torch.Tensor)}


def test_a_file_without_tensors_is_valid() -> None:
    data = b"".join(chunks({}))
    assert safetensors.numpy.load(data) == {}
    assert read(data, [], []) == {}


@pytest.mark.parametrize("name", ["__metadata__", "\ud800"])
def test_names_that_safetensors_cannot_read_are_not_written(name: str) -> None:
    data = b"".join(chunks(encode({name: np.ones(1)}).tensors))
    assert [*safetensors.numpy.load(data).values()] == [np.ones(1)]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "a.safetensors"


def test_tensors_that_are_read_have_their_own_memory(path: pathlib.Path) -> None:
    path.write_bytes(b"".join(chunks({"t": torch.arange(4.0), "a": np.arange(4.0)})))
    found = read(str(path), ["a"], ["t"])
    assert str(path) not in pathlib.Path("/proc/self/maps").read_text()
    path.write_bytes(b"")  # if the file were memory-mapped, this would crash the process
    found["t"] += 1
    found["a"] += 1
    assert found["t"].tolist() == found["a"].tolist() == [1, 2, 3, 4]
    found["t"].resize_(100)


def test_only_requested_tensors_are_read(path: pathlib.Path) -> None:
    path.write_bytes(b"".join(chunks({"t": torch.ones(1), "a": np.ones(1)})))
    assert read(str(path), ["a"], []).keys() == {"a"}
    assert read(path.read_bytes(), [], ["t"]).keys() == {"t"}


GOOD = file({"a": entry()}, b"12345678")
NAN = b'{"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}'
DAMAGED = {
    "empty": b"",
    "short": GOOD[:7],
    "cut header": GOOD[:30],
    "cut data": GOOD[:-1],
    "more data": GOOD + b"x",
    "no JSON": file(b"{nonsense}"),
    "a list": file([]),
    "no UTF-8": file(b'{"\xff": 1}'),
    "deep": file(b'{"a":' + b"[" * 100_000),
    "huge header": (2**63).to_bytes(8, "little") + b"{}",
    "100 MB header": (100_000_001).to_bytes(8, "little") + b"{}" + b" " * 1000,
    "overlap": file({"a": entry(0, 8), "b": entry(4, 12)}, b"1" * 12),
    "same bytes": file({"a": entry(), "b": entry()}, b"1" * 8),
    "hole": file({"a": entry(8, 16)}, b"1" * 16),
    "backwards": file({"a": entry(8, 0)}, b"1" * 8),
    "negative": file({"a": entry(-8, 0)}, b"1" * 8),
    "beyond": file({"a": entry(0, 2**63)}, b"1" * 8),
    "overflow": file({"a": entry(2**64 - 8, 2**64 - 1)}, b"1" * 8),
    "size": file({"a": entry(shape=[2])}, b"1" * 8),
    "huge shape": file({"a": entry(shape=[2**62, 2**62])}, b"1" * 8),
    "negative shape": file({"a": entry(shape=[-1])}, b"1" * 8),
    "dtype": file({"a": entry(dtype="F65")}, b"1" * 8),
    "no offsets": file({"a": {"dtype": "F64", "shape": [1]}}, b"1" * 8),
    "twice": file(NAN, b"1" * 8),
    "metadata": file({"__metadata__": {"a": 1}, "a": entry()}, b"1" * 8),
    "other name": file({"b": entry()}, b"1" * 8),
}


@pytest.mark.parametrize("is_array", [True, False], ids=["array", "tensor"])
@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_an_error_with_its_reason(path: pathlib.Path, data: bytes, is_array: bool) -> None:
    path.write_bytes(data)
    for source in (str(path), data):
        with pytest.raises(StoreDamagedError, match=r"^a file of tensors cannot be read\n  where   .*\n  why     \S"):
            read(source, ["a"] * is_array, ["a"] * (not is_array))


def test_a_dtype_that_numpy_lacks_cannot_be_read_as_an_array(path: pathlib.Path) -> None:
    data = b"".join(chunks({"a": torch.ones(1, dtype=torch.bfloat16)}))
    path.write_bytes(data)
    for source in (str(path), data):
        with pytest.raises(StoreDamagedError, match="why     "):
            read(source, ["a"], [])


def test_a_missing_file_is_an_error_with_its_path(path: pathlib.Path) -> None:
    with pytest.raises(StoreDamagedError, match=r"where   .*a\.safetensors"):
        read(str(path), [], [])


def test_the_error_names_a_missing_tensor() -> None:
    with pytest.raises(StoreDamagedError, match="why     `b`, `c` is missing"):
        read(GOOD, ["a", "b"], ["c"])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_file_with_a_changed_byte_is_read_or_raises_an_error(data: st.DataObject) -> None:
    good = b"".join(chunks({"a": np.arange(2.0), "b": torch.arange(3, dtype=torch.int16)}))
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]
    try:
        found = read(bad, ["a"], ["b"])
    except StoreDamagedError:
        return
    assert found.keys() == {"a", "b"}
