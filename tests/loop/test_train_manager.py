"""`TrainManager` opens its stages in a fixed order, and hooks get the documented fixtures (contracts E22 to E35)."""

from __future__ import annotations

import copy
import itertools
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster import DivergenceGuard, EarlyStopping
from trainmaster.errors import SettingError
from trainmaster.loop import MemoryWriter, TrainManager, xavier_uniform
from trainmaster.loop.stages import TRAIN_MANAGER
from trainmaster.stages import Extension, Observer


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(5, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.last(self.dropout(self.first(batch[0]).tanh()))


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return ((prediction - batch[1]) ** 2).mean()


def make_net(dropout: float = 0.0, seed: int = 1) -> Net:
    torch.manual_seed(seed)
    return Net(dropout)


def make_batches(count: int = 3, size: int = 4, seed: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(size, 3, generator=generator), torch.randn(size, 1, generator=generator)) for _ in range(count)]


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def make_manager(
    model: nn.Module | None = None, loss: Any = mse, epochs: int | None = 1, train_data: Any = None, **more: Any
) -> TrainManager:
    return TrainManager(
        model or make_net(), loss, epochs, make_batches() if train_data is None else train_data, **{"device": "cpu", **more}
    )


def recorder(stages: Any = tuple(TRAIN_MANAGER.paths), look: Any = None) -> Any:
    """Return an extension with hooks for `stages`.

    `seen` lists the hooks that were called, or the results of `look(name, fixtures)`.
    """
    seen: list[Any] = []

    def make(name: str) -> Any:
        def hook(self: Any, fixtures: Any) -> None:
            seen.append(name if look is None else look(name, fixtures))

        return hook

    names = [f"{phase}_{stage}" for stage in stages for phase in ("pre", "post")]
    extension = type("Recorder", (Extension,), {name: make(name) for name in names})()
    extension.seen = seen
    return extension


def around(stage: str, *inner: str) -> list[str]:
    return [f"pre_{stage}", *inner, f"post_{stage}"]


EVAL_BATCH = around("eval_step_batch", *around("forward"), *around("loss"))
TRAIN_BATCH = around("train_step_batch", *around("forward"), *around("loss"), *around("backward"), *around("optimizer_step"))


class TestConstructor:
    def test_only_model_loss_epochs_and_train_data_are_needed(self) -> None:
        """Covers contract E22."""
        tm = TrainManager(make_net(), mse, 1, make_batches())
        tm.train()
        assert tm.epoch_num == 1

    def test_defaults_are_those_of_the_seed(self) -> None:
        """Contracts E22 and E34: by default, there is no directory."""
        tm = TrainManager(make_net(), mse, 2, make_batches())
        assert (tm.eval_data, tm.train_dir, tm.lr_schedule, tm.max_steps, tm.max_time) == ({}, None, None, None, None)
        assert isinstance(tm.writer, MemoryWriter)
        assert (tm.schedule_by, tm.evaluate_first, tm.initialization) == (None, True, None)

    def test_the_default_device_is_the_first_cuda_device_or_the_cpu(self) -> None:
        """Covers contract E22."""
        tm = TrainManager(make_net(), mse, 2, make_batches())
        assert tm.device == torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    def test_the_default_optimizer_is_adam(self) -> None:
        """Covers contract E22."""
        tm = make_manager()
        tm.train()
        assert type(tm.optimizer) is torch.optim.Adam

    def test_eval_data_as_a_mapping_keeps_its_order(self) -> None:
        """Covers contract E22."""
        tm = make_manager(eval_data={"b": make_batches(1), "a": make_batches(1)})
        assert list(tm.eval_data) == ["b", "a"]

    @pytest.mark.parametrize("wrap", [list, tuple, lambda batches: DataLoader(batches, batch_size=None)], ids=["list", "tuple", "loader"])
    def test_eval_data_without_a_name_is_the_set_valid(self, wrap: Any) -> None:
        tm = make_manager(eval_data=wrap(make_batches(2)))
        tm.eval()
        assert list(tm.eval_data) == ["valid"]
        assert list(tm.history) == ["valid/loss"]

    @pytest.mark.parametrize("nothing", [None, [], (), {}])
    def test_without_evaluation_sets_nothing_is_evaluated(self, nothing: Any) -> None:
        assert make_manager(eval_data=nothing).eval_data == {}

    def test_eval_data_as_pairs_keeps_its_order(self) -> None:
        """Covers contract E22."""
        tm = make_manager(eval_data=[("b", make_batches(1)), ("a", make_batches(1))])
        assert list(tm.eval_data) == ["b", "a"]

    def test_train_dir_becomes_a_path_and_is_created_with_the_first_checkpoint(self, tmp_path: Path) -> None:
        """Covers contract E34."""
        tm = make_manager(train_dir=str(tmp_path / "a" / "new"))
        assert tm.train_dir == tmp_path / "a" / "new"
        assert list(tmp_path.iterdir()) == []
        tm.train()
        assert [each.name for each in (tmp_path / "a" / "new").iterdir()] == ["checkpoints"]

    def test_two_managers_share_no_extension_writer_or_fixture(self) -> None:
        """Covers contract E34."""
        one, other = make_manager(), make_manager()
        one.train()
        assert one["eval_state"] is not other["eval_state"]
        assert one.writer is not other.writer
        assert (one.epoch_num, other.epoch_num) == (1, 0)


