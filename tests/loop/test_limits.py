"""Training can end early because of stop(), max_steps or max_time. This file also tests predict()."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainmaster.errors import LoopError
from trainmaster.loop import TrainManager
from trainmaster.stages import Extension, Observer, always
from trainmaster.testing import ExtensionContract


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 1))

    def forward(self, batch: Any) -> torch.Tensor:
        return self.layers(batch[0])


class Unsized:
    """Data without a length."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data)


def mse(batch: Any, prediction: torch.Tensor) -> torch.Tensor:
    return ((prediction - batch[1]) ** 2).mean()


def loader(num: int = 16) -> Any:
    """Return a loader with four shuffled batches of four samples."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(num, 3, generator=generator), torch.randn(num, 1, generator=generator))
    return DataLoader(data, batch_size=4, shuffle=True)


def make_manager(epochs: int | None = 3, **more: Any) -> TrainManager:
    torch.manual_seed(1)
    options: dict[str, Any] = {"train_data": loader(), "eval_data": {"a": loader(), "b": loader()}, "device": "cpu", **more}
    return TrainManager(Net(), mse, epochs, **options)


def weights(tm: TrainManager) -> torch.Tensor:
    return torch.cat([value.flatten() for value in tm.model.state_dict().values()])


def undisturbed(epochs: int = 3, **more: Any) -> torch.Tensor:
    tm = make_manager(epochs, **more)
    tm.train()
    return weights(tm)


def disturb() -> None:
    """Draw random numbers between two calls of train(), which must not affect training."""
    torch.rand(7)


class Stop(Extension):
    """Calls stop() once, in the `when`-th call of the hook `at`, and records what the post hooks see."""

    def __init__(self, at: str, when: int = 0, reason: str = "enough") -> None:
        self.at, self.when, self.reason = at, when, reason
        self.calls = 0
        self.seen: list[tuple[str, Any]] = []

    def _here(self, hook: str, loop: Any) -> None:
        if hook == self.at:
            if self.calls == self.when:
                loop.stop(self.reason)
            self.calls += 1
        self.seen.append((hook, loop.fixtures["stopped"]))

    def pre_run(self, loop: Any) -> None:
        self._here("pre_run", loop)

    def pre_train(self, loop: Any) -> None:
        self._here("pre_train", loop)

    def pre_train_step_epoch(self, loop: Any) -> None:
        self._here("pre_train_step_epoch", loop)

    def pre_train_step_batch(self, loop: Any) -> None:
        self._here("pre_train_step_batch", loop)

    def post_backward(self, loop: Any) -> None:
        self._here("post_backward", loop)

    def post_optimizer_step(self, loop: Any) -> None:
        self._here("post_optimizer_step", loop)

    def post_train_step_batch(self, loop: Any) -> None:
        self._here("post_train_step_batch", loop)

    def post_train_step_epoch(self, loop: Any) -> None:
        self._here("post_train_step_epoch", loop)

    def pre_eval_step_epoch(self, loop: Any) -> None:
        self._here("pre_eval_step_epoch", loop)

    def pre_eval_step_batch(self, loop: Any) -> None:
        self._here("pre_eval_step_batch", loop)

    def post_eval_step_batch(self, loop: Any) -> None:
        self._here("post_eval_step_batch", loop)

    def post_eval_step_epoch(self, loop: Any) -> None:
        self._here("post_eval_step_epoch", loop)

    def post_eval(self, loop: Any) -> None:
        self._here("post_eval", loop)

    def post_train(self, loop: Any) -> None:
        self._here("post_train", loop)

    def post_run(self, loop: Any) -> None:
        self._here("post_run", loop)


class TestStopInTraining:
    def test_the_batch_is_finished(self) -> None:
        """A stop is a request: the current batch is finished first."""
        stop = Stop("pre_train_step_batch", when=5)
        tm = make_manager(extensions=[stop])
        tm.train()
        assert tm.step_num == 6

    def test_all_open_stages_close_and_their_post_hooks_see_the_reason(self) -> None:
        stop = Stop("post_backward", when=5, reason="loss is flat")
        make_manager(extensions=[stop]).train()
        after = [each for each in stop.seen if each[1] is not None]
        assert after == [
            (hook, "loss is flat")
            for hook in ("post_backward", "post_optimizer_step", "post_train_step_batch", "post_train_step_epoch", "post_train", "post_run")
        ]

    def test_epoch_num_does_not_increase(self) -> None:
        """Covers contract E27."""
        stop = Stop("post_train_step_batch", when=5)
        tm = make_manager(extensions=[stop])
        tm.train()
        assert tm.epoch_num == 1

    def test_epoch_num_does_not_increase_if_the_last_batch_stops(self) -> None:
        """Covers contract E27."""
        stop = Stop("post_train_step_batch", when=3)
        tm = make_manager(extensions=[stop])
        tm.train()
        assert (tm.epoch_num, tm.step_num) == (0, 4)

    def test_a_stop_skips_the_evaluation(self) -> None:
        tm = make_manager(extensions=[Stop("post_train_step_batch", when=1)])
        tm.train()
        assert [step for step, _ in tm.history["a/loss"]] == [0]

    def test_the_default_reason_says_that_it_was_called(self) -> None:
        reasons: list[Any] = []

        class Early(Extension):
            def post_train_step_batch(self, train_manager: Any) -> None:
                train_manager.stop()

            def post_run(self, stopped: Any) -> None:
                reasons.append(stopped)

        make_manager(extensions=[Early()]).train()
        assert reasons == ["stop() was called"]

    @pytest.mark.parametrize(
        ("hook", "when"),
        [
            ("pre_run", 0),
            ("pre_train", 0),
            ("pre_train_step_epoch", 1),
            ("pre_train_step_batch", 0),
            ("pre_train_step_batch", 6),
            ("post_backward", 6),
            ("post_train_step_batch", 3),
            ("post_train_step_batch", 6),
            ("post_train_step_batch", 11),
            ("post_train_step_epoch", 0),
            ("pre_eval_step_epoch", 0),
            ("pre_eval_step_epoch", 3),
            ("post_eval_step_batch", 11),
            ("post_eval_step_epoch", 2),
            ("post_eval", 1),
            ("post_train", 0),
        ],
    )
    def test_the_next_train_ends_with_the_bits_of_an_uninterrupted_run(self, hook: str, when: int) -> None:
        """The loop keeps its exact state between two calls of train()."""
        tm = make_manager(extensions=[Stop(hook, when)])
        tm.train()
        tm.train()
        assert tm.epoch_num == 3
        assert torch.equal(weights(tm), undisturbed())

    def test_random_numbers_drawn_between_the_calls_change_nothing(self) -> None:
        tm = make_manager(extensions=[Stop("post_train_step_batch", when=6)])
        tm.train()
        disturb()
        tm.train()
        assert torch.equal(weights(tm), undisturbed())

    def test_stopping_twice_in_one_epoch_changes_nothing(self) -> None:
        tm = make_manager(extensions={"one": Stop("post_train_step_batch", when=4), "two": Stop("post_train_step_batch", when=6)})
        for _ in range(3):
            tm.train()
            disturb()
        assert torch.equal(weights(tm), undisturbed())

    def test_stopping_while_gradients_accumulate_changes_nothing(self) -> None:
        """The captured state includes accumulated gradients that no update has used yet."""

        class GradientAccumulation(Extension):
            def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
                fixtures.modify("is_update", batch_num % 2 == 1)

        tm = make_manager(extensions=[GradientAccumulation(), Stop("post_train_step_batch", when=6)])
        tm.train()
        disturb()
        tm.train()
        assert torch.equal(weights(tm), undisturbed(extensions=[GradientAccumulation()]))

    def test_the_next_run_is_not_stopped(self) -> None:
        stop = Stop("post_train_step_batch", when=1)
        tm = make_manager(extensions=[stop])
        tm.train()
        stop.seen.clear()
        tm.train()
        assert {stopped for _, stopped in stop.seen} == {None}

    def test_the_replay_of_the_epoch_is_reported_on_stderr(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The message also contains the time that the replay took."""
        tm = make_manager(extensions=[Stop("post_train_step_batch", when=1)], progress=False)
        tm.train()
        capsys.readouterr()
        tm.train()
        output = capsys.readouterr()
        assert output.err.startswith("trainmaster: skipped the 2 batches of train_data that were done in this epoch (")
        assert output.out == ""

    def test_another_thread_can_stop_training(self) -> None:
        tm = make_manager(10**9)
        is_running = threading.Event()

        class Tell(Extension):
            def post_train_step_batch(self) -> None:
                is_running.set()

        tm.add_extension("tell", Tell())

        def stop() -> None:
            is_running.wait(20)
            tm.stop("from outside")

        thread = threading.Thread(target=stop)
        thread.start()
        tm.train()
        thread.join()
        assert tm.step_num >= 1


