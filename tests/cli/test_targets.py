"""TARGET, and what `run` and `resume` do with it: every form, every wrong one, and every way to go on."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster.store import Store

_path = Path(tiny.__file__)

MANAGERS = """
from tiny_training import Plain

class Mine(Plain):
    defaults = {"lr": 0.1, "epochs": 2, "width": 3}

made = Mine("own-store")

def make(store_dir):
    return Mine(store_dir)

def make_with_options(**options):
    return Mine(**options)

def make_alone():
    return Mine("alone-store")

def needs(something):
    return Mine(something)

def makes_nothing():
    return None

number = 3
class Other: ...
"""


@pytest.fixture(autouse=True)
def clean_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of the test's own are forgotten, as if each command were a process of its own."""
    tiny.draw_nothing(monkeypatch.setattr)
    path = list(sys.path)
    monkeypatch.syspath_prepend(str(_path.parent))
    yield
    forget(tmp_path)
    sys.path[:] = path


def forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "managers.py").write_text(MANAGERS)
    package = tmp_path / "lab"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "managers.py").write_text(MANAGERS)
    return tmp_path


def only_key(store: Path) -> str:
    (key,) = Store(store).configs.keys()
    return key


# ---- forms


@pytest.mark.parametrize(
    ("target", "store"),
    [
        ("managers.py:Mine", "runs"),
        ("./managers.py:Mine", "runs"),
        ("managers:Mine", "runs"),
        ("lab.managers:Mine", "runs"),
        ("lab/managers.py:Mine", "runs"),
        ("managers.py:make", "runs"),
        ("managers.py:make_with_options", "runs"),
        ("managers.py:make_alone", "alone-store"),
        ("managers.py:made", "own-store"),
        ("managers.py", "runs"),
        ("managers", "runs"),
        ("lab.managers", "runs"),
    ],
)
def test_a_target_is_a_class_an_object_or_a_function_of_a_file_or_a_module(call: Any, lab: Path, target: str, store: str) -> None:
    found = call("run", target, "lr=0.5", "-q")
    assert found == (0, "", "")
    key = only_key(lab / store)
    assert Store(lab / store).configs[key] == {"lr": 0.5, "epochs": 2, "width": 3}
    assert Store(lab / store).stats[key]["epoch"] == 2


@pytest.mark.parametrize(
    ("target", "fact", "hint"),
    [
        ("managers.py:Mien", "managers.py` has no `Mien`", "did you mean `Mine`?"),
        ("managers.py:Zzzzzz", "managers.py` has no `Zzzzzz`", "it has Mine"),
        ("mangers.py:Mine", "there is no file `mangers.py`", "did you mean `managers.py`?"),
        ("nowhere/x.py:Mine", "there is no file `nowhere/x.py`", "write `train.py:MyManager`"),
        ("mangers:Mine", "there is no module `mangers`", "did you mean `managers.py`?"),
        ("lab.nothing:Mine", "there is no module `lab.nothing`", "write `train.py:MyManager`"),
        ("managers.py:number", "managers.py:number` is int, and no manager", "wanted a Manager"),
        ("managers.py:Other", "managers.py:Other` is a class, and no manager", "wanted a Manager"),
        ("managers.py:makes_nothing", "managers.py:makes_nothing` is NoneType, and no manager", "wanted a Manager"),
        ("managers.py:", "'managers.py:' names no manager", "write `train.py:MyManager`"),
        (":Mine", "':Mine' names no manager", "write `train.py:MyManager`"),
        ("", "'' names no manager", "write `train.py:MyManager`"),
        ("man agers:Mine", "`man agers` is no module", "write `train.py:MyManager`"),
        ("two.py", "two.py` has 2 managers: A, B", ":A`"),
        ("none.py", "none.py` has no managers", "write a subclass of trainmaster.Manager"),
        ("json.py:Mine", "json.py` has the name of the module `json`", "give the file another name"),
        ("my-file.py:Mine", "`my-file` is no name of a module", "give the file another name"),
        ("managers.py:needs", "managers.py:needs` cannot be called: missing a required argument: 'something'", "store_dir"),
    ],
)
def test_a_wrong_target_says_what_there_is(call: Any, lab: Path, target: str, fact: str, hint: str) -> None:
    (lab / "two.py").write_text("from trainmaster import Manager\nclass A(Manager): ...\nclass B(Manager): ...\n")
    for name in ("none.py", "json.py", "my-file.py"):
        (lab / name).write_text("from trainmaster import Manager\n")
    code, _, err = call("run", target)
    assert code == 2
    assert fact in err
    assert hint in err
    assert "Traceback" not in err
    assert not (lab / "runs").exists(), "a wrong target has made a store"