class TestStages:
    def test_training_opens_its_stages_in_this_order(self) -> None:
        """Covers contracts E23 and E28."""
        look = recorder()
        make_manager(train_data=make_batches(2), eval_data={"valid": make_batches(1)}, extensions=[look]).train()
        evaluation = around("eval", *around("eval_step_epoch", *EVAL_BATCH))
        epoch = around("train_step_epoch", *TRAIN_BATCH, *TRAIN_BATCH)
        assert look.seen == [
            "pre_train_manager",
            *around("run", *around("load_checkpoint"), *around("train", *evaluation, *epoch, *evaluation)),
        ]

    def test_the_stage_train_manager_is_never_closed(self) -> None:
        """Covers contract E23."""
        look = recorder(["train_manager"])
        tm = make_manager(extensions=[look])
        tm.train()
        tm.eval()
        assert look.seen == ["pre_train_manager"]

    def test_a_standalone_evaluation_opens_run_and_eval(self) -> None:
        """Covers contracts E24 and E28."""
        look = recorder()
        make_manager(eval_data={"valid": make_batches(1)}, extensions=[look]).eval()
        assert look.seen[1:] == around("run", *around("load_checkpoint"), *around("eval", *around("eval_step_epoch", *EVAL_BATCH)))

    def test_run_is_opened_once_although_train_evaluates(self) -> None:
        """Covers contract E24."""
        look = recorder(["run"])
        make_manager(epochs=2, eval_data={"valid": make_batches(1)}, extensions=[look]).train()
        assert look.seen == ["pre_run", "post_run"]

    def test_eval_without_sets_opens_run_and_eval_with_nothing_inside(self) -> None:
        """Covers contract E28."""
        look = recorder()
        make_manager(extensions=[look]).eval()
        assert look.seen[1:] == around("run", *around("load_checkpoint"), *around("eval"))

    def test_standalone_eval_is_false_within_train(self) -> None:
        """Covers contract E24."""
        look = recorder(["eval"], lambda name, fixtures: fixtures["standalone_eval"])
        make_manager(extensions=[look]).train()
        assert set(look.seen) == {False}

    def test_standalone_eval_is_true_for_a_direct_evaluation(self) -> None:
        """Covers contract E24."""
        look = recorder(["eval"], lambda name, fixtures: fixtures["standalone_eval"])
        make_manager(extensions=[look]).eval()
        assert look.seen == [True, True]

    def test_load_checkpoint_opens_after_the_pre_hooks_of_run(self) -> None:
        """Covers contract E23."""
        look = recorder(["run", "load_checkpoint"])
        make_manager(extensions=[look]).train()
        assert look.seen == ["pre_run", "pre_load_checkpoint", "post_load_checkpoint", "post_run"]

    def test_the_mode_is_named_while_a_routine_runs(self) -> None:
        """Covers contract E35."""
        stages = ["train_step_batch", "eval_step_batch", "predict_step_batch", "run"]
        look = recorder(stages, lambda name, fixtures: (name, fixtures["train_manager"].mode_name))
        tm = make_manager(train_data=make_batches(1), eval_data={"valid": make_batches(1)}, evaluate_first=False, extensions=[look])
        tm.train()
        tm.predict(make_batches(1))
        modes = dict(look.seen)
        assert modes == {
            "pre_run": None, "pre_train_step_batch": "train", "post_train_step_batch": "train", "pre_eval_step_batch": "eval",
            "post_eval_step_batch": "eval", "pre_predict_step_batch": "predict", "post_predict_step_batch": "predict", "post_run": None,
        }  # fmt: skip

    def test_the_mode_has_no_name_between_routines(self) -> None:
        """Covers contract E35."""
        tm = make_manager()
        tm.train()
        assert tm.mode_name is None


ALWAYS_THERE = {"train_manager", "loop", "fixtures", "model", "device", "writer", "optimizer", "lr_schedule", "epoch_num", "step_num"}
IN_RUN = ALWAYS_THERE | {"standalone_eval", "stopped"}
IN_TRAIN_EPOCH = IN_RUN | {"epoch_index", "mode_name"}
IN_EVAL_EPOCH = IN_RUN | {
    "eval_losses",
    "eval_metrics",
    "datasource_name",
    "mode_name",
    "num_batches",
    "num_samples",
    "cum_loss",
    "cum_sample_loss",
}
BATCH = {"batch", "batch_num", "true_batch_size"}

SEEN_AT = {
    "pre_run": IN_RUN,
    "post_run": IN_RUN,
    "pre_load_checkpoint": IN_RUN | {"checkpoint_loaded"},
    "pre_train": IN_RUN,
    "post_train": IN_RUN,
    "pre_eval": IN_RUN | {"eval_losses", "eval_metrics"},
    "post_eval": IN_RUN | {"eval_losses", "eval_metrics"},
    "pre_eval_step_epoch": IN_EVAL_EPOCH,
    "post_eval_step_epoch": IN_EVAL_EPOCH,
    "pre_eval_step_batch": IN_EVAL_EPOCH | BATCH,
    "post_eval_step_batch": IN_EVAL_EPOCH | BATCH | {"prediction", "loss"},
    "pre_train_step_epoch": IN_TRAIN_EPOCH,
    "post_train_step_epoch": IN_TRAIN_EPOCH,
    "pre_train_step_batch": IN_TRAIN_EPOCH | BATCH | {"is_update"},
    "post_train_step_batch": IN_TRAIN_EPOCH | BATCH | {"is_update", "prediction", "loss"},
    "pre_backward": IN_TRAIN_EPOCH | BATCH | {"is_update", "prediction", "loss", "objective"},
    "post_backward": IN_TRAIN_EPOCH | BATCH | {"is_update", "prediction", "loss", "objective"},
    "pre_optimizer_step": IN_TRAIN_EPOCH | BATCH | {"is_update", "prediction", "loss"},
    "pre_predict": IN_RUN | {"mode_name"},
    "pre_predict_step_batch": IN_RUN | {"mode_name"} | BATCH,
    "post_predict_step_batch": IN_RUN | {"mode_name"} | BATCH | {"prediction"},
}


