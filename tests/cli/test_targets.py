"""`run` and `resume` accept every form of TARGET, explain mistakes, and resume runs in every documented way."""

from __future__ import annotations

import importlib
import re
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

def needs(something, more):
    return Mine(something)

def needs_more(store_dir, something):
    return Mine(store_dir)

def makes_nothing():
    return None

number = 3
class Other: ...
"""


@pytest.fixture(autouse=True)
def clean_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules that a test imported, as if each command ran in its own process."""
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
def test_a_target_can_be_a_class_an_object_or_a_function_of_a_file_or_a_module(call: Any, lab: Path, target: str, store: str) -> None:
    found = call("run", target, "lr=0.5", "-q")
    assert found == (0, "", "")
    key = only_key(lab / store)
    assert Store(lab / store).configs[key] == {"lr": 0.5, "epochs": 2, "width": 3}
    assert Store(lab / store).stats[key]["epoch"] == 2


def test_a_file_is_imported_even_if_a_package_next_to_it_has_the_same_name(call: Any, lab: Path) -> None:
    (lab / "lab.py").write_text(MANAGERS)
    (lab / "lab" / "__init__.py").write_text("raise RuntimeError('the package was imported')")
    assert call("run", "lab.py:Mine", "lr=0.5", "-q") == (0, "", "")
    assert len(Store(lab / "runs").configs) == 1


@pytest.mark.parametrize(
    ("target", "fact", "hint"),
    [
        ("managers.py:Mien", "managers.py` has no `Mien`", "did you mean `Mine`?"),
        ("managers.py:Zzzzzz", "managers.py` has no `Zzzzzz`", "it has Mine"),
        ("mangers.py:Mine", "there is no file `mangers.py`", "did you mean `managers.py`?"),
        ("nowhere/x.py:Mine", "there is no file `nowhere/x.py`", "write `train.py:make_loop`"),
        ("mangers:Mine", "there is no module `mangers`", "did you mean `managers.py`?"),
        ("lab.nothing:Mine", "there is no module `lab.nothing`", "write `train.py:make_loop`"),
        ("managers.py:number", "managers.py:number` is int, not a manager", "name a function `make_loop(config)`"),
        ("managers.py:Other", "managers.py:Other` is a class, not a manager", "name a function `make_loop(config)`"),
        ("managers.py:makes_nothing", "managers.py:makes_nothing` is NoneType, not a manager", "name a function `make_loop(config)`"),
        ("managers.py:", "'managers.py:' is not a TARGET", "write `train.py:make_loop`"),
        (":Mine", "':Mine' is not a TARGET", "write `train.py:make_loop`"),
        ("", "'' is not a TARGET", "write `train.py:make_loop`"),
        ("man agers:Mine", "`man agers` is not the name of a module", "write `train.py:make_loop`"),
        ("two.py", "two.py` has 2 targets: A, B", ":A`"),
        ("none.py", "none.py` has neither a function `make_loop(config)` nor a manager", "write `def make_loop(config)`"),
        ("json.py:Mine", "json.py` has the name of the module `json`", "rename the file"),
        ("my-file.py:Mine", "`my-file` is not a valid module name", "rename the file"),
        (
            "managers.py:needs",
            "managers.py:needs` cannot be called: missing a required argument: 'something'",
            "`config` or `store_dir`",
        ),
        (
            "managers.py:needs_more",
            "managers.py:needs_more` cannot be called: missing a required argument: 'something'",
            "`config` or `store_dir`",
        ),
    ],
)
def test_a_wrong_target_is_refused_and_the_alternatives_are_listed(call: Any, lab: Path, target: str, fact: str, hint: str) -> None:
    (lab / "two.py").write_text("from trainmaster import Manager\nclass A(Manager): ...\nclass B(Manager): ...\n")
    for name in ("none.py", "json.py", "my-file.py"):
        (lab / name).write_text("from trainmaster import Manager\n")
    code, _, err = call("run", target)
    assert code == 2
    assert fact in err
    assert hint in err
    assert "Traceback" not in err
    assert not (lab / "runs").exists(), "a wrong target has created a store"


