"""Each sanity check passes for a correct setup, fails for a broken one, and restores the loop afterwards."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from trainmaster.errors import SanityCheckError, SettingError
from trainmaster.extensions.leakage_check import LeakageCheck
from trainmaster.extensions.sanity import data as sanity_data
from trainmaster.extensions.sanity import loss as sanity_loss
from trainmaster.extensions.sanity.report import SanityReport, SanityResult
from trainmaster.extensions.sanity_check import CHECKS, SanityCheck, sanity_check
from trainmaster.loop import TrainingState, TrainManager, TrainTestLoop
from trainmaster.stages import Extension
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits


class Net(nn.Module):
    """A small classifier with three classes."""

    def __init__(self, num_in: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(num_in, 16)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(16, 3)

    def forward(self, batch: Any) -> torch.Tensor:
        out: torch.Tensor = self.last(self.drop(self.first(batch[0]).relu()))
        return out


def cross_entropy(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1])


def squared(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return (prediction - batch[1]).pow(2).mean()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(192, 6, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def make(
    model: nn.Module | None = None,
    loss: Any = cross_entropy,
    train: Any = None,
    valid: Any = None,
    kind: type[TrainManager] = TrainManager,
    **settings: Any,
) -> TrainManager:
    """Return a correct training setup in which the given arguments replace the defaults."""
    inputs, labels = samples()
    train = DataLoader(TensorDataset(inputs[:128], labels[:128]), 16, shuffle=True) if train is None else train
    valid = {"valid": DataLoader(TensorDataset(inputs[128:], labels[128:]), 32)} if valid is None else valid
    return kind(model or Net(), loss, 3, train, valid, **{"optimizer": adam, "device": "cpu", **settings})


def run_check(name: str, loop: TrainManager, **options: Any) -> SanityResult:
    """Run one check, and return its result."""
    return sanity_check(loop, [name], **options)[name]


def check_model(name: str, model: nn.Module, **settings: Any) -> SanityResult:
    return run_check(name, make(model, **settings))


# ---- the report


def test_a_correct_training_setup_passes_every_check() -> None:
    report = sanity_check(make())
    assert [(each.name, each.outcome) for each in report.results] == [(name, "passed") for name in CHECKS]
    assert report.is_ok


class AlwaysDrop(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(values, 0.5)


class Drift(nn.Module):
    num_calls = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return values + self.num_calls


class Spoilt(Net):
    """A model with an unused layer, a different result in each pass, and large initial scores."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(2, 2)
        self.drift = Drift()

    def forward(self, batch: Any) -> torch.Tensor:
        out: torch.Tensor = self.drift(self.last(self.first(batch[0]).relu()) * 20)
        return out


TABLE = """\
check         outcome  details
data          passed   all values of the first 8 training batches are finite
overlap       failed   2 of 64 samples of 'valid' are also in train_data: indices 0, 1 (training samples 126,
                       127)
                       try: remove them from one of the two: metrics on training samples are too good
leakage       passed   no sample depends on another
parameters    failed   no gradient (not used, or the output is detached): `spare.weight`, `spare.bias`
                       try: use them without .detach(), freeze them (requires_grad=False), or remove them
determinism   failed   two passes of one batch in eval mode differ by up to 1; `drift` (Drift) is the first to
                       differ
                       try: look for dropout that ignores self.training (F.dropout needs
                       training=self.training), noise, or state kept between passes
initial_loss  failed   the first loss is 5.68; chance is ln(3) = 1.1
                       try: the untrained model is confident in wrong answers: normalize the inputs, or use
                       smaller weights in the last layer
overfit       passed   16 samples: the loss went from 5.68 to 0.0739 in 23 steps
sanity check: 3 passed, 4 failed"""


def test_the_table_has_the_details_and_the_advice() -> None:
    inputs, labels = samples()
    marks = torch.ones(192)
    train, valid = (TensorDataset(inputs[part], labels[part], marks[part]) for part in (slice(0, 128), slice(126, 190)))
    loop = make(Spoilt(), train=DataLoader(train, 16), valid={"valid": DataLoader(valid, 32)})
    assert str(sanity_check(loop)) == TABLE


