"""`Supervised` trains plain modules on (inputs, targets) with PyTorch losses, and computes metrics over whole sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Extension, Manager, SampleLoss, Supervised, TrainManager
from trainmaster.errors import SettingError
from trainmaster.loop.blueprint_reader import build, overridden
from trainmaster.loop.blueprint_writer import blueprint_of
from trainmaster.loop.rng import seed_rng

torch.manual_seed(3)
INPUTS = torch.randn(50, 4)
TARGETS = INPUTS[:, :3].argmax(1)
DATA = TensorDataset(INPUTS, TARGETS)


def accuracy(prediction: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (prediction.argmax(1) == targets).float().mean()


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))


def make_loop(model: Any = None, loss: Any = None, epochs: int = 2, train_data: Any = None, **settings: Any) -> Supervised:
    seed_rng(0)
    loader = DataLoader(DATA, batch_size=8, shuffle=True) if train_data is None else train_data
    settings = {"eval_data": DataLoader(DATA, batch_size=16), "metrics": {"accuracy": accuracy}, "device": "cpu", **settings}
    return Supervised(model or make_model(), loss or nn.CrossEntropyLoss(), epochs, loader, **settings)


def trained(*arguments: Any, **settings: Any) -> Supervised:
    loop = make_loop(*arguments, **settings)
    loop.train()
    return loop


class TestTraining:
    def test_a_plain_module_trains_and_the_accuracy_is_that_of_the_whole_set(self) -> None:
        loop = trained(epochs=20, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05))
        assert [epoch for epoch, _ in loop.history["valid/accuracy"]] == list(range(21))
        assert loop.history["valid/accuracy"][-1][1] > 0.9
        prediction = torch.cat(loop.predict(DataLoader(DATA, batch_size=50)))
        assert loop.history["valid/accuracy"][-1][1] == float(accuracy(prediction, TARGETS))
        assert loop.history["valid/loss"][-1][1] == pytest.approx(float(nn.functional.cross_entropy(prediction, TARGETS)))

    def test_it_ends_with_the_same_bits_as_a_train_manager_whose_model_takes_the_whole_batch(self) -> None:
        class Whole(TrainManager):
            def model_forward(self, batch: Any) -> Any:
                return self.model(batch[0])

            def loss_forward(self, batch: Any, prediction: Any) -> Any:
                return nn.functional.cross_entropy(prediction, batch[1])

        whole = Whole(make_model(), None, 2, DataLoader(DATA, batch_size=8, shuffle=True), DataLoader(DATA, batch_size=16), device="cpu")
        loop = make_loop(metrics=None)
        whole.model.load_state_dict(loop.model.state_dict())
        for each in (whole, loop):
            seed_rng(1)
            each.train()
        assert whole.history == loop.history

    def test_a_named_tuple_of_two_is_a_pair(self) -> None:
        class Pair(NamedTuple):
            image: torch.Tensor
            label: torch.Tensor

        batches = [Pair(INPUTS, TARGETS)]
        assert trained(train_data=batches, eval_data=batches).step_num == 2

    def test_nested_inputs_are_passed_to_an_overridden_model_forward(self) -> None:
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Bilinear(4, 4, 3)

            def forward(self, left: torch.Tensor, right: torch.Tensor) -> Any:
                return self.layer(left, right)

        class Loop(Supervised):
            def model_forward(self, batch: Any) -> Any:
                inputs, _ = batch
                return self.model(*inputs)

        batches = [((INPUTS, INPUTS), TARGETS)]
        loop = Loop(Two(), nn.CrossEntropyLoss(), 1, batches, batches, metrics={"accuracy": accuracy}, device="cpu")
        loop.train()
        assert len(loop.history["valid/accuracy"]) == 2
        assert loop.predict([[(INPUTS, INPUTS)]])[0].shape == (50, 3)

    def test_a_loss_with_weights_is_moved_to_the_device(self) -> None:
        loss = nn.CrossEntropyLoss(weight=torch.ones(3))
        loop = make_loop(loss=loss, device="meta")
        loop.build()
        assert (loss.weight.device.type, next(loop.model.parameters()).device.type) == ("meta", "meta")


class TestPredict:
    @pytest.mark.parametrize(
        "data",
        [DataLoader(DATA, batch_size=50), DataLoader(TensorDataset(INPUTS), batch_size=50), [INPUTS], [(INPUTS,)]],
        ids=["pairs", "loader of inputs", "tensors", "tuples of one"],
    )
    def test_it_takes_pairs_and_inputs_alone(self, data: Any) -> None:
        loop = make_loop()
        loop.model.eval()
        (found,) = loop.predict(data)
        assert torch.equal(found, loop.model(INPUTS))

    @pytest.mark.parametrize("batch_size", [1, 2, 3])
    @pytest.mark.parametrize("samples", [["a", "bcd", "ef", "g", "hi"], [1.0, 3.0, 2.0, 1.0, 2.0]], ids=["strings", "numbers"])
    def test_a_list_of_single_samples_of_any_length_is_the_inputs(self, samples: list[Any], batch_size: int) -> None:
        loop = make_loop(Lengths())
        found = torch.cat(loop.predict(DataLoader(samples, batch_size=batch_size, collate_fn=list)))
        assert torch.equal(found, loop.model(samples))

    @pytest.mark.parametrize("batch", [(["a", "bcd"], torch.tensor([0, 1])), (["a", "bcd"], None), (["a", "bcd"],)])
    def test_lists_of_samples_are_inputs_with_or_without_targets(self, batch: Any) -> None:
        loop = make_loop(Lengths())
        (found,) = loop.predict([batch])
        assert torch.equal(found, loop.model(["a", "bcd"]))


class Lengths(nn.Module):
    """A model that takes a list of strings or numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 3)

    def forward(self, samples: Any) -> Any:
        assert isinstance(samples, (list, tuple))
        return self.layer(torch.tensor([[float(len(each) if isinstance(each, str) else each)] for each in samples]))


