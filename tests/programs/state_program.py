"""A training run that can be killed at any batch. `test_state.py` imports this file and also runs it in new processes.

It contains everything that can go wrong when a run resumes: dropout, batch norm, a buffer outside the state dict,
momentum, a schedule, gradients that accumulate over batches and epochs, shuffling, and augmentation from three random
number generators, in loader workers too.
"""

from __future__ import annotations

import argparse
import os
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from trainmaster import Extension, TrainingState, TrainManager

BATCHES_PER_EPOCH = 7
NUM_SAMPLES = 27


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, batch):
        if self.training:
            self.calls += 1
        return self.layers(batch[0]) * (1 + 0.01 * self.calls)


def mse(batch, prediction):
    return nn.functional.mse_loss(prediction, batch[1])


def samples():
    generator = torch.Generator().manual_seed(7)
    return torch.randn(NUM_SAMPLES, 3, generator=generator), torch.randn(NUM_SAMPLES, 1, generator=generator)


def noise():
    """Return one number that depends on all three global generators."""
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


class Augmented(Dataset):
    def __init__(self):
        self.inputs, self.targets = samples()

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * noise(), self.targets[index]


class Stream(IterableDataset):
    """Samples without a length, in a new random order in each epoch."""

    def __iter__(self):
        inputs, targets = samples()
        order = list(range(NUM_SAMPLES))
        random.shuffle(order)
        for index in order:
            yield inputs[index] + 0.1 * noise(), targets[index]


def train_data(kind, **options):
    if kind == "list":
        return list(zip(*(each.split(4) for each in samples()), strict=True))
    if kind == "stream":
        return DataLoader(Stream(), batch_size=4, **options)
    dataset = TensorDataset(*samples()) if kind == "tensors" else Augmented()
    return DataLoader(dataset, batch_size=4, shuffle=True, **options)


class GradientAccumulation(Extension):
    """Makes an update after every second batch, counted across epochs."""

    def __init__(self):
        self.count = 0

    def pre_train_step_batch(self, fixtures):
        self.count += 1
        fixtures.modify("is_update", self.count % 2 == 0)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Losses(Extension):
    def __init__(self):
        self.values = []

    def post_train_step_batch(self, loss):
        self.values.append(loss.item().hex())

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


class DieAt(Extension):
    """Captures the state after a number of batches, writes it, and ends the process at once."""

    def __init__(self, batch, file):
        self.batch, self.file = batch, file

    def post_train_step_batch(self, train_manager):
        if len(train_manager["losses"].values) == self.batch:
            torch.save(train_manager.capture().to_dict(), self.file)
            os._exit(0)


def build(seed, *last, kind="augmented", optimizer="sgd", epochs=3, **options):
    """Return the loop. `last` are additional extensions, and `options` are for the training loader."""
    for each in (random.seed, np.random.seed, torch.manual_seed):
        each(seed)
    make = {"sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9), "adam": lambda params: torch.optim.Adam(params, lr=0.01)}
    return TrainManager(
        Net(),
        mse,
        epochs,
        train_data(kind, **options),
        {"valid": DataLoader(Augmented(), batch_size=9, shuffle=True)},
        optimizer=make[optimizer],
        lr_schedule=lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=10),
        extensions=[GradientAccumulation(), Losses(), *last],
        device="cpu",
    )


def outcome(manager):
    """Return the results of a training run, including the next random numbers."""
    return {
        "weights": manager.model.state_dict(),
        "calls": manager.model.calls,
        "grads": [each.grad for each in manager.model.parameters()],
        "optimizer": manager.optimizer.state_dict(),
        "schedule": manager.lr_schedule.state_dict(),
        "losses": manager["losses"].values,
        "history": manager.history,
        "counts": (manager.epoch_num, manager.step_num),
        "next": noise().hex(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--optimizer")
    parser.add_argument("--restore")
    parser.add_argument("--die-at", type=int)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    last = [DieAt(args.die_at, args.out)] if args.die_at else []
    manager = build(args.seed, *last, optimizer=args.optimizer, num_workers=args.workers)
    if args.restore:
        manager.restore(TrainingState.from_dict(torch.load(args.restore, weights_only=False)))
    manager.train()
    torch.save(outcome(manager), args.out)


if __name__ == "__main__":
    main()