class TestStopInEvaluation:
    def test_a_standalone_evaluation_finishes_its_batch_and_skips_the_other_sets(self) -> None:
        stop = Stop("pre_eval_step_batch", when=1)
        make_manager(extensions=[stop]).eval()
        hooks = [hook for hook, _ in stop.seen]
        assert hooks.count("post_eval_step_batch") == 2
        assert hooks[-3:] == ["post_eval_step_epoch", "post_eval", "post_run"]

    def test_the_post_hooks_see_the_reason(self) -> None:
        stop = Stop("pre_eval_step_batch", when=1, reason="too slow")
        make_manager(extensions=[stop]).eval()
        assert [hook for hook, stopped in stop.seen if stopped == "too slow"] == [
            "pre_eval_step_batch", "post_eval_step_batch", "post_eval_step_epoch", "post_eval", "post_run",
        ]  # fmt: skip

    def test_no_mean_is_recorded_for_an_incomplete_set(self) -> None:
        """Covers contract E40."""
        tm = make_manager(extensions=[Stop("post_eval_step_batch", when=1)])
        tm.eval()
        assert tm.history == {}

    def test_a_stop_in_an_evaluation_also_ends_training(self) -> None:
        tm = make_manager(extensions=[Stop("post_eval_step_batch", when=0)])
        tm.train()
        assert (tm.epoch_num, tm.step_num) == (0, 0)

    def test_the_next_train_repeats_the_evaluation(self) -> None:
        """Covers contract E28."""
        tm = make_manager(extensions=[Stop("post_eval_step_batch", when=1)])
        tm.train()
        tm.train()
        assert [step for step, _ in tm.history["a/loss"]] == [0, 1, 2, 3]


