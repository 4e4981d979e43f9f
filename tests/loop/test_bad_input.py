"""Mistakes that users make with a TrainManager lead to helpful error messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster.config import OptimizerConfig, SchedulerConfig
from trainmaster.errors import (
    EmptyDataError,
    EscapedStopIterationError,
    ExtensionError,
    FixtureNotFoundError,
    FixtureScopeError,
    LoopError,
    LossError,
    SettingError,
    UnknownHookError,
)
from trainmaster.loop import TrainManager
from trainmaster.stages import Extension, not_a_hook

HERE = os.path.relpath(__file__)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.linear(batch[0])


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return ((prediction - batch[1]) ** 2).mean()


def make_batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.zeros(4, 3), torch.zeros(4, 1)) for _ in range(count)]


def make_manager(model: Any = None, loss: Any = mse, epochs: Any = 1, train_data: Any = None, **more: Any) -> TrainManager:
    data = make_batches() if train_data is None else train_data
    return TrainManager(model or Net(), loss, epochs, data, **{"device": "cpu", **more})


def notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def test_train_dir_cannot_be_set_after_the_loop_was_built() -> None:
    """It would be too late: the constructor adds the extensions that save to the folder and load from it."""
    tm = make_manager()
    with pytest.raises(SettingError, match="pass it to the constructor"):
        tm.train_dir = "runs"  # type: ignore[assignment]
    assert tm.train_dir is None


def test_a_stop_is_reported_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    class Stopper(Extension):
        def post_train_step_batch(self, loop: TrainManager, batch_num: int) -> None:
            if loop.epoch_num == 1 and batch_num == 1:
                loop.stop("enough")

    make_manager(epochs=3, extensions=[Stopper()]).train()
    assert "trainmaster: stopped at epoch 1, batch 2: enough\n" in capsys.readouterr().err


class TestHooks:
    def test_the_bare_name_of_a_step_is_refused_because_nothing_would_call_it(self) -> None:
        class Typo(Extension):
            def train_step_batch(self) -> None: ...

        with pytest.raises(UnknownHookError, match="rename it to `pre_train_step_batch` or `post_train_step_batch`"):
            make_manager(extensions=[Typo()])

    def test_attaching_a_misspelled_hook_is_an_error_that_suggests_the_right_name(self) -> None:
        """Covers contract E13."""

        class Typo(Extension):
            def post_train_step_bach(self) -> None: ...

        with pytest.raises(UnknownHookError) as caught:
            make_manager(extensions=[Typo()])
        text = str(caught.value)
        assert text.startswith("`Typo.post_train_step_bach` is named like a hook, but there is no stage `train_step_bach`\n")
        assert f"where   {HERE}:" in text
        assert "did you mean `post_train_step_batch`" in text
        assert "If it is not a hook, mark it with @not_a_hook" in text

    def test_a_callback_named_as_in_another_library_is_refused_because_nothing_would_call_it(self) -> None:
        class Ported(Extension):
            def on_train_epoch_end(self, trainer: Any, module: Any) -> None: ...

        class PartlyPorted(Ported):
            def post_train_step_batch(self) -> None: ...

        class OtherLoop(Extension):
            def on_epoch_end(self, loop: Any) -> None: ...

        class BothLoops(OtherLoop):
            def post_train_step_batch(self) -> None: ...

        class AsInKeras(Extension):
            def post_train_step_batch(self) -> None: ...
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...

        class AsInLightning(Extension):
            def post_train_step_batch(self) -> None: ...
            def on_train_end(self, trainer: Any, module: Any) -> None: ...

        class Helper(Extension):
            @not_a_hook
            def on_train_epoch_end(self) -> None: ...

        for extension in (Ported(), PartlyPorted(), OtherLoop(), AsInKeras(), AsInLightning()):
            with pytest.raises(UnknownHookError, match=r"is not a hook, so nothing would call it\n  where   .*test_bad_input.py:"):
                make_manager(extensions=[extension])
        assert len(make_manager(extensions=[BothLoops(), Helper()]).extensions)

    def test_an_extension_for_the_stages_of_a_manager_is_an_error_that_says_where_to_attach_it(self) -> None:
        class OfManager(Extension):
            def pre_work(self) -> None: ...

        with pytest.raises(UnknownHookError, match=r"try     its hooks are for stages of the manager: attach it to the manager"):
            make_manager(extensions=[OfManager()])

    def test_creates_without_stages_is_an_error(self) -> None:
        class Creates(Extension):
            creates = ["q"]  # type: ignore[assignment]

            def post_backward(self) -> None: ...

        with pytest.raises(ExtensionError, match=r"`Creates\.creates` is \['q'\] \(list\), which does not say(.|\n)*\{\"q\": "):
            make_manager(extensions=[Creates()])

    def test_a_subclass_can_turn_the_state_of_its_base_class_off(self) -> None:
        class Base(Extension):
            def pre_train(self) -> None: ...
            def state_dict(self) -> Any: ...
            def load_state_dict(self, state: Any) -> None: ...

        class Stateless(Base):
            state_dict = load_state_dict = None  # type: ignore[assignment]

        assert not make_manager(extensions=[Stateless()]).capture().extensions.keys() & {"stateless"}

    def test_an_error_in_an_extension_attached_during_training_is_not_attributed_to_the_data(self) -> None:
        class Asks(Extension):
            def post_train_step_batch(self, predicton: Any) -> None: ...

        class Attaches(Extension):
            def post_train_step_batch(self, loop: Any) -> None:
                loop.add_extension("asks", Asks())

        with pytest.raises(FixtureNotFoundError) as caught:
            make_manager(extensions=[Attaches()]).train()
        assert not any("while reading" in note for note in getattr(caught.value, "__notes__", []))

    def test_an_unknown_fixture_is_an_error_before_the_first_stage_that_suggests_the_nearest_name(self) -> None:
        """Covers contract E19."""
        calls: list[str] = []

        class Asks(Extension):
            def pre_run(self) -> None:
                calls.append("pre_run")

            def post_train_step_batch(self, predicton: Any) -> None: ...

        tm = make_manager(extensions=[Asks()])
        with pytest.raises(FixtureNotFoundError) as caught:
            tm.train()
        text = str(caught.value)
        assert text.startswith("`Asks.post_train_step_batch` asks for `predicton`, which nothing provides\n")
        assert "stage run > train > train_step_epoch > train_step_batch\n" in text
        assert "open    batch, batch_num, " in text
        assert "try     did you mean `prediction`?" in text
        assert calls == []

    def test_a_hook_cannot_ask_for_the_loss_before_it_exists(self) -> None:
        """Covers contract E25."""

        class Early(Extension):
            def pre_train_step_batch(self, loss: Any) -> None: ...

        with pytest.raises(FixtureScopeError) as caught:
            make_manager(extensions=[Early()]).train()
        text = str(caught.value)
        assert text.startswith("`Early.pre_train_step_batch` asks for `loss`, which does not exist at that point\n")
        assert "`loss` belongs to `train_step_batch` and is created in `loss`" in text
        assert "try     ask for it in a later hook or in its own stage, or give the parameter a default" in text

    def test_several_bad_parameters_are_reported_together(self) -> None:
        class Asks(Extension):
            def pre_train_step_batch(self, loss: Any) -> None: ...
            def post_run(self, btach: Any) -> None: ...

        with pytest.raises((FixtureScopeError, FixtureNotFoundError)) as caught:
            make_manager(extensions=[Asks()]).train()
        text = str(caught.value)
        assert "`Asks.pre_train_step_batch` asks for `loss`" in text
        assert "`Asks.post_run` asks for `btach`" in text

    def test_an_error_in_a_hook_names_extension_stage_path_and_step(self) -> None:
        """A note on the error gives its location."""

        class Breaks(Extension):
            def post_backward(self, step_num: int) -> None:
                if step_num == 2:
                    raise ZeroDivisionError("user's own")

        with pytest.raises(ZeroDivisionError, match=r"^user's own\n") as caught:
            make_manager(extensions={"breaker": Breaks()}).train()
        (note,) = notes(caught.value)
        assert note.startswith(f"in `Breaks.post_backward` (extension `breaker`, {HERE}:")
        assert note.endswith("stage run > train > train_step_epoch > train_step_batch > backward, epoch_index 0, batch_num 2, step_num 2")

    def test_an_error_in_an_evaluation_hook_names_the_set(self) -> None:
        class Breaks(Extension):
            def post_eval_step_batch(self, batch_num: int) -> None:
                if batch_num == 1:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as caught:
            make_manager(extensions=[Breaks()], eval_data={"held_out": make_batches()}).eval()
        (note,) = notes(caught.value)
        assert note.endswith("stage run > eval > eval_step_epoch > eval_step_batch, batch_num 1, step_num 0, datasource_name held_out")

    def test_an_error_leaves_no_stage_open(self) -> None:
        class Breaks(Extension):
            def post_backward(self) -> None:
                raise ZeroDivisionError

        tm = make_manager(extensions=[Breaks()])
        names = set(tm.fixtures)
        with pytest.raises(ZeroDivisionError):
            tm.train()
        assert set(tm.fixtures) == names
        assert tm.mode_name is None


class TestStopIteration:
    @pytest.mark.parametrize("hook", ["pre_train", "post_forward", "post_train_step_batch", "pre_train_step_epoch", "post_eval_step_batch"])
    def test_stop_iteration_in_a_hook_never_ends_a_run_silently(self, hook: str) -> None:
        def fails(self: Any) -> None:
            next(iter(()))

        extension = type("Breaks", (Extension,), {hook: fails})()
        tm = make_manager(extensions=[extension], eval_data={"valid": make_batches()})
        with pytest.raises(EscapedStopIterationError) as caught:
            tm.train()
        text = str(caught.value)
        assert text.startswith(f"`Breaks.{hook}` raised StopIteration\n  where   stage run > train")
        assert text.endswith("try     catch it there, or use next(iterator, default) or a for loop")
        assert isinstance(caught.value.__cause__, StopIteration)

    def test_stop_iteration_in_the_loss_function_never_ends_a_run_silently(self) -> None:
        def fails(batch: Any, prediction: Any) -> Any:
            return next(iter(()))

        with pytest.raises(EscapedStopIterationError, match=r"^the body of stage `loss` raised StopIteration\n"):
            make_manager(loss=fails).train()

    def test_stop_iteration_in_the_model_in_an_evaluation_never_ends_a_run_silently(self) -> None:
        class Bad(Net):
            def forward(self, batch: Any) -> Any:
                return next(iter(()))

        with pytest.raises(EscapedStopIterationError, match=r"^the body of stage `forward` raised StopIteration\n"):
            make_manager(Bad(), eval_data={"valid": make_batches()}).eval()

    def test_stop_iteration_in_an_optimizer_step_never_ends_a_run_silently(self) -> None:
        class Manager(TrainManager):
            def optimizer_step(self) -> None:
                raise StopIteration

        with pytest.raises(EscapedStopIterationError, match=r"^the body of stage `optimizer_step` raised StopIteration\n"):
            Manager(Net(), mse, 1, make_batches(), device="cpu").train()

    def test_stop_iteration_in_iter_of_the_data_never_ends_a_run_silently(self) -> None:
        class Bad:
            def __iter__(self) -> Any:
                raise StopIteration

        with pytest.raises(EscapedStopIterationError, match=r"^the body of stage `train_step_epoch` raised StopIteration\n"):
            make_manager(train_data=Bad()).train()


class FailsAt:
    """Data that raises an error instead of returning batch `number`."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __iter__(self) -> Iterator[Any]:
        yield from make_batches(self._number)
        raise OSError("disk is gone")


