"""`TrainTestLoop` satisfies contracts L1 to L12."""

from __future__ import annotations

import inspect
import random

import numpy as np
import pytest
import torch
from torch import nn

from trainmaster import Extension, LoopComponent, Observer, TrainTestLoop, always, not_a_hook
from trainmaster.errors import (
    EmptyDataError,
    EscapedStopIterationError,
    FixtureScopeError,
    LoopError,
    SettingError,
    TrainmasterError,
    UnknownHookError,
)

CALLBACKS = (
    "on_train_begin", "on_epoch_begin", "on_batch_begin", "on_grads_reset", "on_forward_pass", "on_loss_compute",
    "on_backward_pass", "on_optim_step", "on_batch_end", "on_epoch_end", "on_train_end",
)  # fmt: skip
IN_A_TRAIN_PASS = tuple(name for name in CALLBACKS if not name.startswith("on_train"))

TRAIN_BATCH = ["grads_reset", "batch_begin", "forward_pass", "loss_compute", "backward_pass", "optim_step", "batch_end"]
EVAL_BATCH = ["batch_begin", "forward_pass", "loss_compute", "batch_end"]
TRAIN_PASS = ["epoch_begin", *TRAIN_BATCH, *TRAIN_BATCH, "epoch_end"]
EVAL_PASS = ["epoch_begin", *EVAL_BATCH, "epoch_end"]


def _recording(name):
    def callback(self, loop):
        self.seen.append((name.removeprefix("on_"), self.look(loop)))
        self.act(name, loop)

    return callback


class Recorder:
    """Records the callback and the result of `look` for every call.

    `do` maps callbacks to actions. The class does not inherit from LoopComponent, because it does not have to.
    """

    def __init__(self, look=lambda loop: loop.epoch_desc, do=None, seen=None):
        self.look, self.do = look, do or {}
        self.seen = [] if seen is None else seen

    def act(self, name, loop):
        if name in self.do:
            self.do[name](loop)

    @property
    def names(self):
        return [name for name, _ in self.seen]

    for _name in CALLBACKS:
        locals()[_name] = _recording(_name)


def new_loop(*components, train=("a", "b"), valid=("v",), model=None):
    return TrainTestLoop(model or nn.Linear(1, 1), components, list(train), list(valid))


def stop(loop):
    loop.stop()


def fail(loop):
    raise OSError("disk full")


# The order of callbacks.


def test_an_epoch_is_a_train_pass_then_a_validation_pass():
    """Covers contracts L3 and L4."""
    recorder = Recorder()
    new_loop(recorder).train(2)
    assert recorder.names == ["train_begin", *TRAIN_PASS, *EVAL_PASS, *TRAIN_PASS, *EVAL_PASS, "train_end"]


def test_gradients_are_reset_before_the_batch_begins():
    """Covers contract L3."""
    recorder = Recorder()
    new_loop(recorder).train(1)
    assert recorder.names.index("grads_reset") < recorder.names.index("batch_begin")


def test_a_callback_runs_in_all_components_before_the_next_starts():
    """Covers contract L3."""
    seen = []
    first, second = Recorder(lambda loop: 1, seen=seen), Recorder(lambda loop: 2, seen=seen)
    new_loop(first, second, train=["a"]).train(1)
    calls = ["train_begin", "epoch_begin", *TRAIN_BATCH, "epoch_end", *EVAL_PASS, "train_end"]
    assert seen == [(name, number) for name in calls for number in (1, 2)]


def test_a_test_is_one_pass_without_train_callbacks():
    """Covers contract L4."""
    recorder = Recorder()
    new_loop(recorder).test(["t"])
    assert recorder.seen == [(name, "test") for name in EVAL_PASS]


def test_during_a_test_n_epochs_is_one():
    class Look(LoopComponent):
        def on_batch_end(self, loop):
            seen.append(loop.n_epochs)

    seen = []
    loop = new_loop(Look(), train=["a"])
    loop.test(["t"])
    assert seen == [1]  # L6
    loop.train(2)
    assert seen == [1, 2, 2, 2, 2]