class TestStopWhenNothingRuns:
    @pytest.mark.parametrize("is_before", [True, False])
    def test_stopping_is_an_error_that_says_so(self, is_before: bool) -> None:
        tm = make_manager(1)
        if not is_before:
            tm.train()
        with pytest.raises(LoopError) as caught:
            tm.stop()
        assert str(caught.value) == (
            "nothing is running, so there is nothing to stop\n  try     call stop() from a hook, or from another thread during train()"
        )


class TestMaxSteps:
    def test_it_ends_training_in_the_middle_of_an_epoch(self) -> None:
        tm = make_manager(None, max_steps=6)
        tm.train()
        assert (tm.step_num, tm.epoch_num) == (6, 1)

    def test_in_the_middle_of_an_epoch_post_hooks_see_which_limit_was_reached(self) -> None:
        look = Stop("never")
        make_manager(None, max_steps=6, extensions=[look]).train()
        assert dict(look.seen)["post_run"] == "max_steps=6 is reached"

    def test_in_the_middle_of_an_epoch_nothing_is_evaluated(self) -> None:
        tm = make_manager(None, max_steps=6)
        tm.train()
        assert [step for step, _ in tm.history["a/loss"]] == [0, 1]

    def test_at_the_end_of_an_epoch_the_epoch_is_finished_and_evaluated(self) -> None:
        look = Stop("never")
        tm = make_manager(None, max_steps=8, extensions=[look])
        tm.train()
        assert (tm.step_num, tm.epoch_num) == (8, 2)
        assert [step for step, _ in tm.history["a/loss"]] == [0, 1, 2]
        assert dict(look.seen)["post_run"] is None

    def test_training_ends_if_epochs_is_reached_first(self) -> None:
        tm = make_manager(1, max_steps=100)
        tm.train()
        assert (tm.step_num, tm.epoch_num) == (4, 1)

    def test_it_counts_updates_not_batches(self) -> None:
        class GradientAccumulation(Extension):
            def pre_train_step_batch(self, fixtures: Any, batch_num: int) -> None:
                fixtures.modify("is_update", batch_num % 2 == 1)

        tm = make_manager(None, max_steps=3, extensions=[GradientAccumulation()])
        tm.train()
        assert (tm.step_num, tm.epoch_num) == (3, 1)

    def test_it_counts_over_all_calls(self) -> None:
        tm = make_manager(None, max_steps=6)
        tm.train()
        tm.train()
        assert tm.step_num == 6

    def test_zero_trains_nothing(self) -> None:
        tm = make_manager(None, max_steps=0)
        before = weights(tm)
        tm.train()
        assert torch.equal(weights(tm), before)

    @pytest.mark.parametrize("steps", [1, 4, 6, 11])
    def test_increasing_the_limit_continues_to_the_bits_of_an_uninterrupted_run(self, steps: int) -> None:
        tm = make_manager(3, max_steps=steps)
        tm.train()
        tm.max_steps = None
        tm.train()
        assert torch.equal(weights(tm), undisturbed())

    def test_data_without_a_length_continues_to_the_same_bits(self) -> None:
        """The limit is reached at a batch that turns out to be the last one of its epoch."""
        tm = make_manager(3, train_data=Unsized(loader()), max_steps=8)
        tm.train()
        tm.max_steps = None
        tm.train()
        assert tm.epoch_num == 3
        assert torch.equal(weights(tm), undisturbed())


