"""Models in which the examples of a batch mix, each because of a realistic mistake.

The wrong line is marked with `# <- leak`, or with `# <- leak: name (Class)` if the check must report the module inside
the model that runs the line.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

N, T, C = 16, 6, 8


class Leaky(nn.Module):
    """A wrong model, and a batch for it. The class has a `loss` if the mistake is in the loss."""

    cases: ClassVar[list[type[Leaky]]] = []
    loss: ClassVar[Any] = None
    phase = "forward"

    def __init_subclass__(cls) -> None:
        Leaky.cases.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(C, C)
        self.head = nn.Linear(C, 3)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, T, C)

    def forward(self, batch: Any) -> Any:
        raise NotImplementedError


class ViewInsteadOfTranspose(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(C, C)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        x = x.view(T, -1, C)  # <- leak
        out, _ = self.rnn(x)
        return self.head(out[-1])


class ReshapeOfTimeMajor(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(C, C)
        self.out = nn.Linear(T * C, 3)

    def forward(self, batch: Any) -> Any:
        num = batch.shape[0]
        states, _ = self.rnn(batch.transpose(0, 1))
        flat = states.reshape(num, -1)  # <- leak
        return self.out(flat)


class PermuteInWrongOrder(Leaky):
    """Merges heads after a permutation that put the batch in the wrong dimension."""

    def forward(self, batch: Any) -> Any:
        num = batch.shape[0]
        heads = batch.view(num, T, 2, C // 2).permute(2, 1, 0, 3)
        merged = heads.reshape(num, T, C)  # <- leak
        return self.head(self.linear(merged).mean(1))


class PermuteMergesWrongAxes(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(C, C, 3, padding=1)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch).permute(2, 1, 0)
        x = F.relu(x)
        x = x.reshape(-1, C, T)  # <- leak
        return self.conv(x).mean(-1)


class CatOverTheBatch(Leaky):
    """Concatenates two views of each example along the batch dimension, then splits the result into pairs."""

    def forward(self, batch: Any) -> Any:
        x = batch.mean(1)
        both = torch.cat([x, x.flip(1)], dim=0)
        pairs = both.reshape(-1, 2 * C)  # <- leak
        return pairs[:, :C] * pairs[:, C:]


class StackWithWrongDim(Leaky):
    def forward(self, batch: Any) -> Any:
        first, last = self.linear(batch[:, 0]), self.linear(batch[:, -1])
        both = torch.stack([first, last], dim=0)
        both = both.view(-1, 2 * C)  # <- leak
        return both.tanh()


class StackAndAverage(Leaky):
    """Takes the mean over the batch instead of over the two heads."""

    def forward(self, batch: Any) -> Any:
        x = batch.mean(1)
        heads = torch.stack([self.linear(x).tanh(), self.linear(-x).relu()], dim=1)
        mean = heads.mean(0)  # <- leak
        return self.head(x) + self.head(mean).sum(0)


class FlattenFromZero(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool1d(16)

    def forward(self, batch: Any) -> Any:
        flat = self.linear(batch.mean(1)).flatten(0)
        return self.pool(flat[None])[0]  # <- leak: pool (AdaptiveAvgPool1d)


class NormaliseOverTheBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        mean = x.mean(0, keepdim=True)  # <- leak
        std = x.std(0, keepdim=True)
        return self.head((x - mean) / (std + 1e-5))


class NormaliseByTheWholeTensor(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        x = x / x.norm()  # <- leak
        return self.head(x)


class SoftmaxOverTheBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        logits = self.head(batch.mean(1))
        return torch.softmax(logits, dim=0)  # <- leak


class ImplicitSoftmax(Leaky):
    """Uses `nn.Softmax()` without `dim`, which means the first of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=0)

    def forward(self, batch: Any) -> Any:
        scores = self.linear(batch)
        return self.softmax(scores)  # <- leak: softmax (Softmax)


class AttentionSoftmaxOverTheBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        query, key = self.linear(batch), batch
        scores = query @ key.transpose(1, 2) / math.sqrt(C)
        weights = scores.softmax(0)  # <- leak
        return self.head(weights @ batch)


class AttentionOverAllTokens(Leaky):
    """Lets the tokens of all examples attend to each other."""

    def forward(self, batch: Any) -> Any:
        num = batch.shape[0]
        tokens = batch.reshape(num * T, C)
        query = self.linear(tokens)
        scores = query @ tokens.T  # <- leak
        mixed = scores.softmax(-1) @ tokens
        return self.head(mixed.view(num, T, C))


class AttentionBatchFirst(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(C, 2)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        x = x + self.attention(x, x, x)[0]  # <- leak: attention (MultiheadAttention)
        return self.head(x)


class EncoderBatchFirst(Leaky):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, 2, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, batch: Any) -> Any:
        x = self.encoder(self.linear(batch))  # <- leak: encoder.layers.0.self_attn (MultiheadAttention)
        return self.head(x.mean(1))


class ScaledDotProductWithoutBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        x = x.transpose(0, 1)
        x = F.scaled_dot_product_attention(x, x, x)  # <- leak
        return self.head(x.transpose(0, 1))


class CumsumOverTheBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        x = x.cumsum(0)  # <- leak
        return self.head(x)


class LstmBatchFirst(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(C, C)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        out, _ = self.lstm(x)  # <- leak: lstm (LSTM)
        return self.head(out[:, -1])


class RnnBatchFirst(Leaky):
    """Passes time-major data to a net that expects the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(C, C, batch_first=True)

    def forward(self, batch: Any) -> Any:
        x = batch.transpose(0, 1)
        out, _ = self.rnn(x)  # <- leak: rnn (RNN)
        return self.head(out[-1])


class LastStateOfWrongAxis(Leaky):
    """Uses `out[-1]` although the batch comes first, so every example uses the output of the last example."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C, batch_first=True)

    def forward(self, batch: Any) -> Any:
        out, _ = self.gru(batch)
        last = out[-1].mean(0)
        return self.head(out.mean(1) + last)  # <- leak


class ViewOfFinalState(Leaky):
    """Views the final state, whose shape is (directions, N, C), as (N, directions * C)."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C, batch_first=True, bidirectional=True)

    def forward(self, batch: Any) -> Any:
        _, state = self.gru(batch)
        state = state.view(len(batch), -1)  # <- leak
        return self.head(state[:, :C])


class RepeatInsteadOfInterleave(Leaky):
    def forward(self, batch: Any) -> Any:
        x = batch.mean(1)
        beams = x.repeat(2, 1)
        beams = beams.view(-1, 2, C)  # <- leak
        return self.head(beams)


class MaskBroadcast(Leaky):
    """Forgets to add an axis to a mask, which still fits because there are as many examples as tokens."""

    @staticmethod
    def batch() -> Any:
        return torch.randint(0, 4, (T, T)).index_fill_(1, torch.tensor([0]), 1)

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C)

    def forward(self, batch: Any) -> Any:
        x = self.embedding(batch)
        scores = x @ x.transpose(1, 2)
        scores = scores.masked_fill(batch == 0, -1e9)  # <- leak
        return self.head(scores.softmax(-1) @ x)


class MeanAsFeature(Leaky):
    def forward(self, batch: Any) -> Any:
        x = batch.mean(1)
        context = x.mean(0)  # <- leak
        return self.head(self.linear(x) + context)


class MaxOverTheBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch.mean(1))
        top = x.max(0).values  # <- leak
        return self.head(x - top)


class EinsumSumsOverExamples(Leaky):
    def forward(self, batch: Any) -> Any:
        query = self.linear(batch)
        scores = torch.einsum("ntc,msc->nts", query, batch)  # <- leak
        return scores.softmax(-1) @ batch


class SortOverTheBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch.mean(1))
        x, _ = x.sort(0)  # <- leak
        return self.head(x)


class RollOverTheBatch(Leaky):
    """Rolls along the wrong dimension."""

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        shifted = x.roll(1, dims=0)  # <- leak
        gate = torch.sigmoid(shifted)
        return self.head(x * gate)


class FlipOverTheBatch(Leaky):
    """A handwritten bidirectional net whose backward direction flips the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C, batch_first=True)

    def forward(self, batch: Any) -> Any:
        reverse = batch.flip(0)  # <- leak
        out, _ = self.gru(reverse)
        return self.head(out)