class TestEvaluatingOtherData:
    def test_eval_can_take_other_sets_without_changing_the_loops_own(self) -> None:
        tm = make_manager(eval_data={"valid": make_batches(1)}, progress=False)
        before = weights(tm.model)
        tm.eval({"test": make_batches(2), "more": make_batches(1)})
        assert list(tm.history) == ["test/loss", "more/loss"]
        assert list(tm.eval_data) == ["valid"]
        assert same_bits(weights(tm.model), before)
        tm.eval([("test", make_batches(2))])
        assert [value for _, value in tm.history["test/loss"]] == [tm.history["test/loss"][0][1]] * 2

    def test_its_loss_is_computed_over_the_given_data(self) -> None:
        tm = make_manager(progress=False)
        data = make_batches(2, seed=7)
        tm.eval({"test": data})
        with torch.no_grad():
            wanted = sum(float(mse(batch, tm.model(batch))) for batch in data) / 2
        assert tm.history["test/loss"] == [(0, pytest.approx(wanted))]

    def test_other_data_with_the_name_of_a_set_is_refused_but_the_set_itself_is_accepted(self) -> None:
        valid = make_batches(1)
        tm = make_manager(eval_data={"valid": valid}, progress=False)
        with pytest.raises(SettingError, match="the loop already has an evaluation set 'valid' with other data") as caught:
            tm.eval({"valid": make_batches(2)})
        assert caught.value.rows["hint"] == 'give it another name: eval({"valid_2": loader})'
        assert not tm.history
        tm.eval({"valid": valid})
        assert list(tm.history) == ["valid/loss"]

    def test_a_loader_without_a_name_is_an_error_that_shows_what_to_write(self) -> None:
        with pytest.raises(
            SettingError, match=r"^the data to evaluate needs a name for its metrics\n  try     eval\(\{\"test\": loader\}\)"
        ):
            make_manager().eval(make_batches())

    def test_it_affects_no_schedule_or_checkpoint_even_within_another_evaluation(self) -> None:
        class Asks(Extension):
            def post_eval_step_epoch(self, train_manager: TrainManager, datasource_name: str) -> None:
                if datasource_name == "valid":
                    train_manager.eval({"test": make_batches(1)})

        class Stops(Observer):
            def post_eval(self, train_manager: TrainManager, eval_losses: dict[str, float]) -> None:
                own.append((train_manager.is_own_evaluation, list(eval_losses)))

        own: list[Any] = []
        model = make_net()
        optimizer = sgd(model.parameters())
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        tm = make_manager(
            model, eval_data={"valid": make_batches(1)}, optimizer=optimizer, lr_schedule=plateau, schedule_by="valid",
            extensions=[Asks(), Stops()], progress=False,
        )  # fmt: skip
        tm.train()
        assert own == [(False, ["test"]), (True, ["valid"])] * 2
        assert plateau.last_epoch == 1

    def test_early_stopping_and_divergence_guard_ignore_it(self) -> None:
        judges: list[Any] = [EarlyStopping(patience=1), DivergenceGuard()]
        for judge in judges:
            tm = make_manager(eval_data={"valid": make_batches(1)}, progress=False)
            tm.train()
            tm.add_extension("judge", judge)
            tm.eval({"test": make_batches(1)})
            assert judge.best is None


class TestFixtures:
    @pytest.mark.parametrize("hook", SEEN_AT)
    def test_exactly_these_fixtures_exist_at_each_hook(self, hook: str) -> None:
        """Covers contracts E24 and E25."""
        names = set().union(*SEEN_AT.values()) | {"checkpoint_loaded"}
        look = recorder([hook.partition("_")[2]], lambda name, fixtures: (name, {each for each in names if each in fixtures}))
        tm = make_manager(train_data=make_batches(2), eval_data={"valid": make_batches(2)}, extensions=[look])
        tm.predict(make_batches(1)) if "predict" in hook else tm.train()
        seen = [found for name, found in look.seen if name == hook]
        assert seen
        assert all(found == SEEN_AT[hook] for found in seen)

    def test_hooks_get_fixtures_by_parameter_name(self) -> None:
        """Covers contracts E21 and E25."""
        got: list[Any] = []

        class Taker(Extension):
            def post_train_step_batch(
                self, train_manager: Any, loop: Any, fixtures: Any, model: Any, optimizer: Any, lr_schedule: Any, device: Any, writer: Any,
                epoch_num: Any, epoch_index: Any, batch_num: Any, step_num: Any, batch: Any, true_batch_size: Any, prediction: Any,
                loss: Any,
            ) -> None:  # fmt: skip
                got.append((train_manager, loop, fixtures, model, optimizer, lr_schedule, device, writer))
                got.append((epoch_num, epoch_index, batch_num, step_num, true_batch_size))
                got.append((batch, prediction, loss))

        data = make_batches(1, size=7)
        model = make_net()
        tm = make_manager(model, train_data=data, optimizer=sgd, extensions=[Taker()])
        tm.train()
        assert all(a is b for a, b in zip(got[0], (tm, tm, tm.fixtures, model, tm.optimizer, None, tm.device, tm.writer), strict=True))
        assert got[1] == (0, 0, 0, 1, 7)
        batch, prediction, loss = got[2]
        assert batch is data[0]
        assert prediction.shape == (7, 1)
        assert torch.equal(loss, mse(batch, prediction))

    def test_the_optimizer_fixture_is_built_when_training_starts(self) -> None:
        """Covers contract E32."""
        look = recorder(["train"], lambda name, fixtures: type(fixtures["optimizer"]))
        make_manager(optimizer=sgd, extensions=[look]).train()
        assert look.seen[0] is torch.optim.SGD

    def test_the_schedule_fixture_is_built_when_training_starts(self) -> None:
        """Covers contracts E32 and E33."""
        look = recorder(["train"], lambda name, fixtures: fixtures["lr_schedule"])
        tm = make_manager(lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0), extensions=[look])
        tm.train()
        assert look.seen[0] is tm.lr_schedule is not None

    def test_batch_num_counts_from_zero_in_each_epoch(self) -> None:
        look = recorder(["train_step_batch"], lambda name, fixtures: fixtures["batch_num"])
        make_manager(epochs=2, train_data=make_batches(3), extensions=[look]).train()
        assert look.seen[::2] == [0, 1, 2, 0, 1, 2]

    def test_step_num_counts_updates_done_over_all_epochs(self) -> None:
        look = recorder(["train_step_batch"], lambda name, fixtures: fixtures["step_num"])
        make_manager(epochs=2, train_data=make_batches(2), extensions=[look]).train()
        assert look.seen == [0, 1, 1, 2, 2, 3, 3, 4]

    def test_the_name_of_each_evaluation_set_is_a_fixture(self) -> None:
        """Contracts E25 and E28: the sets come in the order of the mapping."""
        look = recorder(["eval_step_batch"], lambda name, fixtures: fixtures["datasource_name"])
        make_manager(eval_data={"b": make_batches(1), "a": make_batches(2)}, extensions=[look]).eval()
        assert look.seen[::2] == ["b", "a", "a"]

    def test_a_run_leaves_no_fixtures_behind(self) -> None:
        """Covers contract E18."""
        tm = make_manager(eval_data={"valid": make_batches(1)})
        tm.train()
        assert set(tm.fixtures) == ALWAYS_THERE

    def test_epoch_num_increases_inside_the_epoch_after_its_last_batch(self) -> None:
        """Covers contract E27."""
        look = recorder(
            ["train_step_epoch", "train_step_batch"], lambda name, fixtures: (name, fixtures["epoch_num"], fixtures["epoch_index"])
        )
        make_manager(epochs=2, train_data=make_batches(1), extensions=[look]).train()
        first, second = look.seen[:4], look.seen[4:]
        assert first == [
            ("pre_train_step_epoch", 0, 0),
            ("pre_train_step_batch", 0, 0),
            ("post_train_step_batch", 0, 0),
            ("post_train_step_epoch", 1, 0),
        ]
        assert second[0] == ("pre_train_step_epoch", 1, 1)
        assert second[-1] == ("post_train_step_epoch", 2, 1)

    @pytest.mark.parametrize("name", ["prediction", "loss"])
    def test_the_fixtures_of_a_stage_exist_from_its_post_hooks_until_the_batch_ends(self, name: str) -> None:
        """Covers contract E25."""
        stages = ["train_step_batch", "forward", "loss", "backward", "optimizer_step", "train_step_epoch"]
        look = recorder(stages, lambda hook, fixtures: (hook, name in fixtures))
        make_manager(train_data=make_batches(2), extensions=[look]).train()
        maker = {"prediction": "post_forward", "loss": "post_loss"}[name]
        order = [hook for hook, _ in look.seen]
        visible = {hook for hook, is_there in look.seen if is_there}
        batch = order[1 : order.index("post_train_step_batch") + 1]
        assert visible == set(batch[batch.index(maker) :])


