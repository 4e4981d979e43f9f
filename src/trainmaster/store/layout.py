"""The memory layout of arrays and tensors. A checkpoint stores it, so that strides and shared memory can be restored.

The tensors passed to safetensors are contiguous and on the CPU. They share memory with the originals unless a copy is
needed. A safetensors file cannot store strides, shared memory or some dtypes. This information is stored in the JSON
tree, as a small dict called the *layout*. NumPy and torch are imported only if a value needs them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Maps the names of dtypes in NumPy and torch to the names in safetensors files. Other dtypes are stored as bytes."""

AS_BYTES = ("complex128", "complex32", "float8_e8m0fnu", "float4_e2m1fn_x2")
"""Other supported torch dtypes, which are stored as bytes. torch cannot copy tensors of the remaining, unsupported dtypes."""

ALIGNMENT = 16
"""A multiple of every dtype's size, so that bytes aligned to it can be viewed as any dtype."""
MAX_DIMENSIONS = 64
MAX_EMPTY_ITEM = 2**16
"""The maximum item size of an empty array in bytes. It is limited because an empty array has no data to check the item size against."""

_ARRAY_DTYPE = re.compile(r"[<>|](?:[biufc]\d{1,2}|[US]\d{1,9}|[mM]8(?:\[(?:[1-9]\d{0,9})?(?:[YMWDhms]|ms|us|ns|ps|fs|as)\])?)")

Layout = dict[str, Any]


class StoredAt(NamedTuple):
    """Where a tensor is stored: the index of the stored tensor that contains its data, and its layout in that tensor."""

    owner: int
    layout: Layout