class TestState:
    def test_stopping_in_an_epoch_does_not_change_the_final_bits(self) -> None:
        class StopsAt(Extension):
            def post_train_step_batch(self, train_manager: TrainManager, step_num: int) -> None:
                if step_num == 10:
                    train_manager.stop()

        straight = trained()
        state = trained(extensions=[StopsAt()]).capture()
        resumed = make_loop()
        seed_rng(7)
        resumed.restore(state)
        resumed.train()
        assert resumed.history == straight.history

    def test_under_a_manager_it_resumes_from_its_checkpoint_and_records_its_metrics(self, tmp_path: Path) -> None:
        class Pairs(Manager):
            defaults = {"lr": 0.01}

            def make_loop(self, config: Any) -> Any:
                return make_loop(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=config.lr))

        for epochs in (1, 3):
            manager = Pairs(str(tmp_path), verbose=False)
            manager.process({"lr": 0.02}, num_epochs=epochs)
        assert [row["step"] for row in manager.store.run(manager.key).events() if row["tag"] == "valid/accuracy"] == [0, 1, 2, 3]

    def test_it_is_rebuilt_with_its_metrics(self) -> None:
        loop = make_loop()
        given = {"model": loop.model, "train_data": loop.train_data, "eval_data": loop.eval_data, "loss": loop.loss}
        again = build(overridden(blueprint_of(loop), given, "here"), "here")
        assert type(again) is Supervised
        again.eval()
        assert list(again.history) == ["valid/loss", "valid/accuracy"]

    def test_a_metric_that_cannot_be_rebuilt_is_left_out(self) -> None:
        assert blueprint_of(make_loop(metrics={"x": lambda prediction, targets: 0.0}))["with"]["metrics"] is None


class TestExtensions:
    def test_losses_per_sample_come_from_the_same_loss(self) -> None:
        loop = make_loop(extensions=[SampleLoss()])
        loop.train()
        assert loop.history["valid/sample_loss/max"][-1][1] > 0

    def test_describe_names_the_metrics(self) -> None:
        text = str(make_loop().describe())
        assert "lazy      accuracy   eval_metrics, after body" in text
        assert "Metrics.post_eval_step_batch(batch, prediction)" in text