def test_the_table_fits_a_narrow_terminal() -> None:
    report = sanity_check(make(Spoilt()), ["parameters", "determinism"])
    assert max(len(line) for line in report.table(70).split("\n")) <= 70


def test_the_table_of_a_notebook_is_escaped() -> None:
    report = SanityReport((SanityResult("data", "failed", "a < b", "use <this>"), SanityResult("overlap", "passed", "fine", "")))
    text = report._repr_html_()
    assert "a &lt; b\n" in text
    assert "try: use &lt;this&gt;\n" in text
    assert "sanity check: 1 passed, 1 failed</pre>" in text


def test_escape_sequences_in_error_messages_are_not_printed() -> None:
    report = SanityReport((SanityResult("data", "failed", "red \x1b[31m", ""),))
    assert "\x1b" not in str(report)


def test_on_check_gets_the_name_of_each_check_before_it_runs() -> None:
    names: list[str] = []
    sanity_check(make(), ["determinism", "data"], on_check=names.append)
    assert names == ["data", "determinism"]


# ---- data


def with_train(inputs: torch.Tensor, labels: torch.Tensor, **options: Any) -> TrainManager:
    return make(train=DataLoader(TensorDataset(inputs, labels), 16, **options))


def test_a_nan_in_the_inputs_is_found_with_its_batch() -> None:
    inputs, labels = samples()
    inputs[40, 2] = torch.nan
    result = run_check("data", with_train(inputs, labels))
    assert (result.outcome, result.details) == ("failed", "train_data, batch 2: 1 of 96 values of batch[0] are NaN or infinite")


def test_an_inf_in_an_evaluation_set_is_found() -> None:
    inputs, labels = samples()
    inputs[0, 0] = torch.inf
    result = run_check("data", make(valid={"valid": [(inputs, labels)]}))
    assert result.details == "evaluation set, batch 0: 1 of 1,152 values of batch[0] are NaN or infinite"


# ---- overlap


class Augmented(Dataset[Any]):
    """A dataset whose samples have different noise each time."""

    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] + torch.randn(6), self.labels[index]


def test_equal_inputs_are_found_even_if_their_labels_differ() -> None:
    inputs, labels = samples()
    result = run_check("overlap", make(valid={"a": [(inputs[150:], labels[150:])], "b": [(inputs[100:140], 1 - labels[100:140])]}))
    assert result.outcome == "failed"
    assert (
        result.details
        == "28 of 40 samples of 'b' are also in train_data: indices 0, 1, 2, 3, 4, ... (training samples 100, 101, 102, 103, 104, ...)"
    )


def test_subsets_of_one_data_set_are_compared_by_index_even_with_augmentation() -> None:
    data = Augmented(*samples())
    one, two = Subset(data, range(100)), Subset(data, range(90, 192))
    result = run_check("overlap", make(train=DataLoader(one, 16, shuffle=True), valid={"valid": DataLoader(two, 16)}))
    assert result.outcome == "failed"
    assert result.details == "10 of 102 samples of 'valid' are also in train_data: indices 90, 91, 92, 93, 94, ..."


def test_samplers_that_split_one_dataset_pass() -> None:
    data = TensorDataset(*samples())
    train, valid = (DataLoader(data, 16, sampler=SubsetRandomSampler(part)) for part in (range(128), range(128, 192)))
    result = run_check("overlap", make(train=train, valid={"valid": valid}))
    assert (result.outcome, result.details) == ("passed", "64 evaluation samples compared with 128 training samples: none are in both")


def test_samplers_that_overlap_are_found() -> None:
    data = TensorDataset(*samples())
    train, valid = (DataLoader(data, 16, sampler=SubsetRandomSampler(part)) for part in (range(130), range(128, 192)))
    assert run_check("overlap", make(train=train, valid={"valid": valid})).details.endswith("indices 128, 129")


def test_the_training_data_as_evaluation_set_is_found() -> None:
    inputs, labels = samples()
    batches = [(inputs, labels)]
    assert run_check("overlap", make(train=batches, valid={"valid": batches})).details == "'valid' is train_data itself"


def test_random_augmentation_skips_the_comparison() -> None:
    inputs, labels = samples()
    result = run_check("overlap", make(train=DataLoader(Augmented(inputs[:128], labels[:128]), 16)))
    assert result.outcome == "skipped"
    assert "none are equal, but training samples change each time (augmentation)" in result.details


