"""LeakageCheck finds leaks and their lines with few forward passes, and raises no alarm for correct models."""

from __future__ import annotations

import inspect
import itertools
import os
import random
import re
import warnings
from typing import Any

import leaky_models as leaky
import numpy as np
import pytest
import sound_models as sound
import torch
import widths_models as widths
from torch import nn

from trainmaster.errors import LeakageError, SettingError, shown
from trainmaster.extensions.example_batch import map_batch
from trainmaster.extensions.leakage_check import Leak, LeakageCheck, NotApplicable, find_leak
from trainmaster.extensions.leaks.search import LeakSearch
from trainmaster.loop import TrainManager
from trainmaster.testing import ExtensionContract
from trainmaster.testing.extension_contract import same_bits

MARK = re.compile(r"# <- leak(?:: (.*))?$")
NEAR = {"InAHelper": "centred", "BackwardMixes": "StraightGradient"}


def marked(case: type) -> tuple[str, int, str, str | None]:
    """Return the file, line number, code and module of the line that is marked as the leak."""
    holder = getattr(leaky, NEAR.get(case.__name__, case.__name__))
    lines, start = inspect.getsourcelines(holder)
    [(number, text, mark)] = [(start + number, text, match) for number, text in enumerate(lines) if (match := MARK.search(text))]
    module = {None: case.__name__, "None": None}.get(mark[1], mark[1])
    return leaky.__file__, number, text.strip(), module


def searched(case: Any, calls: list[Any] | None = None) -> Any:
    torch.manual_seed(0)
    model, batch = case(), case.batch()

    def forward(batch: Any) -> Any:
        if calls is not None:
            calls.append(batch)
        return model(batch)

    return find_leak(forward, batch, model=model, loss=case.loss)


@pytest.mark.parametrize("case", leaky.Leaky.cases, ids=lambda case: case.__name__)
def test_a_leak_is_found_with_its_line(case: Any) -> None:
    """Covers contract E43."""
    calls: list[Any] = []
    leak = searched(case, calls)
    assert isinstance(leak, Leak)
    file, line, code, module = marked(case)
    assert (leak.phase, leak.file, leak.line, leak.code) == (case.phase, file, line, code)
    if case.phase != "backward":
        assert leak.module == module
    assert len(calls) <= 20


@pytest.mark.parametrize("case", sound.Sound.cases, ids=lambda case: case.__name__)
def test_a_correct_model_causes_no_alarm(case: Any) -> None:
    """Covers contract E43."""
    calls: list[Any] = []
    assert searched(case, calls) is None
    assert len(calls) <= 20


def searched_of(case: Any, width: int, num: int) -> tuple[Any, int]:
    """Search a model of a given width and its loss for a leak.

    Return the result and the number of forward passes.
    """
    torch.manual_seed(width)
    model, batch, calls = case(width), case.batch(num), list[int]()
    targets = torch.randn(num, 3)

    def forward(batch: Any) -> Any:
        calls.append(1)
        return model(batch[0])

    def loss(batch: Any, prediction: Any) -> Any:
        return (prediction - batch[1]).pow(2).mean()

    return find_leak(forward, (batch, targets), model=model, loss=loss), len(calls)


@pytest.mark.parametrize("num", [7, pytest.param(32, marks=pytest.mark.integration)])
@pytest.mark.parametrize("width", widths.WIDTHS)
@pytest.mark.parametrize("case", widths.WRONG, ids=lambda case: case.__name__)
def test_a_wrong_dimension_of_any_width_is_found_with_its_line(case: Any, width: int, num: int) -> None:
    """Covers contract E43."""
    leak, num_calls = searched_of(case, width, num)
    assert isinstance(leak, Leak), leak
    lines, start = inspect.getsourcelines(case)
    (line,) = (start + number for number, text in enumerate(lines) if MARK.search(text))
    assert (leak.phase, leak.line, leak.file) == ("forward", line, widths.__file__), str(leak)
    assert num_calls <= 20


@pytest.mark.parametrize("num", [7, pytest.param(32, marks=pytest.mark.integration)])
@pytest.mark.parametrize("width", widths.WIDTHS)
@pytest.mark.parametrize("case", widths.RIGHT, ids=lambda case: case.__name__)
def test_a_correct_model_of_any_width_causes_no_alarm(case: Any, width: int, num: int) -> None:
    """Covers contract E43."""
    found, num_calls = searched_of(case, width, num)
    assert found is None, str(found)
    assert num_calls <= 20