def dtype_name(tensor: Any) -> str:
    """Return the name of a dtype. NumPy and torch use the same names, except for NumPy dtypes with non-native byte order."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensor: Any) -> Any:
    """Return the bytes of a contiguous tensor or array as a flat NumPy array that shares its memory."""
    if not hasattr(tensor, "untyped_storage"):
        import numpy

        return tensor.reshape(-1).view(numpy.uint8) if tensor.nbytes else numpy.empty(0, numpy.uint8)
    return _as_bytes(tensor.detach().contiguous()).numpy()


def _as_bytes(tensor: Any) -> Any:
    """Return the bytes of a contiguous tensor as a flat tensor.

    `Tensor.view` is not used, because it fails for some strides if there is at most one element.
    """
    import torch

    start, size = tensor.storage_offset() * tensor.itemsize, tensor.numel() * tensor.itemsize
    return _view(tensor.untyped_storage(), torch.uint8, [size], [1], start)


# Arrays


def wrong_array(array: Any) -> str:
    """Return the reason why a NumPy array cannot be stored, or an empty string if it can."""
    if not is_plain_dtype(array.dtype.str):
        return f"of dtype {array.dtype}: only numbers, texts, bytes and times are stored"
    if not array.size and array.dtype.itemsize > MAX_EMPTY_ITEM:
        return f"empty, with items of {array.dtype.itemsize:,} bytes each"
    return ""


def lay_out_array(array: Any) -> tuple[Any, Layout]:
    """Return the contiguous array to store instead of `array`, and the layout from which `array` can be restored.

    The data is copied only if there are gaps between the array's items in memory.
    """
    axes = _axes(array)
    if not array.transpose(axes).flags.c_contiguous:
        array = array.copy(order="K")
        axes = _axes(array)
    stored = array.transpose(axes)
    layout: Layout = {}
    if dtype_name(array) not in CODES:
        layout |= {"dtype": array.dtype.str, "shape": list(array.shape)}
        stored = bytes_of(stored)
    if axes != [*range(array.ndim)]:
        layout["axes"] = axes
    return stored, layout


def _axes(array: Any) -> list[int]:
    """Return the axes of an array, sorted by decreasing stride."""
    axes = [*range(array.ndim)]
    return axes if array.flags.c_contiguous else sorted(axes, key=lambda axis: -abs(array.strides[axis]))


def rebuild_array(stored: Any, layout: Layout) -> Any:
    """Return the original array. Raise `ValueError` if the layout does not fit the stored data."""
    import numpy

    if type(stored) is not numpy.ndarray or not stored.flags.c_contiguous:
        raise ValueError("the stored value is not an array")
    shape = _numbers(layout.get("shape", [*stored.shape]))
    axes = _numbers(layout.get("axes", [*range(len(shape))]))
    if sorted(axes) != [*range(len(shape))]:
        raise ValueError("its axes do not match its shape")
    if "dtype" in layout:
        dtype = plain_dtype(layout["dtype"])
        size = math.prod(shape) * dtype.itemsize
        if stored.dtype != numpy.uint8 or stored.nbytes != size or (not math.prod(shape) and dtype.itemsize > MAX_EMPTY_ITEM):
            raise ValueError(f"{stored.nbytes:,} bytes are stored for the {size:,} of its shape and dtype")
        stored = numpy.ndarray([shape[axis] for axis in axes], dtype, stored)
    elif "shape" in layout:
        raise ValueError("a shape without a dtype")
    return stored.transpose([axes.index(axis) for axis in range(stored.ndim)]) if "axes" in layout else stored


def plain_dtype(text: Any) -> Any:
    """Return the NumPy dtype for a string such as `<f4`. Raise `ValueError` for a dtype that cannot be stored."""
    import numpy

    if not is_plain_dtype(text):
        raise ValueError(f"{ascii(text)[:60]} is not a dtype that can be stored")
    try:
        return numpy.dtype(text)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{text} is unknown to this NumPy") from None


def is_plain_dtype(text: Any) -> bool:
    """Return whether a string describes a dtype of numbers, text, bytes or times."""
    return type(text) is str and _ARRAY_DTYPE.fullmatch(text) is not None


# Tensors


def wrong_tensor(tensor: Any) -> str:
    """Return the reason why a torch tensor cannot be stored, or an empty string if it can."""
    import torch

    if tensor.is_nested:
        return "nested: write `.unbind()`"
    if tensor.layout != torch.strided:
        return "sparse: write `.to_dense()`"
    if tensor.is_quantized:
        return "quantized: write `.dequantize()`"
    if tensor.dim() > MAX_DIMENSIONS:
        return f"of {tensor.dim()} dimensions: at most {MAX_DIMENSIONS} are stored"
    if tensor.device.type == "meta":
        return "on the meta device, without data"
    if dtype_name(tensor) not in CODES and dtype_name(tensor) not in AS_BYTES:
        return f"of dtype {tensor.dtype}: view it as torch.uint8"
    if _span(tensor)[1] > tensor.untyped_storage().nbytes():
        return "without its data: its storage was freed"
    return ""


def lay_out_tensors(tensors: Sequence[Any]) -> tuple[dict[int, Any], list[StoredAt]]:
    """Return the tensors to store, and the location of each of `tensors`.

    A stored tensor can hold the data of several input tensors. Its key is the index of the first of them in `tensors`.

    Tensors that overlap in memory are stored together, as one range of their storage. A tensor that does not overlap
    with any other tensor is stored on its own, without the rest of its storage. For example, two rows of a matrix are
    stored separately. Two columns are stored as one range, from the first to the last item.
    """
    plain = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
    stored: dict[int, Any] = {}
    locations: dict[int, StoredAt] = {}
    for numbers in _overlapping(plain):
        members = [plain[number] for number in numbers]
        if len({(tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype) for tensor in members}) == 1:
            members = [_without_gaps(members[0])] * len(members)
        kept, start = _kept(members)
        if dtype_name(kept) not in CODES:
            kept = _as_bytes(kept)
        stored[numbers[0]] = kept.cpu()
        for number, tensor in zip(numbers, members, strict=True):
            locations[number] = StoredAt(numbers[0], _layout(tensor, start, kept))
    return dict(sorted(stored.items())), [locations[number] for number in range(len(plain))]


def _span(tensor: Any) -> tuple[int, int]:
    """Return the byte range that a tensor occupies in its storage."""
    start = tensor.storage_offset() * tensor.itemsize
    return start, start + _reach(tensor.shape, tensor.stride()) * tensor.itemsize


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the size, in items, of the memory range from the first to the last item of a tensor."""
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1 if all(shape) else 0


def _overlapping(tensors: Sequence[Any]) -> Iterator[list[int]]:
    """Group tensors that overlap in memory, and yield the indices of each group.

    Most groups contain a single tensor.
    """
    storages: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.numel():
            storages.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append(number)
        else:
            yield [number]
    for numbers in storages.values():
        numbers.sort(key=lambda number: _span(tensors[number]))
        members: list[int] = []
        end = 0
        for number in numbers:
            start, stop = _span(tensors[number])
            if members and start >= end:
                yield sorted(members)
                members = []
            members.append(number)
            end = max(end, stop)
        yield sorted(members)


def _without_gaps(tensor: Any) -> Any:
    """Return the tensor itself or, if there are gaps between its items in memory, a copy without gaps."""
    has_gaps = tensor.numel() < _reach(tensor.shape, tensor.stride())
    return tensor.clone() if has_gaps and _dense(tensor) is None else tensor