class TestTrainingStep:
    def test_the_order_is_forward_loss_zero_grad_backward_step(self) -> None:
        """Covers contract E26."""
        calls: list[str] = []

        class Manager(TrainManager):
            def model_forward(self, batch: Any) -> Any:
                calls.append("forward")
                return super().model_forward(batch)

            def loss_forward(self, batch: Any, prediction: Any) -> Any:
                calls.append("loss")
                return super().loss_forward(batch, prediction)

            def zero_grad(self) -> None:
                calls.append("zero_grad")
                super().zero_grad()

            def backward(self, loss: Any) -> None:
                calls.append("backward")
                super().backward(loss)

            def optimizer_step(self) -> None:
                calls.append("optimizer_step")
                super().optimizer_step()

        Manager(make_net(), mse, 1, make_batches(2), device="cpu").train()
        assert calls == ["forward", "loss", "zero_grad", "backward", "optimizer_step"] * 2

    def test_post_train_step_batch_sees_the_gradients_of_this_batch(self) -> None:
        """Covers contract E26."""
        data = make_batches(2)
        expected, grads = make_net(), []
        optimizer = sgd(expected.parameters())
        for batch in data:
            optimizer.zero_grad()
            mse(batch, expected(batch)).backward()
            grads.append(expected.first.weight.grad.clone())
            optimizer.step()
        look = recorder(["train_step_batch"], lambda name, fixtures: (name, _clone(fixtures["model"].first.weight.grad)))
        make_manager(make_net(), train_data=data, optimizer=sgd, extensions=[look]).train()
        seen = [grad for name, grad in look.seen if name == "post_train_step_batch"]
        assert all(torch.equal(one, other) for one, other in zip(seen, grads, strict=True))

    def test_post_train_step_batch_sees_the_updated_weights(self) -> None:
        """Covers contract E26."""
        look = recorder(["train_step_batch"], lambda name, fixtures: fixtures["model"].first.weight.detach().clone())
        make_manager(train_data=make_batches(1), extensions=[look]).train()
        before, after = look.seen
        assert not torch.equal(before, after)

    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_training_equals_a_hand_written_loop_bit_for_bit(self, dropout: float) -> None:
        """Covers contract E26."""
        data = DataLoader(TensorDataset(torch.randn(11, 3), torch.randn(11, 1)), batch_size=4, shuffle=True)
        plain = make_net(dropout)
        optimizer = torch.optim.Adam(plain.parameters())
        torch.manual_seed(5)
        plain.train()
        for _ in range(3):
            for batch in data:
                loss = mse(batch, plain(batch))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        model = make_net(dropout)
        torch.manual_seed(5)
        make_manager(model, epochs=3, train_data=data, eval_data={"valid": data}).train()
        assert same_bits(weights(model), weights(plain))

    def test_accumulation_through_is_update_equals_a_hand_written_loop_bit_for_bit(self) -> None:
        data = make_batches(7)
        plain = make_net(0.3)
        optimizer = torch.optim.Adam(plain.parameters())
        torch.manual_seed(5)
        numbers = itertools.count()
        for _ in range(2):
            for batch in data:
                number = next(numbers)
                loss = mse(batch, plain(batch)) / 3
                if number % 3 == 0:
                    optimizer.zero_grad()
                loss.backward()
                if number % 3 == 2:
                    optimizer.step()

        class GradientAccumulation(Extension):
            def __init__(self) -> None:
                self.num = 0

            def pre_train_step_batch(self, fixtures: Any) -> None:
                self.num += 1
                fixtures.modify("is_update", self.num % 3 == 0)

            def post_loss(self, fixtures: Any, loss: Any) -> None:
                fixtures.modify("loss", loss / 3)

        model = make_net(0.3)
        torch.manual_seed(5)
        tm = make_manager(model, epochs=2, train_data=data, extensions=[GradientAccumulation()])
        tm.train()
        assert tm.step_num == 4
        assert same_bits(weights(model), weights(plain))

    def test_a_batch_without_an_update_does_not_open_optimizer_step(self) -> None:
        class Never(Extension):
            def pre_train_step_batch(self, fixtures: Any) -> None:
                fixtures.modify("is_update", False)

        look = recorder(["backward", "optimizer_step"])
        tm = make_manager(train_data=make_batches(2), extensions=[Never(), look])
        before = weights(tm.model)
        tm.train()
        assert look.seen == around("backward") * 2
        assert (tm.step_num, same_bits(weights(tm.model), before)) == (0, True)

    def test_is_update_may_be_decided_as_late_as_post_backward(self) -> None:
        class SkipSecond(Extension):
            def post_backward(self, fixtures: Any, batch_num: int) -> None:
                fixtures.modify("is_update", batch_num != 1)

        tm = make_manager(train_data=make_batches(3), extensions=[SkipSecond()])
        tm.train()
        assert tm.step_num == 2

    def test_a_hook_may_modify_the_batch(self) -> None:
        class Double(Extension):
            def pre_train_step_batch(self, fixtures: Any, batch: Any) -> None:
                fixtures.modify("batch", (batch[0] * 2, batch[1]))

        data = make_batches(3)
        by_hook, by_hand = make_net(), make_net()
        make_manager(by_hook, train_data=data, extensions=[Double()]).train()
        make_manager(by_hand, train_data=[(x * 2, y) for x, y in data]).train()
        assert same_bits(weights(by_hook), weights(by_hand))

    def test_a_hook_may_modify_the_prediction(self) -> None:
        class Shift(Extension):
            def post_forward(self, fixtures: Any, prediction: Any) -> None:
                fixtures.modify("prediction", prediction + 1)

        by_hook, by_hand = make_net(), make_net()
        make_manager(by_hook, extensions=[Shift()]).train()
        make_manager(by_hand, lambda batch, prediction: mse(batch, prediction + 1)).train()
        assert same_bits(weights(by_hook), weights(by_hand))

    def test_a_hook_may_modify_the_loss(self) -> None:
        class Regularise(Extension):
            def post_loss(self, fixtures: Any, model: Any, loss: Any) -> None:
                fixtures.modify("loss", loss + model.first.weight.pow(2).sum())

        by_hook, by_hand = make_net(), make_net()
        make_manager(by_hook, extensions=[Regularise()]).train()
        make_manager(by_hand, lambda batch, prediction: mse(batch, prediction) + by_hand.first.weight.pow(2).sum()).train()
        assert same_bits(weights(by_hook), weights(by_hand))


