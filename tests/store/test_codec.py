"""Values in a checkpoint keep their type and memory layout, and one error lists all values that cannot be stored."""

from __future__ import annotations

import collections
import contextlib
import enum
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import typing
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from trainmaster.errors import CodecError, StoreDamagedError
from trainmaster.store.codec import Kinds, decode, encode, encode_plain, kinds
from trainmaster.store.tensors import chunks, read


def through_files(value: Any) -> Any:
    """Write `value` to real JSON and real safetensors bytes, and read it again."""
    encoded = encode(value)
    tree = json.loads(json.dumps(encoded.tree, allow_nan=False))
    data = b"".join(chunks(encoded.tensors))
    return decode(tree, read(data, *kinds(tree)))


def exactly(one: Any, other: Any) -> bool:
    """Return whether two values are equal in value, type, order, dtype and layout."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        same = (one.dtype, one.shape, one.stride(), one.requires_grad) == (other.dtype, other.shape, other.stride(), other.requires_grad)
        return same and bytes_of(one) == bytes_of(other)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes() and len(repr(one)) == len(repr(other))
    if isinstance(one, dict):
        alike = vars(one) == vars(other) if isinstance(one, OrderedDict) else True
        alike = one.default_factory is other.default_factory if isinstance(one, collections.defaultdict) else alike
        return alike and exactly([*one.items()], [*other.items()])
    if isinstance(one, collections.deque):
        return one.maxlen == other.maxlen and exactly([*one], [*other])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(exactly, one, other))
    if isinstance(one, set | frozenset):
        return sorted(map(shown, one)) == sorted(map(shown, other))
    return shown(one) == shown(other)


def shown(value: Any) -> str:
    """Return text that tells 1 from True and 0.0 from -0.0, but is equal for all NaNs and for any order of a set."""
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(shown, value))})"
    if type(value) is tuple:
        return f"tuple({[shown(each) for each in value]})"
    return f"{type(value)} {hex(value) if type(value) is int else repr(value)}"


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


# Random values

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

TEXTS = st.text(st.characters(exclude_categories=()), max_size=6)  # including unpaired surrogates
DTYPES = st.sampled_from(
    ["?", "i1", "<i4", ">i8", "u2", "u8", "f2", ">f4", "f8", "g", "c8", ">c16", "U0", "U3", ">U2", "S0", "S4", "M8[ns]", ">m8[25s]"]
)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | TEXTS | st.binary(max_size=4) | st.just(7**3000),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
TORCH_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2, torch.complex32, torch.complex64, torch.complex128, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8,
]  # fmt: skip


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Generate a tensor of any dtype with random bytes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 255, (math.prod(shape) * dtype.itemsize,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    count = math.prod(shape)
    if dtype.kind == "U":
        array = np.array([chr(number + 65) for number in range(count)], dtype).reshape(shape)
    else:
        array = np.arange(count).astype("i8").astype(dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array[::-1] if array.ndim and draw(st.booleans()) else array


@st.composite
def dense_tensors(draw: st.DrawFn) -> torch.Tensor:
    tensor = numbers(
        *draw(st.lists(st.integers(0, 3), max_size=4)), dtype=draw(st.sampled_from(TORCH_DTYPES)), seed=draw(st.integers(0, 9))
    )
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    can_learn = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return draw(st.sampled_from([lambda: nn.Parameter(tensor, can_learn), lambda: tensor.requires_grad_(can_learn), lambda: tensor]))()


SCALARS = (
    st.builds(lambda dtype, number: np.array(number).astype(dtype)[()], DTYPES.filter(lambda dtype: "U" not in dtype), st.integers(0, 9))
    | TEXTS.map(np.str_)
    | st.binary(max_size=4).map(np.bytes_)
    | st.sampled_from([np.longlong(3), np.ulonglong(4), np.datetime64("NaT"), np.float32("nan")])
)
VALUES = st.recursive(
    KEYS | SCALARS | st.binary(max_size=4).map(bytearray) | arrays() | dense_tensors(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXTS, inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.dictionaries(TEXTS, inner, max_size=3).map(OrderedDict)
        | st.sets(KEYS, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(VALUES)
def test_any_value_survives_json_and_the_tensor_file(value: Any) -> None:
    assert exactly(through_files(value), value)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_the_same_value_gives_the_same_files(value: Any) -> None:
    one, other = encode(value), encode(value)
    assert json.dumps(one.tree) == json.dumps(other.tree)
    assert b"".join(chunks(one.tensors)) == b"".join(chunks(other.tensors))


# Plain values


@pytest.mark.parametrize(
    "value",
    [
        {1: "int", True + 1: "two", "1": "text", (1, 2): "tuple", None: "none", 2.5: "float", b"1": "bytes", frozenset({1}): "set"},
        {".dotted": 1, "plain": 2},
        {".tensor": "x"},
        {"": {"": []}},
        [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1e308],
        [complex(-0.0, math.nan), complex(math.inf, -0.0)],
        [10**5000, -(10**5000), 2**2000, 2**2000 - 1, -(2**2000)],
        ["\ud800", "\udc00\ud800", "\ud800\udc00", "\U00010000", "\x00", {"\ud800\udc00": 1}],
        [True, 1, 1.0, "1", np.True_, np.int64(1), np.float64(1), np.float32(1), np.str_("1\0"), np.bytes_(b"1\0")],
        [set(), frozenset(), (), [], {}, OrderedDict(), b"", bytearray(), ""],
        {math.nan: 1, float("nan"): 2},
        OrderedDict([((1,), 2), ("b", 1), ("a", 0)]),
        [collections.Counter("aab"), collections.Counter({(1, 2): -3, "b": 0.5}), collections.Counter()],
        [collections.defaultdict(int, {"a": 1}), collections.defaultdict(list, {1: [2]}), collections.defaultdict(None, a=1)],
        [collections.deque([1, (2, 3)], maxlen=5), collections.deque(), collections.deque(maxlen=0)],
    ],
    ids=lambda value: ascii(type(value)),
)
def test_plain_values_are_restored_with_their_types(value: Any) -> None:
    assert exactly(through_files(value), value)
    assert exactly(decode(json.loads(json.dumps(encode_plain(value), allow_nan=False))), value)


def test_json_values_are_written_unchanged() -> None:
    value = {"epoch": 3, "loss": [0.5, None, True], "name": "résumé"}
    assert encode(value).tree == value


def test_the_order_of_a_dict_is_kept() -> None:
    assert [*through_files({"b": 1, "a": 2})] == ["b", "a"]
    assert [*through_files({2: 1, 1: 2})] == [2, 1]


def test_a_set_is_written_in_the_same_order_in_every_process() -> None:
    code = "from trainmaster.store.codec import encode_plain; print(encode_plain({'set': {'b', 'a', 'c', 1, (2, 'x')}}))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in "123"
    }
    assert len(texts) == 1


def test_large_integers_are_restored_even_if_python_limits_digits() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert through_files([10**602, 10**700, -(10**700)]) == [10**602, 10**700, -(10**700)]
    finally:
        sys.set_int_max_str_digits(before)


def test_the_states_of_random_generators_are_restored() -> None:
    legacy = np.random.RandomState(3)
    value = [random.getstate(), legacy.get_state(), np.random.default_rng(3).bit_generator.state, torch.get_rng_state()]
    back = through_files(value)
    assert exactly(back, value)
    random.setstate(back[0])
    legacy.set_state(back[1])
    torch.set_rng_state(back[3])


# Arrays


def test_equal_arrays_become_one_object_only_if_they_were_one() -> None:
    array = np.arange(3)
    one, same, other = through_files([array, array, array.copy()])
    assert one is same
    assert not np.shares_memory(one, other)
    assert len(encode([array, array, array.copy()]).tensors) == 2


def test_fortran_order_is_kept_without_a_copy() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert through_files(array).flags.f_contiguous
    assert np.shares_memory(encode(array).tensors["value"], array)


def test_restored_arrays_are_writeable() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    back = through_files([array, np.array(["a"]), np.array(1.0)])
    assert all(each.flags.writeable for each in back)


# Tensors


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES, torch.bool], ids=str)
def test_tensors_of_every_dtype_are_restored(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[True, False, True]]) if dtype == torch.bool else numbers(2, 3, dtype=dtype)
    value = [tensor, tensor[:0], tensor[0, 1]]
    assert exactly(through_files(value), value)


def test_one_item_with_a_long_stride_is_restored() -> None:
    tensor = numbers(4, 5)[1:2, 3]
    assert tensor.stride() == (5,)
    assert exactly(through_files(tensor), tensor)


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_an_empty_tensor_with_strides_of_zero_is_restored(dtype: str) -> None:
    tensor = torch.from_numpy(np.zeros(0, dtype))
    assert tensor.stride() == (0,)
    assert exactly(through_files(tensor), tensor)


def test_conjugate_and_negative_views_are_restored_as_plain_tensors() -> None:
    conjugate, negative = torch.tensor([1 + 2j, 3 - 1j]).conj(), torch._neg_view(torch.arange(3.0))
    assert conjugate.is_conj()
    assert negative.is_neg()
    back = through_files([conjugate, negative, conjugate.imag])
    assert [each.tolist() for each in back] == [[1 - 2j, 3 + 1j], [0, -1, -2], [-2, 1]]


def test_parameters_are_restored_with_their_requires_grad() -> None:
    value = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2, requires_grad=True)]
    back = through_files(value)
    assert exactly(back, value)
    assert all(each.is_leaf for each in back)


@pytest.mark.parametrize(
    "tensor",
    [
        numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
        numbers(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
        numbers(3, 4).T,
        numbers(1, 3, 1, 1).to(memory_format=torch.channels_last),
        numbers(3, 1).T,
        torch.ones(3).expand(4, 3),
        torch.arange(5.0).unfold(0, 2, 1),
        numbers(0, 3).T,
    ],
    ids=["channels_last", "channels_last_3d", "transposed", "one pixel", "row", "expanded", "unfolded", "empty"],
)
def test_strides_are_kept_without_a_copy(tensor: torch.Tensor) -> None:
    (stored,) = encode(tensor).tensors.values()
    assert exactly(through_files(tensor), tensor)
    assert stored.is_contiguous()
    assert stored.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def test_an_expanded_tensor_is_stored_without_its_copies() -> None:
    (stored,) = encode(torch.ones(1).expand(10**12)).tensors.values()
    assert stored.numel() == 1


def test_tied_tensors_are_still_tied_after_loading() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    state = Tied().state_dict()
    assert list(encode(state).tensors) == ["embed.weight"]
    back = through_files(state)
    assert back["embed.weight"] is not back["head.weight"]
    back["embed.weight"].fill_(7)
    assert back["head.weight"].eq(7).all()


def test_the_same_tensor_twice_is_restored_as_one_object() -> None:
    weight = nn.Parameter(torch.ones(2))
    one, same, alias = through_files([weight, weight, weight.detach()])
    assert one is same
    assert alias.data_ptr() == one.data_ptr()


def test_overlapping_views_still_overlap_after_loading() -> None:
    x = torch.arange(10.0)
    value = {"tail": x[2:], "all": x, "even": x[::2], "square": x[:9].view(3, 3)}
    encoded = encode(value)
    assert [tensor.numel() for tensor in encoded.tensors.values()] == [10]
    back = through_files(value)
    assert exactly(back, value)
    back["all"][4] = -1
    assert [back["tail"][2], back["even"][2], back["square"][1, 1]] == [-1, -1, -1]


def test_overlapping_views_none_of_which_contains_the_others_still_overlap() -> None:
    x = torch.arange(1000.0)
    value = [x[100:103], x[102:105]]
    assert [tensor.numel() for tensor in encode(value).tensors.values()] == [5]
    back = through_files(value)
    assert exactly(back, value)
    back[0][2] = -1
    assert back[1][0] == -1


@pytest.mark.parametrize("start", [0, 1, 3, 8])
def test_overlapping_views_with_two_dtypes_still_overlap(start: int) -> None:
    raw = torch.arange(40, dtype=torch.uint8)
    value = [raw[start : start + 13], raw[8:24].view(torch.int64), raw[4:12].view(torch.float32), raw[16:32].view(torch.complex128)]
    back = through_files(value)
    assert exactly(back, value)
    back[1].fill_(0)
    assert back[2][1] == 0


def test_a_view_of_another_dtype_at_an_unaligned_offset_is_restored() -> None:
    raw = torch.arange(40, dtype=torch.uint8)
    value = [raw[3:20], raw[8:16].view(torch.int64)]
    assert exactly(through_files(value), value)


def test_tensors_on_parts_of_one_array_still_overlap() -> None:
    array = np.arange(6.0)
    value = [torch.from_numpy(array[:3]), torch.from_numpy(array)[2:5]]
    back = through_files(value)
    assert exactly(back, value)
    back[0][2] = -1
    assert back[1][0] == -1


@st.composite
def views(draw: st.DrawFn) -> list[torch.Tensor]:
    """Generate views of one storage with any dtype, shape, strides and offset."""
    raw = torch.arange(240, dtype=torch.uint8)
    found = []
    for _ in range(draw(st.integers(1, 5))):
        flat = raw.view(draw(st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.int64, torch.complex128])))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        stride = [draw(st.integers(0, 4)) for _ in shape]
        reach = sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1 if all(shape) else 0
        if reach <= flat.numel():
            found.append(flat.as_strided(shape, stride, draw(st.integers(0, flat.numel() - reach))))
    return found


@settings(max_examples=500, deadline=None)
@given(views())
def test_any_views_of_one_storage_still_share_memory(tensors: list[torch.Tensor]) -> None:
    back = through_files(tensors)
    for one, other in zip(tensors, back, strict=True):
        assert (one.dtype, one.shape, bytes_of(one)) == (other.dtype, other.shape, bytes_of(other))
    for one, new in zip(tensors, back, strict=True):
        for other, new_other in zip(tensors, back, strict=True):
            assert np.shares_memory(one.numpy(), other.numpy()) <= np.shares_memory(new.numpy(), new_other.numpy())


def test_a_small_slice_is_stored_without_its_huge_storage() -> None:
    huge = torch.zeros(1_000_000)
    encoded = encode([huge[5:8], huge[10:16:2], huge[100:200].view(10, 10)[:, 3]])
    assert [tensor.numel() for tensor in encoded.tensors.values()] == [3, 3, 10]


def test_adjacent_tensors_in_one_storage_are_stored_separately() -> None:
    flat = torch.arange(10.0)
    assert [tensor.tolist() for tensor in encode([flat[5:], flat[:5]]).tensors.values()] == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]


def test_encoding_copies_no_data() -> None:
    value = {"a": torch.ones(5), "b": nn.Parameter(torch.ones(5, dtype=torch.bfloat16)), "c": np.ones(5), "d": np.array(["x"])}
    encoded = encode(value).tensors
    for name in "ab":
        assert encoded[name].data_ptr() == value[name].data_ptr()
        assert not encoded[name].requires_grad
    for name in "cd":
        assert np.shares_memory(encoded[name], value[name])


def test_a_state_dict_keeps_its_type_and_metadata() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3))
    state = model.state_dict()
    back = through_files({"model": state})["model"]
    assert exactly(back, state)
    assert back._metadata == state._metadata  # type: ignore[attr-defined]
    assert type(back._metadata) is OrderedDict
    model.load_state_dict(back)


def test_tensors_are_named_by_their_paths() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    encoded = encode({"model": model.state_dict(), "losses": [torch.ones(2)], 3: {None: np.ones(2)}})
    assert [*encoded.tensors] == ["3.None", "model.0.weight", "model.0.bias", "losses.0"]
    assert encode(torch.ones(1)).tensors.keys() == {"value"}


def test_ambiguous_paths_get_unique_names() -> None:
    value = {"a.b": np.ones(1), "a": {"b": np.zeros(1)}, "a.b~2": np.ones(2), 1: np.ones(3), "1": np.ones(4), "__metadata__": np.ones(5)}
    assert len(encode(value).tensors) == 6
    assert exactly(through_files(value), value)
    odd = {key: torch.ones(number) for number, key in enumerate(["\\ud800", "\\udc00", "\ud800", "\udc00", "x" * 10_000, "\n", ""])}
    assert max(map(len, encode(odd).tensors)) <= 220
    assert exactly(through_files(odd), odd)


@pytest.mark.parametrize(
    "make",
    [torch.optim.Adam, lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9), torch.optim.LBFGS],
    ids=["Adam", "SGD", "LBFGS"],
)
def test_an_optimizer_continues_from_its_stored_state(make: typing.Callable[..., torch.optim.Optimizer]) -> None:
    def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = make(model.parameters())
        step(model, optimizer, steps)
        return model, optimizer

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(4, 3)).square().sum()
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)  # type: ignore[arg-type]

    model, optimizer = trained(3)
    value = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    back = through_files(value)
    assert exactly(back, value)
    resumed, resumed_optimizer = trained(0)
    resumed.load_state_dict(back["model"])
    resumed_optimizer.load_state_dict(back["optimizer"])
    step(resumed, resumed_optimizer, 2)
    whole, _ = trained(5)
    assert exactly(resumed.state_dict()["weight"], whole.state_dict()["weight"])


def test_kinds_tell_arrays_from_tensors() -> None:
    assert kinds(encode({"a": np.ones(1), "b": [torch.ones(1)], ".c": {1: np.ones(2)}}).tree) == Kinds(["a", ".c.1"], ["b.0"])


# Values that are refused


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 1


class Point(typing.NamedTuple):
    x: int


class MyDict(dict[str, int]): ...


class MyTensor(torch.Tensor): ...


class MyFloat(np.float64): ...


CYCLE: list[Any] = []
CYCLE.append({"again": (CYCLE,)})
DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]
FREED = torch.ones(4)
FREED.untyped_storage().resize_(0)
NAMED = OrderedDict(a=1)
NAMED.name = "x"  # type: ignore[attr-defined]
NAMED_COUNTER: collections.Counter[str] = collections.Counter()
NAMED_COUNTER.title = "x"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (print, "builtins.builtin_function_or_method: write its import path as text"),
        (lambda: 0, "builtins.function: write its import path as text"),
        (math, "builtins.module"),
        (sys.stdout, "cannot be stored"),
        (Colour.RED, "Colour: write `.value`"),
        (Level.HIGH, "Level: write `.value`"),
        (pathlib.Path("a"), "Path: write `str(path)`"),
        (Point(1), "Point: write `tuple(x)`"),
        (torch.ones(1).shape, "torch.Size: write `tuple(x)`"),
        (MyDict(), "MyDict: write `dict(x)`"),
        (collections.defaultdict(lambda: 3), "collections.defaultdict, whose factory is not one of int, float, "),
        (NAMED_COUNTER, "is a Counter with attributes, which are not stored: title"),
        (type("Tally", (collections.Counter,), {})(), "Tally: write `dict(x)`"),
        (nn.Linear(1, 1), "Linear: write `.state_dict()`"),
        (torch.Generator(), "Generator: write `.get_state()`"),
        (random.Random(), "Random: write `.getstate()`"),
        (torch.float32, "torch.dtype: write `str(x)`"),
        (range(3), "range: write `list(x)`"),
        (MyFloat(1), "MyFloat: write `float(x)`"),
        (np.ma.ones(2), "MaskedArray: write `numpy.asarray(x)`"),
        (np.array([None]), "an array, of dtype object"),
        (np.zeros(1, "i4,f4"), "an array, of dtype [('f0', '<i4'), ('f1', '<f4')]"),
        (np.zeros(1, "V3"), "an array, of dtype |V3"),
        (np.zeros(1, "M8[0s]"), "an array, of dtype datetime64[0s]"),
        (np.zeros(1, "M8[0s]")[0], "numpy.datetime64"),
        (np.zeros(1, "i4,f4")[0], "numpy.void"),
        (np.empty(0, "U99999"), "an array, empty, with items of 399,996 bytes"),
        (torch.eye(2).to_sparse(), "a tensor, sparse: write `.to_dense()`"),
        (torch.ones(2, device="meta"), "a tensor, on the meta device"),
        (torch.ones(1).as_subclass(MyTensor), "MyTensor: write `x.detach().as_subclass(torch.Tensor)`"),
        (torch.empty(2, dtype=torch.bits8), "a tensor, of dtype torch.bits8"),
        (torch.ones((1,) * 65), "a tensor, of 65 dimensions"),
        (FREED, "a tensor, without its data"),
        (CYCLE, "contains itself"),
        (DEEP, "is nested more than 100 deep"),
        ({torch.ones(1): 1}, "a tensor in a key or a set"),
        ({nn.Parameter(torch.ones(1))}, "a tensor in a key or a set"),
        (NAMED, "only torch's `_metadata` is stored"),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)
def test_a_value_that_cannot_be_stored_is_refused_with_advice(value: Any, said: str) -> None:
    with pytest.raises(CodecError) as caught:
        encode({"here": [value]})
    assert said in str(caught.value)
    assert "here.0" in str(caught.value)


def test_an_optimizer_is_refused_with_advice() -> None:
    with pytest.raises(CodecError, match=r"SGD: write `\.state_dict\(\)`"):
        encode(torch.optim.SGD([torch.ones(1)]))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused() -> None:
    with pytest.raises(CodecError, match=r"the value: a tensor, quantized: write `.dequantize\(\)`"):
        encode(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    with pytest.raises(CodecError, match=r"the value: a tensor, nested: write `.unbind\(\)`"):
        encode(torch.nested.as_nested_tensor([torch.ones(1)], layout=torch.strided))


def test_all_wrong_values_are_named_at_once() -> None:
    with pytest.raises(CodecError) as caught:
        encode({"model": {"hook": print}, "out": [1, pathlib.Path("x")]})
    assert str(caught.value).splitlines() == [
        "2 values cannot be stored in a checkpoint",
        "  wrong   model.hook: builtins.builtin_function_or_method: write its import path as text",
        "          out.1: pathlib.PosixPath: write `str(path)`",
    ]


def test_the_error_shows_at_most_twenty_wrong_values() -> None:
    with pytest.raises(CodecError) as caught:
        encode([print] * 50)
    assert str(caught.value).count("builtins.") == 20
    assert "... and 30 more" in str(caught.value)


def test_a_wrong_value_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"^a value cannot be stored in a checkpoint"):
        encode(print)


@pytest.mark.parametrize("value", [np.ones(2), torch.ones(2), nn.Parameter(torch.ones(2))], ids=["array", "tensor", "parameter"])
def test_encode_plain_refuses_arrays(value: Any) -> None:
    with pytest.raises(CodecError, match=r"^a value is not a plain value\n  wrong   loss: an? \w+: write `.tolist\(\)`"):
        encode_plain({"loss": value})
    with pytest.raises(CodecError, match=r"write `.item\(\)`"):
        encode_plain({"loss": value.sum() if isinstance(value, torch.Tensor) else np.array(1)})


def test_a_hundred_levels_of_every_container_are_restored() -> None:
    value: Any = 1
    for number in range(100):
        value = [[value], (value,), {"a": value}, {1: value}, OrderedDict([(1, value)])][number % 5]
    assert exactly(through_files(value), value)


def test_deep_values_do_not_cause_a_recursion_error() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CodecError, match="nested more than 100 deep"):
        encode(deep)
    with pytest.raises(StoreDamagedError, match="nested more than 100 deep"):
        decode(deep)
    assert kinds(deep) == Kinds([], [])
    while deep:  # avoids recursion, which would be too deep
        deep = deep.pop()


def test_a_nearly_full_stack_causes_no_recursion_error() -> None:
    value: Any = 1
    for _ in range(99):
        value = [value]
    errors = []

    def at(depth: int, act: typing.Callable[[Any], Any]) -> None:
        if depth:
            return at(depth - 1, act)
        try:
            act(value)
        except (CodecError, StoreDamagedError) as error:
            errors.append(error)

    for left in (600, 700, 800):
        at(left, encode)
        at(left, decode)
    assert {type(error) for error in errors} == {CodecError, StoreDamagedError}
    assert all("too deep for the remaining stack" in str(error) for error in errors)


# Damaged and hostile trees

FLOATS = torch.arange(6.0)
STORED = {
    "t": FLOATS,
    "odd": torch.arange(20, dtype=torch.uint8)[1:9],
    "a": np.arange(6.0),
    "b": np.zeros(8, np.uint8),
    "i": torch.arange(3),
    "e": np.zeros(0, np.uint8),
}


@pytest.mark.parametrize(
    "tree",
    [
        {".unknown": 1},
        {".tuple": [], "more": 1},
        {".tuple": {}},
        {".set": {"a": 1}},
        {".set": [1, True]},
        {".set": [[1]]},
        {".set": [{".tensor": "t"}]},
        {".frozenset": 3},
        {".dict": {"a": 1}},
        {".dict": [[1]]},
        {".dict": [1]},
        {".dict": [[[1], 2]]},
        {".dict": [[1, 2], [True, 3]]},
        {".dict": [[{".tuple": [{".tensor": "t"}]}, 1]]},
        {".ordered": 1},
        {".counter": 1},
        {".defaultdict": {}, "factory": "eval"},
        {".defaultdict": {}, "factory": ["int"]},
        {".defaultdict": 1, "factory": "int"},
        {".deque": [1, 2], "maxlen": 1},
        {".deque": [1], "maxlen": True},
        {".deque": [1], "maxlen": 2**70},
        {".deque": {}},
        {".ordered": {".x": 1}},
        {"a": 1, ".b": 2},
        {1: 2},
        {".int": "12"},
        {".int": "0x"},
        {".int": 12},
        {".float": "1.0"},
        {".float": ["nan"]},
        {".complex": [1, 2]},
        {".complex": [1.0]},
        {".complex": 1.0},
        {".str": "ab"},
        {".str": [1]},
        {".bytes": "a"},
        {".bytes": "é==="},
        {".bytes": "a-b_"},
        {".bytes": [1]},
        {".bytearray": None},
        {".scalar": "<f4", "bytes": "AAAA"},
        {".scalar": "<f4"},
        {".scalar": "O", "bytes": "AAAAAAAAAAA="},
        {".scalar": "<U1", "bytes": "AAAAAA=="},
        {".scalar": "i4,f4", "bytes": "AAAAAAAAAAA="},
        {".scalar": ["<f4"], "bytes": "AAAAAA=="},
        {".scalar": "str", "text": 1},
        {".scalar": "<f3", "bytes": "AAAA"},
        {".scalar": "<M8[99999999999s]", "bytes": "AAAAAAAAAAA="},
        {".scalar": "<M8[0s]", "bytes": "AAAAAAAAAAA="},
        {".tensor": "missing"},
        {".tensor": ["t"]},
        {".tensor": "a"},
        {".tensor": "t", "shape": [7]},
        {".tensor": "t", "shape": [2**62, 2]},
        {".tensor": "t", "shape": [2**62, 2**62], "stride": [0, 0]},
        {".tensor": "t", "shape": [2**64, 0]},
        {".tensor": "t", "shape": [-1]},
        {".tensor": "t", "shape": [True]},
        {".tensor": "t", "shape": [1.0]},
        {".tensor": "t", "shape": "6"},
        {".tensor": "t", "shape": [1] * 65},
        {".tensor": "t", "stride": [2]},
        {".tensor": "t", "stride": [1, 1]},
        {".tensor": "t", "stride": [-1]},
        {".tensor": "t", "offset": 1},
        {".tensor": "t", "offset": -1},
        {".tensor": "t", "offset": 2**70},
        {".tensor": "t", "offset": None},
        {".tensor": "t", "shape": [0], "offset": 7},
        {".tensor": "t", "dtype": "float64", "shape": [6]},
        {".tensor": "t", "dtype": "float64"},
        {".tensor": "odd", "dtype": "float64", "shape": [1]},
        {".tensor": "t", "dtype": "qint8", "shape": [6]},
        {".tensor": "t", "dtype": "load", "shape": [6]},
        {".tensor": "t", "dtype": ["float32"], "shape": [6]},
        {".tensor": "t", "requires_grad": 1},
        {".tensor": "t", "parameter": "yes"},
        {".tensor": "t", "alias": "x"},
        {".tensor": "t", "alias": {1, 2}},
        {".tensor": "t", "device": "cuda"},
        {".tensor": "i", "requires_grad": True},
        {".tensor": "i", "requires_grad": True, "parameter": True},
        {".array": "t"},
        {".array": "missing"},
        {".array": "a", "axes": [1]},
        {".array": "a", "axes": [0, 0]},
        {".array": "a", "axes": None},
        {".array": "a", "shape": [6]},
        {".array": "a", "dtype": "<f8", "shape": [6]},
        {".array": "b", "dtype": "O", "shape": [1]},
        {".array": "b", "dtype": "|O8", "shape": [1]},
        {".array": "b", "dtype": "<U999999999", "shape": [1]},
        {".array": "b", "dtype": "<U99999999999999999999", "shape": [1]},
        {".array": "e", "dtype": "<U999999", "shape": [0]},
        {".array": "b", "dtype": "V8", "shape": [1]},
        {".array": "b", "dtype": "<f8", "shape": [2]},
        {".array": "b", "dtype": "<f8", "shape": [2**62, 2**62]},
        {".array": "b", "dtype": "<f8"},
        {".array": "e", "dtype": "<f8", "shape": [0, 2**62, 2**62]},
        math.nan,
        math.inf,
        (1, 2),
        {1, 2},
        b"x",
        np.float64(1),
        torch.ones(1),
    ],
    ids=lambda tree: ascii(tree)[:60],
)
def test_a_tree_that_encode_cannot_write_is_damaged(tree: Any) -> None:
    with pytest.raises(StoreDamagedError, match="a stored tree is invalid"):
        decode({"at": [tree]}, STORED)


def test_the_error_for_damage_names_its_path() -> None:
    with pytest.raises(StoreDamagedError) as caught:
        decode({"model": [1, {".float": "1.5"}]})
    assert str(caught.value).splitlines() == [
        "a stored tree is invalid",
        "  where   model.1",
        "  why     `.float` is invalid: expected nan, inf or -inf",
    ]


def test_a_name_for_both_an_array_and_a_tensor_is_damage() -> None:
    with pytest.raises(StoreDamagedError, match="is both an array and a tensor"):
        kinds([{".array": "a"}, {".tensor": "a"}])


TAGS = [".tensor", ".array", ".dict", ".set", ".tuple", ".ordered", ".scalar", ".int", ".bytes"]
WORDS = ["shape", "stride", "dtype", "bytes", "offset", "axes", "requires_grad", "parameter", "metadata"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["t", "a", "b", "<f8", "float32", "nan", "AAAA", "0x1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.builds(
            lambda tag, value, more: {tag: value, **more}, st.sampled_from(TAGS), inner, st.dictionaries(st.sampled_from(WORDS), inner)
        )
    ),
    max_leaves=10,
)


@settings(max_examples=500, deadline=None)
@given(JSON)
def test_any_json_is_decoded_or_reported_as_damage(tree: Any) -> None:
    with contextlib.suppress(StoreDamagedError):
        decode(tree, STORED)


# Imports


def test_plain_values_and_arrays_never_import_torch(tmp_path: pathlib.Path) -> None:
    code = f"""
import json, sys
from trainmaster.store.codec import decode, encode, encode_plain, kinds
from trainmaster.store.tensors import chunks, read
encode_plain({{1: (2.0, b"x")}})
assert "numpy" not in sys.modules
import numpy as np
value = {{"a": np.arange(3.0), "b": [np.array(["x", "yz"]), np.float32(2)], "c": 1}}
tree, tensors = encode(value)
data = b"".join(chunks(tensors))
path = {str(tmp_path / "a.safetensors")!r}
open(path, "wb").write(data)
for source in (path, data):
    back = decode(json.loads(json.dumps(tree)), read(source, *kinds(tree)))
    assert back["b"][0].tolist() == ["x", "yz"]
try:
    encode(print)
except TypeError:
    pass
try:
    decode({{".tensor": "a"}}, tensors)
except Exception as error:
    print(type(error).__name__)
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("StoreDamagedError\nFalse\n", "")