class TestData:
    def test_empty_training_data_is_an_error(self) -> None:
        with pytest.raises(EmptyDataError) as caught:
            make_manager(train_data=[]).train()
        assert str(caught.value) == (
            "train_data has no batches\n  where   list\n  try     check its length, its sampler, and batch_size with drop_last"
        )

    def test_a_loader_that_drops_its_only_batch_is_an_error(self) -> None:
        data = DataLoader(TensorDataset(torch.zeros(3, 3), torch.zeros(3, 1)), batch_size=4, drop_last=True)
        with pytest.raises(EmptyDataError, match=r"(?s)^train_data has no batches\n  where   DataLoader\n.*drop_last"):
            make_manager(train_data=data).train()

    def test_an_empty_evaluation_set_is_an_error_that_names_it(self) -> None:
        with pytest.raises(EmptyDataError, match=r"^eval_data\['valid'\] has no batches\n  where   list\n"):
            make_manager(eval_data={"full": make_batches(), "valid": []}).eval()

    def test_an_iterator_is_exhausted_in_the_second_epoch(self) -> None:
        tm = make_manager(epochs=2, train_data=iter(make_batches()))
        with pytest.raises(EmptyDataError) as caught:
            tm.train()
        assert str(caught.value) == (
            "train_data has no batches\n"
            "  where   list_iterator\n"
            "  why     it is an iterator, which can be read only once, and it is exhausted\n"
            "  try     pass an iterable that restarts each epoch: a list, a DataLoader, an object with __iter__"
        )
        assert tm.epoch_num == 1

    def test_a_generator_as_an_evaluation_set_is_exhausted_in_the_second_evaluation(self) -> None:
        with pytest.raises(EmptyDataError, match=r"(?s)^eval_data\['valid'\] has no batches\n  where   generator\n.*it is exhausted"):
            make_manager(eval_data={"valid": (batch for batch in make_batches())}).train()

    def test_an_error_in_training_data_gets_a_note_that_names_the_batch(self) -> None:
        with pytest.raises(OSError, match=r"^disk is gone\n") as caught:
            make_manager(train_data=FailsAt(2)).train()
        assert notes(caught.value)[0] == "while reading batch 2 of train_data"
        assert notes(caught.value)[1].startswith("in stage run > train > train_step_epoch, epoch_index 0")

    def test_an_error_in_an_evaluation_set_gets_a_note_that_names_the_batch(self) -> None:
        with pytest.raises(OSError, match=r"^disk is gone\n") as caught:
            make_manager(eval_data={"valid": FailsAt(1)}).eval()
        assert notes(caught.value)[0] == "while reading batch 1 of eval_data['valid']"

    def test_an_error_in_data_to_predict_gets_a_note_that_names_the_batch(self) -> None:
        with pytest.raises(OSError, match=r"^disk is gone\n") as caught:
            make_manager().predict(FailsAt(1))
        assert notes(caught.value)[0] == "while reading batch 1 of data"

    def test_an_error_in_the_model_is_not_attributed_to_the_data(self) -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            make_manager(train_data=[*make_batches(1), (torch.zeros(4, 7), torch.zeros(4, 1))]).train()
        assert not any("while reading" in note for note in notes(caught.value))

    def test_a_shape_mismatch_names_the_stage_and_the_batch(self) -> None:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            make_manager(train_data=[*make_batches(1), (torch.zeros(4, 7), torch.zeros(4, 1))]).train()
        assert notes(caught.value) == [
            "in stage run > train > train_step_epoch > train_step_batch > forward, epoch_index 0, batch_num 1, step_num 1"
        ]


