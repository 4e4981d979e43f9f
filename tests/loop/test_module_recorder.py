"""The constructor arguments of modules without `tracked` are recorded while a loop is built."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from abc import ABC
from typing import Any

import pytest
from torch import nn

from trainmaster import Recipe, tracked
from trainmaster.loop import module_recorder
from trainmaster.loop.module_recorder import ModuleRecorder
from trainmaster.stages.recorded_call import recorded_call


class Net(nn.Module):
    def __init__(self, width: int, depth: int = 2, **more: Any) -> None:
        width = width * 2
        super().__init__()
        self.first = nn.Linear(width, depth)
        more.clear()


class Deeper(Net):
    def __init__(self, depth: int) -> None:
        super().__init__(3, depth)


class Same(Net): ...


class Abstract(nn.Module, ABC):
    def __init__(self, at: int) -> None:
        super().__init__()


class Bare(nn.Module): ...


def all_constructors() -> dict[type, Any]:
    found, rest = {}, [nn.Module]
    while rest:
        kind = rest.pop()
        found[kind] = vars(kind).get("__init__")
        rest += type.__subclasses__(kind)
    return found


class TestRecorder:
    def test_arguments_are_recorded_as_passed_even_if_the_constructor_changes_them(self) -> None:
        with ModuleRecorder():
            net = Net(3, extra=[1])
        assert recorded_call(net) == (Net, (3,), {"extra": [1]})
        assert recorded_call(net.first) == (nn.Linear, (6, 2), {})

    @pytest.mark.parametrize(("kind", "given"), [(Deeper, (5,)), (Same, (3, 4)), (Abstract, (7,))])
    def test_the_recorded_call_is_that_of_the_class_and_not_of_its_base(self, kind: Any, given: tuple[int, ...]) -> None:
        with ModuleRecorder():
            made = kind(*given)
        assert recorded_call(made) == (kind, given, {})

    def test_a_class_that_is_defined_while_recording_is_recorded(self) -> None:
        with ModuleRecorder():

            class New(nn.Module):
                def __init__(self, at: int) -> None:
                    super().__init__()

            made = New(3)
        assert recorded_call(made).args == (3,)  # type: ignore[union-attr]
        assert recorded_call(New(3)) is None

    def test_every_class_is_restored_afterwards(self) -> None:
        before = all_constructors()
        with pytest.raises(ZeroDivisionError), ModuleRecorder():
            assert vars(nn.Linear)["__init__"] is not before[nn.Linear]
            Net(1 // 0)
        assert all_constructors() == before
        assert "__init_subclass__" not in vars(nn.Module)
        assert recorded_call(Net(3)) is None

    def test_signatures_do_not_change_while_recording(self) -> None:
        with ModuleRecorder():
            assert list(inspect.signature(Net).parameters) == ["width", "depth", "more"]

    def test_recorders_in_different_threads_are_independent(self) -> None:
        made: list[Any] = []
        before = all_constructors()

        def other() -> None:
            made.append(Net(1))
            with ModuleRecorder():
                made.append(Net(2))

        with ModuleRecorder():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            made.append(Net(3))
        assert [recorded_call(each) and recorded_call(each).args for each in made] == [None, (2,), (3,)]  # type: ignore[union-attr]
        assert all_constructors() == before

    def test_after_a_nested_recorder_the_outer_one_continues(self) -> None:
        with ModuleRecorder():
            with ModuleRecorder() as inner:
                one = Net(1)
            inner.forget()
            two = Net(2)
        assert recorded_call(one) is None
        assert recorded_call(two) is not None

    def test_a_constructor_that_other_code_replaced_while_recording_stays(self) -> None:
        class Marked(nn.Module):
            def __init__(self, at: int) -> None:
                super().__init__()

        with ModuleRecorder():
            tracked(Marked)
        assert recorded_call(Marked(3)).args == (3,)  # type: ignore[union-attr]

    def test_forgetting_frees_the_arguments(self) -> None:
        class Large: ...

        large = Large()
        gone = weakref.ref(large)
        with ModuleRecorder() as recorder:
            net = Net(3, large=large)
        del large
        gc.collect()
        assert gone() is not None
        recorder.forget()
        gc.collect()
        assert gone() is None
        assert recorded_call(net) is None

    def test_forgetting_keeps_the_arguments_of_recipes(self) -> None:
        with ModuleRecorder() as recorder:
            made = Recipe(nn.Linear, 3, 1)()
        recorder.forget()
        assert recorded_call(made) is not None

    def test_a_module_that_is_deleted_while_recording_is_freed(self) -> None:
        with ModuleRecorder() as recorder:
            gone = weakref.ref(Net(3))
            gc.collect()
            assert gone() is None
        recorder.forget()


def test_an_interrupted_start_restores_all_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    before, wrap = vars(nn.Linear)["__init__"], module_recorder._wrap

    def interrupted(kind: type) -> None:
        wrap(kind)
        if kind is nn.Linear:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module_recorder, "_wrap", interrupted)
        ModuleRecorder().__enter__()
    assert vars(nn.Linear)["__init__"] is before
