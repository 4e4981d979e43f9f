"""Models whose examples do not mix, or mix only in allowed ways. The leakage check must not report any of them."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

N, T, C = 16, 6, 8
LENGTHS = [3, 5, 1, 4, 6, 2, 5, 3] * 2


class Sound(nn.Module):
    """A correct model, and a batch for it."""

    cases: ClassVar[list[type[Sound]]] = []
    loss: ClassVar[Any] = None

    def __init_subclass__(cls) -> None:
        Sound.cases.append(cls)

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(C, C)
        self.head = nn.Linear(C, 3)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, T, C)

    def forward(self, batch: Any) -> Any:
        raise NotImplementedError


class Mlp(Sound):
    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.randint(0, 3, (N,))

    def forward(self, batch: Any) -> Any:
        return self.head(F.relu(self.linear(batch[0])))

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.cross_entropy(prediction, batch[1])


class ConvNetWithBatchNorm(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, C, 3, padding=1), nn.BatchNorm2d(C), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(C, C, 3), nn.BatchNorm2d(C)
        )
        self.norm = nn.BatchNorm1d(C)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, 3, 8, 8)

    def forward(self, batch: Any) -> Any:
        return self.head(self.norm(self.body(batch).mean((2, 3))))


class BatchNormWithoutStatistics(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(C, track_running_stats=False)

    def forward(self, batch: Any) -> Any:
        return self.head(self.norm(self.linear(batch.mean(1))))


class OtherNorms(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.Sequential(nn.GroupNorm(2, C), nn.InstanceNorm1d(C, affine=True, track_running_stats=True), nn.LayerNorm(T))
        self.rms = nn.RMSNorm(C)

    def forward(self, batch: Any) -> Any:
        return self.head(self.rms(self.norms(batch.transpose(1, 2)).transpose(1, 2)))


class EncoderWithPaddingMask(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C, padding_idx=0)
        layer = nn.TransformerEncoderLayer(C, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    @staticmethod
    def batch() -> Any:
        tokens = torch.randint(1, 20, (N, T))
        return {"tokens": tokens * (torch.arange(T) < torch.tensor(LENGTHS)[:, None]), "label": torch.randint(0, 3, (N,))}

    def forward(self, batch: Any) -> Any:
        padding = batch["tokens"] == 0
        x = self.encoder(self.embedding(batch["tokens"]), src_key_padding_mask=padding)
        x = x.masked_fill(padding[..., None], 0)
        return self.head(x.sum(1) / (~padding).sum(1, keepdim=True))

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.cross_entropy(prediction, batch["label"], label_smoothing=0.1)


class FrozenEncoder(EncoderWithPaddingMask):
    """An encoder in eval mode and without gradients, which uses the fast path with nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder.eval().requires_grad_(False)
        self.embedding.requires_grad_(False)

    def forward(self, batch: Any) -> Any:
        padding = batch["tokens"] == 0
        with torch.no_grad():
            x = self.encoder(self.embedding(batch["tokens"]), src_key_padding_mask=padding)
        return self.head(x[:, 0])