def test_a_file_that_imports_what_is_not_there_says_so_and_not_that_it_is_missing_itself(call: Any, lab: Path) -> None:
    (lab / "broken.py").write_text("import no_such_library\n")
    code, _, err = call("run", "broken:Mine")
    assert code == 1
    assert "No module named 'no_such_library'" in err


# ---- config


def test_misspelt_names_of_the_config_are_told_with_the_nearest(call: Any, lab: Path) -> None:
    code, _, err = call("run", "managers.py:Mine", "widht=4", "epohcs=3")
    assert code == 2
    assert "widht: no such key; did you mean `width`?" in err
    assert "epohcs: no such key; did you mean `epochs`?" in err


def test_a_new_name_is_added_with_a_plus_and_a_file_comes_first(call: Any, lab: Path) -> None:
    (lab / "base.yaml").write_text("lr: 0.7\nwidth: 9\n")
    assert call("run", "managers.py:Mine", "lr=0.8", "+note=new", "--config", "base.yaml", "-q").code == 0
    assert Store(lab / "runs").configs[only_key(lab / "runs")] == {"lr": 0.8, "width": 9, "note": "new", "epochs": 2}


# ---- again


def test_a_second_run_says_that_it_is_done_and_more_epochs_go_on(call: Any, lab: Path) -> None:
    assert call("run", "managers.py:Mine").code == 0
    key = only_key(lab / "runs")
    again = call("run", "managers.py:Mine")
    assert (again.code, f"run {key} is at epoch 2 already" in again.out) == (0, True)
    more = call("run", "managers.py:Mine", "--epochs", 4)
    assert f"run {key} goes on from epoch 2 to 4" in more.out
    assert only_key(lab / "runs") == key
    assert Store(lab / "runs").stats[key]["epoch"] == 4
    assert f"-m trainmaster show {key}" in more.out


def test_fresh_starts_again_in_a_new_attempt_and_keeps_the_old_one(call: Any, lab: Path) -> None:
    assert call("run", "managers.py:Mine", "--epochs", 4).code == 0
    key = only_key(lab / "runs")
    found = call("run", "managers.py:Mine", "--fresh")
    assert f"run {key} starts, for 2 epochs" in found.out
    assert Store(lab / "runs").stats[key]["epoch"] == 2
    assert Store(lab / "runs").run(key).attempts() == [2, 1]


def test_from_makes_a_new_run_that_starts_with_those_weights(call: Any, lab: Path) -> None:
    (lab / "loops.py").write_text("from tiny_training import Tiny\nclass Mine(Tiny): ...\n")
    assert call("run", "loops.py:Mine", "-q").code == 0
    store = Store(lab / "runs")
    first = only_key(lab / "runs")
    best = store.stats[first]["best"]
    assert best["step"] != 12, "the test wants a best that is not the last"
    planned = call("run", "loops.py:Mine", "lr=0.01", "--from", f"{first[:5]}@best", "--dry-run")
    assert call("run", "loops.py:Mine", "lr=0.01", "--from", f"{first[:5]}@best", "--epochs", 0, "-q") == (0, "", "")
    (second,) = set(store.configs.keys()) - {first}
    assert store.configs[second]["start_from"] == f"{first}@{best['step']}"
    origin, start = store.run(first).checkpoint("best"), store.run(second).latest()
    assert origin is not None
    assert start is not None
    assert tiny.bits(start.value["state"]["objects"]["model"]) == tiny.bits(origin.value["state"]["objects"]["model"])
    assert start.name.step == 0
    assert f"key     {second}" in planned.out, "--dry-run tells another key than the run has"


@pytest.mark.parametrize(
    ("word", "fact", "hint"),
    [
        ("{key}@bets", "wanted a step, `best` or `last` after the @", "did you mean `best`?"),
        ("{key}@999", "has no checkpoint 999", "show"),
        ("ffffffff", "no run has a key that starts with `ffffffff`", "trainmaster ls"),
        ("what?", "'what?' is no key", "0-9 and a-f"),
    ],
)
def test_a_wrong_origin_is_told(call: Any, lab: Path, word: str, fact: str, hint: str) -> None:
    (lab / "loops.py").write_text("from tiny_training import Tiny\nclass Mine(Tiny): ...\n")
    assert call("run", "loops.py:Mine", "-q", "--epochs", 0).code == 0
    code, _, err = call("run", "loops.py:Mine", "lr=0.01", "--from", word.format(key=only_key(lab / "runs")))
    assert (code, fact in err, hint in err) == (2, True, True), err


# ---- resume