def test_a_missing_import_in_the_target_file_is_reported_as_such(call: Any, lab: Path) -> None:
    (lab / "broken.py").write_text("import no_such_library\n")
    code, _, err = call("run", "broken:Mine")
    assert code == 1
    assert "No module named 'no_such_library'" in err


# ---- config


def test_misspelled_config_keys_are_errors_with_the_nearest_name(call: Any, lab: Path) -> None:
    code, _, err = call("run", "managers.py:Mine", "widht=4", "epohcs=3")
    assert code == 2
    assert "widht: no such key; did you mean `width`?" in err
    assert "epohcs: no such key; did you mean `epochs`?" in err


def test_a_plus_adds_a_new_key_and_arguments_override_a_file(call: Any, lab: Path) -> None:
    (lab / "base.yaml").write_text("lr: 0.7\nwidth: 9\n")
    assert call("run", "managers.py:Mine", "lr=0.8", "+note=new", "--config", "base.yaml", "-q").code == 0
    assert Store(lab / "runs").configs[only_key(lab / "runs")] == {"lr": 0.8, "width": 9, "note": "new", "epochs": 2}


TYPED = """
from trainmaster import ConfigBase, Manager, configclass

@configclass
class Optim(ConfigBase):
    lr: float = 0.1
    arguments: dict[str, float] = {"momentum": 0.9}

@configclass
class Train(ConfigBase):
    optim: Optim = Optim()
    epochs: int = 1
    sizes: list[int] = [4, 8]

@configclass
class Named(Train):
    name: str

class Typed(Manager):
    defaults = Train

    def train(self):
        self.ckpt["x"] = self.config.optim.lr

    def eval(self):
        return {"loss": 1.0}

class NeedsName(Typed):
    defaults = Named
"""


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    (tmp_path / "typed.py").write_text(TYPED)
    (tmp_path / "exp.yaml").write_text("optim:\n  lr: 0.5\nsizes: [1, 2]\n")
    return tmp_path


def planned(out: str) -> dict[str, list[str]]:
    """Return the lines that `--dry-run` prints, by their headings."""
    found: dict[str, list[str]] = {}
    for line in out.splitlines():
        if line.startswith("  "):
            found[[*found][-1]].append(re.sub("  +", "  ", line.strip()))
        else:
            found[line] = []
    return found


def test_a_file_and_arguments_can_be_combined_for_a_typed_config(call: Any, typed: Path) -> None:
    words = ("run", "typed.py:Typed", "optim.lr=1e-3", "sizes.1=3", "--config", "exp.yaml")
    found = call(*words, "--dry-run")
    assert found.code == 0, found.err
    assert planned(found.out)["changed from the defaults"] == ["optim.lr  0.1 -> 0.001", "sizes  [4, 8] -> [1, 3]"]
    assert call(*words, "-q") == (0, "", "")
    assert Store(typed / "runs").configs[only_key(typed / "runs")].flatten()["optim.lr"] == 0.001


def test_arguments_can_set_required_fields_that_are_not_in_the_file(call: Any, typed: Path) -> None:
    found = call("run", "typed.py:NeedsName", "name=a", "optim.lr=0.3", "--config", "exp.yaml", "--dry-run")
    assert found.code == 0, found.err
    changed = planned(found.out)["changed from the defaults"]
    assert changed == ["optim.lr  0.1 -> 0.3", "sizes  [4, 8] -> [1, 2]", "name  none -> 'a'"]
    assert "name: is missing" in call("run", "typed.py:NeedsName", "--config", "exp.yaml").err