class CausalDecoder(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C)
        self.position = nn.Parameter(torch.randn(T, C))
        self.query, self.key, self.value = (nn.Linear(C, C) for _ in range(3))

    @staticmethod
    def batch() -> Any:
        return torch.randint(0, 20, (N, T + 1))

    def forward(self, batch: Any) -> Any:
        x = self.embedding(batch[:, :-1]) + self.position
        query, key, value = (each(x).view(-1, T, 2, C // 2).transpose(1, 2) for each in (self.query, self.key, self.value))
        x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).reshape(-1, T, C)
        return x @ self.embedding.weight.T

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.cross_entropy(prediction.flatten(0, 1), batch[:, 1:].flatten())


class LstmBatchFirst(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(C, C, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * C, 3)

    def forward(self, batch: Any) -> Any:
        return self.out(self.lstm(batch)[0])


class LstmTimeFirst(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(C, C)

    def forward(self, batch: Any) -> Any:
        out, (_, cell) = self.lstm(batch.transpose(0, 1))
        return self.head(out[-1] + cell[0])


class PackedGru(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C, num_layers=2, dropout=0.3, batch_first=True)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, T, C), torch.tensor(LENGTHS)

    def forward(self, batch: Any) -> Any:
        x, lengths = batch
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, state = self.gru(packed)
        padded, _ = pad_packed_sequence(out, batch_first=True)
        return self.head(padded), state[-1]


class PackedPrediction(PackedGru):
    """Returns a packed sequence, whose shape depends on the lengths."""

    def forward(self, batch: Any) -> PackedSequence:
        x, lengths = batch
        return self.gru(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0]


class CutToTheLongest(Sound):
    @staticmethod
    def batch() -> Any:
        return {"x": torch.randn(N, T, C), "lengths": torch.tensor([2, 5, 1, 4, 3, 2, 5, 3] * 2)}

    def forward(self, batch: Any) -> Any:
        longest = int(batch["lengths"].max())
        mask = torch.arange(longest) < batch["lengths"][:, None]
        return self.head(self.linear(batch["x"][:, :longest])) * mask[..., None]


class SortedAndPutBack(Sound):
    @staticmethod
    def batch() -> Any:
        return torch.randn(N, T, C), torch.tensor(LENGTHS)

    def forward(self, batch: Any) -> Any:
        x, lengths = batch
        order = lengths.argsort(descending=True, stable=True)
        return self.head(self.linear(x[order])[order.argsort()])


Pair = namedtuple("Pair", ["image", "label"])


class NamedTupleBatch(Sound):
    @staticmethod
    def batch() -> Any:
        return Pair(torch.randn(N, C), torch.randint(0, 3, (N,)))

    def forward(self, batch: Any) -> Any:
        return self.head(batch.image)

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.cross_entropy(prediction, batch.label, weight=torch.tensor([0.2, 1.0, 3.0]))


@dataclass
class Sentences:
    tokens: torch.Tensor
    tags: torch.Tensor
    texts: list[str]
    temperature: float = 2.0


class DataclassBatch(Sound):
    """Takes a batch with class weights, ignored tokens, and texts next to the tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C)

    @staticmethod
    def batch() -> Any:
        tags = torch.randint(0, 3, (N, T))
        tags[torch.arange(T) >= torch.tensor(LENGTHS)[:, None]] = -100
        return Sentences(torch.randint(1, 20, (N, T)), tags, [f"sentence {number}" for number in range(N)])

    def forward(self, batch: Any) -> Any:
        sizes = torch.tensor([float(text[9:]) for text in batch.texts])
        return self.head(self.embedding(batch.tokens)) / batch.temperature + sizes[:, None, None]

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        weight = torch.tensor([0.2, 1.0, 3.0])
        return F.cross_entropy(prediction.transpose(1, 2), batch.tags, weight=weight, ignore_index=-100)


class MaskedMeanLoss(Sound):
    @staticmethod
    def batch() -> Any:
        mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
        return {"x": torch.randn(N, T, C), "y": torch.randn(N, T, 3), "mask": mask}

    def forward(self, batch: Any) -> Any:
        return self.head(batch["x"])

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        error = (prediction - batch["y"]).pow(2).mean(-1)
        return (error * batch["mask"]).sum() / batch["mask"].sum()


class RootMeanSquare(Sound):
    """Takes a root over the whole batch, which scales all gradients alike."""

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.randn(N, 3)

    def forward(self, batch: Any) -> Any:
        return self.head(batch[0])

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.mse_loss(prediction, batch[1]).sqrt()


class TwoLosses(Sound):
    """Adds a box loss over the positive tokens and a class loss over all tokens. One tensor has both predictions."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(C, 5)

    @staticmethod
    def batch() -> Any:
        return {"x": torch.randn(N, T, C), "box": torch.randn(N, T, 4), "is_object": torch.rand(N, T) > 0.6}

    def forward(self, batch: Any) -> Any:
        return self.out(batch["x"])

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        positive = batch["is_object"]
        boxes = F.smooth_l1_loss(prediction[..., 1:][positive], batch["box"][positive])
        return boxes + F.binary_cross_entropy_with_logits(prediction[..., 0], positive.float())


class ManyOutputs(Sound):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        return {"logits": self.head(x), "parts": (x.mean(1), [x.amax((1, 2))]), "scale": self.head.bias, "name": "net"}


class FoldedAndBack(Sound):
    """Reshapes (N, T, C) to (N * T, C) and back."""

    def forward(self, batch: Any) -> Any:
        num, steps, _ = batch.shape
        flat = batch.reshape(num * steps, C)
        return self.head(F.relu(self.linear(flat))).view(num, steps, 3)


class TimeFirstAndBack(Sound):
    def forward(self, batch: Any) -> Any:
        x = self.linear(batch.permute(1, 0, 2).contiguous())
        x = x.view(T, -1, 2, C // 2).permute(1, 0, 3, 2)
        return self.head(x.reshape(-1, T, C))


class TimeFirstPrediction(Sound):
    """Returns a prediction of shape (T, N, C)."""

    def forward(self, batch: Any) -> Any:
        return self.head(self.linear(batch).transpose(0, 1))


class FoldedPrediction(Sound):
    """Returns a prediction of shape (N * T, C)."""

    def forward(self, batch: Any) -> Any:
        return self.head(self.linear(batch)).flatten(0, 1)


class OneNumberEach(Sound):
    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C), torch.rand(N)

    def forward(self, batch: Any) -> Any:
        return self.head(batch[0]).sum(-1)

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.mse_loss(prediction, batch[1])


class UNet(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.inner = nn.Conv2d(3, C, 3, padding=1), nn.Conv2d(C, C, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(C, C, 2, stride=2), nn.Conv2d(2 * C, 1, 1)

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, 3, 8, 8)

    def forward(self, batch: Any) -> Any:
        skip = F.relu(self.down(batch))
        inner = F.relu(self.inner(F.max_pool2d(skip, 2)))
        return self.out(torch.cat([skip, self.up(inner)], dim=1))


class EinsumAttention(Sound):
    def forward(self, batch: Any) -> Any:
        query = self.linear(batch)
        weights = torch.einsum("ntc,nsc->nts", query, batch).softmax(-1)
        return torch.einsum("nts,nsc->ntc", weights, batch)


class StableSoftmax(Sound):
    """Subtracts a constant from all scores, which has no effect."""

    def forward(self, batch: Any) -> Any:
        scores = self.linear(batch)
        return (scores - scores.max().detach()).softmax(-1)


class ResidualWithDropout(Sound):
    def forward(self, batch: Any) -> Any:
        x = batch + F.dropout(self.linear(batch), 0.5, self.training)
        noise = torch.randn_like(x) * 0.1
        return self.head(x + noise)


class TiedAutoencoder(Sound):
    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C)

    def forward(self, batch: Any) -> Any:
        code = torch.tanh(F.linear(batch, self.linear.weight))
        return F.linear(code, self.linear.weight.T), code

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return F.mse_loss(prediction[0], batch) + 0.01 * prediction[1].abs().mean()


class DepthwiseConv(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(C, C, 3, padding=1, groups=C)

    def forward(self, batch: Any) -> Any:
        return self.conv(batch.transpose(1, 2))


class InPlace(Sound):
    def forward(self, batch: Any) -> Any:
        batch += 1
        batch[:, 0] = 0
        x = F.relu(self.linear(batch), inplace=True)
        out = torch.zeros(x.shape[0], 2, C)
        for example in range(len(x)):
            out[example, 0] = x[example, -1]
        out.index_put_((torch.arange(len(x)), torch.ones(len(x), dtype=torch.long)), x[:, 1])
        out.mul_(2)
        return self.head(out)


class NormedWeights(Sound):
    def __init__(self) -> None:
        super().__init__()
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(C, C))
        self.weight = nn.utils.parametrizations.weight_norm(nn.Linear(C, C))

    def forward(self, batch: Any) -> Any:
        return self.weight(F.relu(self.spectral(batch)))


class MixtureOfExperts(Sound):
    """Lets each example select its own expert. The number of examples per expert depends on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(C, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(C, C), nn.ReLU(), nn.Dropout(0.5)) for _ in range(3))

    @staticmethod
    def batch() -> Any:
        return torch.randn(N, C)

    def forward(self, batch: Any) -> Any:
        scores = self.gate(batch).softmax(-1)
        best, choice = scores.max(-1)
        out = torch.zeros_like(batch)
        for number, expert in enumerate(self.experts):
            rows = (choice == number).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(batch[rows]))
        return self.head(out * best[:, None])


class RunningState(Sound):
    """Updates statistics that the prediction does not use: in a buffer, an attribute and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(C))
        self.last: Any = None
        self.sizes: list[float] = []

    def forward(self, batch: Any) -> Any:
        x = self.linear(batch)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * x.mean((0, 1)))
        self.last = x.detach()
        self.sizes.append(float(x.norm()))
        return self.head(x)