def test_inputs_with_few_distinct_values_are_not_an_overlap() -> None:
    inputs = torch.randint(0, 2, (192, 2)).float()
    train, valid = ([(inputs[part], inputs[part, 0].long())] for part in (slice(0, 128), slice(128, 192)))
    result = run_check("overlap", make(Net(2), train=train, valid={"valid": valid}))
    assert result.outcome == "skipped"
    assert result.details.endswith("but training samples repeat each other just as often: inputs have few distinct values")


def test_without_an_evaluation_set_there_is_no_overlap() -> None:
    result = run_check("overlap", make(valid={}))
    assert (result.outcome, result.details) == ("skipped", "there is no evaluation set")


def test_a_comparison_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanity_data, "_MAX_SAMPLES", 50)
    assert (
        run_check("overlap", make()).details
        == "50 evaluation samples compared with 50 training samples: none are in both (not all, to save time)"
    )


# ---- leakage


class Mixing(Net):
    def forward(self, batch: Any) -> torch.Tensor:
        hidden = self.first(batch[0])
        hidden = hidden - hidden.mean(0)  # the mistake
        return self.last(hidden.relu())


def test_samples_that_mix_are_found_with_the_line() -> None:
    result = check_model("leakage", Mixing())
    assert result.outcome == "failed"
    assert "hidden = hidden - hidden.mean(0)  # the mistake" in result.details
    assert "test_sanity_check.py:" in result.details


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.last(self.norm(self.first(batch[0])).relu())


def test_a_batch_norm_may_mix() -> None:
    assert check_model("leakage", Normed()).outcome == "passed"


def test_allowed_modules_may_mix() -> None:
    class Centred(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values - values.mean(0)

    class Own(Net):
        def __init__(self) -> None:
            super().__init__()
            self.centred = Centred()

        def forward(self, batch: Any) -> torch.Tensor:
            return self.last(self.centred(self.first(batch[0])).relu())

    assert run_check("leakage", make(Own())).outcome == "failed"
    assert run_check("leakage", make(Own()), allow=["centred"]).outcome == "passed"
    for attached in (SanityCheck(allow=["centred"]), LeakageCheck(allow=["centred"])):
        assert run_check("leakage", make(Own(), extensions=[attached])).outcome == "passed"


def test_a_batch_of_one_sample_cannot_leak() -> None:
    inputs, labels = samples()
    result = run_check("leakage", make(train=[(inputs[:1], labels[:1])]))
    assert (result.outcome, result.details) == ("skipped", "the batch has 1 example, but the check needs two")


# ---- parameters


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 4)


def test_a_parameter_that_is_not_used_or_is_detached_is_named() -> None:
    class Detached(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            return self.last(self.first(batch[0]).relu().detach())

    fact = "no gradient (not used, or the output is detached)"
    result = check_model("parameters", Unused())
    assert (result.outcome, result.details) == ("failed", f"{fact}: `spare.weight`, `spare.bias`")
    result = check_model("parameters", Detached())
    assert (result.outcome, result.details) == ("failed", f"{fact}: `first.weight`, `first.bias`")


def test_a_parameter_whose_gradient_is_always_zero_is_named() -> None:
    class Dead(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            return self.last((self.first(batch[0]) - 1e6).relu())

    result = check_model("parameters", Dead())
    assert result.outcome == "failed"
    assert result.details == "gradient exactly 0 in 3 batches: `first.weight`, `first.bias`, `last.weight`"


def test_a_layer_that_starts_at_zero_does_not_fail() -> None:
    class Adapted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(6, 4), nn.Linear(4, 3)
            nn.init.zeros_(self.up.weight)

        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(batch) + self.up(self.down(batch[0]))

    assert check_model("parameters", Adapted()).outcome == "passed"


def test_a_parameter_that_the_optimizer_does_not_have_is_named() -> None:
    model = Net()
    result = run_check("parameters", make(model, optimizer=torch.optim.SGD(model.first.parameters(), lr=0.1)))
    assert (result.outcome, result.details) == ("failed", "not in the optimizer: `last.weight`, `last.bias`")


def test_parameters_of_another_model_in_the_optimizer_are_found() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.last = nn.Linear(16, 3)
    result = run_check("parameters", make(model, optimizer=optimizer))
    assert result.details == (
        "not in the optimizer: `last.weight`, `last.bias`\nin the optimizer but not in the model: 2 parameters of shape `(3, 16)`, `(3,)`"
    )


def test_parameters_of_the_loss_may_be_in_the_optimizer() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, batch: Any, prediction: torch.Tensor) -> torch.Tensor:
            return cross_entropy(batch, prediction * self.scale)

    model, loss = Net(), Weighted()
    optimizer = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=0.01)
    assert run_check("parameters", make(model, loss, optimizer=optimizer)).outcome == "passed"