def test_a_test_within_training_does_not_change_the_number_of_epochs():
    class Tests(LoopComponent):
        def on_train_begin(self, loop):
            loop.test(["t"])
            seen.append(loop.n_epochs)

        def on_batch_end(self, loop):
            seen.append((loop.epoch_desc, loop.n_epochs))

    seen = []
    new_loop(Tests(), train=["a"]).train(3)
    assert seen[:3] == [("test", 1), 3, ("train", 3)]  # L6


def test_every_routine_of_the_loop_fits_on_a_screen():
    lengths = {name: len(inspect.getsource(each).splitlines()) for name, each in vars(TrainTestLoop).items() if inspect.isfunction(each)}
    assert max(lengths.values()) <= 45, lengths  # L12


def test_a_loop_component_without_callbacks_is_a_component():
    """Contract L2: you only override the callbacks that you need."""
    loop = new_loop(LoopComponent(), train=["a"])
    loop.train(1)
    assert loop.epoch_num == 1


def test_every_callback_of_a_loop_component_gets_the_loop():
    """Covers contract L2."""
    loop = new_loop()
    assert [getattr(LoopComponent(), name)(loop) for name in CALLBACKS] == [None] * 11


def test_zero_epochs_make_a_run_without_passes():
    """Covers contract L4."""
    recorder = Recorder()
    new_loop(recorder).train(0)
    assert recorder.names == ["train_begin", "train_end"]


def test_empty_validation_data_makes_a_pass_without_batches():
    """Contract L4: validation data may be empty."""
    recorder = Recorder()
    new_loop(recorder, valid=[]).train(1)
    assert recorder.names == ["train_begin", *TRAIN_PASS, "epoch_begin", "epoch_end", "train_end"]


# The attributes of the loop.


def test_the_number_of_steps_is_known_when_training_begins():
    """Covers contract L5."""
    recorder = Recorder(lambda loop: (loop.n_epochs, loop.n_optim_steps))
    new_loop(recorder, train="abc").train(4)
    assert recorder.seen[0] == ("train_begin", (4, 12))


def test_the_arguments_are_attributes_of_the_loop():
    """Covers contracts L1 and L6."""
    model, component, train_data, valid_data = nn.Linear(1, 1), Recorder(), ["a"], ["v"]
    loop = TrainTestLoop(model=model, components=(component,), train_data=train_data, valid_data=valid_data)
    assert (loop.model, loop.components, loop.train_data, loop.valid_data) == (model, [component], train_data, valid_data)


def test_exactly_one_of_the_three_flags_is_true_in_every_pass():
    """Covers contract L6."""
    recorder = Recorder(lambda loop: (loop.epoch_desc, loop.is_training, loop.is_validating, loop.is_testing))
    loop = new_loop(recorder)
    loop.train(1)
    loop.test(["t"])
    in_passes = [look for name, look in recorder.seen if not name.startswith("train")]
    assert set(in_passes) == {("train", True, False, False), ("valid", False, True, False), ("test", False, False, True)}


def test_each_pass_has_its_own_number_of_batches():
    """Covers contract L6."""
    recorder = Recorder(lambda loop: (loop.epoch_desc, loop.n_batches))
    loop = new_loop(recorder, train="abc", valid="vw")
    loop.train(1)
    loop.test(["t"])
    assert [look for name, look in recorder.seen if name == "epoch_begin"] == [("train", 3), ("valid", 2), ("test", 1)]


def test_batches_come_in_order_and_are_counted_from_zero():
    """Covers contract L6."""
    recorder = Recorder(lambda loop: (loop.batch_num, getattr(loop, "batch", None)))
    loop = new_loop(recorder, train="ab", valid="vw")
    loop.train(1)
    loop.test("t")
    batches = [look for name, look in recorder.seen if name == "forward_pass"]
    assert batches == [(0, "a"), (1, "b"), (0, "v"), (1, "w"), (0, "t")]