def test_a_typed_config_with_its_defaults_shows_no_changes(call: Any, typed: Path) -> None:
    lines = call("run", "typed.py:Typed", "optim.lr=0.1", "--dry-run").out.splitlines()
    assert [line.split()[0] for line in lines] == ["target", "key", "store", "nothing"]


@pytest.mark.parametrize(("key", "meant"), [("lr", "`optim.lr`"), ("momentum", "`optim.arguments.momentum`"), ("epoch", "`epochs`")])
def test_an_unknown_key_suggests_the_key_with_its_group(call: Any, typed: Path, key: str, meant: str) -> None:
    for word in ("run", "sweep"):
        found = call(word, "typed.py:Typed", f"{key}=0.1")
        assert (found.code, f"did you mean {meant}?" in found.err) == (2, True), found


def test_a_config_file_can_be_the_base_of_a_sweep(call: Any, typed: Path) -> None:
    (typed / "choices.yaml").write_text("optim:\n  lr: [0.2, 0.3]\n")
    by_words = call("sweep", "typed.py:Typed", "optim.lr=0.2,0.3", "--config", "exp.yaml", "--dry-run")
    by_file = call("sweep", "typed.py:Typed", "choices.yaml", "--config", "exp.yaml", "--dry-run")
    assert by_words == by_file
    assert "runs     2" in by_words.out
    assert [line.split("  ")[-1] for line in by_words.out.splitlines()[-2:]] == ["optim.lr=0.2", "optim.lr=0.3"]
    assert call("sweep", "typed.py:Typed", "optim.lr=0.2,0.3", "--config", "exp.yaml", "-q").code == 0
    stored = [Store(typed / "runs").configs[key].flatten() for key in Store(typed / "runs").configs]
    assert sorted(each["optim.lr"] for each in stored) == [0.2, 0.3]
    assert [each["sizes"] for each in stored] == [[1, 2], [1, 2]], "a list in the file was treated as choices"


def test_a_sweep_argument_without_values_is_an_error_that_explains_choices(call: Any, lab: Path) -> None:
    found = call("sweep", "managers.py:Mine", "lr")
    assert (found.code, "there is no file `lr`\n  try     write choices as `lr=0.1,0.01`" in found.err) == (2, True), found


def test_a_sweep_refuses_keys_that_neither_the_file_nor_the_defaults_have(call: Any, lab: Path) -> None:
    (lab / "base.yaml").write_text("lr: 0.7\nnote: a\n")
    found = call("sweep", "managers.py:Mine", "nte=a,b", "--config", "base.yaml")
    assert (found.code, "nte: no such key; did you mean `note`?" in found.err) == (2, True)


def test_a_sweep_reports_all_wrong_values_before_it_trains_anything(call: Any, typed: Path) -> None:
    words = ("sweep", "typed.py:Typed", "optim.lr=0.1,foo,bar", "epochs=1,x")
    for extra in ((), ("--dry-run",), ("--workers", "1")):
        found = call(*words, *extra)
        assert (found.code, len(found.out.splitlines())) == (2, 1), found
        assert found.err.splitlines()[0].endswith("3 problems in the sweep"), found.err
        for line in ("optim.lr = 'foo': expected a number", "optim.lr = 'bar': expected a number", "epochs = 'x': expected a whole number"):
            assert found.err.count(line) == 1, found.err
    assert [*Store(typed / "runs").configs] == []


def test_a_sweep_with_very_many_combinations_reports_each_wrong_value(call: Any, typed: Path) -> None:
    many = ",".join(map(str, range(1, 201)))
    found = call("sweep", "typed.py:Typed", f"optim.lr={many},foo", f"epochs={many}", "--dry-run")
    assert (found.code, "optim.lr = 'foo': expected a number" in found.err) == (2, True), found


# ---- repeated runs


