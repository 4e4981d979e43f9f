"""Train a tiny transformer to write like Python's reference manual, character by character, and let it continue the start of a sentence."""

from __future__ import annotations

from pydoc_data.topics import topics  # the texts of `help("for")` and other topics, which come with Python

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, RandomSampler

from trainmaster import ClipGradients, Config, Supervised

NAMES = ("for", "if", "while", "try", "with", "class", "function", "assert", "import", "lambda")
TEXT = "\n".join(topics[name] for name in NAMES)
LETTERS = sorted(set(TEXT))
CODES = torch.tensor([LETTERS.index(letter) for letter in TEXT])
defaults = {"epochs": 10, "updates_per_epoch": 60, "context": 32, "width": 64, "layers": 2, "lr": 4e-3, "seed": 0}


class Windows(Dataset):
    """A dataset of windows of the text, each paired with the same window one character later."""

    def __init__(self, codes: torch.Tensor, context: int) -> None:
        self.codes, self.context = codes, context

    def __len__(self) -> int:
        return len(self.codes) - self.context

    def __getitem__(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.codes[start : start + self.context + 1]
        return window[:-1], window[1:]


class LanguageModel(nn.Module):
    def __init__(self, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.context = context
        self.letters = nn.Embedding(len(LETTERS), width)
        self.positions = nn.Parameter(0.02 * torch.randn(context, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(LETTERS)))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        length = codes.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=codes.device).triu(1)  # no character can attend to a later one
        return self.head(self.blocks(self.letters(codes) + self.positions[:length], mask=future))

    @torch.no_grad()
    def write(self, start: str, length: int) -> str:
        self.eval()
        codes = [LETTERS.index(letter) for letter in start]
        for _ in range(length):
            scores = self(torch.tensor([codes[-self.context :]]))[0, -1]
            codes.append(int(torch.multinomial((scores / 0.7).softmax(0), 1)))
        return "".join(LETTERS[code] for code in codes)


def cross_entropy(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction.flatten(0, 1), targets.flatten())


def unigram_entropy() -> float:
    """Return the loss of a model that only knows how frequent each character is, in nats per character."""
    shares = torch.bincount(CODES) / len(CODES)
    return float(-(shares * shares.log()).sum())


def make_loop(config: Config) -> Supervised:
    split = int(0.9 * len(CODES))
    train, valid = Windows(CODES[:split], config.context), Windows(CODES[split:], config.context)
    draws = RandomSampler(train, replacement=True, num_samples=16 * config.updates_per_epoch)
    return Supervised(
        LanguageModel(config.context, config.width, config.layers),
        cross_entropy,
        epochs=config.epochs,
        train_data=DataLoader(train, batch_size=16, sampler=draws),
        eval_data=DataLoader(valid, batch_size=64, sampler=range(0, len(valid), config.context)),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=config.lr),
        lr_schedule=lambda optimizer: CosineAnnealingLR(optimizer, config.epochs * config.updates_per_epoch),
        extensions=[ClipGradients(1.0)],
    )


def main(**changes: object) -> float:
    config = Config({**defaults, **changes})
    torch.manual_seed(config.seed)
    loop = make_loop(config)
    loop.train()
    _, loss = loop.history["valid/loss"][-1]
    print(f"{len(TEXT):,} characters of text, {len(LETTERS)} different ones")
    print(f"loss {loss:.2f} nats per character; a model that only counts characters reaches {unigram_entropy():.2f}")
    print(loop.model.write('The "for" statement', 160))
    return loss


if __name__ == "__main__":
    main()