class ShuffledRows(Leaky):
    """Sorts the examples by length for packing, and never restores their order."""

    @staticmethod
    def batch() -> Any:
        return {"x": torch.randn(N, T, C), "lengths": torch.tensor([3, 5, 1, 4, 6, 2, 5, 3] * 2)}

    def forward(self, batch: Any) -> Any:
        order = batch["lengths"].argsort(descending=True)
        x = batch["x"][order]  # <- leak
        return self.head(self.linear(x).mean(1))


class IndexWithoutBatch(Leaky):
    """Uses `x[lengths - 1]` instead of `x[arange, lengths - 1]`."""

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, T, C), torch.tensor([3, 5, 1, 4, 6, 2, 5, 3] * 2)

    def forward(self, batch: Any) -> Any:
        x, lengths = batch
        states = self.linear(x)
        last = states[lengths - 1]  # <- leak
        return self.head(last.mean(1))


class GatherWithWrongDim(Leaky):
    @staticmethod
    def batch() -> Any:
        return {"scores": torch.randn(N, C), "choice": torch.randint(0, 5, (N, 3))}

    def forward(self, batch: Any) -> Any:
        scores = self.linear(batch["scores"])
        return scores.gather(0, batch["choice"])  # <- leak


class BmmWithTransposedBatch(Leaky):
    def forward(self, batch: Any) -> Any:
        left = self.linear(batch).transpose(0, 1)
        scores = torch.bmm(left, batch.permute(1, 2, 0))  # <- leak
        return scores.transpose(0, 1).mean(-1)


class LayerNormOverTheBatch(Leaky):
    """Has a norm whose size is the batch size, so it works for this batch size only."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(N)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        x = self.norm(x.transpose(0, 2))  # <- leak: norm (LayerNorm)
        return self.head(x.transpose(0, 2))


class GroupNormOnFoldedBatch(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, C)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        folded = x.reshape(1, -1, C).transpose(1, 2)
        x = self.norm(folded)  # <- leak: norm (GroupNorm)
        return self.head(x.transpose(1, 2).reshape(-1, T, C))


class StateKeptOverTheBatch(Leaky):
    """Starts each example with the hidden state of the previous one."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(C, C)

    def forward(self, batch: Any) -> Any:
        state = torch.zeros(1, C)
        states = []
        for example in batch.mean(1):
            state = self.cell(example[None], state)  # <- leak: cell (GRUCell)
            states.append(state)
        return self.head(torch.cat(states))


class WrittenToTheWrongRow(Leaky):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        out = torch.zeros_like(x)
        for step in range(T):
            out[:, step] = x[:, step]
        out[1:] += x[:-1]  # <- leak
        return self.head(out)


class TokensOfAllExamples(Leaky):
    """Has integer inputs, and puts the tokens of all examples into one bag."""

    @staticmethod
    def batch() -> Any:
        return {"tokens": torch.randint(1, 20, (N, T)), "label": torch.randint(0, 3, (N,))}

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C)

    def forward(self, batch: Any) -> Any:
        x = self.embedding(batch["tokens"])
        topic = x.mean((0, 1))  # <- leak
        return self.head(x.mean(1) * topic)


class BehindABatchNorm(Leaky):
    """Mixes examples in a batch norm, which is allowed, and again in the last line, which is not."""

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, 3, T, T)

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, C, 3, padding=1), nn.BatchNorm2d(C), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, batch: Any) -> Any:
        x = self.body(batch)
        x = x.mean((2, 3))
        return self.head(x - x.amax(0))  # <- leak


