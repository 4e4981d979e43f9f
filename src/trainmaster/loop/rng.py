"""The random state: the state of the global generators of Python, NumPy and torch, as one value.

All states are read and set with the public functions (`random.getstate`, `np.random.get_state`, `torch.get_rng_state`).
Reading all three takes about 50 microseconds, 40 of them in NumPy. That is fast enough for a checkpoint, but too
slow for saving the state around each observer's hooks in every batch. `Watch` therefore keeps the last state that it
read and a few bytes of the generators' memory, and reads the state again only if these bytes have changed. With the
public functions alone, a guarded hook would take about 110 microseconds instead of 4.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

RngState = dict[str, Any]
"""The states of the generators by name.

They consist of plain values and tensors, so that a checkpoint can store them.
"""

_HAS_CUDA = torch.version.cuda is not None or torch.version.hip is not None

get_bit_generator: Any = np.random.get_bit_generator  # type: ignore[attr-defined]  # public, but missing from NumPy's stubs

Saved = tuple[tuple[Any, Any], tuple[Any, Any, Any, Any], torch.Tensor, list[torch.Tensor] | None]


def get_rng() -> RngState:
    """Return the state of all global generators."""
    state = {"python": random.getstate(), "numpy": _plain(np.random.get_state(legacy=False)), "torch": torch.get_rng_state()}
    cuda_states = _cuda_states()
    return state if cuda_states is None else {**state, "cuda": cuda_states}


def set_rng(state: RngState) -> None:
    """Set the state of all global generators."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(_as_numpy(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def kept_rng() -> Iterator[None]:
    """Restore all global generators after the block."""
    before = get_rng()
    try:
        yield
    finally:
        set_rng(before)


def plain_rng(state: RngState) -> dict[str, Any]:
    """Convert a state to plain values without tensors, for formats that cannot store tensors."""
    return {**state, "torch": _as_bytes(state["torch"]), **({"cuda": list(map(_as_bytes, state["cuda"]))} if "cuda" in state else {})}


def rng_of(plain: dict[str, Any]) -> RngState:
    """Convert the result of `plain_rng` back to a state with tensors."""
    return {**plain, "torch": _of_bytes(plain["torch"]), **({"cuda": list(map(_of_bytes, plain["cuda"]))} if "cuda" in plain else {})}


def _as_bytes(state: torch.Tensor) -> bytes:
    return state.cpu().numpy().tobytes()


def _of_bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def seed_rng(seed: int) -> None:
    """Seed all global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _plain(state: Any) -> dict[str, Any]:
    """Return NumPy's state with its array as a list."""
    inner = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state["state"].items()}
    return {**state, "state": inner}


def _as_numpy(state: Any) -> dict[str, Any]:
    inner = {name: np.array(value, dtype=np.uint32) if isinstance(value, list) else value for name, value in state["state"].items()}
    return {**state, "state": inner}


def _cuda_states() -> list[torch.Tensor] | None:
    return torch.cuda.get_rng_state_all() if _HAS_CUDA and torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


_WINDOW = 64
"""The number of bytes of a Mersenne Twister state to compare: its position and 15 of its 624 words.

A draw changes the position. Seeding, or drawing a multiple of 624 numbers, changes all words.
"""


class _NoBits:
    """Used if the memory of a generator cannot be read. Two values of `raw` never compare equal, so the state is always read again."""

    @property
    def raw(self) -> Any:
        return object()


def _bits_at(address: int, size: int) -> Any:
    """Return a view of the memory at `address`. Its attribute `raw` reads the bytes without a Python call."""
    return (ctypes.c_char * size).from_address(address)


def _python_bits(generator: random.Random) -> Any:
    """Return a view of the start of Python's Mersenne Twister state, including its position.

    Return `_NoBits` if the memory layout is not as expected.
    """
    header = object.__basicsize__
    size = random.Random.__basicsize__ - header
    *words, index = generator.getstate()[1]
    start = np.array([index, *words], dtype=np.uint32).tobytes()
    if size < len(start) or ctypes.string_at(id(generator) + header, len(start)) != start:
        return _NoBits()
    return _bits_at(id(generator) + header, _WINDOW)


def _numpy_bits(functions: np.random.RandomState, generator: Any) -> tuple[Any, Any]:
    """Return views of the end of NumPy's Mersenne Twister state, and of the `RandomState` object, which caches a Gaussian sample."""
    if type(generator) is not np.random.MT19937:
        return _NoBits(), _NoBits()
    header = object.__basicsize__
    probe = np.random.RandomState(0)
    bits = _bits_at(id(probe) + header, type(probe).__basicsize__ - header)
    before = bits.raw
    probe.randn()
    own = _bits_at(id(functions) + header, type(functions).__basicsize__ - header) if bits.raw != before else _NoBits()
    return _bits_at(generator.ctypes.state_address + 625 * 4 - _WINDOW, _WINDOW), own


class Watch:
    """Saves the state of the global generators cheaply, and restores it if it has changed."""

    def __init__(self) -> None:
        self._python: Any = random.random.__self__  # type: ignore[attr-defined]  # the object behind the module's functions
        self._python_bits = _python_bits(self._python)
        self._python_state: tuple[Any, Any] = (None, None)
        self._functions: Any = np.random.rand.__self__  # type: ignore[attr-defined]  # as above
        self._numpy: Any = None
        self._numpy_words: Any = _NoBits()
        self._numpy_own: Any = _NoBits()
        self._numpy_state: tuple[Any, Any, Any, Any] = (None, None, None, None)
        self._torch = torch.default_generator

    def __reduce__(self) -> tuple[type[Watch], tuple[()]]:
        return Watch, ()  # a pickled copy watches the generators of the process that loads it

    def save(self) -> Saved:
        bits, state = self._python_state
        if self._python_bits.raw != bits or self._python.gauss_next != state[2]:
            self._python_state = (self._python_bits.raw, random.getstate())
        generator = get_bit_generator()
        if generator is not self._numpy:
            self._numpy = generator
            self._numpy_words, self._numpy_own = _numpy_bits(self._functions, generator)
        words, own, _, _ = self._numpy_state
        if self._numpy_words.raw != words or self._numpy_own.raw != own:
            self._numpy_state = (self._numpy_words.raw, self._numpy_own.raw, generator, np.random.get_state(legacy=False))
        return self._python_state, self._numpy_state, self._torch.get_state(), _cuda_states()

    def restore(self, saved: Saved) -> None:
        (bits, state), (words, own, generator, numpy_state), torch_state, cuda_states = saved
        if self._python_bits.raw != bits or self._python.gauss_next != state[2]:
            random.setstate(state)
        if get_bit_generator() is not generator:
            np.random.set_bit_generator(generator)  # type: ignore[attr-defined]  # also missing from NumPy's stubs
            np.random.set_state(numpy_state)
        elif self._numpy_words.raw != words or self._numpy_own.raw != own:
            np.random.set_state(numpy_state)
        self._torch.set_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)


def state_of(saved: Saved) -> RngState:
    """Convert the result of `Watch.save` to the value that `set_rng` takes."""
    (_, python), (_, _, _, numpy), torch_state, cuda_states = saved
    state = {"python": python, "numpy": _plain(numpy), "torch": torch_state}
    return state if cuda_states is None else {**state, "cuda": cuda_states}
