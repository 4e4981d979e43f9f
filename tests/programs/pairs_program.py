"""A PyTorch user's first program: a plain module, a PyTorch loss, two loaders of pairs, and an accuracy function."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Config, Supervised

inputs = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
targets = inputs[:, :3].argmax(1)
train_loader = DataLoader(TensorDataset(inputs[:800], targets[:800]), batch_size=32, shuffle=True)
valid_loader = DataLoader(TensorDataset(inputs[800:], targets[800:]), batch_size=64)
defaults = {"width": 32, "lr": 0.01, "epochs": 5}


def accuracy(prediction, targets):
    return (prediction.argmax(1) == targets).float().mean()


def make_loop(config):
    model = nn.Sequential(nn.Linear(8, config.width), nn.ReLU(), nn.Linear(config.width, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    metrics = {"accuracy": accuracy}
    return Supervised(model, nn.CrossEntropyLoss(), config.epochs, train_loader, valid_loader, optimizer=optimizer, metrics=metrics)


if __name__ == "__main__":
    loop = make_loop(Config(defaults))
    loop.train()
    print(f"accuracy {loop.history['valid/accuracy'][-1][1]:.1%}")
