"""Finds out which example each element of a tensor comes from, by replacing examples and comparing the results.

Every example has an id of a few bits. For each bit there are two passes: one replaces the examples whose id has the bit
set, and the other replaces all other examples. An element that comes from one example changes in exactly one pass of
each pair. An element that changes in both passes of a pair depends on at least two examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MIXED = "mixed"
"""At least one element depends on several examples."""
SCATTERED = "scattered"
"""Each element comes from one example, but no axis separates the examples, for example after a wrong view or reshape."""
REORDERED = "reordered"
"""The examples lie along one axis, but in a different order than in the batch."""

NO_EXAMPLE, SEVERAL = -1, -2

_NUM_IDS = 7
COARSE, FINE = 1e-4, 1e-6
"""Relative changes up to these limits are treated as rounding errors, because a kernel may add numbers in a different order.

`FINE` is used if the examples have little effect on the prediction.
"""


def make_ids(num: int) -> list[int]:
    """Return an id of up to three bits for each example. Three bits are enough to detect a leak in a batch of any size."""
    return [one % _NUM_IDS for one in range(num)]


def make_subsets(ids: Sequence[int]) -> list[list[bool]]:
    """Return the examples to replace in each pass: for each bit, first the examples whose id has the bit set, then all others."""
    bits = range(max(ids).bit_length())
    return [[bool(each >> bit & 1) is has_bit for each in ids] for bit in bits for has_bit in (True, False)]


def find_changes(before: torch.Tensor, after: torch.Tensor, tolerance: float = 0.0) -> torch.Tensor:
    """Return a mask of the elements in which two tensors of the same shape differ by more than `tolerance`."""
    if torch.equal(before, after):
        return torch.zeros(before.shape, dtype=torch.bool, device=before.device)
    if not tolerance or not before.is_floating_point():
        return (before != after) & ~((before != before) & (after != after))  # two NaNs are treated as equal
    tolerance = max(tolerance, 8 * torch.finfo(before.dtype).eps)
    before, after = (each if each.dtype == torch.float64 else each.float() for each in (before, after))
    # A small sum may have large terms, so each difference is divided by no less than the lower quartile of all absolute
    # values. The largest value is not suitable, because it may be the -1e9 of a mask.
    finite = before.abs()[before.isfinite()]
    quartile = finite.kthvalue((finite.numel() - 1) // 4 + 1).values if finite.numel() else before.new_zeros(())
    size = torch.maximum(torch.maximum(before.abs(), after.abs()), quartile)
    is_far = ((before - after).abs() > tolerance * size) & (before != after)
    return is_far | (before.isnan() != after.isnan()) | (before.isinf() != after.isinf())


def find_origins(changed: Sequence[torch.Tensor]) -> torch.Tensor:
    """For each element, return the id of its example, `NO_EXAMPLE` or `SEVERAL`, based on the changes in all passes."""
    origins = torch.zeros(changed[0].shape, dtype=torch.int16, device=changed[0].device)
    ever = torch.zeros_like(origins, dtype=torch.bool)
    always, twice = torch.ones_like(ever), torch.zeros_like(ever)
    for bit, (with_bit, without_bit) in enumerate(zip(changed[::2], changed[1::2], strict=True)):
        origins |= with_bit.to(torch.int16) << bit
        ever |= with_bit | without_bit
        always &= with_bit | without_bit
        twice |= with_bit & without_bit
    # An element that comes from one example changes whenever that example is replaced. An element that changes only sometimes,
    # such as a maximum, also depends on other examples.
    origins[twice | (ever & ~always)] = SEVERAL
    origins[~ever] = NO_EXAMPLE
    return origins


Layout = tuple[Any, ...]
"""The arrangement of the examples in a tensor."""


def find_fault(origins: torch.Tensor, ids: Sequence[int]) -> str | None:
    """Return what is wrong with the arrangement of the examples: `MIXED`, `SCATTERED` or `REORDERED`, or None if nothing is wrong."""
    if bool((origins == SEVERAL).any()):
        return MIXED
    layout = find_layout(origins, ids)
    if layout is None or layout[0] == "other axis":
        return None
    if layout[0] == "scattered":
        return SCATTERED
    return None if _is_in_order(layout[1], ids) else REORDERED


def find_layout(origins: torch.Tensor, ids: Sequence[int]) -> Layout | None:
    """Return how the examples are arranged: along an axis of size `len(ids)`, along an axis of a different size, or scattered.

    In the first case, the result contains the order of the examples. Returns None if no element comes from an example.
    """
    if origins.ndim == 0 or not bool((origins != NO_EXAMPLE).any()):
        return None
    orders = [(axis, order) for axis in range(origins.ndim) if (order := _order_along(origins, axis)) is not None]
    if not orders:
        rows = origins.amax(-1)  # does not depend on the number of features
        return ("scattered", tuple(rows.shape), rows.cpu().numpy().tobytes())
    complete = [order for axis, order in orders if origins.shape[axis] == len(ids)]
    if not complete:
        return ("other axis",)
    return ("order", tuple(next((order for order in complete if _is_in_order(order, ids)), complete[0])))


def _is_in_order(order: Sequence[int], ids: Sequence[int]) -> bool:
    return all(origin in (each, NO_EXAMPLE) for origin, each in zip(order, ids, strict=True))


def _order_along(origins: torch.Tensor, axis: int) -> list[int] | None:
    """Return the id of the example at each index of an axis, or None if elements of different examples have the same index."""
    rows = origins.movedim(axis, 0).reshape(origins.shape[axis], -1)
    largest = rows.amax(1)
    smallest = torch.where(rows == NO_EXAMPLE, torch.iinfo(rows.dtype).max, rows).amin(1)
    is_unique = bool(((largest == smallest) | (largest == NO_EXAMPLE)).all())
    return largest.tolist() if is_unique else None