class Hidden(Net):
    """A model with a layer in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.more = [nn.Linear(6, 6)]

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward([self.more[0](batch[0])])


def test_layers_in_a_plain_list_are_named() -> None:
    result = check_model("parameters", Hidden())
    assert result.outcome == "failed"
    assert result.details == "not in model.parameters(), so neither trained nor saved: `more` (a list with 2 parameters)"
    assert "nn.ModuleList" in result.advice


def test_frozen_parameters_are_listed_but_are_not_a_failure() -> None:
    model = Net()
    model.first.requires_grad_(False)
    result = check_model("parameters", model)
    assert (result.outcome, result.details) == (
        "passed",
        "all 2 trainable parameters have a gradient\n2 of 4 parameters are frozen: `first.weight`, `first.bias`",
    )


# ---- determinism


class Noisy(Net):
    def __init__(self) -> None:
        super().__init__()
        self.noise = AlwaysDrop()

    def forward(self, batch: Any) -> torch.Tensor:
        return self.last(self.noise(self.first(batch[0])).relu())


def test_noise_in_eval_mode_is_found_with_its_module() -> None:
    result = check_model("determinism", Noisy())
    assert result.outcome == "failed"
    assert result.details.endswith("; `noise` (AlwaysDrop) is the first to differ")


def test_noise_between_modules_is_reported_as_the_input_of_the_next_one() -> None:
    class Sampling(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            hidden = self.first(batch[0])
            return self.last(hidden + torch.randn_like(hidden))

    assert check_model("determinism", Sampling()).details.endswith("; the input of `last` (Linear) is the first to differ")


# ---- initial loss


class Sure(Net):
    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch) * 100


def test_a_model_that_is_sure_of_wrong_answers_is_found() -> None:
    result = check_model("initial_loss", Sure())
    assert result.outcome == "failed"
    assert result.details.endswith("; chance is ln(3) = 1.1")
    assert "confident in wrong answers" in result.advice


def test_a_model_that_knows_the_labels_before_training_is_found() -> None:
    class Knows(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(batch) + 5 * nn.functional.one_hot(batch[1], 3)

    result = check_model("initial_loss", Knows())
    assert result.outcome == "failed"
    assert "look for labels in the inputs" in result.advice


def test_scores_with_classes_in_the_last_dimension_are_recognized_as_a_cross_entropy() -> None:
    tokens = torch.randint(0, 11, (32, 5))

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.last = nn.Embedding(11, 8), nn.Linear(8, 7)

        def forward(self, batch: Any) -> torch.Tensor:
            return self.last(self.embedding(batch["tokens"]))

    def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(prediction.flatten(0, 1), batch["tags"].flatten())

    batches = [{"tokens": tokens, "tags": tokens % 7}]
    result = run_check("initial_loss", make(Tagger(), loss, batches, {}))
    assert result.outcome == "passed"
    assert result.details.endswith("chance is ln(7) = 1.95")


def regression(offset: float, scale: float = 1) -> TrainManager:
    inputs, _ = samples()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    class First(TrainManager):
        def model_forward(self, batch: Any) -> Any:
            return self.model(batch[0]) * scale

    targets = inputs.sum(1, keepdim=True) + offset
    return make(model, squared, [(inputs[:64], targets[:64]), (inputs[64:], targets[64:])], {}, kind=First)


def test_a_regression_is_compared_with_the_best_constant() -> None:
    result = run_check("initial_loss", regression(0))
    assert result.outcome == "passed"
    assert "the best constant prediction has" in result.details


def test_probabilities_are_compared_with_the_best_constant_probability() -> None:
    inputs, _ = samples()
    shares = (inputs[:, :1] > 0.5).float()

    class Share(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward(batch)[:, :1].sigmoid()

    result = run_check(
        "initial_loss", make(Share(), lambda batch, p: nn.functional.binary_cross_entropy(p, batch[1]), [(inputs, shares)], {})
    )
    assert result.outcome == "passed"
    assert result.details.endswith(f"the best constant prediction has {entropy(float(shares.mean())):.3g}")


def entropy(share: float) -> float:
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


def test_targets_far_from_zero_are_found() -> None:
    result = run_check("initial_loss", regression(100))
    assert result.outcome == "failed"
    assert "initialize the last bias to their mean" in result.advice


def test_outputs_that_are_too_large_are_not_blamed_on_the_targets() -> None:
    result = run_check("initial_loss", regression(0, scale=1e5))
    assert result.outcome == "failed"
    assert "the largest output is" in result.details
    assert result.advice.startswith("the outputs of the untrained model are too large")


def test_a_trained_model_has_no_initial_loss() -> None:
    loop = make()
    loop.train()
    result = run_check("initial_loss", loop)
    assert (result.outcome, result.details) == ("skipped", "the model is already trained")


def test_a_loss_that_accepts_no_constant_has_no_chance_level() -> None:
    class Two(Net):
        def forward(self, batch: Any) -> Any:
            return {"scores": super().forward(batch)}

    loop = make(Two(), lambda batch, prediction: cross_entropy(batch, prediction["scores"]))
    assert run_check("initial_loss", loop).outcome == "skipped"


# ---- overfit


class Blind(Net):
    """A model that only learns how frequent each class is."""

    def forward(self, batch: Any) -> torch.Tensor:
        return self.last(torch.zeros_like(self.first(batch[0])))


def test_a_model_that_cannot_memorize_a_batch_is_found() -> None:
    result = check_model("overfit", Blind())
    assert result.outcome == "failed"
    assert "16 samples" in result.details
    assert "the best constant prediction has" in result.details


def test_a_loss_that_becomes_nan_is_reported_with_its_module() -> None:
    class Breaks(nn.Module):
        num_calls = 0

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            self.num_calls += 1
            return values * (math.nan if self.num_calls > 3 else 1)

    model = Net()
    model.drop = Breaks()  # type: ignore[assignment]
    result = check_model("overfit", model)
    assert result.outcome == "failed"
    assert re.fullmatch(
        r"16 samples: the loss was \S+ and became nan after 3 steps: "
        r"`drop` \(Breaks\) is the first whose output is not finite: 256 of 256 values",
        result.details,
    )
    assert "the labels" not in result.advice


def test_weights_that_a_step_breaks_are_named() -> None:
    class Length(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            out = super().forward(batch)
            return out + (out * 0).square().sum(1, keepdim=True).sqrt()  # its derivative is not finite

    result = check_model("overfit", Length())
    assert result.outcome == "failed"
    assert "and became nan after 1 step: weights that are not finite: `first.weight`" in result.details


def test_a_regression_that_only_learns_the_mean_is_found() -> None:
    loop = regression(5)
    loop.model = Blind()
    loop.model.last = nn.Linear(16, 1)
    assert run_check("overfit", make(loop.model, squared, loop.train_data, {})).outcome == "failed"


def test_a_correct_model_with_a_small_learning_rate_does_not_fail() -> None:
    result = run_check("overfit", make(optimizer=lambda p: torch.optim.SGD(p, lr=0.002)))
    assert result.outcome == "passed"
    assert "at 10 times the learning rate" in result.details


def test_a_model_that_needs_its_batch_size_gets_it() -> None:
    class Fixed(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            return super().forward([batch[0].view(64, 6)])

    inputs, labels = samples()
    batches = [(inputs[:64], labels[:64])]
    assert run_check("overfit", make(Fixed(), train=batches, valid={})).details.startswith("64 samples: ")


def test_the_overfit_check_ends_after_its_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanity_loss, "_MAX_TIME", 0.0)
    assert " in 0 steps" in check_model("overfit", Blind()).details


def test_the_overfit_check_is_skipped_without_an_optimizer() -> None:
    class Own(TrainManager):
        def optimizer_step(self) -> None: ...

    result = run_check("overfit", make(kind=Own, optimizer=None))
    assert (result.outcome, result.details) == ("skipped", "the loop has no optimizer")


# ---- skipped checks and errors


def test_a_forward_pass_that_raises_fails_with_its_line() -> None:
    class Broken(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            raise RuntimeError("shapes do not fit")

    result = check_model("determinism", Broken())
    assert result.outcome == "failed"
    assert result.details.startswith("RuntimeError: shapes do not fit\n")
    assert 'in forward: raise RuntimeError("shapes do not fit")' in result.details


def test_an_iterator_is_not_read() -> None:
    inputs, labels = samples()
    data: Iterator[Any] = iter([(inputs, labels)])
    report = sanity_check(make(train=data))
    assert {each.outcome for each in report.results} == {"skipped"}
    assert len(list(data)) == 1


def test_a_model_with_lazy_parameters_is_not_checked() -> None:
    model = Net()
    model.first = nn.LazyLinear(16)
    report = sanity_check(make(model))
    assert {each.details for each in report.results} == {"the model has lazy parameters, which the first forward pass creates"}


def test_a_train_test_loop_is_refused() -> None:
    loop: Any = TrainTestLoop(nn.Linear(1, 1), [], [1], [1])
    with pytest.raises(SettingError, match=r"^sanity_check needs a TrainManager, not a TrainTestLoop\n"):
        sanity_check(loop)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checks": ["leekage"]}, "there is no check 'leekage'"),
        ({"checks": []}, "`checks` is empty"),
        ({"allow": [3]}, "`allow` must be names or classes of modules"),
        ({"on_failure": "ignore"}, '`on_failure` must be "warn" or "raise", not \'ignore\''),
    ],
)
def test_bad_arguments_are_refused_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        SanityCheck(**options)
    assert str(caught.value).startswith(message)


def test_a_misspelled_check_is_an_error_that_suggests_the_nearest_name() -> None:
    with pytest.raises(SettingError, match="did you mean `leakage`"):
        sanity_check(make(), ["leekage"])


# ---- the loop is restored


class Busy(Normed):
    """A model with batch norm, dropout, a growing buffer, a counter, and its own weight initialization."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.num_calls = 0

    def initialize_params(self) -> None:
        nn.init.normal_(self.first.weight)

    def forward(self, batch: Any) -> torch.Tensor:
        self.num_calls += 1
        self.seen = self.seen + len(batch[0])
        return self.last(self.drop(self.norm(self.first(batch[0] + 0.001 * self.num_calls)).relu()))