class TestBadInput:
    @pytest.mark.parametrize(
        ("batch", "message", "first", "last"),
        [
            ({"image": INPUTS, "label": TARGETS}, "dict('image': Tensor[50, 4], 'label': Tensor[50])", "batch['image']", "batch['label']"),
            ([INPUTS, TARGETS, TARGETS], "list(Tensor[50, 4], Tensor[50], Tensor[50])", "batch[0]", "batch[1]"),
            ((INPUTS,), "tuple(Tensor[50, 4])", "batch[0]", "batch[0]"),
        ],
        ids=["dict", "triple", "single"],
    )
    def test_a_batch_that_is_not_a_pair_is_an_error_that_shows_the_batch_and_what_to_write(
        self, batch: Any, message: str, first: str, last: str
    ) -> None:
        with pytest.raises(SettingError) as caught:
            trained(train_data=[batch], eval_data=None)
        assert str(caught.value).split("\n") == [
            f"Supervised needs batches of (inputs, targets), but this batch is {message}",
            "  try     return pairs from the data set, or define how to call the model and the loss:",
            "          class Loop(TrainManager):",
            "              def model_forward(self, batch):",
            f"                  return self.model({first})",
            "              def loss_forward(self, batch, prediction):",
            f"                  return self.loss(prediction, {last})",
        ]
        assert any("batch_num 0" in note for note in caught.value.__notes__)

    def test_data_instead_of_batches_is_an_error_that_says_what_to_pass(self) -> None:
        with pytest.raises(SettingError, match=r"needs batches of \(inputs, targets\), but this batch is Tensor(.|\n)*list of batches: \["):
            trained(train_data=(INPUTS, TARGETS), eval_data=None)

    def test_a_loss_class_is_an_error_that_shows_what_to_write(self) -> None:
        with pytest.raises(SettingError, match=r"`loss` is the class CrossEntropyLoss: create an instance, CrossEntropyLoss\(\)"):
            Supervised(make_model(), nn.CrossEntropyLoss, 1, [])  # type: ignore[arg-type]

    def test_a_loss_that_sums_over_the_batch_causes_a_warning(self) -> None:
        with pytest.warns(UserWarning, match="depends on the batch size: recorded losses are means over samples only"):
            Supervised(make_model(), nn.CrossEntropyLoss(reduction="sum"), 1, [])

    def test_an_optimizer_of_another_model_causes_a_warning(self) -> None:
        other = torch.optim.SGD(make_model().parameters(), lr=0.1)
        with pytest.warns(UserWarning, match="the optimizer has no parameter of the model"):
            trained(optimizer=other)

    def test_a_loss_of_none_is_refused_before_the_first_batch(self) -> None:
        with pytest.raises(SettingError, match="`loss` is None and `loss_forward` is not overridden"):
            Supervised(make_model(), None, 1, [])

    def test_a_loss_that_is_not_a_function_is_an_error_that_shows_its_arguments(self) -> None:
        with pytest.raises(SettingError, match=r"`loss` must be a function of \(prediction, targets\), not 'mse' \(str\)"):
            Supervised(make_model(), "mse", 1, [])  # type: ignore[arg-type]

    @pytest.mark.parametrize("is_module", [False, True], ids=["function", "module"])
    def test_a_loss_that_takes_the_targets_first_is_refused(self, is_module: bool) -> None:
        """With its arguments swapped, the function would still return a number, but not the loss."""

        class Module(nn.Module):
            def forward(self, targets: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
                return nn.functional.binary_cross_entropy_with_logits(prediction, targets)

        def function(targets: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
            return nn.functional.binary_cross_entropy_with_logits(prediction, targets)

        with pytest.raises(
            SettingError, match=r"`loss` is called with \(prediction, targets\), but takes the targets first: \(targets, \.\.\.\)"
        ):
            Supervised(make_model(), Module() if is_module else function, 1, [])

    def test_inputs_that_the_model_cannot_take_get_a_note(self) -> None:
        with pytest.raises(TypeError) as caught:
            trained(train_data=[((INPUTS, INPUTS), TARGETS)], eval_data=None)
        assert caught.value.__notes__[0].split("\n") == [
            "model(inputs) was called with inputs that are not a tensor, tuple(Tensor[50, 4], Tensor[50, 4])",
            "  try     override model_forward(self, batch): return self.model(*batch[0])",
        ]

    def test_a_prediction_that_the_loss_cannot_take_gets_a_note(self) -> None:
        with pytest.raises(TypeError) as caught:
            trained(nn.LSTM(4, 3))
        assert caught.value.__notes__[0].startswith(
            "loss(prediction, targets) was called with a prediction that is not a tensor, tuple(Tensor["
        )
