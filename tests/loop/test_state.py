"""Training that was killed and resumed gives bit-for-bit the same result as uninterrupted training."""

from __future__ import annotations

import collections
import copy
import random
import sys
from collections.abc import Mapping

import numpy as np
import pytest
import state_program as program
import torch
import warm
from torch import nn

from trainmaster import Extension, LoopComponent, Observer, Supervised, TrainingState, TrainManager, TrainTestLoop
from trainmaster.errors import StateError

PROGRAM = program.__file__
build, outcome = program.build, program.outcome


def same_bits(one, other):
    """Return whether nested values are equal in type, shape and every bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return one == other and type(one) is type(other)


def differing(one, other):
    """Return the parts of an outcome that differ."""
    return [name for name in one if not same_bits(one[name], other[name])]


class Keep(Extension):
    """Captures the state at every call of one hook."""

    def __init__(self, hook):
        self.states = []
        setattr(self, hook, lambda train_manager: self.states.append(train_manager.capture()))


def undisturbed(hook="post_train_step_batch", *, seed=1, **options):
    """Train without an interruption, and return the result and the states that were captured."""
    keep = Keep(hook)
    manager = build(seed, keep, **options)
    manager.train()
    return outcome(manager), keep.states


def resumed(state, *, seed=99, **options):
    """Return the result of training that starts from `state`, with a different seed and new objects."""
    manager = build(seed, **options)
    manager.restore(state)
    manager.train()
    return outcome(manager)


# In new processes.


def start_program(folder, *, seed, workers, optimizer, out, restore=None, die_at=None):
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", str(PROGRAM)]
    command += ["--seed", str(seed), "--workers", str(workers), "--optimizer", optimizer, "--out", out]
    command += ["--restore", restore] if restore else []
    command += ["--die-at", str(die_at)] if die_at else []
    # A file instead of a pipe, because the loader's workers outlive a killed program by seconds and would keep a pipe open.
    with (folder / f"{out}.err").open("w") as said:
        return warm.Popen(command, cwd=folder, stderr=said), folder / f"{out}.err"


def ended(started):
    """Wait for the program to end, and check that it succeeded."""
    process, said = started
    assert process.wait(timeout=300) == 0, said.read_text()


def test_a_run_killed_three_times_ends_with_the_bits_of_an_uninterrupted_one(tmp_path, capsys):
    """Four processes run one after the other, each with its own seed. This process is the last one."""
    common = {"folder": tmp_path, "workers": 2, "optimizer": "adam"}
    ended(start_program(seed=1, out="after_3", die_at=3, **common))
    ended(start_program(seed=2, out="after_5", die_at=5, restore="after_3", **common))
    ended(start_program(seed=3, out="after_7", die_at=program.BATCHES_PER_EPOCH, restore="after_5", **common))
    state = TrainingState.from_dict(torch.load(tmp_path / "after_7", weights_only=False))
    other = resumed(state, seed=4, num_workers=2, optimizer="adam")
    assert "replayed the 7 batches of train_data that were done in this epoch" in capsys.readouterr().err
    one, _ = undisturbed(num_workers=2, optimizer="adam")
    assert differing(one, other) == []
    assert len(other["losses"]) == 3 * program.BATCHES_PER_EPOCH


# In one process, at every point.


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training_can_resume_after_any_batch(optimizer):
    expected, states = undisturbed(optimizer=optimizer)
    assert len(states) == 3 * program.BATCHES_PER_EPOCH
    assert [differing(expected, resumed(state, optimizer=optimizer)) for state in states] == [[]] * len(states)


@pytest.mark.parametrize("hook", ["post_train_step_epoch", "post_eval", "pre_train_step_epoch", "pre_train", "post_train"])
def test_training_can_resume_between_epochs(hook):
    """The evaluation between two epochs runs exactly once, in one of the processes."""
    expected, states = undisturbed(hook)
    assert states
    assert [differing(expected, resumed(state)) for state in states] == [[]] * len(states)


@pytest.mark.parametrize("kind", ["tensors", "list", "stream"])
def test_training_can_resume_on_any_kind_of_data(kind):
    expected, states = undisturbed(kind=kind)
    assert [differing(expected, resumed(state, kind=kind)) for state in states] == [[]] * len(states)


@pytest.mark.parametrize("kind", ["augmented", "tensors"])
def test_training_can_resume_with_a_loader_that_has_its_own_generator(kind):
    """The generator continues from epoch to epoch, so it is part of the state."""
    expected, states = undisturbed(kind=kind, generator=torch.Generator().manual_seed(5))
    results = [differing(expected, resumed(state, kind=kind, generator=torch.Generator().manual_seed(6))) for state in states]
    assert results == [[]] * len(states)


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=["two", "persistent"])
def test_training_can_resume_with_loader_workers(options):
    expected, states = undisturbed(**options)
    chosen = [states[index] for index in (1, 6, 10)]
    assert [differing(expected, resumed(state, **options)) for state in chosen] == [[]] * 3


def test_persistent_workers_change_nothing():
    """Persistent workers are restarted in each epoch, because the state that they carry over cannot be read."""
    one, _ = undisturbed(num_workers=1)
    other, _ = undisturbed(num_workers=1, persistent_workers=True)
    assert differing(one, other) == []


def test_augmentation_in_the_program_depends_on_all_three_generators():
    """If the augmentation did not depend on them, the tests above would prove nothing."""
    drawn = []
    for seed_one in (random.seed, np.random.seed, torch.manual_seed):
        for each in (random.seed, np.random.seed, torch.manual_seed):
            each(1)
        seed_one(2)
        drawn.append(program.noise())
    assert len(set(drawn)) == 3


def test_batches_of_tensors_are_skipped_without_loading_them(capsys):
    _, states = undisturbed(kind="tensors")
    resumed(states[4], kind="tensors")
    assert capsys.readouterr().err.startswith("trainmaster: skipped the 5 batches of train_data that were done in this epoch (")


def test_batches_of_a_custom_data_set_are_replayed(capsys):
    _, states = undisturbed()
    resumed(states[4])
    assert capsys.readouterr().err.startswith("trainmaster: replayed the 5 batches of train_data that were done in this epoch (")


def test_nothing_is_replayed_between_epochs(capsys):
    _, states = undisturbed("post_train_step_epoch")
    resumed(states[0])
    assert capsys.readouterr().err == ""


def test_training_that_was_stopped_in_an_epoch_continues_in_the_same_manager():
    class StopAt(Extension):
        def post_train_step_batch(self, loop, batch_num, epoch_num):
            if (epoch_num, batch_num) == (1, 3):
                loop.stop()

    expected, _ = undisturbed()
    manager = build(1, StopAt())
    manager.train()
    del manager.extensions["stop_at"]
    noise = program.noise()  # random numbers drawn between the two calls must not affect training
    manager.train()
    assert noise
    assert differing(expected, outcome(manager)) == []


@pytest.mark.parametrize("hook", ["pre_backward", "post_train_step_batch"])
def test_after_an_error_in_an_epoch_the_mean_loss_includes_the_batches_before_it(hook):
    class Fails(Extension):
        def __init__(self):
            self.has_failed = False

        def fail(self, step_num, batch_num):
            if step_num > 6 and batch_num == 3 and not self.has_failed:
                self.has_failed = True
                raise ZeroDivisionError

    def loop(*extensions):
        torch.manual_seed(0)
        batches = [(inputs, inputs.sum(1, keepdim=True)) for inputs in torch.randn(6, 4, 3)]
        return Supervised(nn.Linear(3, 1), nn.MSELoss(), 2, batches, extensions=extensions, progress=False)

    setattr(Fails, hook, Fails.fail)
    whole, failed = loop(), loop(Fails())
    whole.train()
    with pytest.raises(ZeroDivisionError):
        failed.train()
    assert failed.moment.batch
    failed.train()
    assert failed.history["train/loss"] == whole.history["train/loss"]


def test_one_more_epoch_can_be_trained_after_a_resume():
    expected, _ = undisturbed(epochs=4)
    _, states = undisturbed(epochs=3)
    assert differing(expected, resumed(states[-1], epochs=4)) == []


def test_capturing_does_not_change_training():
    captured, _ = undisturbed()
    manager = build(1)
    manager.train()
    assert differing(captured, outcome(manager)) == []


class CountingObserver(Observer):
    """An observer with a state."""

    def __init__(self):
        self.count = 0

    def post_train_step_batch(self):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_training_resumes_with_an_observer_added_or_removed():
    expected, _ = undisturbed()
    for before, after in (([], [CountingObserver()]), ([CountingObserver()], [])):
        states = Keep("post_train_step_batch")
        build(1, *before, states).train()
        manager = build(1, *after)
        manager.restore(states.states[9])
        manager.train()
        assert differing(expected, outcome(manager)) == []


def test_an_observer_whose_state_does_not_fit_starts_from_scratch_with_a_warning():
    states = Keep("post_train_step_batch")
    build(1, CountingObserver(), states).train()
    values = states.states[3].to_dict()
    values["extensions"] = {**values["extensions"], "counting_observer": {"other": 1}}
    manager = build(1, CountingObserver())
    with pytest.warns(
        UserWarning, match="extension `counting_observer` starts from scratch: its saved state does not fit: KeyError: 'count'"
    ):
        manager.restore(TrainingState.from_dict(values))
    assert manager["counting_observer"].count == 0


def test_metrics_buffered_in_an_extension_are_in_the_state_of_the_writer():
    """A `state_dict` may write buffered metrics, so extensions are captured before the writer."""

    class Waits(Extension):
        def __init__(self):
            self.waiting = []

        def post_train_step_batch(self, writer, step_num):
            self.writer = writer
            self.waiting.append(step_num)

        def state_dict(self):
            for number in self.waiting:
                self.writer.add_scalar("waited", number, number)
            self.waiting = []
            return {}

        def load_state_dict(self, state): ...

    states = Keep("post_train_step_batch")
    build(1, Waits(), states).train()
    history = states.states[4].objects["writer"]["history"]["waited"]
    assert len(history) == 5  # one row for each batch before the capture


def test_an_observer_can_capture_a_state():
    """The captured state has the random state of training, whatever random numbers the observer draws."""

    class Looks(Observer):
        def post_train_step_batch(self, train_manager):
            program.noise()
            states.append(train_manager.capture())

    states = []
    build(1, Looks()).train()
    expected, _ = undisturbed()
    assert [differing(expected, resumed(state)) for state in states[2:9:3]] == [[]] * 3


# A state is a value.


def test_a_state_can_be_restored_from_a_dict():
    _, states = undisturbed(epochs=1)
    again = TrainingState.from_dict(states[3].to_dict())
    assert same_bits(again.to_dict(), states[3].to_dict())


def test_a_state_holds_plain_values_and_tensors_only():
    def kinds(value):
        if isinstance(value, dict):
            return set().union(*map(kinds, value), *map(kinds, value.values()))
        if type(value) in (list, tuple):
            return set().union(*map(kinds, value))
        return {type(value)}

    _, states = undisturbed(epochs=1)
    assert kinds(states[3].to_dict()) <= {int, float, bool, str, type(None), torch.Tensor, np.ndarray}


def test_containers_in_the_state_of_an_extension_keep_their_types():
    class Stateful(Extension):
        state = {
            "counter": collections.Counter("aab"),
            "default": collections.defaultdict(list, a=[torch.ones(2)]),
            "ordered": collections.OrderedDict(a=1),
        }

        def pre_train(self): ...

        def state_dict(self):
            return {**self.state, "deque": collections.deque([torch.ones(1)], maxlen=3)}

        def load_state_dict(self, state):
            self.loaded = state

    manager = build(1, Stateful())
    state = manager.capture()
    extension = Stateful()
    build(2, extension).restore(state)
    assert same_bits(extension.loaded, Stateful().state_dict() | {"deque": extension.loaded["deque"]})
    assert [type(each) for each in extension.loaded.values()] == [
        collections.Counter,
        collections.defaultdict,
        collections.OrderedDict,
        collections.deque,
    ]
    assert (extension.loaded["default"]["new"], extension.loaded["deque"].maxlen) == ([], 3)
    assert extension.loaded["default"]["a"][0] is not Stateful.state["default"]["a"][0]


def test_the_milestones_of_a_schedule_are_still_a_counter_after_resuming():
    def loop():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2])
        return TrainManager(model, program.mse, 1, [1], optimizer=optimizer, lr_schedule=schedule, progress=False)

    other = loop()
    other.restore(loop().capture())
    assert isinstance(other.lr_schedule.milestones, collections.Counter)


def test_continuing_to_train_does_not_change_a_state():
    keep, copies = Keep("post_train_step_batch"), []

    class Copies(Extension):
        def post_train_step_batch(self):
            copies.append(copy.deepcopy(keep.states[-1].to_dict()))

    build(1, keep, Copies()).train()
    assert all(map(same_bits, (state.to_dict() for state in keep.states), copies))


def test_restoring_and_training_does_not_change_a_state():
    expected, states = undisturbed()
    first, second = resumed(states[3]), resumed(states[3])
    assert (differing(expected, first), differing(first, second)) == ([], [])


def test_a_manager_can_be_reset_to_an_earlier_state():
    expected, states = undisturbed()
    manager = build(1)
    manager.train()
    manager.restore(states[3])
    manager.train()
    assert differing(expected, outcome(manager)) == []


@pytest.mark.parametrize(
    ("values", "named"),
    [({}, "buffers, data, extensions, grads, kinds, objects, observers, position, progress, ranks, rng"), ({"epoch": 3}, "epoch")],
)
def test_a_dict_that_is_not_a_state_is_refused(values, named):
    with pytest.raises(StateError, match=r"this is not a training state: .* missing or unknown") as caught:
        TrainingState.from_dict(values)
    assert named in str(caught.value)


def test_a_dict_with_an_unknown_part_is_an_error_that_names_it():
    _, states = undisturbed(epochs=1)
    with pytest.raises(StateError, match=r"this is not a training state: scaler missing or unknown"):
        TrainingState.from_dict({**states[0].to_dict(), "scaler": {}})


# The contents of a state.


def test_gradients_that_wait_for_an_update_are_restored():
    _, states = undisturbed()
    manager = build(99)
    manager.restore(states[2])
    assert same_bits({name: each.grad for name, each in manager.model.named_parameters()}, states[2].grads["model"])
    assert any(each.abs().sum() > 0 for each in states[2].grads["model"].values())


def test_a_parameter_without_a_gradient_in_the_state_has_none_afterwards():
    untrained = build(1)
    untrained.build()
    manager = build(1)
    manager.train()
    manager.restore(untrained.capture())
    assert [each.grad for each in manager.model.parameters()] == [None] * 6


def test_a_buffer_outside_the_state_dict_is_restored():
    _, states = undisturbed()
    manager = build(99)
    manager.restore(states[4])
    assert "calls" not in manager.model.state_dict()
    assert manager.model.calls == 5


def test_the_history_of_the_default_writer_is_restored():
    _, states = undisturbed("post_eval")
    manager = build(99)
    manager.restore(states[2])
    assert [step for step, _ in manager.history["valid/loss"]] == [0, 1, 2]


class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))


def test_a_second_module_on_the_manager_is_captured_with_its_gradients():
    one, other = build(1), build(2)
    one.teacher, other.teacher = Teacher(), Teacher()
    one.build()
    one.teacher.weight.data.fill_(0.5)
    one.teacher.weight.grad = torch.ones(3)
    other.restore(one.capture())
    assert same_bits([other.teacher.weight.data, other.teacher.weight.grad], [torch.full((3,), 0.5), torch.ones(3)])


def test_a_loss_scaler_on_the_manager_is_captured():
    one, other = build(1), build(2)
    one.scaler, other.scaler = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    one.build()
    other.restore(one.capture())
    assert other.scaler.state_dict() == one.scaler.state_dict()
    assert other.scaler.get_scale() == 8.0


class ScalesItsLoss(TrainManager):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def backward(self, loss):
        super().backward(self.scaler.scale(loss))

    def optimizer_step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()


def test_training_with_a_loss_scaler_can_resume():
    def new(*extensions):
        torch.manual_seed(1)
        sgd = lambda params: torch.optim.SGD(params, lr=0.05)  # noqa: E731 - a recipe
        return ScalesItsLoss(program.Net(), program.mse, 2, program.train_data("list"), optimizer=sgd, extensions=extensions, device="cpu")

    keep = Keep("post_train_step_batch")
    one, other = new(keep), new()
    one.train()
    other.restore(keep.states[4])
    other.train()
    assert one.scaler.get_scale() > 4.0
    assert same_bits([one.scaler.state_dict(), one.model.state_dict()], [other.scaler.state_dict(), other.model.state_dict()])


# Errors.


@pytest.mark.parametrize("hook", ["pre_train_step_batch", "pre_backward", "post_backward", "pre_optimizer_step"])
def test_capturing_in_the_middle_of_a_batch_is_refused(hook):
    with pytest.raises(StateError, match="a state cannot be captured in the middle of a batch") as caught:
        undisturbed(hook)
    assert "capture it in post_train_step_batch or later; put that extension last" in str(caught.value)
    assert "stage run > train > train_step_epoch > train_step_batch" in str(caught.value)


def test_capturing_in_the_middle_of_an_evaluation_is_refused():
    with pytest.raises(StateError, match="a state cannot be captured in the middle of an evaluation"):
        undisturbed("post_eval_step_epoch")


def test_capturing_after_a_failed_batch_is_refused():
    class Breaks(Extension):
        def post_backward(self):
            raise KeyboardInterrupt

    manager = build(1, Breaks())
    with pytest.raises(KeyboardInterrupt):
        manager.train()
    with pytest.raises(StateError, match="a state cannot be captured after an interrupted batch"):
        manager.capture()


def test_a_state_of_another_kind_of_optimizer_is_refused():
    manager = build(1)
    state = manager.capture()
    other = build(2)
    other.optimizer = torch.optim.RMSprop(other.model.parameters())
    with pytest.raises(StateError, match=f"attribute `optimizer` is a RMSprop here, but a {type(manager.optimizer).__name__} in the state"):
        other.restore(state)


def test_a_state_of_longer_data_is_refused():
    manager = build(1)
    state = manager.capture()
    other = build(2)
    other.train_data = [*other.train_data, *other.train_data]
    with pytest.raises(StateError, match=r"train_data has \d+ batches, but the state was captured with \d+"):
        other.restore(state)


def test_an_extension_that_changes_the_length_of_the_epoch_is_restored_before_the_length_is_checked():
    class Growing:
        num = 2

        def __len__(self):
            return self.num

        def __iter__(self):
            return iter([(torch.ones(1, 1), torch.ones(1, 1) * each) for each in range(self.num)])

    class Curriculum(Extension):
        def __init__(self, data):
            self.data = data

        def post_train_step_epoch(self):
            self.data.num += 2

        def state_dict(self):
            return {"num": self.data.num}

        def load_state_dict(self, state):
            self.data.num = state["num"]

    def loop(*others):
        data = Growing()
        torch.manual_seed(0)
        return Supervised(nn.Linear(1, 1), nn.MSELoss(), 4, data, extensions=[Curriculum(data), *others], progress=False)

    keep = Keep("post_train_step_batch")
    whole = loop(keep)
    whole.train()
    for state in keep.states:
        other = loop()
        other.restore(state)
        other.train()
        assert same_bits(other.model.state_dict(), whole.model.state_dict())
        assert other.history["train/loss"] == whole.history["train/loss"]


def test_a_state_of_longer_data_changes_no_extension():
    class Stateful(Extension):
        value = 0

        def pre_train(self): ...

        def state_dict(self):
            return {"value": self.value}

        def load_state_dict(self, state):
            self.value = state["value"]

    state = build(1, Stateful()).capture()
    extension = Stateful()
    extension.value = 3
    other = build(2, extension)
    other.train_data = [*other.train_data, *other.train_data]
    with pytest.raises(StateError, match="train_data has"):
        other.restore(state)
    assert extension.value == 3


def test_a_state_captured_before_the_first_step_is_restored():
    whole = build(1)
    state = whole.capture()
    whole.train()
    resumed = build(2)
    resumed.restore(state)
    resumed.train()
    assert same_bits(whole.model.state_dict(), resumed.model.state_dict())


def test_sums_that_an_extension_resets_each_epoch_are_restored():
    class Sums(Extension):
        def __init__(self):
            self.num_batches, self.totals = 0, []

        def pre_train_step_epoch(self):
            self.num_batches = 0

        def post_train_step_batch(self):
            self.num_batches += 1

        def post_train_step_epoch(self):
            self.totals.append(self.num_batches)

        def state_dict(self):
            return {"num_batches": self.num_batches, "totals": self.totals}

        def load_state_dict(self, state):
            self.num_batches, self.totals = state["num_batches"], list(state["totals"])

    class CaptureOnce(Extension):
        def post_train_step_batch(self, train_manager, epoch_index, batch_num):
            if (epoch_index, batch_num) == (1, 1):
                self.state = train_manager.capture()

    capture = CaptureOnce()
    whole = build(1, Sums(), capture)
    whole.train()
    resumed = build(2, Sums())
    resumed.restore(capture.state)
    resumed.train()
    assert resumed["sums"].totals == whole["sums"].totals


@pytest.mark.parametrize("rubbish", [None, [1, 2], "state"])
def test_a_state_that_is_not_a_mapping_is_refused(rubbish):
    with pytest.raises(StateError, match="this is not a training state"):
        TrainingState.from_dict(rubbish)


def test_restoring_while_training_is_refused():
    class TakesBack(Extension):
        def post_train_step_epoch(self, train_manager):
            train_manager.restore(train_manager.capture())

    with pytest.raises(StateError, match=r"a state cannot be restored while train\(\) is running"):
        build(1, TakesBack()).train()


class Counter(Extension):
    name = "counter"

    def state_dict(self):
        return {}

    def load_state_dict(self, state): ...


def test_a_state_with_an_additional_extension_is_an_error_that_names_it():
    state = build(1, Counter()).capture()
    with pytest.raises(StateError, match="the state does not fit this TrainManager") as caught:
        resumed(state)
    assert "extension `counter` is in the state, but not here" in str(caught.value)


def test_a_state_without_one_of_the_extensions_is_an_error_that_names_it():
    built = build(1)
    built.build()
    manager = build(2, Counter())
    with pytest.raises(StateError, match="extension `counter` is here, but not in the state"):
        manager.restore(built.capture())


def test_a_renamed_extension_is_an_error_that_suggests_the_nearest_name():
    built = build(1, ("counters", Counter()))
    built.build()
    with pytest.raises(StateError, match=r"extension `counters` is in the state, but not here; did you mean `counter`\?"):
        build(2, Counter()).restore(built.capture())


def test_a_state_of_another_model_is_refused():
    _, states = undisturbed(epochs=1)
    manager = build(2)
    manager.model.layers[0] = nn.Linear(3, 9)
    with pytest.raises(StateError, match="the captured `model` does not fit this Net") as caught:
        manager.restore(states[0])
    assert "size mismatch for layers.0.weight" in str(caught.value)


def test_a_state_of_an_optimizer_with_other_parameters_is_refused():
    _, states = undisturbed(epochs=1)
    manager = build(2)
    manager.optimizer = torch.optim.SGD(manager.model.layers[0].parameters(), lr=0.1)
    with pytest.raises(StateError, match="the captured `optimizer` does not fit this SGD"):
        manager.restore(states[0])


def test_a_state_with_other_evaluation_sets_is_refused():
    _, states = undisturbed(epochs=1)
    manager = build(2)
    manager.eval_data = {"test": []}
    with pytest.raises(StateError, match="the state was captured with other evaluation sets") as caught:
        manager.restore(states[0])
    assert "there: valid; here: test" in str(caught.value)


def test_data_that_is_too_short_for_the_state_is_refused():
    _, states = undisturbed(kind="list")
    manager = build(2, kind="list")
    del manager.train_data[2:]
    with pytest.raises(StateError, match="train_data") as caught:
        manager.restore(states[4])
        manager.train()
    assert "use the same data" in str(caught.value)


def test_a_loader_without_the_generator_of_the_state_is_refused():
    _, states = undisturbed(epochs=1, generator=torch.Generator())
    with pytest.raises(StateError, match="the data has 0 generators of its own, but the state was captured with 1"):
        resumed(states[0])


# TrainTestLoop.


class Trains(LoopComponent):
    """A component that trains, records its losses, and captures the state after every training batch."""

    def __init__(self):
        self.losses = []
        self.states = []

    def on_train_begin(self, loop):
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.05, momentum=0.9)
        loop.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(loop.optimizer, T_max=loop.n_optim_steps)

    def on_grads_reset(self, loop):
        if loop.optim_step_num % 2 == 0:
            loop.optimizer.zero_grad()

    def on_loss_compute(self, loop):
        loop.loss = program.mse(loop.batch, loop.model(loop.batch))
        self.losses.append(loop.loss.item().hex())

    def on_backward_pass(self, loop):
        loop.loss.backward()

    def on_optim_step(self, loop):
        loop.optimizer.step()
        loop.schedule.step()

    def on_batch_end(self, loop):
        if loop.is_training:
            self.states.append(loop.capture())

    def state_dict(self):
        return {"losses": self.losses}

    def load_state_dict(self, state):
        self.losses = state["losses"]


def new_loop(seed, *components, kind="augmented"):
    for each in (random.seed, np.random.seed, torch.manual_seed):
        each(seed)
    data = program.train_data(kind)
    return TrainTestLoop(program.Net(), [Trains(), *components], data, program.train_data("augmented"))


def loop_outcome(loop):
    return {
        "weights": loop.model.state_dict(),
        "calls": loop.model.calls,
        "optimizer": loop.optimizer.state_dict(),
        "schedule": loop.schedule.state_dict(),
        "losses": loop["trains"].losses,
        "counts": (loop.epoch_num, loop.optim_step_num),
        "next": program.noise().hex(),
    }


@pytest.mark.parametrize("kind", ["augmented", "tensors", "list"])
def test_a_train_test_loop_can_resume_after_any_batch(kind):
    loop = new_loop(1, kind=kind)
    loop.train(2)
    expected, states, results = loop_outcome(loop), loop["trains"].states, []
    for state in states:
        other = new_loop(99, kind=kind)
        other.restore(TrainingState.from_dict(copy.deepcopy(state.to_dict())))
        other.train(2)
        results.append(differing(expected, loop_outcome(other)))
    assert results == [[]] * 14


def test_a_train_test_loop_can_resume_twice_within_an_epoch():
    loop = new_loop(1)
    loop.train(2)
    expected = loop_outcome(loop)
    second = new_loop(2)
    second.restore(loop["trains"].states[1])
    second.train(2)
    third = new_loop(3)
    third.restore(second["trains"].states[2])
    third.train(2)
    assert differing(expected, loop_outcome(third)) == []


@pytest.mark.parametrize(
    "callback",
    ["on_train_begin", "on_epoch_begin", "on_grads_reset", "on_batch_begin", "on_backward_pass", "on_optim_step", "on_epoch_end"],
)
def test_a_train_test_loop_can_only_be_captured_at_the_end_of_a_batch(callback):
    component = type("Captures", (LoopComponent,), {callback: lambda self, loop: loop.capture()})()
    with pytest.raises(StateError, match=r"a state can only be captured at the end of a training batch") as caught:
        new_loop(1, component).train(1)
    assert "capture it in on_batch_end, while loop.is_training" in str(caught.value)


def test_a_train_test_loop_cannot_be_captured_in_validation():
    class Captures(LoopComponent):
        def on_batch_end(self, loop):
            if loop.is_validating:
                loop.capture()

    with pytest.raises(StateError, match="a state can only be captured at the end of a training batch") as caught:
        new_loop(1, Captures()).train(1)
    assert "stage train > eval_step_epoch > eval_step_batch" in str(caught.value)


def test_a_train_test_loop_refuses_a_state_of_other_components_and_names_them():
    class Scales(LoopComponent):
        def on_train_begin(self, loop):
            loop.scaler = torch.amp.GradScaler("cpu")

    loop = new_loop(1, Scales())
    loop.train(1)
    other = new_loop(2)
    other.restore(loop["trains"].states[0])
    with pytest.raises(StateError, match="attribute `scaler` is in the state, but not here"):
        other.train(1)


def test_a_state_captured_right_after_restoring_is_the_same_state():
    _, states = undisturbed(epochs=2)
    once = build(7, epochs=2)
    once.restore(states[4])
    torch.rand(5)
    again = once.capture()
    assert differing(resumed(states[4], epochs=2), resumed(again, epochs=2)) == []


def test_a_state_can_be_saved_by_torch_and_loaded_with_weights_only(tmp_path):
    manager = build(1)
    torch.save(manager.capture().to_dict(), tmp_path / "state.pt")
    other = build(2)
    other.restore(TrainingState.from_dict(torch.load(tmp_path / "state.pt", weights_only=True)))
    assert same_bits(manager.model.state_dict(), other.model.state_dict())


def test_capturing_in_the_middle_of_a_batch_is_refused_even_within_a_prediction():
    class Captures(Extension):
        def post_backward(self, train_manager):
            train_manager.predict([])

        def post_predict(self, train_manager):
            train_manager.capture()

    with pytest.raises(StateError, match="a state cannot be captured in the middle of a batch"):
        build(1, Captures()).train()


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_a_manager_cannot_be_copied(how):
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        how(build(1))


def test_a_state_that_does_not_fit_changes_nothing():
    _, states = undisturbed(epochs=1)
    manager = build(2)
    manager.build()
    manager.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    before = copy.deepcopy(manager.model.state_dict())
    with pytest.raises(StateError, match="the captured `optimizer` does not fit"):
        manager.restore(states[0])
    assert same_bits(before, manager.model.state_dict())
