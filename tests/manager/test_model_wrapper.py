"""`ModelWrapper`: the methods that users override, and the kinds of models that it accepts (A18 to A22, A31, A33)."""

import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import Derived, LossPlot, ModelConfig, ModelWrapper, ProtoTrainer, RunConfig, TrainConfig, configclass, not_a_hook
from trainmaster.errors import ConfigError, FrozenConfigError, NonFiniteError, SettingError


@configclass
class WrappedNet(ModelConfig):
    num_inputs: Derived[int]
    num_outputs: int = 1


def make_config(folder: Any, **values: Any) -> RunConfig:
    train = {"dataset": "toy", "batch_size": 4, "epochs": 2, "optimizer_config": {"name": "sgd", "arguments": {"lr": 0.1}}}
    train |= values.pop("train", {})
    given = {
        "model_config": WrappedNet(),
        "train_config": TrainConfig(**train),
        "experiment_dir": folder,
        "device": "cpu",
        "verbose": "silent",
    }
    return RunConfig(**given | values)


class Linear(nn.Module):
    """A linear regression whose `forward` accepts positional arguments or keywords."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(config.num_inputs, config.num_outputs)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        out = self.linear(x)
        return {"guess": out.detach()}, (out - y).pow(2).mean()


def samples() -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=rng)
    return TensorDataset(x, x.sum(1, keepdim=True))


class Toy(ModelWrapper):
    def make_dataloader_train(self, config: Any) -> Any:
        return DataLoader(samples(), batch_size=config["train_config.batch_size"], shuffle=True)

    def make_dataloader_val(self, config: Any) -> Any:
        return DataLoader(samples(), batch_size=6)

    def config_parser(self, config: Any) -> Any:
        config.model_config.num_inputs = self.train_dataloader.dataset[0][0].shape[0]
        return config


def trained(wrapper: ModelWrapper, folder: Any, **values: Any) -> ProtoTrainer:
    trainer = ProtoTrainer(wrapper, make_config(folder, **values))
    trainer.launch()
    return trainer


def weights(trainer: ProtoTrainer) -> list[torch.Tensor]:
    model = trainer.manager.loop.model  # type: ignore[union-attr]
    return [each.detach().clone() for each in model.parameters()]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def reference(num_epochs: int = 2, update: bool = True) -> list[torch.Tensor]:
    """Return the weights after training with plain PyTorch: the same seed, one loop, and the same order of calls."""
    torch.manual_seed(0)
    config = WrappedNet()
    config.num_inputs = 3
    model = Linear(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(samples(), batch_size=4, shuffle=True)
    for _ in range(num_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            model(x, y)[1].backward()
            optimizer.step()
    return [each.detach() for each in model.parameters()]


# ---- batches, outputs and losses


def test_a_wrapped_model_gets_the_same_weights_as_with_plain_pytorch(tmp_path: Any) -> None:
    assert same(weights(trained(Toy(Linear), tmp_path)), reference())


class DictBatches(Toy):
    def make_dataloader_train(self, config: Any) -> Any:
        return [{"y": y[None], "x": x[None]} for x, y in samples()]

    def make_dataloader_val(self, config: Any) -> Any:
        return None

    def config_parser(self, config: Any) -> Any:
        config.model_config.num_inputs = 3


class OneTensor(Linear):
    def forward(self, x: torch.Tensor) -> tuple[Any, Any]:  # type: ignore[override]
        return None, self.linear(x).pow(2).mean()


class TensorBatches(DictBatches):
    def make_dataloader_train(self, config: Any) -> Any:
        return [x[None] for x, _ in samples()]


class TupleModel(Linear):
    def forward(self, batch: Any) -> tuple[Any, Any]:  # type: ignore[override]
        assert isinstance(batch, tuple)
        return super().forward(*batch)


class TupleBatches(DictBatches):
    def make_dataloader_train(self, config: Any) -> Any:
        return [(x[None], y[None]) for x, y in samples()]


@pytest.mark.parametrize(
    ("wrapper", "model"), [(Toy, Linear), (DictBatches, Linear), (TensorBatches, OneTensor), (TupleBatches, TupleModel)]
)
def test_a_list_is_passed_as_positions_a_dict_as_keywords_and_anything_else_as_one_argument(
    wrapper: Any, model: Any, tmp_path: Any
) -> None:
    trainer = trained(wrapper(model), tmp_path, train={"batch_size": 4 if wrapper is Toy else 1})
    assert trainer.manager.epoch == 2


class OnlyOutputs(Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.linear(x)


class NumberLoss(Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        return None, super().forward(x, y)[1].item()


@pytest.mark.parametrize(
    ("model", "message"),
    [(OnlyOutputs, r"`OnlyOutputs.forward` returned Tensor.*expected \(outputs, loss\)"), (NumberLoss, "expected a tensor or None")],
)
def test_an_invalid_result_of_a_model_is_an_error(model: Any, message: str, tmp_path: Any) -> None:
    with pytest.raises(SettingError, match=message):
        trained(Toy(model), tmp_path)


class PerSampleLoss(Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        out = self.linear(x)
        return None, (out - y).pow(2)


def test_a_loss_with_several_values_is_averaged(tmp_path: Any) -> None:
    assert same(weights(trained(Toy(PerSampleLoss), tmp_path)), reference())


class NotANumber(Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        out, loss = super().forward(x, y)
        return out, loss * (float("nan") if self.training else 1.0)


def test_a_training_loss_that_is_not_finite_raises_at_once(tmp_path: Any) -> None:
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        trained(Toy(NotANumber), tmp_path)


# ---- models that update themselves


class SelfUpdating(Linear):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.own_optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        out, loss = super().forward(x, y)
        if self.training:
            self.own_optimizer.zero_grad()
            loss.backward()
            self.own_optimizer.step()
        return {**out, "targets": y}, None


class Plotted(Toy):
    def extensions(self) -> Any:
        return [LossPlot()]

    def evaluation_functions(self) -> Any:
        return {"error": lambda guess, targets: (guess - targets).abs().mean()}


def test_a_model_that_updates_itself_can_be_evaluated_plotted_saved_and_resumed(tmp_path: Any) -> None:
    monitored = {"optim_metrics": {"valid/error": "min"}, "optim_metric_name": "valid/error"}
    whole = trained(Plotted(SelfUpdating), tmp_path / "whole", **monitored)
    history = whole.manager.history
    assert [step for step, _ in history["valid/error"]] == [0, 1, 2]
    assert history["valid/error"][-1][1] < history["valid/error"][0][1]
    assert "valid/loss" not in history
    assert "train/loss" not in history
    assert list((tmp_path / "whole" / "previews").rglob("loss*")) == []  # there is no loss to plot
    first = ProtoTrainer(Plotted(SelfUpdating), make_config(tmp_path / "parts", **monitored))
    first.manager.process(num_epochs=1)
    assert same(weights(trained(Plotted(SelfUpdating), tmp_path / "parts", **monitored)), weights(whole))


class NeverUpdated(SelfUpdating):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        return {"guess": self.linear(x)}, None


def test_a_model_without_a_loss_that_does_not_update_itself_causes_a_warning(tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match="nothing has changed the parameters of the model in the first epoch"):
        trained(Toy(NeverUpdated), tmp_path)


class Unused(Linear):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.other = nn.Linear(2, 2)


def test_parameters_without_a_gradient_cause_a_warning(tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match="2 parameters of the optimizer had no gradient in the first epoch: other.weight, other.bias"):
        trained(Toy(Unused), tmp_path)


# ---- user-defined steps and loops


class OwnStep(Toy):
    def train_step(self, batch: Any) -> Any:
        outputs, loss = self.model_step(self.model, batch)
        self.optimizer.zero_grad()  # type: ignore[union-attr]
        loss.backward()
        self.optimizer.step()  # type: ignore[union-attr]
        return outputs, loss.detach()


class OwnLoop(Toy):
    num_epochs_done = 0

    def train_loop(self, batches: Any) -> Any:
        for batch in batches:
            yield self.train_step(batch)
        type(self).num_epochs_done += 1


class ScaledLoop(Toy):
    def train_loop(self, batches: Any) -> Any:
        for batch in batches:
            outputs, loss = self.train_step(batch)
            yield outputs, 0 * loss


def test_a_train_step_may_update_the_weights_itself(tmp_path: Any) -> None:
    trainer = trained(OwnStep(Linear), tmp_path)
    assert same(weights(trainer), reference())
    assert len(trainer.manager.history["train/loss"]) == 2


def test_a_train_loop_runs_over_the_batches_of_each_epoch(tmp_path: Any) -> None:
    assert same(weights(trained(OwnLoop(Linear), tmp_path / "a")), reference())
    assert OwnLoop.num_epochs_done == 2
    assert same(weights(trained(ScaledLoop(Linear), tmp_path / "b")), reference(0))


class NoGenerator(Toy):
    def train_loop(self, batches: Any) -> Any:
        return None


class EndsEarly(Toy):
    def train_loop(self, batches: Any) -> Any:
        yield self.train_step(next(batches))


@pytest.mark.parametrize(("wrapper", "message"), [(NoGenerator, "is not a generator"), (EndsEarly, "ended before the last batch")])
def test_an_invalid_train_loop_is_an_error(wrapper: Any, message: str, tmp_path: Any) -> None:
    with pytest.raises(SettingError, match=message):
        trained(wrapper(Linear), tmp_path)


# ---- evaluation


class Evaluated(Toy):
    def evaluation_functions(self) -> Any:
        return {"error": lambda guess, y: (guess - y).abs().mean()}

    def custom_evaluation(self, model: Any, dataloader: Any) -> Any:
        return {"num_batches": len(list(dataloader)), "is_training": float(model.training)}

    def make_dataloader_test(self, config: Any) -> Any:
        return DataLoader(samples(), batch_size=5)


def test_metrics_receive_outputs_and_batches_by_name_and_are_recorded_for_each_set(tmp_path: Any) -> None:
    trainer = trained(Evaluated(Linear), tmp_path)
    history, model = trainer.manager.history, trainer.manager.loop.model  # type: ignore[union-attr]
    x, y = samples().tensors
    assert history["valid/error"][-1] == (2, pytest.approx((model.linear(x) - y).abs().mean().item()))
    assert [step for step, _ in history["train/error"]] == [1, 2]
    assert (history["valid/num_batches"][-1], history["valid/is_training"][-1]) == ((2, 2.0), (2, 0.0))
    found = trainer.evaluate()
    assert found["valid"] == {name: trainer.manager.previews[trainer.manager.key][f"valid/{name}"] for name in found["valid"]}
    assert found["test"]["error"] == pytest.approx(found["valid"]["error"])
    assert found["test"]["num_batches"] == 3


class UnknownOutput(Toy):
    def evaluation_functions(self) -> Any:
        return {"error": lambda gues, y: (gues - y).abs().mean()}


class NotAScalar(Toy):
    def evaluation_functions(self) -> Any:
        return {"error": lambda guess, y: guess - y}


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [(UnknownOutput, "(?s)takes `gues`, which is neither.*known.*x, y, guess.*did you mean `guess`"), (NotAScalar, "not a number")],
)
def test_an_invalid_evaluation_function_is_an_error(wrapper: Any, message: str, tmp_path: Any) -> None:
    with pytest.raises(SettingError, match=message):
        trained(wrapper(Linear), tmp_path)


# ---- names, laziness, configs


def test_a_method_that_would_never_be_called_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"(?s)`Typo.train_steps` is never called.*did you mean `train_step`"):

        class Typo(ModelWrapper):
            def train_steps(self, batch: Any) -> Any: ...


@pytest.mark.parametrize("name", ["custom_evalatuion", "make_dataloader_valid", "evaluation_function", "make_dataloaders_train"])
def test_similar_names_of_methods_are_errors(name: str) -> None:
    with pytest.raises(SettingError, match=f"`Typo.{name}` is never called"):
        type("Typo", (ModelWrapper,), {name: lambda self: None})


def test_helper_methods_are_allowed() -> None:
    class Fine(ModelWrapper):
        def make_dataloader(self, flag: str) -> Any: ...

        def accuracy(self) -> Any: ...

        @not_a_hook
        def train_steps(self) -> Any: ...

    assert Fine(Linear).model_class is Linear


@pytest.mark.parametrize("name", ["model", "optimizer", "train_dataloader", "config"])
def test_a_wrapper_is_lazy_and_can_be_pickled(name: str, tmp_path: Any) -> None:
    """Covers contract A20."""
    wrapper = Toy(Linear)
    trained(wrapper, tmp_path)
    copied = pickle.loads(pickle.dumps(wrapper))
    for each in (wrapper, copied):
        with pytest.raises(AttributeError, match=f"`Toy.{name}` exists only while a trainer uses a copy"):
            getattr(each, name)


class Forgetful(Toy):
    def config_parser(self, config: Any) -> Any:
        return config


class Late(Toy):
    def create_model(self, config: Any) -> Any:
        config.model_config.num_outputs = 2


def test_derived_fields_must_be_set_and_the_config_is_frozen_afterwards(tmp_path: Any) -> None:
    """Covers contract A21."""
    with pytest.raises(ConfigError, match="num_inputs"):
        trained(Forgetful(Linear), tmp_path)
    with pytest.raises(FrozenConfigError, match="`WrappedNet` is frozen"):
        trained(Late(Linear), tmp_path)


class OtherValues(Toy):
    def config_parser(self, config: Any) -> Any:
        config.train_config.epochs = 7
        return super().config_parser(config)


def test_a_config_parser_must_not_change_the_identity(tmp_path: Any) -> None:
    with pytest.raises(SettingError, match=r"`config_parser` changed the identity of the config: train_config.epochs"):
        trained(OtherValues(Linear), tmp_path)


def test_a_loader_with_another_batch_size_than_the_config_is_refused(tmp_path: Any) -> None:
    class Fixed(Toy):
        def make_dataloader_train(self, config: Any) -> Any:
            return DataLoader(samples(), batch_size=2)

    with pytest.raises(SettingError, match=r"batch_size=2, but the config has train_config.batch_size=4"):
        trained(Fixed(Linear), tmp_path)


# ---- other kinds of models


class Mean:
    """A model that learns a mean value without PyTorch."""

    def __init__(self, config: Any) -> None:
        self.mean, self.num = 0.0, 0

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, Any]:
        if torch.is_grad_enabled():
            self.num += len(y)
            self.mean += float((y - self.mean).sum()) / self.num
        return {"error": (y - self.mean).abs()}, None

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "num": self.num}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.num = state["mean"], state["num"]


class WithError(Toy):
    def evaluation_functions(self) -> Any:
        return {"error": lambda error: error.mean()}


def test_a_callable_that_is_not_a_module_is_trained_saved_and_resumed(tmp_path: Any) -> None:
    whole = trained(WithError(Mean), tmp_path / "whole")
    first = ProtoTrainer(WithError(Mean), make_config(tmp_path / "parts"))
    first.manager.process(num_epochs=1)
    again = trained(WithError(Mean), tmp_path / "parts")
    means = [each.manager.loop.model.function.mean for each in (whole, again)]  # type: ignore[union-attr]
    assert means[0] == means[1] != 0


def test_a_function_can_create_the_model(tmp_path: Any) -> None:
    assert same(weights(trained(Toy(lambda config: Linear(config)), tmp_path)), reference())


class WithArguments(nn.Module):
    def __init__(self, lr: float = 0.02, num_outputs: int = 1) -> None:
        super().__init__()


class WithRequiredArgument(nn.Module):
    def __init__(self, lr: float, num_outputs: int = 1) -> None:
        super().__init__()


class WithTwoArguments(nn.Module):
    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()


class WithoutArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()


@pytest.mark.parametrize("model", [WithArguments, WithRequiredArgument, WithTwoArguments, WithoutArguments])
def test_a_model_whose_constructor_does_not_take_the_config_is_refused(model: Any, tmp_path: Any) -> None:
    with pytest.raises(SettingError, match=rf"`{model.__name__}\(.*\)` does not take the config") as raised:
        trained(Toy(model), tmp_path)
    assert "def __init__(self, config)" in str(raised.value)
    assert "override `create_model(config)`" in str(raised.value)


def test_a_model_with_ordinary_arguments_can_be_created_by_create_model(tmp_path: Any) -> None:
    class Wide(Linear):
        def __init__(self, num_inputs: int = 1, num_outputs: int = 1) -> None:
            super().__init__(WrappedNet(num_inputs=num_inputs, num_outputs=num_outputs))

    class Own(Toy):
        def create_model(self, config: Any) -> Any:
            return self.model_class(config.model_config.num_inputs)

    assert same(weights(trained(Own(Wide), tmp_path)), reference())


def with_default(config: Any = None) -> Any:
    return Linear(config)


def with_another_name(net: Any, scale: float = 1.0) -> Any:
    return Linear(net)


def with_annotation(settings: WrappedNet = WrappedNet()) -> Any:  # noqa: B008
    return Linear(settings)


def with_postponed_annotation(settings: "WrappedNet" = WrappedNet()) -> Any:  # noqa: B008
    return Linear(settings)


def with_any_arguments(*args: Any, **kwargs: Any) -> Any:
    return Linear(*args, **kwargs)


@pytest.mark.parametrize("make", [with_default, with_another_name, with_annotation, with_postponed_annotation, with_any_arguments])
def test_a_model_takes_the_config_under_any_name_that_is_not_ambiguous(make: Any, tmp_path: Any) -> None:
    assert same(weights(trained(Toy(make), tmp_path)), reference())


def test_an_instance_instead_of_a_class_is_refused() -> None:
    with pytest.raises(SettingError, match="`model_class` is an instance of WithArguments") as raised:
        Toy(WithArguments())
    assert "pass the class: Toy(WithArguments)" in str(raised.value)