def test_the_batch_and_its_number_are_set_before_gradients_are_reset():
    """Contracts L6 and L3: `on_grads_reset` is the first callback of a training batch."""
    recorder = Recorder(lambda loop: (loop.batch_num, getattr(loop, "batch", None)))
    new_loop(recorder).train(1)
    assert [look for name, look in recorder.seen if name == "grads_reset"] == [(0, "a"), (1, "b")]


def test_a_step_is_counted_after_it_is_done_and_before_the_batch_ends():
    """Covers contract L6."""
    recorder = Recorder(lambda loop: loop.optim_step_num)
    new_loop(recorder).train(1)
    looks = [(name, look) for name, look in recorder.seen if name in ("optim_step", "batch_end")]
    assert looks == [("optim_step", 0), ("batch_end", 1), ("optim_step", 1), ("batch_end", 2), ("batch_end", 2)]


def test_the_step_count_starts_at_zero_in_each_run():
    """Covers contract L6."""
    recorder = Recorder(lambda loop: loop.optim_step_num)
    loop = new_loop(recorder)
    loop.train(1)
    loop.train(1)
    assert [look for name, look in recorder.seen if name in ("train_begin", "train_end")] == [0, 2, 0, 2]


def test_epochs_are_counted_over_all_runs_of_the_loop():
    """Covers contract L6."""
    recorder = Recorder(lambda loop: loop.epoch_num)
    loop = new_loop(recorder)
    loop.train(2)
    loop.train(1)
    assert [look for name, look in recorder.seen if name == "epoch_end"] == [0, 0, 1, 1, 2, 2]
    assert loop.epoch_num == 3


def test_a_test_is_not_counted_as_an_epoch():
    """Covers contract L6."""
    loop = new_loop()
    loop.train(1)
    loop.test(["t"])
    assert loop.epoch_num == 1


def test_components_communicate_through_attributes_of_the_loop():
    """Covers contract L7."""

    class Writer(LoopComponent):
        def on_forward_pass(self, loop):
            loop.scores = loop.batch.upper()

    class Reader(LoopComponent):
        def on_loss_compute(self, loop):
            read.append(loop.scores)

    read = []
    new_loop(Writer(), Reader()).train(1)
    assert read == ["A", "B", "V"]


# Modes.


def test_gradients_are_on_in_training_and_off_in_validation():
    """Covers contract L7."""
    recorder = Recorder(lambda loop: (loop.epoch_desc, loop.model.training, torch.is_grad_enabled()))
    loop = new_loop(recorder)
    loop.train(1)
    loop.test(["t"])
    in_passes = {look for name, look in recorder.seen if not name.startswith("train")}
    assert in_passes == {("train", True, True), ("valid", False, False), ("test", False, False)}