def _clone(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else grad.clone()


class TestEvaluation:
    def test_it_happens_before_training_and_after_each_epoch(self) -> None:
        """Contract E28: the evaluation before training is on by default."""
        look = recorder(["eval"], lambda name, fixtures: fixtures["epoch_num"])
        make_manager(epochs=2, eval_data={"valid": make_batches(1)}, extensions=[look]).train()
        assert look.seen[::2] == [0, 1, 2]

    def test_the_evaluation_before_training_can_be_turned_off(self) -> None:
        look = recorder(["eval"], lambda name, fixtures: fixtures["epoch_num"])
        make_manager(epochs=2, evaluate_first=False, extensions=[look]).train()
        assert look.seen[::2] == [1, 2]

    def test_the_evaluation_before_training_is_not_repeated_by_the_next_train(self) -> None:
        """Covers contract E28."""
        tm = make_manager(eval_data={"valid": make_batches(1)})
        tm.train()
        tm.epochs = 2
        tm.train()
        assert [step for step, _ in tm.history["valid/loss"]] == [0, 1, 2]

    def test_gradients_are_off_in_evaluations(self) -> None:
        """Covers contract E30."""
        look = recorder(["eval_step_batch"], lambda name, fixtures: (torch.is_grad_enabled(), fixtures["model"].training))
        make_manager(eval_data={"valid": make_batches(1)}, extensions=[look]).eval()
        assert look.seen == [(False, False)] * 2

    def test_training_batches_have_gradients_on_and_modules_in_train_mode(self) -> None:
        """Covers contract E30."""
        look = recorder(["train_step_batch"], lambda name, fixtures: (torch.is_grad_enabled(), fixtures["model"].dropout.training))
        model = make_net()
        model.eval()
        with torch.no_grad():
            make_manager(model, extensions=[look]).train()
        assert set(look.seen) == {(True, True)}

    @pytest.mark.parametrize("routine", ["train", "eval", "predict"])
    def test_the_mode_of_every_module_is_restored(self, routine: str) -> None:
        """Covers contract E30."""
        model = make_net()
        model.train()
        model.dropout.eval()
        tm = make_manager(model, eval_data={"valid": make_batches(1)})
        tm.predict(make_batches(1)) if routine == "predict" else getattr(tm, routine)()
        assert (model.training, model.first.training, model.dropout.training) == (True, True, False)

    def test_modes_and_gradients_are_restored_after_an_error(self) -> None:
        """Covers contract E30."""
        model = make_net()
        model.dropout.eval()

        def fails(batch: Any, prediction: Any) -> Any:
            raise ZeroDivisionError

        tm = make_manager(model, fails, eval_data={"valid": make_batches(1)})
        with pytest.raises(ZeroDivisionError):
            tm.eval()
        assert (model.training, model.dropout.training, torch.is_grad_enabled()) == (True, False, True)

    def test_a_standalone_evaluation_builds_no_optimizer(self) -> None:
        """Covers contract E32."""
        tm = make_manager(eval_data={"valid": make_batches(1)})
        tm.eval()
        assert tm.optimizer is None

    def test_a_frozen_model_can_be_evaluated(self) -> None:
        """Covers contract E32."""
        model = make_net().requires_grad_(False)
        tm = make_manager(model, eval_data={"valid": make_batches(1)})
        tm.eval()
        assert len(tm.history["valid/loss"]) == 1


class TestOverriding:
    def test_model_forward_is_used_in_training_and_evaluation(self) -> None:
        """Covers contract E29."""

        class Manager(TrainManager):
            def model_forward(self, batch: Any) -> Any:
                return self.model((batch["x"],))

        data = [{"x": x, "y": y} for x, y in make_batches(2)]
        tm = Manager(make_net(), lambda batch, prediction: mse((0, batch["y"]), prediction), 1, data, {"valid": data}, device="cpu")
        tm.train()
        assert len(tm.history["valid/loss"]) == 2

    @pytest.mark.parametrize(
        ("method", "expected"),
        [
            ("train_model_forward", {"train"}),
            ("eval_model_forward", {"eval"}),
            ("model_forward", {"train", "eval"}),
            ("train_loss_forward", {"train"}),
            ("eval_loss_forward", {"eval"}),
            ("loss_forward", {"train", "eval"}),
        ],
    )
    def test_each_forward_method_is_called_in_its_modes(self, method: str, expected: set[str]) -> None:
        """Covers contract E29."""
        modes: set[Any] = set()

        def override(self: Any, *args: Any) -> Any:
            modes.add(self.mode_name)
            return getattr(TrainManager, method)(self, *args)

        kind = type("Manager", (TrainManager,), {method: override})
        kind(make_net(), mse, 1, make_batches(1), {"valid": make_batches(1)}, device="cpu").train()
        assert modes == expected

    def test_loss_may_be_none_if_loss_forward_is_overridden(self) -> None:
        """Covers contract E29."""

        class Manager(TrainManager):
            def loss_forward(self, batch: Any, prediction: Any) -> Any:
                return mse(batch, prediction)

        by_method, by_function = make_net(), make_net()
        Manager(by_method, None, 1, make_batches(), device="cpu").train()
        make_manager(by_function).train()
        assert same_bits(weights(by_method), weights(by_function))

    def test_optimizer_may_be_none_if_optimizer_step_is_overridden(self) -> None:
        """Covers contract E29."""

        class Manager(TrainManager):
            def optimizer_step(self) -> None:
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        parameter.sub_(parameter.grad, alpha=0.1)

        by_hand, by_sgd = make_net(), make_net()
        Manager(by_hand, mse, 1, make_batches(), optimizer=None, device="cpu").train()
        make_manager(by_sgd, optimizer=sgd).train()
        assert same_bits(weights(by_hand), weights(by_sgd))

    def test_get_true_batch_size_decides_the_fixture(self) -> None:
        """Covers contract E29."""

        class Manager(TrainManager):
            def get_true_batch_size(self, batch: Any) -> int:
                return 99

        look = recorder(["train_step_batch"], lambda name, fixtures: fixtures["true_batch_size"])
        Manager(make_net(), mse, 1, make_batches(1), device="cpu", extensions=[look]).train()
        assert look.seen == [99, 99]

    def test_initialize_params_may_take_fixtures(self) -> None:
        """Covers contract E29."""
        got: list[Any] = []

        class Manager(TrainManager):
            def initialize_params(self, device: Any, epoch_num: int) -> None:  # type: ignore[override]
                got.append((device, epoch_num))

        Manager(make_net(), mse, 1, make_batches(1), device="cpu").train()
        assert got == [(torch.device("cpu"), 0)]


class OwnStart(Net):
    """A model that initializes its own weights, and counts how often it does so."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[Any] = []

    def initialize_params(self, device: Any) -> None:
        self.starts.append(device)
        nn.init.constant_(self.first.weight, 0.25)


class TestInitialization:
    def test_weights_are_not_changed_by_default(self) -> None:
        """Xavier initialization is only an option."""
        model = make_net()
        before = weights(model)
        make_manager(model, epochs=0).train()
        assert same_bits(weights(model), before)

    def test_the_models_own_initialize_params_gets_fixtures(self) -> None:
        """Covers contracts E29 and E32."""
        model = OwnStart()
        make_manager(model, epochs=0).train()
        assert model.starts == [torch.device("cpu")]
        assert torch.equal(model.first.weight, torch.full((5, 3), 0.25))

    def test_the_models_own_initialization_takes_precedence_over_the_argument(self) -> None:
        """Covers contract E29."""
        model = OwnStart()
        make_manager(model, epochs=0, initialization=xavier_uniform).train()
        assert torch.equal(model.first.weight, torch.full((5, 3), 0.25))

    def test_xavier_uniform_gives_the_same_weights_as_torch(self) -> None:
        """Covers contract E29."""
        model, plain = make_net(), make_net()
        torch.manual_seed(7)
        make_manager(model, epochs=0, initialization=xavier_uniform).train()
        torch.manual_seed(7)
        for parameter in plain.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        assert same_bits(weights(model), weights(plain))

    def test_it_happens_once_even_if_train_is_called_again(self) -> None:
        """Covers contract E32."""
        model = OwnStart()
        tm = make_manager(model)
        tm.train()
        tm.epochs = 2
        tm.train()
        tm.eval()
        assert len(model.starts) == 1

    def test_it_happens_in_a_standalone_evaluation_too_and_not_again_in_train(self) -> None:
        """Covers contract E32."""
        model = OwnStart()
        tm = make_manager(model)
        tm.eval()
        assert len(model.starts) == 1
        tm.train()
        assert len(model.starts) == 1

    def test_it_does_not_happen_after_a_state_was_restored(self) -> None:
        """Covers contract E32."""
        first = make_manager(OwnStart())
        first.train()
        state = first.capture()
        model = OwnStart()
        second = make_manager(model)
        second.restore(state)
        second.train()
        assert model.starts == []
        assert same_bits(weights(model), weights(first.model))

    def test_it_happens_before_the_first_evaluation(self) -> None:
        """Covers contracts E28 and E32."""
        look = recorder(["eval"], lambda name, fixtures: bool((fixtures["model"].first.weight == 0.25).all()))
        make_manager(OwnStart(), epochs=0, extensions=[look]).train()
        assert look.seen == [True, True]


class TestDefaultExtensions:
    def test_setup_and_the_extensions_that_record_losses_come_before_the_users(self) -> None:
        """Covers contract E31."""
        tm = make_manager(extensions={"mine": Extension(), "yours": Observer()})
        assert list(tm.extensions) == ["setup", "eval_state", "train_loss", "mine", "yours", "progress"]

    @pytest.mark.parametrize("name", ["setup", "eval_state", "train_loss", "progress"])
    def test_an_extension_with_the_same_name_replaces_the_default(self, name: str) -> None:
        """Covers contract E31."""
        mine = Extension()
        tm = make_manager(extensions={name: mine})
        assert tm[name] is mine

    def test_without_the_default_eval_state_no_loss_is_recorded(self) -> None:
        """Contract E31: a user's extension with the same name replaces it."""
        tm = make_manager(eval_data={"valid": make_batches(1)}, extensions={"eval_state": Extension()})
        tm.train()
        assert list(tm.history) == ["train/loss"]


class TestOptimizer:
    def test_an_instance_is_used_as_it_is(self) -> None:
        """Covers contract E22."""
        model = make_net()
        optimizer = sgd(model.parameters())
        tm = make_manager(model, optimizer=optimizer)
        tm.train()
        assert tm.optimizer is optimizer

    def test_a_callable_gets_the_trainable_parameters(self) -> None:
        """Covers contract E22."""
        model = make_net()
        model.first.requires_grad_(False)
        got: list[Any] = []

        def build(parameters: Any) -> torch.optim.Optimizer:
            got.extend(parameters)
            return sgd(parameters)

        make_manager(model, optimizer=build).train()
        assert [id(each) for each in got] == [id(each) for each in model.last.parameters()]

    def test_an_instance_and_a_callable_train_to_the_same_bits(self) -> None:
        """Covers contract E22."""
        one, other = make_net(), make_net()
        make_manager(one, optimizer=sgd(one.parameters())).train()
        make_manager(other, optimizer=sgd).train()
        assert same_bits(weights(one), weights(other))

    def test_a_callable_is_called_once_even_if_train_is_called_again(self) -> None:
        """Covers contract E32."""
        tm = make_manager(optimizer=sgd)
        tm.train()
        first = tm.optimizer
        tm.epochs = 2
        tm.train()
        assert tm.optimizer is first


def halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def rates() -> Any:
    return recorder(["train_step_batch"], lambda name, fixtures: (name, fixtures["optimizer"].param_groups[0]["lr"]))


class TestSchedule:
    def test_it_steps_after_each_update_by_default(self) -> None:
        """Covers contract E33."""
        look = rates()
        make_manager(train_data=make_batches(3), optimizer=sgd, lr_schedule=halving, extensions=[look]).train()
        assert [rate for name, rate in look.seen if name == "pre_train_step_batch"] == [0.1, 0.05, 0.025]

    def test_it_does_not_step_on_a_batch_without_update(self) -> None:
        """Covers contract E33."""

        class OnlyFirst(Extension):
            def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
                fixtures.modify("is_update", batch_num == 0)

        tm = make_manager(train_data=make_batches(3), optimizer=sgd, lr_schedule=halving, extensions=[OnlyFirst()])
        tm.train()
        assert tm.lr_schedule.last_epoch == 1

    def test_it_may_step_after_each_epoch(self) -> None:
        """Covers contract E33."""
        look = rates()
        make_manager(
            epochs=2, train_data=make_batches(2), optimizer=sgd, lr_schedule=halving, schedule_by="epoch", extensions=[look]
        ).train()
        assert [rate for name, rate in look.seen if name == "pre_train_step_batch"] == [0.1, 0.1, 0.05, 0.05]

    def test_an_instance_is_used_as_it_is(self) -> None:
        """Covers contract E33."""
        model = make_net()
        optimizer = sgd(model.parameters())
        schedule = halving(optimizer)
        tm = make_manager(model, train_data=make_batches(3), optimizer=optimizer, lr_schedule=schedule)
        tm.train()
        assert tm.lr_schedule is schedule
        assert optimizer.param_groups[0]["lr"] == 0.1 / 8

    def test_it_may_step_on_the_loss_of_a_set(self) -> None:
        """Covers contract E33."""
        got: list[float] = []

        class Watching(torch.optim.lr_scheduler.ReduceLROnPlateau):
            def step(self, metrics: Any, epoch: Any = None) -> None:
                got.append(metrics)
                super().step(metrics, epoch)

        tm = make_manager(
            epochs=3,
            optimizer=sgd,
            lr_schedule=lambda optimizer: Watching(optimizer, patience=0, mode="max"),
            schedule_by="b",
            eval_data={"a": make_batches(1, seed=9), "b": make_batches()},
        )
        tm.train()
        assert got == [loss for step, loss in tm.history["b/loss"] if step and step > 0]
        assert tm.optimizer.param_groups[0]["lr"] < 0.1  # the loss decreases, so mode="max" sees no improvement

    def test_a_standalone_evaluation_does_not_step_it(self) -> None:
        """Covers contract E33."""
        tm = make_manager(
            optimizer=sgd, lr_schedule=torch.optim.lr_scheduler.ReduceLROnPlateau, schedule_by="valid", eval_data={"valid": make_batches(1)}
        )
        tm.train()
        steps = tm.lr_schedule.last_epoch
        tm.eval()
        assert tm.lr_schedule.last_epoch == steps

    def test_reduce_on_plateau_is_refused_if_it_gets_no_loss(self) -> None:
        """Covers contract E33."""
        model = make_net()
        optimizer = sgd(model.parameters())
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with pytest.raises(
            SettingError, match=r"^ReduceLROnPlateau steps on a loss, not after each update\n  try     schedule_by=\"valid/loss\"$"
        ):
            make_manager(model, optimizer=optimizer, lr_schedule=schedule, eval_data={"valid": make_batches(1)})

    def test_reduce_on_plateau_as_a_callable_is_refused_before_the_first_batch(self) -> None:
        """Covers contract E33."""
        look = recorder(["train"])
        tm = make_manager(lr_schedule=torch.optim.lr_scheduler.ReduceLROnPlateau, schedule_by="epoch", extensions=[look])
        with pytest.raises(SettingError, match=r"(?s)not after each epoch.*pass eval_data, and set schedule_by to the metric to step on"):
            tm.train()
        assert look.seen == []

    def test_schedule_by_an_unknown_set_is_an_error_that_suggests_the_nearest_name(self) -> None:
        """Covers contract E33."""
        with pytest.raises(
            SettingError,
            match=r"`schedule_by` must be one of update, epoch, valid, or a metric, not 'vaild' \(str\) did you mean `valid`\?",
        ):
            make_manager(lr_schedule=halving, schedule_by="vaild", eval_data={"valid": make_batches(1)})


class Fresh:
    """Data without a length that can be iterated over many times."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        yield from self._batches


@dataclass
class Sample:
    name: str
    x: torch.Tensor
    y: torch.Tensor


Pair = namedtuple("Pair", "x y")


class TestData:
    def test_a_loader_a_list_and_an_object_with_iter_give_the_same_bits(self) -> None:
        x, y = torch.randn(10, 3), torch.randn(10, 1)
        loader = DataLoader(TensorDataset(x, y), batch_size=4)
        batches = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 10, 4)]
        results = []
        for data in (loader, batches, Fresh(batches)):
            model = make_net()
            make_manager(model, epochs=2, train_data=data, eval_data={"valid": data}).train()
            results.append(weights(model))
        assert same_bits(results[0], results[1])
        assert same_bits(results[0], results[2])

    @pytest.mark.parametrize(
        ("wrap", "unwrap"),
        [
            (lambda x, y: (x, y), lambda batch: batch),
            (lambda x, y: [x, y], lambda batch: batch),
            (lambda x, y: {"id": "a", "data": {"x": x, "y": y}}, lambda batch: (batch["data"]["x"], batch["data"]["y"])),
            (lambda x, y: Sample("a", x, y), lambda batch: (batch.x, batch.y)),
            (Pair, lambda batch: (batch.x, batch.y)),
            (lambda x, y: (["a", "b"], Pair(x, y)), lambda batch: batch[1]),
        ],
        ids=["tuple", "list", "dict", "dataclass", "namedtuple", "nested"],
    )
    def test_the_size_of_a_nested_batch_is_that_of_its_first_tensor(self, wrap: Any, unwrap: Any) -> None:
        """Covers contract E25."""

        class Manager(TrainManager):
            def model_forward(self, batch: Any) -> Any:
                return self.model(unwrap(batch))

        data = [wrap(x, y) for x, y in (*make_batches(1, size=4), *make_batches(1, size=3))]
        look = recorder(["train_step_batch", "eval_step_batch"], lambda name, fixtures: fixtures["true_batch_size"])
        tm = Manager(
            make_net(), lambda batch, prediction: mse(unwrap(batch), prediction), 1, data, {"valid": data}, device="cpu",
            evaluate_first=False, extensions=[look],
        )  # fmt: skip
        tm.train()
        assert look.seen == [4, 4, 3, 3] * 2

    @pytest.mark.parametrize(("batch", "size"), [(["a", "b", "c"], 3), ("word", 4), (torch.tensor(1.0), 1), (7, 1), ((), 0)])
    def test_the_size_of_a_batch_without_tensors_is_its_length_or_one(self, batch: Any, size: int) -> None:
        """Covers contract E29."""
        assert make_manager().get_true_batch_size(batch) == size

    @pytest.mark.parametrize("move", ["tuple", "namedtuple", "dict", "dataclass"])
    def test_moving_a_batch_keeps_its_type(self, move: str) -> None:
        """Nested batches are moved to the device before hooks see `batch`."""
        x, y = torch.zeros(2, 3), torch.zeros(2, 1)
        batch: Any = {"tuple": (x, [y]), "namedtuple": Pair(x, y), "dict": {"x": x, "y": (y,)}, "dataclass": Sample("a", x, y)}[move]

        class Manager(TrainManager):
            def model_forward(self, batch: Any) -> Any:
                return self.model.first.weight.sum()

        look = recorder(["eval_step_batch"], lambda name, fixtures: fixtures["batch"])
        tm = Manager(make_net(), lambda batch, prediction: prediction, 1, [batch], {"valid": [batch]}, device="meta", extensions=[look])
        with pytest.raises(RuntimeError):
            tm.eval()  # the loss is on the meta device, so its mean cannot be recorded
        moved = look.seen[0]
        assert type(moved) is type(batch)
        tensors = {"tuple": lambda: (moved[0], moved[1][0]), "namedtuple": lambda: (moved.x, moved.y),
                   "dict": lambda: (moved["x"], moved["y"][0]), "dataclass": lambda: (moved.x, moved.y)}[move]()  # fmt: skip
        assert [tensor.device.type for tensor in tensors] == ["meta", "meta"]


class TestGoingOn:
    def test_train_again_with_more_epochs_trains_only_the_missing_ones(self) -> None:
        """Covers contract E38."""
        look = recorder(["train_step_epoch"], lambda name, fixtures: fixtures["epoch_index"])
        tm = make_manager(epochs=2, extensions=[look])
        tm.train()
        tm.epochs = 3
        tm.train()
        assert look.seen[::2] == [0, 1, 2]

    def test_training_in_two_calls_gives_the_bits_of_one_call(self) -> None:
        """Covers contract E38."""
        x, y = torch.randn(10, 3), torch.randn(10, 1)
        results = []
        for calls in ([4], [1, 4]):
            model = make_net(0.5)
            torch.manual_seed(3)
            tm = make_manager(model, epochs=0, train_data=DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True))
            for tm.epochs in calls:
                tm.train()
            results.append(weights(model))
        assert same_bits(*results)

    def test_train_with_nothing_left_to_do_changes_nothing(self) -> None:
        tm = make_manager(eval_data={"valid": make_batches(1)})
        tm.train()
        before, history = weights(tm.model), copy.deepcopy(tm.history)
        tm.train()
        assert same_bits(weights(tm.model), before)
        assert tm.history == history

    def test_epochs_zero_evaluates_and_trains_nothing(self) -> None:
        """Covers contract E28."""
        tm = make_manager(epochs=0, eval_data={"valid": make_batches(1)})
        before = weights(tm.model)
        tm.train()
        assert [step for step, _ in tm.history["valid/loss"]] == [0]
        assert same_bits(weights(tm.model), before)


def test_repr_shows_the_model_and_the_progress() -> None:
    model, data = nn.Linear(1, 1), [torch.ones(2, 1)] * 3
    loop = TrainManager(model, lambda batch, prediction: prediction.mean(), 2, data, device="cpu", progress=False)
    assert repr(loop) == "TrainManager(Linear, epoch 0 of 2, step 0, on cpu)"
    loop.train()
    assert repr(loop) == "TrainManager(Linear, epoch 2 of 2, step 6, on cpu)"
    for half_built in (TrainManager.__new__(TrainManager), object.__new__(TrainManager)):
        assert repr(half_built) == "TrainManager()"