def test_resume_goes_on_from_another_folder_as_far_as_it_was_to_go(call: Any, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("lab.managers:Mine", "managers.py:Mine"):
        assert call("run", target, "lr=0.3", "-q", "--store", "s").code == 0
        forget(lab)
    key = only_key(lab / "s")
    away = lab / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    found = call("resume", key[:4], "--store", lab / "s", "--epochs", 5)
    assert found.code == 0, found.err
    assert f"run {key} goes on from epoch 2 to 5" in found.out
    forget(lab)
    again = call("resume", key, "--store", lab / "s")
    assert f"run {key} is at epoch 5 already" in again.out


def test_resume_finds_the_module_it_was_started_with_and_not_one_of_the_same_name(
    call: Any, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("run", "lab.managers:Mine", "-q").code == 0
    forget(lab)
    away = lab / "away" / "lab"
    away.mkdir(parents=True)
    (away / "__init__.py").touch()
    (away / "managers.py").write_text("raise SystemError('another module of that name')\n")
    monkeypatch.chdir(away.parent)
    found = call("resume", only_key(lab / "runs"), "--store", lab / "runs", "--epochs", 3)
    assert (found.code, found.err) == (0, "")


def test_resume_of_a_run_that_a_program_started_asks_for_the_manager(call: Any, lab: Path) -> None:
    tiny.Plain(lab / "runs", verbose=False).process({"lr": 0.4, "epochs": 1})
    key = only_key(lab / "runs")
    code, _, err = call("resume", key)
    assert code == 2
    assert f"run {key} was not started by `trainmaster run`" in err
    assert f"trainmaster resume {key} --target train.py:MyManager" in err
    found = call("resume", key, "--target", f"{_path}:Plain", "--epochs", 2)
    assert (found.code, f"run {key} goes on from epoch 1 to 2" in found.out) == (0, True), found.err


def test_resume_with_changed_defaults_says_so_or_keeps_the_run_as_it_was(call: Any, lab: Path) -> None:
    assert call("run", "managers.py:Mine", "-q").code == 0
    key = only_key(lab / "runs")
    (lab / "managers.py").write_text(MANAGERS.replace('"width": 3', '"width": 4'))
    forget(lab)
    kept = call("resume", key, "--epochs", 3)
    assert (kept.code, Store(lab / "runs").configs[key]["width"]) == (0, 3), "a value that was stored counts"
    (lab / "managers.py").write_text(MANAGERS.replace('"width": 3', '"width": 3, "depth": 1'))
    forget(lab)
    code, _, err = call("resume", key, "--epochs", 4)
    assert code == 2
    assert f"this manager makes another run of the config of {key}" in err
    assert "its defaults or `get_config` have changed since" in err
    assert Store(lab / "runs").stats[key]["epoch"] == 3


def test_a_run_of_a_sweep_with_workers_can_be_resumed_as_it_says(lab: Path) -> None:
    """The worker's attempts know what started them."""
    with tiny.workshop(lab) as shop:
        process = shop.start("command_line", words=["sweep", "managers.py:Mine", "lr=0.1", "--workers", "1", "-q"])
        assert (process.wait(), process.out, process.err) == (0, "", "")
    claim = Store(lab / "runs").run(only_key(lab / "runs")).claim_of(1)
    assert (claim.get("target"), claim.get("folder"), claim.get("num_epochs")) == (f"{lab / 'managers.py'}:Mine", str(lab), 2)


def test_a_command_to_paste_names_the_program_so_that_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.cli.launching import program

    script = tmp_path / "bin" / "trainmaster"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "run"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == (str(script),)
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == ("trainmaster",)


def test_the_next_commands_can_be_pasted_into_a_shell_whatever_the_store_is_called(call: Any, lab: Path) -> None:
    store = str(lab / "with space; touch y")
    shown = [line for line in call("run", "managers.py:Mine", "--store", store).out.splitlines() if "--store" in line]
    assert [shlex.split(line)[-2:] for line in shown] == [["--store", store]] * 2


LEAVES = """
import sys
from trainmaster import Extension
from managers import Mine

class Leaves(Extension):
    def pre_work_train(self):
        sys.exit(CODE)

class Leaving(Mine):
    extensions = [Leaves()]
"""


ENDED = "`sys.exit()` ended the program before its work was done\n  where   `Leaves.pre_work_train` (extension `leaves`, "


@pytest.mark.parametrize(("given", "code", "told"), [("", 1, ENDED), ("0", 1, ENDED), ("'enough'", 1, "enough\n"), ("7", 7, "")])
def test_a_hook_that_calls_exit_does_not_pass_for_a_success(call: Any, lab: Path, given: str, code: int, told: str) -> None:
    (lab / "leaving.py").write_text(LEAVES.replace("CODE", given))
    found = call("run", "leaving.py:Leaving", "-q")
    assert found.code == code
    assert found.err.startswith(told)
    run = Store(lab / "runs").run(only_key(lab / "runs"))
    assert (run.outcome_of(1) or {})["outcome"] == "failed"