@pytest.mark.parametrize("do", [{}, {"on_batch_end": stop}, {"on_batch_end": fail}], ids=["finished", "stopped", "failed"])
def test_every_module_has_its_own_mode_again_after_a_run(do):
    """Contract L7: a frozen part stays frozen, no matter how the run ended."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[1].eval()
    loop = new_loop(Recorder(do=do), model=model)
    try:
        loop.train(1)
    except OSError:
        assert do["on_batch_end"] is fail
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


@pytest.mark.parametrize("do", [{}, {"on_batch_end": stop}, {"on_batch_end": fail}], ids=["finished", "stopped", "failed"])
def test_gradients_are_enabled_again_after_a_test(do):
    """Covers contract L7."""
    loop = new_loop(Recorder(do=do))
    try:
        loop.test(["t"])
    except OSError:
        assert do["on_batch_end"] is fail
    assert torch.is_grad_enabled()


# Ending a run.


@pytest.mark.parametrize("callback", IN_A_TRAIN_PASS)
def test_stop_skips_everything_except_on_train_end(callback):
    """Contract L8: even `on_batch_end` and `on_epoch_end` are skipped."""
    recorder = Recorder(do={callback: stop})
    new_loop(recorder).train(2)
    name = callback.removeprefix("on_")
    undisturbed = ["train_begin", *TRAIN_PASS]
    assert recorder.names == [*undisturbed[: undisturbed.index(name) + 1], "train_end"]


@pytest.mark.parametrize("callback", [f"on_{name}" for name in EVAL_PASS])
def test_stop_in_validation_skips_everything_except_on_train_end(callback):
    """Covers contract L8."""
    recorder = Recorder(do={callback: lambda loop: loop.is_validating and loop.stop()})
    new_loop(recorder).train(2)
    name = callback.removeprefix("on_")
    assert recorder.names == ["train_begin", *TRAIN_PASS, *EVAL_PASS[: EVAL_PASS.index(name) + 1], "train_end"]


def test_stop_skips_the_same_callback_of_later_components():
    """Contract L8: a stop takes effect immediately."""
    first, second = Recorder(do={"on_forward_pass": stop}), Recorder()
    new_loop(first, second).train(1)
    assert second.names == ["train_begin", "epoch_begin", "grads_reset", "batch_begin", "train_end"]


@pytest.mark.parametrize("callback", IN_A_TRAIN_PASS)
def test_a_stopped_epoch_is_not_counted(callback):
    """Covers contract L8."""
    loop = new_loop(Recorder(do={callback: lambda loop: loop.epoch_num == 1 and loop.stop()}))
    loop.train(3)
    assert loop.epoch_num == 1


def test_stop_in_on_train_begin_ends_the_run_without_an_error():
    """Covers contract L9."""
    first, second = Recorder(do={"on_train_begin": stop}), Recorder()
    new_loop(first, second).train(1)
    assert (first.names, second.names) == (["train_begin", "train_end"], ["train_end"])


def test_stop_in_on_train_end_does_not_skip_the_other_components():
    """Contracts L9 and L8: `on_train_end` is called on all components."""
    first, second = Recorder(do={"on_train_end": stop}), Recorder()
    new_loop(first, second).train(1)
    assert (first.names[-1], second.names[-1]) == ("train_end", "train_end")


def test_a_second_stop_in_on_train_end_ends_the_run_without_an_error():
    """Covers contracts L9 and L8."""
    recorder = Recorder(do={"on_batch_begin": stop, "on_train_end": stop})
    new_loop(recorder).train(1)
    assert recorder.names == ["train_begin", "epoch_begin", "grads_reset", "batch_begin", "train_end"]


def test_stop_in_a_test_ends_it():
    """Covers contract L8."""
    recorder = Recorder(do={"on_batch_begin": stop})
    new_loop(recorder).test(["t", "u"])
    assert recorder.names == ["epoch_begin", "batch_begin"]


def test_no_component_catches_a_stop_by_accident():
    """Contract L8: a stop must pass through `except Exception`, which is common in components."""

    class Careless(LoopComponent):
        def on_batch_begin(self, loop):
            try:
                loop.stop()
            except Exception:
                caught.append(loop)

    caught, recorder = [], Recorder()
    new_loop(Careless(), recorder).train(1)
    assert (caught, recorder.names[-2:]) == ([], ["grads_reset", "train_end"])


def test_a_stopped_loop_can_train_again():
    """Covers contract L8."""
    recorder = Recorder(do={"on_batch_begin": lambda loop: len(recorder.seen) < 5 and loop.stop()})
    loop = new_loop(recorder)
    loop.train(1)
    del recorder.seen[:]
    recorder.do = {}
    loop.train(1)
    assert recorder.names == ["train_begin", *TRAIN_PASS, *EVAL_PASS, "train_end"]


def test_stop_outside_a_run_is_refused():
    with pytest.raises(LoopError, match="nothing is running, so there is nothing to stop") as caught:
        new_loop().stop()
    assert "try     call stop() from a component" in str(caught.value)


@pytest.mark.parametrize("callback", CALLBACKS[:-1])
def test_any_other_exception_is_raised_and_nothing_more_is_called(callback):
    """Contract L10: not even `on_train_end` is called."""
    first, second = Recorder(do={callback: fail}), Recorder()
    with pytest.raises(OSError, match=r"^disk full"):
        new_loop(first, second).train(1)
    assert first.names[-1] == callback.removeprefix("on_")
    assert second.names == first.names[:-1]


def test_an_exception_in_on_train_end_is_raised():
    """Covers contract L10."""
    first, second = Recorder(do={"on_train_end": fail}), Recorder()
    with pytest.raises(OSError, match=r"^disk full"):
        new_loop(first, second).train(1)
    assert second.names[-1] == "epoch_end"


def test_an_interrupt_is_raised():
    """Covers contract L10."""

    def interrupt(loop):
        raise KeyboardInterrupt

    recorder = Recorder(do={"on_forward_pass": interrupt})
    with pytest.raises(KeyboardInterrupt):
        new_loop(recorder).train(1)
    assert "train_end" not in recorder.names


def test_a_failed_loop_can_train_again():
    """Contract L10: an error leaves no stage open."""
    recorder = Recorder(do={"on_backward_pass": fail})
    loop = new_loop(recorder)
    with pytest.raises(OSError, match="disk full"):
        loop.train(1)
    del recorder.seen[:]
    recorder.do = {}
    loop.train(1)
    assert recorder.names == ["train_begin", *TRAIN_PASS, *EVAL_PASS, "train_end"]


@pytest.mark.parametrize("callback", CALLBACKS)
def test_stop_iteration_in_a_component_never_ends_the_run_silently(callback):
    """Contract L10: an exhausted iterator in a component is an error, not the end of the data."""
    recorder = Recorder(do={callback: lambda loop: next(iter(()))})
    with pytest.raises(EscapedStopIterationError, match="StopIteration"):
        new_loop(recorder).train(1)


def test_stop_iteration_in_a_component_never_ends_a_test_silently():
    """Covers contract L10."""
    recorder = Recorder(do={"on_forward_pass": lambda loop: next(iter(()))})
    with pytest.raises(EscapedStopIterationError, match="StopIteration"):
        new_loop(recorder).test(["t"])


def test_an_error_in_the_data_is_raised():
    """Covers contract L10."""

    class Torn:
        def __len__(self):
            return 2

        def __iter__(self):
            yield "a"
            raise OSError("disk full")

    recorder = Recorder()
    with pytest.raises(OSError, match=r"^disk full"):
        TrainTestLoop(nn.Linear(1, 1), [recorder], Torn(), []).train(1)
    assert recorder.names == ["train_begin", "epoch_begin", *TRAIN_BATCH]


# Editing the components during a run.

GROUP_STARTS = {
    "on_train_begin": "epoch_begin",
    "on_epoch_begin": "grads_reset",
    "on_grads_reset": "batch_begin",
    "on_batch_begin": "backward_pass",
    "on_forward_pass": "backward_pass",
    "on_loss_compute": "backward_pass",
    "on_backward_pass": "batch_end",
    "on_optim_step": "batch_end",
    "on_batch_end": "epoch_end",
}
"""For each callback that edits the components in a training batch, the callback in which the edit takes effect (L11).

