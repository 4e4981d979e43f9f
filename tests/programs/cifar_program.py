"""The example program of an earlier project, ablator, unchanged except for its imports, with a main function added.

Usage: cifar_program.py proto|parallel FOLDER [key=value ...]
"""

import hashlib
import sys
from pathlib import Path
from typing import Any, Tuple  # noqa: UP035 - as written

import synthetic_torchvision as torchvision
import torch
from synthetic_torchvision import transforms
from torch import nn

from trainmaster import ModelConfig, ModelWrapper, ParallelConfig, ProtoTrainer, RunConfig, Stateless, TrainConfig, configclass

# ---- from the README of ablator


class CifarWrapper(torchvision.datasets.CIFAR10):
    def __getitem__(self, index: int) -> Tuple[Any, Any]:  # noqa: UP006
        x, y = super().__getitem__(index)
        return {
            "x": x,
            "labels": y,
            "custom_input": torch.zeros(x.shape, dtype=torch.bool),
        }


def load_cifar10(config, flag="train"):
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
    # You can access config["train"]["train_hparam"] here
    dataset = CifarWrapper(
        root=config["save_dir"],
        train=flag == "train",
        transform=transform,
        target_transform=None,
        download=True,
    )
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=config["train"]["batch_size"], shuffle=True)
    return dataloader  # noqa: RET504


class MyModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, config.width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(config.width, 10))

    def forward(self, x, labels=None, custom_input=None):
        out = self.layers(x.masked_fill(custom_input, 0.0))
        loss = nn.functional.cross_entropy(out, labels)
        out = out.argmax(axis=-1)
        return out, loss


class MyModelWrapper(ModelWrapper):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    # ---- the rest is not in that README

    def make_dataloader_train(self, config):
        return load_cifar10(config, "train")

    def make_dataloader_val(self, config):
        return load_cifar10(config, "val")

    def evaluation_functions(self):
        return {"accuracy": lambda prediction, labels: (prediction == labels).float().mean()}


@configclass
class CifarModelConfig(ModelConfig):
    width: int = 16


@configclass
class CifarRun(RunConfig):
    train: TrainConfig
    save_dir: Stateless[str]


@configclass
class CifarSearch(ParallelConfig):
    train: TrainConfig
    save_dir: Stateless[str]


def config_for(kind, folder, **values):
    train = TrainConfig(
        dataset="cifar10", batch_size=8, epochs=2, optimizer_config={"name": "sgd", "arguments": {"lr": 0.05, "momentum": 0.9}}
    )
    given = {"verbose": "silent", "eval_epoch": 0.5, "optim_metrics": {"valid/loss": "min"}, "optim_metric_name": "valid/loss"}
    return kind(
        **{"model_config": CifarModelConfig(), "train_config": train, "train": train, "random_seed": 3, "device": "cpu"}
        | {"experiment_dir": Path(folder), "save_dir": str(folder)}
        | given
        | values
    )


def weights_digest(model) -> str:
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()


def main(kind, folder, *overrides):
    if kind == "proto":
        trainer = ProtoTrainer(MyModelWrapper(MyModel), config_for(CifarRun, folder).override(*overrides))
        trainer.launch()
        print(weights_digest(trainer.manager.fetch(trainer.manager.key).model))
        return
    from trainmaster import ParallelTrainer

    space = {"train_config.optimizer_config.arguments.lr": {"categorical_values": [0.05, 0.2]}}
    trainer = ParallelTrainer(MyModelWrapper(MyModel), config_for(CifarSearch, folder, search_space=space).override(*overrides))
    result = trainer.launch()
    for trial in sorted(result.trials, key=lambda each: str(each.config)):
        print(trial.state, trial.keys[0], trial.values, weights_digest(trainer.manager.fetch(trial.keys[0]).model))


if __name__ == "__main__":
    main(*sys.argv[1:])