def _kept(tensors: Sequence[Any]) -> tuple[Any, int]:
    """For overlapping tensors, return the one tensor to store and the offset of its first byte in their storage.

    If one of them has no gaps and covers all others, return that tensor, so that the file contains its shape.
    Otherwise, return the memory from the first to the last item as a flat tensor. An expanded tensor is an example of
    the second case, because it has fewer items in memory than elements.
    """
    import torch

    spans = [_span(tensor) for tensor in tensors]
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    is_even = all((first - start) % tensor.itemsize == 0 for (first, _), tensor in zip(spans, tensors, strict=True))
    for span, tensor in zip(spans, tensors, strict=True):
        if is_even and span == (start, end) and (dense := _dense(tensor)) is not None:
            return dense, start
    dtype = tensors[0].dtype
    if any(tensor.dtype != dtype for tensor in tensors):
        dtype, start = torch.uint8, start - start % ALIGNMENT
    storage = max((tensor.untyped_storage() for tensor in tensors), key=lambda each: each.nbytes())
    return _view(storage, dtype, [(end - start) // dtype.itemsize], [1], start // dtype.itemsize), start


def _dense(tensor: Any) -> Any:
    """Return the tensor with its axes in memory order, or None if it is not contiguous in that order."""
    if tensor.is_contiguous():
        return tensor
    turned = tensor.permute(sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), -tensor.shape[axis])))
    return turned if turned.is_contiguous() else None


def _view(storage: Any, dtype: Any, shape: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """Return a tensor that uses `storage`. Autograd does not treat it as a view."""
    import torch

    nothing: Any = torch.empty(0, dtype=torch.uint8, device=storage.device).view(dtype)  # `torch.empty` issues a warning for complex32
    return nothing.set_(storage, offset, tuple(shape), tuple(stride))


def _layout(tensor: Any, start: int, kept: Any) -> Layout:
    """Return the properties that are needed to rebuild `tensor` from the stored tensor `kept`."""
    layout: Layout = {}
    shape, stride = [*tensor.shape], [*tensor.stride()]
    if tensor.dtype != kept.dtype:
        layout["dtype"] = dtype_name(tensor)
    if layout or shape != [*kept.shape]:
        layout["shape"] = shape
    if stride != _steps(shape):
        layout["stride"] = stride
    offset = (_span(tensor)[0] - start) // tensor.itemsize
    if offset:
        layout["offset"] = offset
    return layout


def _steps(shape: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor.

    >>> _steps([2, 3, 4])
    [12, 4, 1]
    """
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        steps.append(step)
        step *= max(size, 1)
    return steps[::-1]


def rebuild_tensor(stored: Any, layout: Layout) -> Any:
    """Return the original tensor, which shares memory with `stored`. Raise `ValueError` if the layout does not fit `stored`."""
    import torch

    if type(stored) is not torch.Tensor or stored.device.type != "cpu" or not stored.is_contiguous():
        raise ValueError("the stored value is not a tensor")
    dtype = stored.dtype
    if "dtype" in layout:
        name = layout["dtype"]
        if type(name) is not str or (name not in CODES and name not in AS_BYTES):
            raise ValueError(f"{ascii(name)[:60]} is not a dtype that can be stored")
        dtype = getattr(torch, name)
        if "shape" not in layout:
            raise ValueError("a dtype without a shape")
    shape = _numbers(layout.get("shape", [*stored.shape]))
    stride = _numbers(layout.get("stride", _steps(shape)))
    (offset,) = _numbers([layout.get("offset", 0)])
    if len(shape) != len(stride):
        raise ValueError("it has more or fewer strides than dimensions")
    size = stored.numel() * stored.itemsize
    if (offset + _reach(shape, stride)) * dtype.itemsize > size or math.prod(shape) >= 2**63:
        raise ValueError(f"its shape, strides and offset reach beyond the {size:,} bytes that are stored")
    begin = stored.storage_offset() * stored.itemsize
    if begin % dtype.itemsize:
        raise ValueError("its start is not aligned to its dtype")
    return _view(stored.untyped_storage(), dtype, shape, stride, begin // dtype.itemsize + offset)


def _numbers(values: Any) -> list[int]:
    if type(values) is not list or len(values) > MAX_DIMENSIONS or not all(type(each) is int and 0 <= each < 2**63 for each in values):
        raise ValueError("its shape, strides, axes or offset are invalid")
    return values