Begin, forward and loss are one group of callbacks; backward and optim are another.
"""


@pytest.mark.parametrize(("callback", "start"), GROUP_STARTS.items())
def test_an_inserted_component_is_called_from_the_next_group_on(callback, start):
    """Covers contract L11."""
    late = Recorder()
    early = Recorder(do={callback: lambda loop: late in loop.components or loop.components.insert(0, late)})
    new_loop(early, train=["a"]).train(1)
    assert late.names[0] == start


@pytest.mark.parametrize(("callback", "start"), GROUP_STARTS.items())
def test_a_deleted_component_is_called_to_the_end_of_its_group(callback, start):
    """Covers contract L11."""

    def delete(loop):
        if late in loop.components:
            del loop.components[1]

    late, early = Recorder(), Recorder(do={callback: delete})
    new_loop(early, late, train=["a"]).train(1)
    calls = ["train_begin", "epoch_begin", *TRAIN_BATCH, "epoch_end"]
    assert late.names == calls[: calls.index(start)]


@pytest.mark.parametrize("callback", ["on_batch_begin", "on_forward_pass", "on_loss_compute"])
def test_in_validation_a_change_takes_effect_at_the_end_of_the_batch(callback):
    """Covers contract L11."""
    late = Recorder()
    early = Recorder(do={callback: lambda loop: late in loop.components or loop.components.append(late)})
    new_loop(early).test(["t"])
    assert late.names == ["batch_end", "epoch_end"]


def _move(components):
    components.append(components.pop(0))


def _swap(components):
    components[0], components[1] = components[1], components[0]


@pytest.mark.parametrize("edit", [_move, _swap, lambda c: c.reverse(), lambda c: c.sort(key=lambda each: -each.number)])
def test_the_order_of_calls_follows_the_order_of_the_list(edit):
    """Contracts L11 and L3: the same components are called in their new order."""

    class Numbered(LoopComponent):
        def __init__(self, number):
            self.number = number

        def on_batch_begin(self, loop):
            seen.append(self.number)

        def on_forward_pass(self, loop):
            if self.number == 1 and loop.batch_num == 0:
                edit(loop.components)

        def pre_train_step_batch(self):
            seen.append(f"pre {self.number}")

    seen = []
    new_loop(Numbered(1), Numbered(2), valid=[]).train(1)
    assert seen == ["pre 1", "pre 2", 1, 2, "pre 2", "pre 1", 2, 1]


def test_a_slice_of_the_components_can_be_replaced():
    """Covers contract L11."""
    old, new = Recorder(), Recorder()
    loop = new_loop(old, old)
    loop.components[:] = [new]
    loop.test(["t"])
    assert (old.names, new.names) == ([], EVAL_PASS)


def test_a_component_that_is_in_the_list_twice_is_called_twice():
    """Contract L11: the components are a plain list, which may contain an object twice."""
    recorder = Recorder()
    loop = new_loop(recorder)
    loop.components *= 2
    loop.test(["t"])
    assert recorder.names == [name for name in EVAL_PASS for _ in range(2)]


def test_components_can_be_copied_as_a_plain_list():
    """Contract L11: editing a copy does not change the loop."""
    recorder = Recorder()
    loop = new_loop(recorder)
    loop.components.copy().clear()
    list(loop.components).clear()
    assert loop.components == [recorder]


# Errors.


def test_a_misspelled_callback_is_an_error_that_suggests_the_nearest_name():
    """Covers contract L2."""

    class Slip(LoopComponent):
        def on_bach_end(self, loop): ...

    with pytest.raises(UnknownHookError, match=r"`Slip\.on_bach_end` is named like a callback, but there is no such callback") as caught:
        new_loop(Slip())
    assert "did you mean `on_batch_end`" in str(caught.value)


def test_a_misspelled_callback_is_refused_even_without_inheritance():
    """Contract L2: a single known callback shows that the object is meant to be a component."""

    class Slip:
        def on_batch_end(self, loop): ...
        def on_epoch_ends(self, loop): ...

    with pytest.raises(UnknownHookError, match=r"did you mean `on_epoch_end`"):
        new_loop(Slip())


@pytest.mark.parametrize("hooks", [{}, {"post_train": lambda self: None}], ids=["nothing else", "a hook"])
def test_a_misspelled_callback_is_refused_in_an_object_that_has_no_other(hooks):
    slip = type("Slip", (), {"on_batch_ends": lambda self, loop: None, **hooks})()
    with pytest.raises(UnknownHookError, match=r"did you mean `on_batch_end`"):
        new_loop(slip)


def test_an_object_with_hooks_may_have_other_methods_named_on():
    new_loop(type("Clickable", (), {"on_click": lambda self: None, "post_train": lambda self: None})())


def test_adding_a_component_with_a_misspelled_callback_is_refused_and_the_list_stays():
    """Covers contracts L11 and L2."""

    class Slip(LoopComponent):
        def on_forwardpass(self, loop): ...

    recorder = Recorder()
    loop = new_loop(recorder)
    with pytest.raises(UnknownHookError, match="on_forward_pass"):
        loop.components.append(Slip())
    assert loop.components == [recorder]


def test_a_method_marked_not_a_hook_is_accepted():
    """Covers contract L2."""

    class Helped(LoopComponent):
        @not_a_hook
        def on_batch_ends(self): ...

    assert len(new_loop(Helped()).components) == 1


def test_a_misspelled_hook_is_an_error_that_suggests_the_nearest_name():
    class Slip(Extension):
        def pre_train_step_bach(self): ...

    with pytest.raises(UnknownHookError, match=r"did you mean `pre_train_step_batch`"):
        new_loop(Slip())


@pytest.mark.parametrize("what", ["train_data", "valid_data"])
def test_data_without_a_length_is_refused(what):
    """Covers contract L1."""
    data = {"train_data": ["a"], "valid_data": ["v"], what: iter(["a"])}
    with pytest.raises(SettingError, match=f"`{what}` has no length, which a TrainTestLoop needs to count steps") as caught:
        TrainTestLoop(nn.Linear(1, 1), [], **data)
    assert "where   list_iterator" in str(caught.value)


def test_test_data_without_a_length_is_refused():
    """Covers contract L1."""
    with pytest.raises(SettingError, match="`test_data` has no length"):
        new_loop().test(iter("t"))


def test_empty_train_data_is_refused():
    """Contract L1: training on no data is an error."""
    with pytest.raises(EmptyDataError, match="train_data has no batches") as caught:
        new_loop(train=[])
    assert "check its length, its sampler, and batch_size with drop_last" in str(caught.value)


# Extensions among the components.


class Trains(LoopComponent):
    """A component that actually trains, on batches of (input, target)."""

    def on_train_begin(self, loop):
        loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=0.1)

    def on_grads_reset(self, loop):
        loop.optimizer.zero_grad()

    def on_forward_pass(self, loop):
        loop.scores = loop.model(loop.batch[0])

    def on_loss_compute(self, loop):
        loop.loss = nn.functional.mse_loss(loop.scores, loop.batch[1])

    def on_backward_pass(self, loop):
        loop.loss.backward()

    def on_optim_step(self, loop):
        loop.optimizer.step()


def pairs(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator)) for _ in range(count)]


def trained(*extras):
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    loop = TrainTestLoop(nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.3)), [Trains(), *extras], pairs(3), pairs(1, seed=1))
    loop.train(2)
    return loop


def test_an_extension_among_the_components_gets_the_loops_attributes_as_fixtures():
    """Covers contracts L6 and L7."""

    class Looks(Extension):
        def post_train_step_batch(self, loop, batch, batch_num, loss, epoch_num, optim_step_num, n_batches, datasource_name, model):
            seen.append((epoch_num, batch_num, optim_step_num, n_batches, datasource_name))
            assert (batch, loss, model) == (loop.batch, loop.loss, loop.model)

    seen = []
    trained(Looks())
    assert seen == [(epoch, batch, 3 * epoch + batch + 1, 3, "train") for epoch in range(2) for batch in range(3)]


def test_an_attribute_that_a_component_sets_is_a_fixture():
    """Covers contract L7."""

    class Looks(Extension):
        def post_forward(self, scores):
            seen.append(tuple(scores.shape))

    seen = []
    trained(Looks())
    assert seen == [(4, 1)] * 8


def test_hooks_run_around_the_callbacks_of_their_stage():
    """Contract L3: the loop opens the stages of a training batch around its callbacks."""

    class Looks(Extension):
        for _stage in ("train", "train_step_epoch", "train_step_batch", "forward", "loss", "backward", "optimizer_step"):
            for _phase in ("pre", "post"):
                locals()[f"{_phase}_{_stage}"] = lambda self, name=f"{_phase} {_stage}": recorder.seen.append((name, ""))

    recorder = Recorder()
    new_loop(recorder, Looks(), train=["a"], valid=[]).train(1)
    assert recorder.names == [
        "pre train", "train_begin",
        "pre train_step_epoch", "epoch_begin",
        "pre train_step_batch", "grads_reset", "batch_begin",
        "pre forward", "forward_pass", "post forward",
        "pre loss", "loss_compute", "post loss",
        "pre backward", "backward_pass", "post backward",
        "pre optimizer_step", "optim_step", "post optimizer_step",
        "batch_end", "post train_step_batch",
        "epoch_end", "post train_step_epoch",
        "epoch_begin", "epoch_end",
        "train_end", "post train",
    ]  # fmt: skip


def test_a_hook_that_asks_for_the_loss_too_early_is_refused_before_the_first_batch():
    class Early(Extension):
        def pre_train_step_batch(self, loss): ...

    recorder = Recorder()
    with pytest.raises(FixtureScopeError, match=r"`Early\.pre_train_step_batch` asks for `loss`, which does not exist at that point"):
        new_loop(recorder, Early()).train(1)
    assert recorder.names == []


def test_an_observer_that_draws_random_numbers_and_switches_modes_changes_nothing():
    """Contract L7: training gives the same bits with and without the observer."""

    class Noisy(Observer):
        def post_train_step_batch(self, model):
            torch.rand(1), random.random(), np.random.rand()
            model.eval()
            torch.set_grad_enabled(False)

        pre_forward = post_train_step_epoch = post_train_step_batch

    quiet, watched = trained(), trained(Noisy())
    assert torch.equal(quiet.model[0].weight, watched.model[0].weight)
    assert torch.equal(quiet.loss, watched.loss)


def test_an_object_can_be_both_a_component_and_an_extension():
    class Both(LoopComponent):
        def on_batch_begin(self, loop):
            seen.append("callback")

        def pre_eval_step_batch(self, batch):
            seen.append(f"hook {batch}")

    seen = []
    new_loop(Both()).test(["t"])
    assert seen == ["hook t", "callback"]


def test_two_extensions_of_one_class_both_run():
    class Looks(Extension):
        def pre_eval_step_epoch(self):
            seen.append(self)

    first, second, seen = Looks(), Looks(), []
    new_loop(first, second).test(["t"])
    assert seen == [first, second]


def test_post_hooks_are_skipped_when_a_run_is_stopped_unless_they_are_always_run():
    """Covers contract L8."""

    class Looks(Extension):
        def post_train_step_batch(self):
            seen.append("post")

        @always
        def post_train_step_epoch(self, exc_type):
            seen.append(issubclass(exc_type, Exception))

    seen = []
    new_loop(Recorder(do={"on_batch_begin": stop}), Looks()).train(1)
    assert seen == [False]


def test_an_error_in_a_component_gets_a_note_with_its_location():
    """Covers contract L10."""
    with pytest.raises(OSError, match="disk full") as caught:
        new_loop(Recorder(do={"on_loss_compute": fail})).train(1)
    assert any("train > train_step_epoch > train_step_batch > loss" in note for note in caught.value.__notes__)


def test_a_test_can_be_run_when_training_ends():
    """Contract L4: a training program often ends with a test."""
    recorder = Recorder(do={"on_train_end": lambda loop: loop.test(["t"])})
    loop = new_loop(recorder)
    loop.train(1)
    assert recorder.seen[-len(EVAL_PASS) :] == [(name, "test") for name in EVAL_PASS]


# The footprint.


def test_the_loop_needs_nothing_but_a_model_and_data(tmp_path, monkeypatch, capfd):
    """Contract L12: the loop needs no store, config or writer, and writes nothing."""
    monkeypatch.chdir(tmp_path)
    trained()
    assert (list(tmp_path.iterdir()), capfd.readouterr()) == ([], ("", ""))


def test_the_package_exports_the_loop_and_its_component_class():
    """Covers contracts L12 and L1."""
    import trainmaster

    assert (trainmaster.TrainTestLoop, trainmaster.LoopComponent) == (TrainTestLoop, LoopComponent)


def test_every_error_of_the_loop_has_one_base_class():
    with pytest.raises(TrainmasterError):
        new_loop(train=[])
