"""The first example of an extensible class runs as a program. This file also tests the bare function `staged`."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainmaster.errors import NoRunningStageError
from trainmaster.stages import Extensible, staged

SEED_001 = """
from trainmaster.stages import Extensible, Extension, staged

class MyExtension(Extension):
    def pre_my_stage(self, var_a):
        print('Before the stage')
    def post_my_stage(self, var_a, var_b):
        print(f'After the stage: {var_a}, {var_b}')

class MyExtensibleClass(Extensible):
    extensions = [MyExtension()]
    def my_extensible_method(self):
        with staged('my_stage', {'var_a': 1}):
            self.fixtures['var_b'] = 2

MyExtensibleClass().my_extensible_method()
"""


def test_the_example_prints_the_documented_output(tmp_path):
    program = tmp_path / "seed_001.py"
    program.write_text(SEED_001)
    done = subprocess.run([sys.executable, "-W", "error", str(program)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "Before the stage\nAfter the stage: 1, 2\n"


class Teller:
    def __init__(self):
        self.log = []

    def pre_inner(self, x):
        self.log.append(x)


class Routine(Extensible):
    def __init__(self):
        self.extensions = {"teller": Teller()}

    def run(self, function):
        with self.staged("outer"):
            function()

    def run_bare(self):
        with staged("inner", {"x": "bare"}):
            pass


def open_inner():
    with staged("inner", {"x": "plain"}):
        pass


def test_a_bare_stage_in_a_method_belongs_to_its_object():
    routine = Routine()
    routine.run_bare()
    assert routine["teller"].log == ["bare"]


def test_a_bare_stage_in_a_plain_function_belongs_to_the_running_routine():
    routine = Routine()
    routine.run(open_inner)
    assert routine["teller"].log == ["plain"]


def test_a_bare_stage_in_a_hook_belongs_to_the_running_routine():
    class Opens:
        def pre_outer(self):
            with staged("inner", {"x": "hook"}):
                pass

    routine = Routine()
    routine.add_extension("opens", Opens())
    routine.run(lambda: None)
    assert routine["teller"].log == ["hook"]


def test_a_bare_stage_takes_defaults():
    routine = Routine()

    def with_default():
        with staged("inner", defaults={"x": "default"}):
            pass

    routine.run(with_default)
    assert routine["teller"].log == ["default"]


def test_a_bare_stage_belongs_to_the_innermost_of_two_running_routines():
    outer, inner = Routine(), Routine()
    with pytest.warns(UserWarning, match="no stage `inner` was opened"):
        outer.run(lambda: inner.run(open_inner))
    assert (outer["teller"].log, inner["teller"].log) == ([], ["plain"])


def test_a_bare_stage_belongs_to_the_outer_routine_again_when_the_inner_one_ended():
    outer, inner = Routine(), Routine()

    def body():
        inner.run(open_inner)
        open_inner()

    outer.run(body)
    assert outer["teller"].log == ["plain"]


def test_a_bare_stage_outside_any_routine_is_refused_with_its_location():
    with pytest.raises(NoRunningStageError) as caught:
        open_inner()
    text = str(caught.value)
    assert text.splitlines()[0] == "staged('inner') was called while no extensible method is running"
    assert f"  where   {__file__}:" in text
    assert text.splitlines()[1].endswith("in open_inner")
    assert "  try     call it from a method of an Extensible, or write `obj.staged(...)`" in text


def test_no_routine_is_running_after_a_failure():
    routine = Routine()

    def body():
        open_inner()
        raise ValueError

    with pytest.raises(ValueError):
        routine.run(body)
    with pytest.raises(NoRunningStageError):
        open_inner()


def test_a_routine_of_another_thread_does_not_count_as_running():
    routine = Routine()

    def body():
        open_inner()
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(NoRunningStageError):
                pool.submit(open_inner).result()

    routine.run(body)