class TestLoss:
    def test_a_loss_that_is_not_a_scalar_is_refused_in_training(self) -> None:
        with pytest.raises(LossError) as caught:
            make_manager(loss=lambda batch, prediction: (prediction - batch[1]) ** 2).train()
        assert str(caught.value) == (
            "the loss has the shape (4, 1), but must be a single number\n"
            "  try     take its mean or its sum: loss.mean(), or reduction='mean'"
        )

    def test_a_loss_that_is_not_a_scalar_is_refused_in_evaluation(self) -> None:
        with pytest.raises(LossError, match=r"^the loss has the shape \(4, 1\), but must be a single number\n"):
            make_manager(loss=lambda batch, prediction: (prediction - batch[1]) ** 2, eval_data={"valid": make_batches()}).eval()

    @pytest.mark.parametrize("routine", ["train", "eval"])
    def test_a_loss_that_is_none_is_refused(self, routine: str) -> None:
        tm = make_manager(loss=lambda batch, prediction: None, eval_data={"valid": make_batches()})
        with pytest.raises(LossError, match=r"^the loss is None \(NoneType\), not a tensor\n"):
            getattr(tm, routine)()

    def test_a_python_float_cannot_be_trained_on(self) -> None:
        with pytest.raises(LossError) as caught:
            make_manager(loss=lambda batch, prediction: mse(batch, prediction).item()).train()
        text = str(caught.value)
        assert text.startswith("the loss is ")
        assert "(float), not a tensor\n" in text
        assert text.endswith("try     return the tensor that the loss function computes, without .item()")

    def test_a_python_float_can_be_evaluated(self) -> None:
        tm = make_manager(loss=lambda batch, prediction: 2.5, eval_data={"valid": make_batches()})
        tm.eval()
        assert tm.history["valid/loss"] == [(0, 2.5)]

    def test_a_detached_loss_is_an_error_that_says_what_to_look_for(self) -> None:
        with pytest.raises(LossError) as caught:
            make_manager(loss=lambda batch, prediction: mse(batch, prediction.detach())).train()
        text = str(caught.value)
        assert text.startswith("the loss does not depend on any parameter that is trained\n")
        assert "  why     element 0 of tensors does not require grad" in text
        assert text.endswith("try     look for .detach(), .item(), torch.no_grad() or an argmax between the model and the loss")

    def test_an_error_of_autograd_that_the_loss_did_not_cause_keeps_its_text(self) -> None:
        class Bad(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
                return value.clone()

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                raise RuntimeError("backward of mine")

        with pytest.raises(RuntimeError, match=r"^backward of mine\n") as caught:
            make_manager(loss=lambda batch, prediction: Bad.apply(mse(batch, prediction))).train()
        assert not isinstance(caught.value, LoopError)

    def test_the_note_says_which_batch_had_the_bad_loss(self) -> None:
        with pytest.raises(LossError) as caught:
            make_manager(loss=lambda batch, prediction: None).train()
        assert notes(caught.value) == [
            "in stage run > train > train_step_epoch > train_step_batch > backward, epoch_index 0, batch_num 0, step_num 0"
        ]


class TestModel:
    def test_a_model_without_parameters_cannot_be_trained(self) -> None:
        with pytest.raises(SettingError) as caught:
            make_manager(nn.Identity()).train()
        assert str(caught.value) == (
            "the model Identity has no parameter to train\n"
            "  why     it has no parameters\n"
            "  try     evaluate it with eval(), pass your own optimizer, or check that layers are attributes of the module"
        )

    def test_a_frozen_model_cannot_be_trained(self) -> None:
        with pytest.raises(SettingError, match=r"^the model Net has no parameter to train\n  why     all its parameters are frozen\n"):
            make_manager(Net().requires_grad_(False)).train()

    def test_a_frozen_model_with_its_own_optimizer_is_refused_at_the_loss(self) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(LossError, match=r"^the loss does not depend on any parameter that is trained\n") as caught:
            make_manager(model.requires_grad_(False), optimizer=optimizer).train()
        assert "  why     no parameter of the model Net requires a gradient\n" in str(caught.value)
        assert "detach" not in str(caught.value)


class OnlyScalars:
    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> None: ...


class TestArguments:
    def test_training_without_any_limit_is_refused(self) -> None:
        with pytest.raises(SettingError) as caught:
            make_manager(epochs=None)
        assert str(caught.value) == (
            "this TrainManager cannot be built: training would never end: set `epochs`, `max_steps` or `max_time`\n"
            "  try     help(TrainManager) explains every argument"
        )

    def test_several_bad_arguments_are_reported_together(self) -> None:
        """One error lists all problems."""
        with pytest.raises(SettingError) as caught:
            TrainManager(
                "net", "mse", -1, 7, optimizer=3, lr_schedule=4, schedule_by="epochs", writer=OnlyScalars(), max_steps=1.5,  # type: ignore[arg-type]
                max_time="long", device="cpu",  # type: ignore[arg-type]
            )  # fmt: skip
        assert str(caught.value) == (
            "this TrainManager cannot be built: `model` must be a torch.nn.Module, not 'net' (str)\n"
            "  also    `train_data` must be an iterable of batches, not 7 (int)\n"
            "          `writer` lacks add_scalars, add_text\n"
            "          `epochs` must be a whole number of at least 0, not -1 (int)\n"
            "          `max_steps` must be a whole number of at least 0, not 1.5 (float)\n"
            "          `max_time` must be a number of at least 0, not 'long' (str)\n"
            "          `loss` must be a function of (batch, prediction), not 'mse' (str)\n"
            "          `optimizer` must be an optimizer, or a callable that takes the parameters, not 3 (int)\n"
            "          `lr_schedule` must be a schedule, or a callable that takes the optimizer, not 4 (int)\n"
            "          `schedule_by` must be one of update, epoch, or a metric, not 'epochs' (str) did you mean `epoch`?\n"
            "  try     help(TrainManager) explains every argument"
        )

    @pytest.mark.parametrize("epochs", [True, 2.0, "3", -1, float("nan")])
    def test_epochs_that_are_not_a_whole_number_are_refused(self, epochs: Any) -> None:
        with pytest.raises(SettingError, match="`epochs` must be a whole number of at least 0, not "):
            make_manager(epochs=epochs)

    def test_a_max_time_that_is_not_a_number_is_refused(self) -> None:
        with pytest.raises(SettingError, match=r"`max_time` must be a number of at least 0, not nan \(float\)"):
            make_manager(max_time=float("nan"))

    def test_a_missing_loss_is_refused_unless_loss_forward_is_overridden(self) -> None:
        """Covers contract E29."""
        with pytest.raises(SettingError, match="`loss` is None and `loss_forward` is not overridden: there is nothing to train on"):
            make_manager(loss=None)

    def test_a_missing_optimizer_is_refused_unless_optimizer_step_is_overridden(self) -> None:
        with pytest.raises(SettingError, match="`optimizer` is None and `optimizer_step` is not overridden: nothing would be trained"):
            make_manager(optimizer=None)

    def test_a_schedule_class_that_needs_more_arguments_is_an_error_that_shows_what_to_write(self) -> None:
        with pytest.raises(SettingError) as caught:
            make_manager(lr_schedule=torch.optim.lr_scheduler.StepLR)
        assert (
            "`lr_schedule` is StepLR, which needs `step_size`: pass lambda optimizer: StepLR(optimizer, step_size=...)" in caught.value.fact
        )
        make_manager(optimizer=torch.optim.Adam)

    def test_a_config_instead_of_an_optimizer_or_a_schedule_is_an_error_that_shows_what_to_write(self) -> None:
        with pytest.raises(SettingError) as caught:
            make_manager(optimizer=OptimizerConfig(name="sgd"), lr_schedule=SchedulerConfig(name="step"))
        assert "; pass config.make_optimizer(model)" in str(caught.value)
        assert "; pass config.make_scheduler(model, optimizer)" in str(caught.value)

    def test_an_incomplete_writer_is_an_error_that_names_the_missing_methods(self) -> None:
        with pytest.raises(SettingError, match=r"`writer` lacks add_scalars, add_text\n"):
            make_manager(writer=OnlyScalars())

    def test_reading_the_history_of_a_custom_writer_is_an_error_that_names_the_writer(self) -> None:
        class Mine(OnlyScalars):
            def add_scalars(self, *args: Any) -> None: ...
            def add_text(self, *args: Any) -> None: ...

        tm = make_manager(writer=Mine())
        with pytest.raises(LoopError, match=r"^a Mine keeps no `history`\n"):
            _ = tm.history

    @pytest.mark.parametrize("device", ["gpu7", "nowhere:x", 1.5, None])
    def test_an_invalid_device_is_an_error_that_shows_examples(self, device: Any) -> None:
        with pytest.raises(SettingError) as caught:
            make_manager(device=device)
        text = str(caught.value)
        assert text.startswith(f"{device!r} is not a device\n  why     ")
        assert text.endswith('try     "auto", "cpu", "cuda:0", ...')

    @pytest.mark.parametrize("given", [5, "valid", TensorDataset(torch.zeros(2))], ids=["number", "text", "dataset"])
    def test_eval_data_that_is_not_iterable_is_an_error_that_shows_both_forms(self, given: Any) -> None:
        with pytest.raises(SettingError) as caught:
            make_manager(eval_data=given)
        text = str(caught.value)
        assert text.startswith("`eval_data` must be an iterable of batches, or several by name, not ")
        assert text.endswith('\n  try     eval_data=loader, or eval_data={"valid": loader, "test": other_loader}')

    @pytest.mark.parametrize(
        "wrap", [lambda loader: [loader, loader], lambda loader: [(3, loader)], lambda loader: [("a", loader), loader]]
    )
    def test_several_evaluation_sets_without_names_are_refused(self, wrap: Any) -> None:
        with pytest.raises(SettingError, match=r"^several evaluation sets need names: a mapping or a list of \(name, data\) pairs, not \["):
            make_manager(eval_data=wrap(DataLoader(TensorDataset(torch.zeros(2)), batch_size=1)))

    @pytest.mark.parametrize("given", [{3: []}, {"epoch": []}, [("update", [])]])
    def test_an_evaluation_set_with_an_impossible_name_is_refused(self, given: Any) -> None:
        with pytest.raises(SettingError, match=r"^an evaluation set cannot be called (3 \(int\)|'epoch' \(str\)|'update' \(str\))\n"):
            make_manager(eval_data=given)

    def test_an_evaluation_set_that_is_not_iterable_is_refused(self) -> None:
        with pytest.raises(
            SettingError, match=r"^`eval_data\['valid'\]` must be an iterable of batches, not 5 \(int\)\n  try     pass a Data"
        ):
            make_manager(eval_data={"valid": 5})

    def test_two_evaluation_sets_with_the_same_name_are_refused(self) -> None:
        with pytest.raises(SettingError, match=r"^two evaluation sets have the same name\n  where   a, a\n  try     rename one$"):
            make_manager(eval_data=[("a", make_batches()), ("a", make_batches())])


def test_calling_train_within_train_is_refused() -> None:
    class Again(Extension):
        def post_train_step_epoch(self, train_manager: TrainManager) -> None:
            train_manager.train()

    with pytest.raises(LoopError, match=r"train\(\) is already running"):
        make_manager(extensions=[Again()]).train()


def test_data_that_ends_before_its_length_causes_a_warning() -> None:
    class Short(list):
        def __len__(self) -> int:
            return 100

    with pytest.warns(UserWarning, match="train_data ended after 3 of 100 batches"):
        make_manager(train_data=Short(make_batches())).train()
