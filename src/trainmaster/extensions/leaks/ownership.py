"""Which example does each element of a tensor come from? Found by changing some examples and looking at what changes.

Every example has a label of a few bits. For each bit there are two passes: one with the examples replaced that have it, one with the
others. An element that comes from one example changes in one pass of each pair. One that changes in both depends on two at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

MIXED = "mixed"
"""Some element depends on several examples."""
SCATTERED = "scattered"
"""Each element comes from one example, but no axis tells which: a view or reshape cut across the examples."""
MISPLACED = "misplaced"
"""The examples lie along one axis, in another order than in the batch."""

NO_EXAMPLE, SEVERAL = -1, -2

_NUM_LABELS = 7
COARSE, FINE = 1e-4, 1e-6
"""Relative changes that are no more than rounding: kernels for other sizes add in another order. `FINE` where examples hardly matter."""


def labels_of(num: int) -> list[int]:
    """A label for each example; three bits are enough to tell a batch apart."""
    return [one % _NUM_LABELS for one in range(num)]


def subsets_of(labels: Sequence[int]) -> list[list[bool]]:
    """The examples to replace in each pass: for each bit those that have it, and those that do not."""
    bits = range(max(labels).bit_length())
    return [[bool(label >> bit & 1) is has for label in labels] for bit in bits for has in (True, False)]


def changes(before: torch.Tensor, after: torch.Tensor, tolerance: float = 0.0) -> torch.Tensor:
    """Where two tensors of one shape differ: at all, or by more than rounding."""
    if torch.equal(before, after):
        return torch.zeros(before.shape, dtype=torch.bool, device=before.device)
    if not tolerance or not before.is_floating_point():
        return (before != after) & ~((before != before) & (after != after))  # two NaN are alike
    tolerance = max(tolerance, 8 * torch.finfo(before.dtype).eps)
    before, after = (each if each.dtype == torch.float64 else each.float() for each in (before, after))
    # A typical size stands for the terms of a sum that came out small. Not the largest: that may be the -1e9 of a mask.
    size = torch.maximum(torch.maximum(before.abs(), after.abs()), _quantile(before.abs(), 0.25))
    is_far = ((before - after).abs() > tolerance * size) & (before != after)
    return is_far | (before.isnan() != after.isnan()) | (before.isinf() != after.isinf())


def _quantile(values: torch.Tensor, share: float) -> torch.Tensor:
    finite = values[values.isfinite()]
    return finite.kthvalue(int(share * (finite.numel() - 1)) + 1).values if finite.numel() else values.new_zeros(())


def owners_of(changed: Sequence[torch.Tensor]) -> torch.Tensor:
    """For each element the label of its example, `NO_EXAMPLE`, or `SEVERAL`, from what changed in the passes of `subsets_of`."""
    having, lacking = changed[::2], changed[1::2]
    label = torch.zeros(changed[0].shape, dtype=torch.int16, device=changed[0].device)
    ever = torch.zeros_like(label, dtype=torch.bool)
    always, twice = torch.ones_like(ever), torch.zeros_like(ever)
    for bit, (has, lacks) in enumerate(zip(having, lacking, strict=True)):
        label |= has.to(torch.int16) << bit
        ever |= has | lacks
        always &= has | lacks
        twice |= has & lacks
    # An element of one example changes whenever that example is replaced. One that does so only sometimes looks at others too (a maximum).
    label[twice | (ever & ~always)] = SEVERAL
    label[~ever] = NO_EXAMPLE
    return label


Layout = tuple[Any, ...]
"""How examples lie in a tensor: equal for tensors in which they lie alike."""


def fault_in(owners: torch.Tensor, labels: Sequence[int]) -> str | None:
    """What is wrong with a tensor of these owners, if anything."""
    if bool((owners == SEVERAL).any()):
        return MIXED
    layout = layout_of(owners, labels)
    if layout is None or layout[0] == "elsewhere":
        return None
    if layout[0] == "scattered":
        return SCATTERED
    return MISPLACED if any(owner not in (label, NO_EXAMPLE) for owner, label in zip(layout[1], labels, strict=True)) else None


def layout_of(owners: torch.Tensor, labels: Sequence[int]) -> Layout | None:
    """Along an axis with a place for each example, along another one, or scattered; None where no example lies."""
    if owners.ndim == 0 or not bool((owners != NO_EXAMPLE).any()):
        return None
    found = [(axis, along) for axis in range(owners.ndim) if (along := _owners_along(owners, axis)) is not None]
    if not found:
        rows = owners.amax(-1)  # the same for tensors that differ in their features alone
        return ("scattered", tuple(rows.shape), rows.cpu().numpy().tobytes())
    orders = [along.tolist() for axis, along in found if owners.shape[axis] == len(labels)]
    if not orders:
        return ("elsewhere",)
    in_order = [order for order in orders if all(owner in (label, NO_EXAMPLE) for owner, label in zip(order, labels, strict=True))]
    return ("along", tuple((in_order or orders)[0]))


def _owners_along(owners: torch.Tensor, axis: int) -> torch.Tensor | None:
    """The owner at each index of an axis, where the index alone decides."""
    rows = owners.movedim(axis, 0).flatten(1) if owners.ndim > 1 else owners[:, None]
    largest = rows.amax(1)
    smallest = torch.where(rows == NO_EXAMPLE, torch.iinfo(rows.dtype).max, rows).amin(1)
    return largest if bool(((largest == smallest) | (largest == NO_EXAMPLE)).all()) else None