class InAHelper(Leaky):
    """Has the mistake in a function that an inner module calls."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, batch: Any) -> Any:
        return self.head(self.block(self.linear(batch)))


class Block(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + centred(x)


def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(dim=(0, 1))  # <- leak: block (Block)


class HarmlessFirst(Leaky):
    """Subtracts the maximum over the batch before a softmax, which has no effect. The mistake is in a later line."""

    def forward(self, batch: Any) -> Any:
        scores = self.linear(batch)
        weights = (scores - scores.max()).softmax(-1)
        total = weights.sum(1)
        return total / total.sum(0)  # <- leak


class HarmlessOrderFirst(Leaky):
    """Reverses the examples and later restores their order, which has no effect. The mistake is in between."""

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch.flip(0))
        mean = x.mean(0)  # <- leak
        return self.head((x - mean).flip(0))


class StraightGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient - gradient.mean(0)  # <- leak


class BackwardMixes(Leaky):
    phase = "backward"

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        return self.head(StraightGradient.apply(x))  # type: ignore[no-untyped-call]


class GradientOfTheMean(Leaky):
    """Adds the mean of the batch and subtracts it again, but not its gradient."""

    phase = "backward"

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        mean = x.mean(0)
        return self.head(x + mean - mean.detach())  # <- leak


class PositionEmbeddingAndMean(Leaky):
    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Embedding(T, C)

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch) + self.position(torch.arange(T))
        return self.head(x - x.mean(0))  # <- leak


class GradientHook(Leaky):
    """Clips gradients by the norm of the whole batch."""

    phase = "backward"

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C)

    @staticmethod
    def batch() -> Any:
        return torch.randint(0, 20, (N, T))

    def forward(self, batch: Any) -> Any:
        x = self.embedding(batch)
        x.register_hook(lambda gradient: gradient / gradient.norm())  # <- leak
        return self.head(self.linear(x))


class BroadcastInTheLoss(Leaky):
    """Subtracts a tensor of shape (N,) from one of shape (N, 1), which gives (N, N)."""

    phase = "loss"

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(C, 1)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.randn(N)

    def forward(self, batch: Any) -> Any:
        return self.out(batch[0])

    @staticmethod
    def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        error = prediction - batch[1]  # <- leak: None
        return error.pow(2).mean()


class BroadcastInMseLoss(Leaky):
    phase = "loss"

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(C, 1)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.randn(N)

    def forward(self, batch: Any) -> Any:
        return self.out(batch[0])

    @staticmethod
    def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(prediction, batch[1])  # <- leak: None


class SoftmaxOverTheBatchInTheLoss(Leaky):
    phase = "loss"

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.randint(0, 3, (N,))

    def forward(self, batch: Any) -> Any:
        return self.head(batch[0])

    @staticmethod
    def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        log_probs = F.log_softmax(prediction, dim=0)  # <- leak: None
        return F.nll_loss(log_probs, batch[1])


class CentredInTheLoss(Leaky):
    phase = "loss"

    @staticmethod
    def batch() -> Any:
        return {"x": torch.randn(N, T, C), "mask": torch.rand(N, T) > 0.3, "y": torch.randn(N, T, 3)}

    def forward(self, batch: Any) -> Any:
        return self.head(batch["x"])

    @staticmethod
    def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        count = batch["mask"].sum()
        mean = prediction.mean()  # <- leak: None
        error = (prediction - mean - batch["y"]).pow(2).sum(-1)
        return (error * batch["mask"]).sum() / count


class LossWithinTheModel(Leaky):
    """Returns only its loss."""

    phase = "loss"

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.randint(0, 3, (N,))

    def forward(self, batch: Any) -> Any:
        logits = self.head(batch[0])
        probs = logits.softmax(0)  # <- leak
        return F.nll_loss(probs.log(), batch[1])

    @staticmethod
    def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        return prediction