class TestMaxTime:
    def test_it_ends_training(self) -> None:
        class Slow(Extension):
            def post_train_step_batch(self) -> None:
                time.sleep(0.02)

        look = Stop("never")
        tm = make_manager(None, max_time=0.1, extensions=[Slow(), look], eval_data=None)
        started = time.monotonic()
        tm.train()
        assert 0.1 <= time.monotonic() - started < 5
        assert 1 <= tm.step_num <= 6
        assert dict(look.seen)["post_run"] in (None, "max_time=0.1 s has passed")

    def test_in_the_middle_of_an_epoch_post_hooks_see_which_limit_was_reached(self) -> None:
        class Slow(Extension):
            def post_train_step_batch(self) -> None:
                time.sleep(0.06)

        look = Stop("never")
        tm = make_manager(None, max_time=0.05, extensions=[Slow(), look], eval_data=None)
        tm.train()
        assert tm.step_num == 1
        assert dict(look.seen)["post_run"] == "max_time=0.05 s has passed"

    def test_it_applies_to_each_call_separately(self) -> None:
        class Slow(Extension):
            def post_train_step_batch(self) -> None:
                time.sleep(0.06)

        tm = make_manager(None, max_time=0.05, extensions=[Slow()], eval_data=None)
        tm.train()
        tm.train()
        assert tm.step_num == 2

    def test_zero_trains_nothing(self) -> None:
        tm = make_manager(None, max_time=0)
        tm.train()
        assert tm.step_num == 0


class TestPredict:
    def test_it_returns_the_prediction_of_each_batch(self) -> None:
        tm = make_manager()
        data = [(torch.randn(2, 3),), (torch.randn(5, 3),)]
        predictions = tm.predict(data)
        tm.model.eval()
        assert all(torch.equal(one, tm.model(batch)) for one, batch in zip(predictions, data, strict=True))

    def test_predictions_have_no_gradient(self) -> None:
        (prediction,) = make_manager().predict([(torch.randn(2, 3),)])
        assert not prediction.requires_grad

    def test_it_uses_eval_model_forward(self) -> None:
        """Covers contract E29."""

        class Manager(TrainManager):
            def eval_model_forward(self, batch: Any) -> Any:
                return "mine"

        assert Manager(Net(), mse, 1, loader(), device="cpu").predict([1, 2]) == ["mine", "mine"]

    def test_hooks_may_modify_a_prediction(self) -> None:
        class Round(Extension):
            def post_forward(self, fixtures: Any) -> None:
                fixtures.modify("prediction", "rounded")

        assert make_manager(extensions=[Round()]).predict([(torch.randn(2, 3),)]) == ["rounded"]

    def test_no_data_gives_no_predictions(self) -> None:
        assert make_manager().predict([]) == []

    def test_between_two_calls_of_train_it_does_not_change_the_results(self) -> None:
        """Predictions, like evaluations, do not change the random state of training."""
        tm = make_manager(1)
        tm.train()
        tm.predict(loader())
        tm.epochs = 3
        tm.train()
        assert torch.equal(weights(tm), undisturbed())

    def test_called_from_a_hook_at_the_end_of_training_it_uses_the_same_run(self) -> None:
        """Covers contract E24."""
        runs: list[str] = []

        class Finish(Extension):
            def pre_run(self) -> None:
                runs.append("run")

            def post_train(self, train_manager: Any) -> None:
                runs.append(f"{len(train_manager.predict(loader()))} predictions")

        make_manager(1, extensions=[Finish()]).train()
        assert runs == ["run", "4 predictions"]

    def test_it_builds_no_optimizer(self) -> None:
        """Covers contract E32."""
        tm = make_manager()
        tm.predict(loader())
        assert tm.optimizer is None