class Writing(TrainManager):
    """A loop whose forward pass counts its calls and writes metrics."""

    num_forwards = 0

    def model_forward(self, batch: Any) -> Any:
        self.num_forwards += 1
        self.last_size = len(batch[0])
        self.writer.add_scalar("forward", self.num_forwards, self.step_num)
        batch[0].add_(0)  # changes the batch in place
        return self.model(batch)


def busy(**settings: Any) -> TrainManager:
    torch.manual_seed(0)
    inputs, labels = samples()
    train = DataLoader(Augmented(inputs[:128], labels[:128]), 16, shuffle=True, generator=torch.Generator().manual_seed(5))
    return make(
        Busy(),
        train=train,
        valid={"valid": DataLoader(Augmented(inputs[128:], labels[128:]), 32)},
        kind=Writing,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20),
        **settings,
    )


def everything(loop: TrainManager) -> dict[str, Any]:
    return {**loop.capture().to_dict(), "calls": loop.model.num_calls, "forwards": vars(loop).get("num_forwards")}


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the number of steps, for tests that only compare the state before and after a check."""
    monkeypatch.setattr(sanity_loss, "_NUM_STEPS", 15)


@pytest.mark.usefixtures("few_steps")
def test_training_after_the_check_gives_the_same_bits() -> None:
    plain, checked = busy(), busy()
    torch.manual_seed(1)
    plain.train()
    torch.manual_seed(1)
    sanity_check(checked)
    checked.train()
    assert same_bits(everything(plain), everything(checked))


@pytest.mark.usefixtures("few_steps")
def test_a_check_in_the_middle_of_an_epoch_changes_nothing() -> None:
    class Stop(Extension):
        def post_train_step_batch(self, loop: TrainManager, step_num: int) -> None:
            if step_num == 11:
                loop.stop()

    loops = []
    for is_checked in (False, True):
        loop = busy(extensions=[Stop()])
        torch.manual_seed(1)
        loop.train()
        before, modes = everything(loop), [each.training for each in loop.model.modules()]
        if is_checked:
            sanity_check(loop)
            assert same_bits(before, everything(loop))
            assert modes == [each.training for each in loop.model.modules()]
        loop.train()
        loops.append(everything(loop))
    assert same_bits(*loops)


def test_an_interrupted_check_changes_nothing() -> None:
    loop = busy()
    before = everything(loop)

    def interrupt(name: str) -> None:
        if name == "overfit":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sanity_check(loop, on_check=interrupt)
    assert same_bits(before, everything(loop))


def test_nothing_is_written(tmp_path: Path) -> None:
    loop = make(train_dir=tmp_path / "here")
    sanity_check(loop)
    assert not (tmp_path / "here").exists()
    assert loop.history == {}


# ---- the extension

QUICK = ("data", "parameters", "determinism", "initial_loss")


class TestSanityCheck(ExtensionContract):
    def make(self) -> SanityCheck:
        return SanityCheck("raise", QUICK)


def test_with_all_checks_the_weights_are_the_same() -> None:
    plain, checked = busy(), busy(extensions=[SanityCheck()])
    for loop in (plain, checked):
        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop.train()
    assert isinstance(checked.extensions["sanity_check"], SanityCheck)
    assert checked.extensions["sanity_check"].report is not None
    assert same_bits(plain.model.state_dict(), checked.model.state_dict())
    assert same_bits(plain.capture().rng, checked.capture().rng)


def test_a_failure_causes_a_warning_and_training_continues() -> None:
    loop = make(Unused(), extensions=[SanityCheck(checks=["data", "parameters"])])
    with pytest.warns(UserWarning, match=r"(?s)parameters  failed .*no gradient .*: `spare.weight`.*sanity check: 1 failed"):
        loop.train()
    assert loop.epoch_num == 3


def test_a_failure_can_stop_training_before_the_first_batch() -> None:
    loop = make(Unused(), extensions=[SanityCheck("raise", ["data", "parameters"])])
    with pytest.raises(SanityCheckError) as caught:
        loop.train()
    assert str(caught.value).startswith(
        "the sanity check failed: parameters\n  found   check       outcome  details\n          data        passed"
    )
    assert loop["sanity_check"].report["parameters"].outcome == "failed"
    assert (loop.step_num, loop.history) == (0, {})


def test_it_runs_once() -> None:
    check = SanityCheck(checks=["data"])
    loop = make(extensions=[check])
    loop.train()
    report = check.report
    loop.epochs = 4
    loop.train()
    assert report is not None
    assert check.report is report


class CaptureAt(Extension):
    state: TrainingState | None = None

    def __init__(self, step: int) -> None:
        self.step = step

    def post_train_step_batch(self, loop: TrainManager, step_num: int) -> None:
        if step_num == self.step:
            self.state = loop.capture()

    def pre_train_step_epoch(self, loop: TrainManager) -> None:
        if self.step == 0 and self.state is None:
            self.state = loop.capture()


@pytest.mark.parametrize("step", [0, 5])
def test_resumed_training_is_not_checked_again(step: int) -> None:
    capture = CaptureAt(step)
    make(extensions=[SanityCheck(checks=QUICK), capture]).train()
    assert capture.state is not None
    check = SanityCheck(checks=QUICK)
    resumed = make(extensions=[check])
    resumed.restore(capture.state)
    resumed.train()
    assert check.report is None


def test_training_that_started_without_it_is_not_checked_when_it_resumes() -> None:
    loop = make()
    loop.train()
    check = SanityCheck(checks=QUICK)
    loop.add_extension("check", check)
    loop.epochs = 4
    loop.train()
    assert check.report is None
