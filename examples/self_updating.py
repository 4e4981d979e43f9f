"""Train a model that updates its own prototypes, without gradients. Checkpoints, metrics and resuming work as usual."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import ModelConfig, ModelWrapper, ProtoTrainer, RunConfig, TrainConfig, configclass


@configclass
class PrototypeConfig(ModelConfig):
    per_class: int = 4
    rate: float = 0.1


class Prototypes(nn.Module):
    """Learning vector quantization: the nearest prototype moves towards an image, or away from it if their classes differ."""

    def __init__(self, config: PrototypeConfig) -> None:
        super().__init__()
        self.rate = config.rate
        self.points = nn.Parameter(torch.rand(10 * config.per_class, 64), requires_grad=False)
        self.register_buffer("labels", torch.arange(10).repeat(config.per_class))
        self.register_buffer("num_updates", torch.zeros(()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[dict[str, torch.Tensor], None]:
        nearest = torch.cdist(x, self.points).argmin(1)
        if self.training:
            self.update(x, labels, nearest)
        return {"prediction": self.labels[nearest]}, None  # no loss: the model has updated itself

    def update(self, x: torch.Tensor, labels: torch.Tensor, nearest: torch.Tensor) -> None:
        self.num_updates += 1
        rate = self.rate / (1 + 0.005 * self.num_updates)
        sign = torch.where(self.labels[nearest] == labels, 1.0, -0.3)
        self.points.index_add_(0, nearest, rate * sign.unsqueeze(1) * (x - self.points[nearest]))


class DigitsWrapper(ModelWrapper):
    """Provides the data, the first prototypes and the metrics."""

    def make_dataloader_train(self, config: RunConfig) -> DataLoader:
        return DataLoader(load_split("train"), batch_size=config.train_config.batch_size, shuffle=True)

    def make_dataloader_val(self, config: RunConfig) -> DataLoader:
        return DataLoader(load_split("valid"), batch_size=500)

    def create_model(self, config: RunConfig) -> Prototypes:
        model = super().create_model(config)
        images, labels = self.train_dataloader.dataset.tensors
        for number in range(10):  # the first prototypes are images of their class
            rows = model.labels == number
            model.points[rows] = images[labels == number][: int(rows.sum())]
        return model

    def create_optimizer(self, model: nn.Module, config: RunConfig) -> None:
        return None

    def evaluation_functions(self) -> dict[str, object]:
        return {"accuracy": lambda prediction, labels: (prediction == labels).float().mean()}


def load_split(name: str) -> TensorDataset:
    digits = load_digits()
    rows = slice(0, 1300) if name == "train" else slice(1300, None)
    return TensorDataset(torch.tensor(digits.data[rows] / 16, dtype=torch.float32), torch.tensor(digits.target[rows]))


def main(epochs: int = 15, store: str = "runs/self_updating") -> float:
    config = RunConfig(
        model_config=PrototypeConfig(),
        train_config=TrainConfig(
            dataset="digits", batch_size=16, epochs=epochs, optimizer_config={"name": "sgd", "arguments": {"lr": 0.1}}
        ),
        optim_metrics={"valid/accuracy": "max"},
        optim_metric_name="valid/accuracy",
        experiment_dir=store,
        device="cpu",
        verbose="silent",
    )
    trainer = ProtoTrainer(DigitsWrapper(Prototypes), config)
    trainer.smoke_test()  # trains on a few batches, and saves and restores a checkpoint, in a temporary folder
    trainer.launch()
    values = dict(trainer.manager.history["valid/accuracy"])
    print(f"accuracy {values[0]:.1%} with the first prototypes, {values[epochs]:.1%} after {epochs} epochs without a gradient")
    print(f"the best checkpoint reaches {trainer.evaluate('best')['valid']['accuracy']:.1%}")
    return values[epochs]


if __name__ == "__main__":
    main()
