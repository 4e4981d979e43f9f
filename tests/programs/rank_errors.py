"""Builds loops that several ranks cannot train, one after the other, and prints the resulting errors as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ranks import Rows
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from trainmaster import Avg, Supervised, TrainTestLoop
from trainmaster.errors import TrainmasterError
from trainmaster.loop.ranks import find_ranks


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from Rows(8)


def train(data: Any = None, model: nn.Module | None = None, **options: Any) -> None:
    loss = options.pop("loss", nn.CrossEntropyLoss())
    data = DataLoader(Rows(16), batch_size=4) if data is None else data
    Supervised(nn.Linear(8, 2) if model is None else model, loss, 1, data, progress=False, **options).train()


def components() -> None:
    TrainTestLoop(nn.Linear(8, 2), (), [torch.zeros(2, 8)], [torch.zeros(2, 8)]).train(1)


rank = find_ranks().rank
batch = (torch.zeros(4, 8), torch.zeros(4, dtype=torch.long))
CASES: dict[str, Callable[[], None]] = {
    "stream": lambda: train(DataLoader(Stream(), batch_size=4)),
    "generator": lambda: train(iter([batch])),
    "tiny": lambda: train(DataLoader(Rows(8), batch_size=1)),
    "crooked": lambda: train([(torch.zeros(4, 8), torch.zeros(3, dtype=torch.long))]),
    "sampler": lambda: train(DataLoader(Rows(16), batch_size=4, sampler=DistributedSampler(Rows(16), num_replicas=2, rank=rank))),
    "avg": lambda: train(extensions=[Avg("loss")]),
    "sum": lambda: train(loss=nn.CrossEntropyLoss(reduction="sum")),
    "lazy": lambda: train(model=nn.LazyLinear(2)),
    "sparse": lambda: train(
        [(torch.zeros(4, 1, dtype=torch.long), batch[1])], nn.Sequential(nn.Embedding(3, 2, sparse=True), nn.Flatten())
    ),
    "device": lambda: train(device="cpu" if rank == 0 else "meta"),
    "same device": lambda: train(device="meta"),
    "data": lambda: train(DataLoader(Rows(16 + rank), batch_size=4)),
    "model": lambda: train(model=nn.Sequential(nn.Linear(8, 2 + rank))),
    "components": components,
}
found = {}
for name, case in CASES.items():
    try:
        case()
        found[name] = "no error"
    except TrainmasterError as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