def test_a_hook_can_evaluate_and_predict_completely_after_a_stop() -> None:
    class Afterwards(Extension):
        num_predictions = 0

        def post_train(self, train_manager: TrainManager) -> None:
            self.num_predictions = len(train_manager.predict(train_manager.eval_data["valid"]))
            train_manager.eval()

    afterwards = Afterwards()
    manager = ExtensionContract().loop(afterwards)
    manager.max_steps = 3
    manager.train()
    assert afterwards.num_predictions == 3
    assert [epoch for epoch, _ in manager.history["valid/loss"]] == [0, 0]


def test_a_generator_continues_after_a_stop() -> None:
    seen = []

    class Stops(Extension):
        def post_train_step_batch(self, train_manager: TrainManager, batch: tuple[torch.Tensor, int]) -> None:
            seen.append(batch[1])
            if batch[1] == 2:
                train_manager.stop()

    manager = ExtensionContract().loop(Stops())
    images, labels = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    manager.train_data = ((images, number) for number in range(8))
    manager.loss = lambda batch, prediction: nn.functional.cross_entropy(prediction, labels)
    manager.eval_data = {}
    manager.epochs = 1
    manager.train()
    manager.train()
    assert seen == list(range(8))


def test_a_batch_whose_error_was_suppressed_leaves_no_gradients_for_the_next() -> None:
    class Broken(Extension):
        def post_backward(self, batch_num: int) -> None:
            if batch_num == 1:
                raise ValueError("broken")

    class Swallows(Extension):
        @always
        def post_train_step_batch(self, exc_type: type[BaseException] | None) -> bool:
            return exc_type is ValueError

    class Norms(Extension):
        def __init__(self) -> None:
            self.grads: list[torch.Tensor] = []

        def pre_optimizer_step(self, model: nn.Module) -> None:
            self.grads.append(next(model.parameters()).grad.clone())

    def grads(*extensions: object) -> list[torch.Tensor]:
        norms = Norms()
        manager = ExtensionContract().loop(*extensions, norms)
        manager.epochs = 1
        manager.model.layers[2].p = 0.0
        manager.optimizer = torch.optim.SGD(manager.model.parameters(), lr=0.0)
        manager.train()
        return norms.grads

    plain, broken = grads(), grads(Broken(), Swallows())
    assert len(broken) == len(plain) - 1
    assert torch.equal(broken[1], plain[2])


def test_an_epoch_whose_error_was_suppressed_ends_training() -> None:
    class Broken(Extension):
        def post_backward(self, step_num: int) -> None:
            if step_num == 2:
                raise ValueError("broken")

    class Swallows(Extension):
        @always
        def post_train_step_epoch(self) -> bool:
            return True

    manager = ExtensionContract().loop(Broken(), Swallows())
    manager.train()
    assert manager.step_num == 2


def test_an_error_in_a_schedule_step_does_not_repeat_the_epoch() -> None:
    class Fails:
        num_steps = 0

        def step(self) -> None:
            self.num_steps += 1
            if self.num_steps == 1:
                raise RuntimeError("once")

    manager = ExtensionContract().loop()
    manager.schedule_by, manager.lr_schedule = "epoch", Fails()
    with pytest.raises(RuntimeError, match="once"):
        manager.train()
    manager.train()
    assert manager.step_num == 3 * 6
    assert manager.epoch_num == 3


def test_an_observer_that_evaluates_does_not_step_the_schedule() -> None:
    class Evaluates(Observer):
        def post_train_step_batch(self, train_manager: TrainManager) -> None:
            train_manager.eval()

    def rate(*extensions: object) -> float:
        manager = ExtensionContract().loop(*extensions)
        manager.schedule_by = "valid"
        manager._make_schedule = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        manager.train()
        return manager.optimizer.param_groups[0]["lr"]

    assert rate() == rate(Evaluates())


def test_assigning_extensions_keeps_the_default_ones() -> None:
    """Covers contract E31."""
    manager = ExtensionContract().loop()
    manager.extensions = [Extension()]
    manager.train()
    assert list(manager.extensions) == ["setup", "eval_state", "train_loss", "extension"]


def test_training_can_resume_after_an_interrupt_inside_the_engine() -> None:
    manager = ExtensionContract().loop()

    class Interrupts(Extension):
        num_calls = 0

        def pre_forward(self, fixtures) -> None:
            self.num_calls += 1
            if self.num_calls == 6:
                fixtures._scope.stack.append(manager.staged("train"))  # simulate a stage that was not closed
                raise KeyboardInterrupt

    manager.add_extension("interrupts", Interrupts())
    with pytest.raises(KeyboardInterrupt):
        manager.train()
    assert "batch" not in manager.fixtures
    manager.train()
    assert manager.epoch_num == 3