def with_a_leak(prediction: Any) -> Any:
    """Add a value that depends on all examples to each tensor in a prediction."""

    def with_others(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + tensor.amax() + tensor.mean() if tensor.is_floating_point() else tensor  # added

    return map_batch(prediction, with_others)


@pytest.mark.parametrize("case", [case for case in sound.Sound.cases if case.__name__ != "OnlyALoss"], ids=lambda case: case.__name__)
def test_a_leak_after_a_correct_model_is_noticed(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers contract E43."""
    monkeypatch.setattr(LeakSearch, "_locate", lambda search, phase: phase)  # another test checks the line
    torch.manual_seed(0)
    model, batch = case(), case.batch()
    assert find_leak(lambda batch: with_a_leak(model(batch)), batch, model=model) == "forward"  # type: ignore[comparison-overlap]


INTRICATE = ["ConvNetWithBatchNorm", "EncoderWithPaddingMask", "PackedGru", "InPlace", "MixtureOfExperts", "LossInside"]


@pytest.mark.parametrize("name", INTRICATE)
def test_a_leak_after_a_complex_model_is_found_with_its_line(name: str) -> None:
    """Covers contract E43."""
    torch.manual_seed(0)
    case = getattr(sound, name)
    model, batch = case(), case.batch()
    leak = find_leak(lambda batch: with_a_leak(model(batch)), batch, model=model)
    assert isinstance(leak, Leak)
    assert str(leak.code).endswith("# added")


class Centre(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Net(nn.Module):
    """A model with batch norm, dropout, and a module that mixes examples."""

    def __init__(self, is_leaking: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Dropout(0.3))
        self.centre = Centre() if is_leaking else nn.Identity()
        self.head = nn.Linear(8, 3)
        self.seen: list[int] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(len(batch[0]))
        return self.head(self.centre(self.body(batch[0])))  # type: ignore[no-any-return]


def loss(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, batch[1])


def data(num: int = 3) -> list[Any]:
    torch.manual_seed(1)
    return [(torch.randn(16, 6), torch.randint(0, 3, (16,))) for _ in range(num)]


def manager(check: LeakageCheck | None, is_leaking: bool = False) -> TrainManager:
    torch.manual_seed(0)
    return TrainManager(Net(is_leaking), loss, 1, data(), extensions=[] if check is None else [check], device="cpu")


class TestLeakageCheck(ExtensionContract):
    def make(self) -> object:
        return LeakageCheck()


def test_a_leak_stops_training_before_the_first_step() -> None:
    """Covers contract E43."""
    tm = manager(LeakageCheck(), is_leaking=True)
    with pytest.raises(LeakageError) as caught:
        tm.train()
    line = inspect.getsourcelines(Centre)[1] + 2
    assert str(caught.value) == (
        "examples of a batch mix in the forward pass: example 1 depends on example 0\n"
        f"  where   {os.path.relpath(__file__)}:{line}, in centre (Centre)\n"
        "  code    return x - x.mean(0)\n"
        "  why     this line produces values that depend on several examples\n"
        "  try     operate on dimensions within one example only\n"
        '          if this is intended: LeakageCheck(allow=("centre",))'
    )
    assert tm.step_num == 0


def test_a_leak_can_be_a_warning() -> None:
    """Covers contract E43."""
    tm = manager(LeakageCheck(on_leak="warn"), is_leaking=True)
    with pytest.warns(UserWarning, match=r"^examples of a batch mix in the forward pass: example 1 depends on example 0\n"):
        tm.train()
    assert tm.step_num == 3


@pytest.mark.parametrize("is_leaking", [False, True])
def test_the_final_weights_are_the_same_bits_with_and_without_it(is_leaking: bool) -> None:
    """Covers contract E43."""
    plain = manager(None, is_leaking)
    plain.train()
    checked = manager(LeakageCheck(on_leak="warn"), is_leaking)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checked.train()
    assert plain.model.state_dict().keys() == checked.model.state_dict().keys()
    assert all(
        torch.equal(one, two) for one, two in zip(plain.model.state_dict().values(), checked.model.state_dict().values(), strict=True)
    )


def test_it_checks_once_per_process_and_again_on_request() -> None:
    """Covers contract E43."""
    found: list[Any] = []

    class Counting(LeakageCheck):
        def check(self, train_manager: TrainManager, batch: Any) -> Any:
            found.append(super().check(train_manager, batch))
            return found[-1]

    check = Counting(on_leak="warn")
    tm = manager(check)
    tm.train()
    tm.epochs = 2
    tm.train()
    assert found == [None]
    assert check.check(tm, data()[0]) is None


def test_it_warns_if_the_check_is_not_possible() -> None:
    """Covers contract E43."""
    one = [(torch.randn(1, 6), torch.zeros(1, dtype=torch.long))]
    model = nn.Sequential(nn.Linear(6, 3))
    tm = TrainManager(
        model, lambda batch, prediction: prediction.sum(), 1, [batch[0] for batch in one], extensions=[LeakageCheck()], device="cpu"
    )
    with pytest.warns(UserWarning, match=r"^leakage was not checked: the batch has 1 example, but the check needs two$"):
        tm.train()


def everything_in(model: Net) -> dict[str, Any]:
    """Return everything that a check could have changed."""
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "grads": {name: each.grad if each.grad is None else each.grad.clone() for name, each in model.named_parameters()},
        "same_grads": [id(each.grad) for each in model.parameters()],
        "modes": [each.training for each in model.modules()],
        "momenta": [each.momentum for each in model.modules() if isinstance(each, nn.BatchNorm1d)],
        "hooks": [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules()],
        "attributes": [hash(tuple(sorted(vars(each)))) for each in model.modules()],
        "seen": list(model.seen),
        "torch": torch.get_rng_state(),
        "numpy": repr(np.random.get_state(legacy=False)),
        "python": random.getstate(),
    }


@pytest.mark.parametrize("is_leaking", [False, True])
def test_weights_buffers_gradients_modes_and_random_numbers_are_restored(is_leaking: bool) -> None:
    """Covers contract E43."""
    torch.manual_seed(0)
    model = Net(is_leaking)
    batch = data()[0]
    loss(batch, model(batch)).backward()  # type: ignore[no-untyped-call]
    model.body[0].eval()
    given = [each.clone() for each in batch]
    before = everything_in(model)
    leak = find_leak(model, batch, model=model, loss=loss)
    assert (leak is not None) is is_leaking
    assert same_bits(everything_in(model), before)
    assert all(map(torch.equal, batch, given))


def test_everything_is_restored_after_an_error_too() -> None:
    """Covers contract E43."""
    torch.manual_seed(0)
    model, batch = Net(), data()[0]
    before = everything_in(model)

    def failing(batch: Any, prediction: Any) -> Any:
        raise ArithmeticError("no loss today")

    found = find_leak(model, batch, model=model, loss=failing)
    assert found == NotApplicable("the model or the loss raised ArithmeticError: no loss today")
    assert same_bits(everything_in(model), before)


@pytest.mark.parametrize("allow", [(Centre,), ("centre",), Centre, ["centre", "loss"]])
def test_allowed_modules_raise_no_alarm(allow: Any) -> None:
    """Covers contract E43."""
    torch.manual_seed(0)
    model = Net(is_leaking=True)
    assert find_leak(model, data()[0], model=model, loss=loss, allow=allow) is None


def test_leaks_after_an_allowed_module_are_still_found() -> None:
    """Covers contract E43."""
    torch.manual_seed(0)
    model = Net(is_leaking=True)
    leak = find_leak(lambda batch: model(batch).cumsum(0), data()[0], model=model, allow=(Centre,))
    assert isinstance(leak, Leak)
    assert (leak.module, leak.examples, leak.fault) == (None, (1, 0), "mixed")
    assert ".cumsum(0)" in str(leak.code)


def contrastive(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction @ prediction.T, torch.arange(len(prediction)))


def test_a_loss_that_compares_examples_is_found_unless_it_is_allowed() -> None:
    """Covers contract E43."""
    torch.manual_seed(0)
    model = Net()
    leak = find_leak(model, data()[0], model=model, loss=contrastive)
    assert isinstance(leak, Leak)
    assert (leak.phase, leak.line) == ("loss", inspect.getsourcelines(contrastive)[1] + 1)
    assert str(leak).endswith('if this is intended: LeakageCheck(allow=("loss",))')
    assert find_leak(model, data()[0], model=model, loss=contrastive, allow="loss") is None


def test_a_model_that_returns_classes_and_its_own_loss_is_checked_by_the_gradients_of_its_inputs() -> None:
    """The prediction, a tensor of classes, has no gradient, so the check needs the gradients of the loss."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def own_loss(batch: Any, prediction: Any) -> Any:
        return prediction["loss"]

    def forward(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = model(batch)
        return {"prediction": scores.argmax(1), "loss": scores.logsumexp(1).mean()}

    def compare(batch: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = model(batch)
        return {"prediction": scores.argmax(1), "loss": (scores - scores.mean(0)).square().mean()}

    batch = torch.randn(7, 4)
    assert find_leak(forward, batch, model=model, loss=own_loss) is None
    leak = find_leak(compare, batch, model=model, loss=own_loss)
    assert isinstance(leak, Leak)
    assert leak.phase == "loss"


NUMBERS = itertools.count()


@pytest.mark.parametrize(
    ("forward", "batch", "reason"),
    [
        (torch.sin, "no tensor", "no tensor in the batch has a batch dimension"),
        (torch.sin, torch.tensor(1.0), "no tensor in the batch has a batch dimension"),
        (torch.sin, torch.zeros(1, 3), "the batch has 1 example, but the check needs two"),
        (torch.sin, torch.zeros(0, 3), "the batch has 0 examples, but the check needs two"),
        (torch.sin, torch.ones(8, 3), "all examples are equal"),
        (torch.zeros_like, torch.randn(8, 3), "the prediction does not depend on the examples, for example because the last layer is zero"),
        (
            lambda batch: batch * next(NUMBERS),
            torch.randn(8, 3),
            "the model is not deterministic: the same batch and random numbers gave a different prediction",
        ),
        (
            lambda batch: batch[batch > 0],
            torch.tensor([[1.0, 2, 3], [-1, 4, 5], [-2, -3, 6], [-4, -5, -6], [7, 8, 9], [-7, 10, 11], [-8, -9, 12], [13, 14, 15]]),
            "the shapes of the prediction depend on the content of the examples",
        ),
    ],
)
def test_it_gives_the_reason_if_the_check_is_not_possible(forward: Any, batch: Any, reason: str) -> None:
    """Covers contract E43."""
    found = find_leak(forward, batch, model=nn.Identity())
    assert found == NotApplicable(reason)
    assert not found
    assert str(found) == f"leakage was not checked: {reason}"


def test_the_most_expensive_search_takes_at_most_twenty_passes() -> None:
    """The model has batch norm, a fixed batch size, NumPy inputs, shapes that depend on lengths, and a leak."""

    class Costly(Net):
        def forward(self, batch: Any) -> torch.Tensor:
            calls.append(batch)
            x, lengths = batch
            x = self.body(x) + torch.zeros(16, 1)
            x.detach().numpy() + batch[0].numpy().sum()
            return self.head(x)[:, None].repeat(1, int(lengths.max()), 1).cumsum(0)  # type: ignore[no-any-return]

    calls: list[Any] = []
    model = Costly()
    batch = torch.randn(16, 6), torch.arange(16) + 1
    leak = find_leak(model, batch, model=model, loss=lambda batch, prediction: prediction.mean())
    assert isinstance(leak, Leak)
    assert "cumsum" in str(leak.code)
    assert 15 < len(calls) <= 20


@pytest.mark.parametrize("on_leak", ["ignore", None, True])
def test_an_unknown_on_leak_is_refused(on_leak: Any) -> None:
    """Covers contract E43."""
    with pytest.raises(SettingError) as caught:
        LeakageCheck(on_leak=on_leak)
    assert str(caught.value) == f'`on_leak` must be "raise" or "warn", not {shown(on_leak)}\n  try     LeakageCheck(on_leak="warn")'


@pytest.mark.parametrize("allow", [[3], [int], [""], [None]])
def test_allow_accepts_only_modules_and_names(allow: Any) -> None:
    """Covers contract E43."""
    with pytest.raises(SettingError) as caught:
        LeakageCheck(allow=allow)
    assert str(caught.value) == (
        f'`allow` must be names or classes of modules, not {allow[0]!r}\n  try     allow=(MyNorm, "encoder.mixer", "loss")'
    )


def test_an_unknown_module_name_is_refused_with_a_suggestion() -> None:
    """Covers contract E43."""
    model = Net()
    with pytest.raises(SettingError) as caught:
        find_leak(model, data()[0], model=model, allow="center")
    assert (
        str(caught.value) == "`allow` contains `center`, but the model has no such module\n  where   Net\n  try     did you mean `centre`?"
    )


def test_one_extension_checks_every_model_it_is_used_with() -> None:
    """The runs of a manager share their extensions, so one extension sees several models."""
    check, seen = LeakageCheck(), []

    class Counting(LeakageCheck):
        def check(self, train_manager: Any, batch: Any) -> Any:
            seen.append(train_manager.model)
            return super().check(train_manager, batch)

    check = Counting()
    for _ in range(2):
        manager = ExtensionContract().loop(check)
        manager.train()
        manager.epochs = 4
        manager.train()
    assert len(seen) == 2


def test_a_model_with_lazy_layers_is_not_checked() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    found = find_leak(model, torch.randn(4, 3), model=model)
    assert str(found) == "leakage was not checked: the model has lazy layers, which have no weights before their first batch"