def test_a_second_run_is_already_done_and_more_epochs_continue_it(call: Any, lab: Path) -> None:
    assert call("run", "managers.py:Mine").code == 0
    key = only_key(lab / "runs")
    again = call("run", "managers.py:Mine")
    assert (again.code, f"run {key} is at epoch 2 already" in again.out) == (0, True)
    more = call("run", "managers.py:Mine", "--epochs", 4)
    assert f"run {key} resumes from epoch 2, target 4" in more.out
    assert only_key(lab / "runs") == key
    assert Store(lab / "runs").stats[key]["epoch"] == 4
    assert f"-m trainmaster show {key}" in more.out


def test_fresh_starts_a_new_attempt_and_keeps_the_old_one(call: Any, lab: Path) -> None:
    assert call("run", "managers.py:Mine", "--epochs", 4).code == 0
    key = only_key(lab / "runs")
    found = call("run", "managers.py:Mine", "--fresh")
    assert f"run {key} starts, for 2 epochs" in found.out
    assert Store(lab / "runs").stats[key]["epoch"] == 2
    assert Store(lab / "runs").run(key).attempts() == [2, 1]


def test_from_creates_a_new_run_that_starts_with_the_weights_of_another(call: Any, lab: Path) -> None:
    (lab / "loops.py").write_text("from tiny_training import Tiny\nclass Mine(Tiny): ...\n")
    assert call("run", "loops.py:Mine", "-q").code == 0
    store = Store(lab / "runs")
    first = only_key(lab / "runs")
    best = store.stats[first]["best"]
    assert best["step"] != 12, "the test needs a best checkpoint that is not the last"
    planned = call("run", "loops.py:Mine", "lr=0.01", "--from", f"{first[:5]}@best", "--dry-run")
    assert call("run", "loops.py:Mine", "lr=0.01", "--from", f"{first[:5]}@best", "--epochs", 0, "-q") == (0, "", "")
    (second,) = set(store.configs.keys()) - {first}
    assert store.configs[second]["start_from"] == f"{first}@{best['step']}"
    origin, start = store.run(first).checkpoint("best"), store.run(second).latest()
    assert origin is not None
    assert start is not None
    assert tiny.bits(start.value["state"]["objects"]["model"]) == tiny.bits(origin.value["state"]["objects"]["model"])
    assert start.name.step == 0
    assert f"key    {second}" in planned.out, "the key that --dry-run prints is not the key of the run"


@pytest.mark.parametrize(
    ("word", "fact", "hint"),
    [
        ("{key}@bets", "expected a step, `best` or `last` after the @", "did you mean `best`?"),
        ("{key}@999", "has no checkpoint 999", "show"),
        ("ffffffff", "no run has a key that starts with `ffffffff`", "trainmaster ls"),
        ("what?", "'what?' is not a key", "0-9 and a-f"),
    ],
)
def test_an_invalid_from_is_refused(call: Any, lab: Path, word: str, fact: str, hint: str) -> None:
    (lab / "loops.py").write_text("from tiny_training import Tiny\nclass Mine(Tiny): ...\n")
    assert call("run", "loops.py:Mine", "-q", "--epochs", 0).code == 0
    code, _, err = call("run", "loops.py:Mine", "lr=0.01", "--from", word.format(key=only_key(lab / "runs")))
    assert (code, fact in err, hint in err) == (2, True, True), err


# ---- resume


