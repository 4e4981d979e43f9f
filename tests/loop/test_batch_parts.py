"""Each rank reads its part of every batch; these tests need no processes."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.errors import SettingError
from trainmaster.loop.batch_parts import Parts, divided, parts_of
from trainmaster.loop.ranks import Ranks, find_ranks, is_other_rank, num_launched

Pair = namedtuple("Pair", "inputs targets")


class Rank(Ranks):
    """One of several ranks, simulated in this process."""

    def __init__(self, rank: int, num: int) -> None:
        self.rank, self.num = rank, num


@dataclass
class Sample:
    inputs: torch.Tensor
    names: list[str]
    scale: float = 2.0


@given(size=st.integers(1, 40), num=st.integers(2, 7))
def test_the_parts_of_all_ranks_are_the_whole_batch_in_order(size: int, num: int) -> None:
    samples, found, sizes = list(range(size)), [], []
    for rank in range(num):
        parts = Parts(Rank(rank, num), "eval_data['valid']")
        part = samples[parts.next_part(size)]
        (own, whole) = parts.sizes[0]
        assert whole == size
        assert len(part) == max(own, 1)  # a rank without samples reads one with weight 0
        found += part if own else []
        sizes.append(own)
    assert found == samples
    assert max(sizes) - min(sizes) <= 1


def test_nested_batches_are_sliced_and_single_values_are_kept() -> None:
    inputs = torch.arange(5.0).reshape(5, 1)
    batch = {"a": Pair(inputs, inputs[:, 0].numpy()), "b": [Sample(inputs, ["p", "q", "r", "s", "t"]).inputs, None], "c": 3}
    (part,) = divided([batch], Rank(1, 2), "train_data")
    assert part["a"].inputs.tolist() == [[2.0], [3.0], [4.0]]
    assert part["a"].targets.tolist() == [2.0, 3.0, 4.0]
    assert part["b"][0].tolist() == [[2.0], [3.0], [4.0]]
    assert (part["b"][1], part["c"]) == (None, 3)
    data = divided([Sample(inputs, ["p", "q", "r", "s", "t"])], Rank(0, 2), "train_data")
    (sample,) = data
    assert (sample.inputs.tolist(), sample.names, sample.scale) == ([[0.0], [1.0]], ["p", "q"], 2.0)
    assert parts_of(data).sizes == [(2, 5)]


@pytest.mark.parametrize("wrong", [torch.zeros(4), torch.zeros(()), [1, 2], object()])
def test_a_batch_that_cannot_be_divided_is_named(wrong: Any) -> None:
    with pytest.raises(SettingError, match="batch 1 of train_data cannot be divided over 2 ranks"):
        list(divided([(torch.zeros(5), 1), (torch.zeros(5), wrong)], Rank(0, 2), "train_data"))


def test_one_process_has_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():  # left over from another program: torchrun sets more variables than these
        monkeypatch.setenv(name, value)
    assert (find_ranks().num, num_launched(), is_other_rank()) == (1, 1, False)