class Checkpointed(Sound):
    def forward(self, batch: Any) -> Any:
        return self.head(checkpoint(self.linear, batch, use_reentrant=False))


class FixedBatchSize(Sound):
    """Accepts only its batch size, so the check cannot use fewer examples."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(C, C, batch_first=True)
        self.register_buffer("start", torch.zeros(1, N, C))

    def forward(self, batch: Any) -> Any:
        return self.head(self.gru(batch, self.start)[0])


class PlainInputs(Sound):
    """Reads its inputs with NumPy, so they cannot have gradients."""

    def forward(self, batch: Any) -> Any:
        scale = torch.from_numpy(abs(batch.numpy()).max((1, 2), keepdims=True))
        return self.head(self.linear(batch / scale))


class LossInside(Sound):
    """Returns a dict with the logits, the loss, and an auxiliary loss over the whole batch."""

    @staticmethod
    def batch() -> Any:
        return {"x": torch.randn(N, C), "label": torch.randint(0, 3, (N,))}

    def forward(self, batch: Any) -> Any:
        logits = self.head(batch["x"])
        return {"loss": F.cross_entropy(logits, batch["label"]), "logits": logits}

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return prediction["loss"]


class OnlyALoss(LossInside):
    def forward(self, batch: Any) -> Any:
        return F.cross_entropy(self.head(F.relu(self.linear(batch["x"]))), batch["label"])

    @staticmethod
    def loss(batch: Any, prediction: Any) -> Any:
        return prediction


class SmallBatch(Sound):
    @staticmethod
    def batch() -> Any:
        return torch.randn(2, T, C)

    def forward(self, batch: Any) -> Any:
        return self.head(self.linear(batch))


class HalfPrecision(Sound):
    def forward(self, batch: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(F.relu(self.linear(batch)))


class StraightThrough(Sound):
    """Has a step function whose gradient passes straight through for each example. One token in ten is -1e9."""

    def forward(self, batch: Any) -> Any:
        soft = self.linear(batch).sigmoid()
        hard = (soft > 0.5).float() + soft - soft.detach()
        return self.head(hard).masked_fill(batch[..., :3] > 1.2, -1e9)


class PositionEmbedding(Sound):
    """Adds an embedding of the positions, which all examples share, as GPT and BERT do."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(20, C), nn.Embedding(T, C)

    @staticmethod
    def batch() -> Any:
        return torch.randint(0, 20, (N, T))

    def forward(self, batch: Any) -> Any:
        return self.head(torch.tanh(self.embedding(batch) + self.position(torch.arange(T))).mean(1))


class QueryEmbedding(Sound):
    """Attends to an example with queries that all examples share, as DETR does."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.attention = nn.Embedding(4, C), nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, batch: Any) -> Any:
        return self.head(self.attention(self.query(torch.arange(4)).expand(len(batch), -1, -1), batch, batch)[0])


class RelativePositionBias(Sound):
    """Adds an embedding of the distance between two positions to the attention scores, as T5 does."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(2 * T - 1, 1)

    def forward(self, batch: Any) -> Any:
        distance = torch.arange(T)[:, None] - torch.arange(T)[None] + T - 1
        return self.head((self.linear(batch) @ batch.transpose(1, 2) + self.bias(distance).squeeze(-1)).softmax(-1) @ batch)


class EmbeddingOfSortedExamples(Sound):
    """Sorts the examples before the embedding, and restores their order at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, C)

    @staticmethod
    def batch() -> Any:
        return torch.randint(0, 20, (N, T))

    def forward(self, batch: Any) -> Any:
        order = batch.sum(1).argsort()
        return self.head(torch.tanh(self.embedding(batch[order])).mean(1))[order.argsort()]