def test_resume_from_another_folder_continues_to_the_original_target(call: Any, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("lab.managers:Mine", "managers.py:Mine"):
        assert call("run", target, "lr=0.3", "-q", "--store", "s").code == 0
        forget(lab)
    key = only_key(lab / "s")
    away = lab / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    found = call("resume", key[:4], "--store", lab / "s", "--epochs", 5)
    assert found.code == 0, found.err
    assert f"run {key} resumes from epoch 2, target 5" in found.out
    forget(lab)
    again = call("resume", key, "--store", lab / "s")
    assert f"run {key} is at epoch 5 already" in again.out


def test_resume_finds_the_original_module_and_not_another_one_with_the_same_name(
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


def test_resume_of_a_run_that_a_program_started_requires_a_target(call: Any, lab: Path) -> None:
    tiny.Plain(lab / "runs", verbose=False).process({"lr": 0.4, "epochs": 1})
    key = only_key(lab / "runs")
    code, _, err = call("resume", key)
    assert code == 2
    assert f"run {key} was not started by `trainmaster run`" in err
    assert f"trainmaster resume {key} --target train.py:make_loop" in err
    found = call("resume", key, "--target", f"{_path}:Plain", "--epochs", 2)
    assert (found.code, f"run {key} resumes from epoch 1, target 2" in found.out) == (0, True), found.err


def test_resume_with_changed_defaults_is_refused_or_leaves_the_run_unchanged(call: Any, lab: Path) -> None:
    assert call("run", "managers.py:Mine", "-q").code == 0
    key = only_key(lab / "runs")
    (lab / "managers.py").write_text(MANAGERS.replace('"width": 3', '"width": 4'))
    forget(lab)
    kept = call("resume", key, "--epochs", 3, "--trust")
    assert (kept.code, Store(lab / "runs").configs[key]["width"]) == (0, 3), "the stored value is used"
    (lab / "managers.py").write_text(MANAGERS.replace('"width": 3', '"width": 3, "depth": 1'))
    forget(lab)
    code, _, err = call("resume", key, "--epochs", 4, "--trust")
    assert code == 2
    assert f"trains another run with the config of {key}" in err
    assert "its defaults or `get_config` have changed since" in err
    assert Store(lab / "runs").stats[key]["epoch"] == 3


def test_the_printed_command_resumes_a_run_of_a_sweep_with_workers(lab: Path) -> None:
    """The attempts of a worker record the command that started the sweep."""
    with tiny.workshop(lab) as shop:
        process = shop.start("command_line", words=["sweep", "managers.py:Mine", "lr=0.1", "--workers", "1", "-q"])
        assert (process.wait(), process.out, process.err) == (0, "", "")
    claim = Store(lab / "runs").run(only_key(lab / "runs")).claim_of(1)
    assert (claim.get("target"), claim.get("folder"), claim.get("num_epochs")) == (f"{lab / 'managers.py'}:Mine", str(lab), 2)


def test_a_printed_command_names_the_program_so_that_the_shell_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.cli.load_manager import get_program

    script = tmp_path / "bin" / "trainmaster"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "run"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert get_program() == (str(script),)
    monkeypatch.setenv("PATH", str(script.parent))
    assert get_program() == ("trainmaster",)


def test_printed_commands_can_be_pasted_into_a_shell_for_any_store_path(call: Any, lab: Path) -> None:
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


ENDED = "`sys.exit()` ended the program during the run\n  where   `Leaves.pre_work_train` (extension `leaves`, "


@pytest.mark.parametrize(("given", "code", "told"), [("", 1, ENDED), ("0", 1, ENDED), ("'enough'", 1, "enough\n"), ("7", 7, "")])
def test_a_hook_that_calls_exit_is_not_a_success(call: Any, lab: Path, given: str, code: int, told: str) -> None:
    (lab / "leaving.py").write_text(LEAVES.replace("CODE", given))
    found = call("run", "leaving.py:Leaving", "-q")
    assert found.code == code
    assert found.err.startswith(told)
    run = Store(lab / "runs").run(only_key(lab / "runs"))
    assert (run.outcome_of(1) or {})["outcome"] == "failed"


# ---- secrets


SECRETS = MANAGERS.replace('"width": 3}', '"width": 3, "api_key": None}\n    secrets = ("api_key", "hub.api_key")')


def written(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and path.name != "store.json"]


@pytest.mark.parametrize("words", [("run",), ("run", "--dry-run"), ("sweep", "lr=0.1,0.2"), ("sweep", "lr=0.1,0.2", "--dry-run")])
def test_an_undeclared_secret_is_refused_before_anything_is_written(call: Any, lab: Path, words: tuple[str, ...]) -> None:
    command, *others = words
    code, _, err = call(command, "managers.py:Mine", "+hub.password=hunter2", *others, "-q")
    assert (code, "hub.password: looks like a secret, judging by its name" in err, "hunter2" in err) == (2, True, False)
    assert written(lab / "runs") == []


def test_a_declared_secret_is_not_part_of_the_key_and_is_not_stored(call: Any, lab: Path) -> None:
    (lab / "managers.py").write_text(SECRETS)
    assert call("run", "managers.py:Mine", "api_key=canary-one", "+hub.api_key=canary-two", "-q") == (0, "", "")
    key = only_key(lab / "runs")
    shown = call("run", "managers.py:Mine", "api_key=another-one", "+hub.api_key=canary-two", "--dry-run").out
    assert (f"key    {key}" in shown, "api_key  '***'" in shown, "another" in shown) == (True, True, False)
    assert all(b"canary" not in path.read_bytes() for path in (lab / "runs").rglob("*") if path.is_file())
    swept = call("sweep", "managers.py:Mine", "api_key=canary-one,canary-two", "--dry-run")
    assert (swept.code, "api_key: all its values give the same run" in swept.err, "canary" in swept.err) == (2, True, False)


def test_a_run_is_resumed_with_secrets_from_the_environment(call: Any, lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab / "managers.py").write_text(SECRETS)
    assert call("run", "managers.py:Mine", "api_key=canary-one", "-q").code == 0
    key = only_key(lab / "runs")
    assert "the config lacks a secret: `api_key`" in call("resume", key, "--epochs", 3).err
    monkeypatch.setenv("API_KEY", "canary-one")
    assert call("resume", key, "--epochs", 3).code == 0
    assert Store(lab / "runs").stats[key]["epoch"] == 3


# ---- near misses


@pytest.mark.parametrize("words", [("run", "lrr=0.5"), ("sweep", "lrr=0.5,0.6"), ("run", "--config", "typo.yaml"), ("sweep", "typos.yaml")])
def test_every_command_refuses_a_typo_of_a_default(call: Any, lab: Path, words: tuple[str, ...]) -> None:
    (lab / "typo.yaml").write_text("lrr: 0.5\n")
    (lab / "typos.yaml").write_text("lrr: [0.5, 0.6]\n")
    code, _, err = call(words[0], "managers.py:Mine", *words[1:], "-q")
    assert (code, "lrr: no such key; did you mean `lr`?" in err) == (2, True), err
    assert written(lab / "runs") == []


@pytest.mark.parametrize("words", [("run", "+lrr=0.5"), ("sweep", "+lrr=0.5"), ("sweep", "+lrr=0.5,0.6", "--workers", "1")])
def test_a_key_with_a_plus_is_new_even_if_it_looks_like_a_typo(call: Any, lab: Path, words: tuple[str, ...]) -> None:
    assert call(words[0], "managers.py:Mine", *words[1:], "-q").code == 0
    assert {config.lrr for config in Store(lab / "runs").configs.values()} <= {0.5, 0.6}
    assert call("resume", next(iter(Store(lab / "runs").configs)), "--epochs", 3, "-q").code == 0


def test_a_sweep_reports_the_wrong_values_of_all_combinations_and_counts_an_unknown_key_once(call: Any, typed: Path) -> None:
    found = call("sweep", "typed.py:Typed", "optim.lr=0.1,foo", "epochs=x", "lr=1,2,3", "--dry-run")
    assert found.err.splitlines()[0].endswith("3 problems in the sweep"), found.err
    for line in ("optim.lr = 'foo': expected a number", "epochs = 'x': expected a whole number", "did you mean `optim.lr`?"):
        assert found.err.count(line) == 1, found.err
