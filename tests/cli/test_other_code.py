"""Commands notice if a run's code changed, if another program trained it, or if its store is somebody else's."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_training as tiny

from trainmaster.store import Store

PROGRAM = '''
"""A program."""
from tiny_training import Plain
from helper import SCALE

class Mine(Plain):
    defaults = {"lr": 0.1, "epochs": 2}

    def train(self):
        super().train()  # one epoch
        self.ckpt["x"] = self.ckpt["x"] * SCALE
'''
SCHEDULED = """
from tiny_training import Tiny
from torch.optim.lr_scheduler import CosineAnnealingLR

class Mine(Tiny):
    defaults = {"lr": 0.1, "seed": 0, "loaders": 0, "epochs": 2}

    def make_loop(self, config):
        loop = super().make_loop(config)
        return type(loop)(
            loop.model, loop.loss, epochs=config.epochs, train_data=loop.train_data, eval_data=loop.eval_data,
            lr_schedule=lambda optimizer: CosineAnnealingLR(optimizer, config.epochs), schedule_by="epoch",
        )
"""


@pytest.fixture(autouse=True)
def clean_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    tiny.draw_nothing(monkeypatch.setattr)
    monkeypatch.setattr(sys, "path", [str(Path(tiny.__file__).parent), *sys.path])
    yield
    forget(tmp_path)


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("SCALE = 1.0\n")
    return tmp_path


def forget(folder: Path) -> None:
    """Remove the imported modules, as if the next command ran in a new process."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = [each for each in sys.path if not each.startswith(str(folder))]
    importlib.invalidate_caches()


@pytest.fixture
def run(call: Any, tmp_path: Path) -> Any:
    def run(*args: object) -> Any:
        forget(tmp_path)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        return call(*args)

    return run


def only_key(store: Path) -> str:
    (key,) = Store(store).configs.keys()
    return key


# ---- another program


def test_a_run_that_another_program_trained_is_refused_and_both_are_named(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("run", "a.py:Mine").code == 0
    for epochs in ((), ("--epochs", 4)):  # a finished run, and one to resume
        code, out, err = run("run", "c.py:Mine", *epochs)
        assert code == 2
        assert f"another program trained run {only_key(lab / 'runs')}" in err
        assert "a.py:Mine" in err
        assert "c.py:Mine" in err
        assert "--fresh" in err
        assert "--same-program" in err
        assert "already" not in out
    assert Store(lab / "runs").run(only_key(lab / "runs")).attempts() == [1]


def test_a_sweep_counts_runs_of_another_program_as_failed(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("sweep", "a.py:Mine", "lr=0.1,0.2").code == 0
    code, out, _ = run("sweep", "c.py:Mine", "lr=0.1,0.2,0.3")
    assert code == 1
    assert "1 done" in out
    assert "2 failed" in out
    assert "another program trained run" in out


def test_another_class_of_the_same_file_is_another_program(run: Any, lab: Path) -> None:
    other = "\nclass Other(Plain):\n    defaults = {'lr': 0.1, 'epochs': 2}\n\nclass Late(Mine): ...\n"
    (lab / "a.py").write_text(PROGRAM + other)
    assert run("run", "a.py:Mine").code == 0
    found = run("run", "a.py:Other")
    assert (found.code, "another program" in found.err) == (2, True)
    assert run("run", "a.py:Late").code == 0, "a subclass of the class that trained it is not another program"


def test_same_program_continues_the_run_and_is_recorded(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("run", "a.py:Mine").code == 0
    assert run("run", "c.py:Mine", "--epochs", 3, "--same-program").code == 0
    found = Store(lab / "runs").run(only_key(lab / "runs"))
    assert found.resume_of(2)["is_same_program"] is True
    assert found.resume_of(2)["program"]["file"] == "c.py"
    assert run("run", "c.py:Mine", "--epochs", 4).code == 0, "the run now belongs to c.py"


def test_fresh_trains_the_run_with_the_current_program(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("run", "a.py:Mine").code == 0
    assert run("run", "c.py:Mine", "--fresh").code == 0
    assert run("run", "c.py:Mine").code == 0
    assert run("run", "a.py:Mine").code == 2


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "copied"])
def test_a_moved_or_copied_file_is_the_same_program(run: Any, lab: Path, is_moved: bool) -> None:
    assert run("run", "a.py:Mine").code == 0
    shutil.copy(lab / "a.py", lab / "renamed.py")
    if is_moved:
        (lab / "a.py").unlink()
    found = run("run", "renamed.py:Mine", "--epochs", 3)
    assert (found.code, found.err) == (0, "")
    assert "resumes from epoch 2, target 3" in found.out
    assert "changed" not in found.out


def test_two_projects_with_a_file_of_the_same_name_are_two_programs(run: Any, lab: Path) -> None:
    for name, scale in (("one", "1.0"), ("two", "3.0")):
        (lab / name).mkdir()
        (lab / name / "train.py").write_text(PROGRAM.replace("* SCALE", f"* {scale}"))
    assert run("run", "one/train.py:Mine").code == 0
    found = run("run", "two/train.py:Mine")
    assert found.code == 2
    assert str(lab / "one") in found.err
    assert str(lab / "two") in found.err
    (lab / "one" / "train.py").unlink()
    found = run("run", "two/train.py:Mine", "--epochs", 3)
    assert found.code == 0, "the file may have been moved and edited"
    assert "train.py" in found.out


def test_reading_a_run_of_another_program_is_never_refused(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine").code == 0
    key = only_key(lab / "runs")
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("show", key).code == 0
    forget(lab)
    sys.path.insert(0, str(lab))
    import c  # type: ignore[import-not-found]

    assert c.Mine(lab / "runs", verbose=False).fetch(key).epoch == 2


# ---- changed code


def test_changed_files_are_printed_once_and_the_run_continues(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine").code == 0
    (lab / "helper.py").write_text("SCALE = 2.0\n")
    for args, said in (((), "is at epoch 2 already"), (("--epochs", 3), "resumes from epoch 2")):
        code, out, _ = run("run", "a.py:Mine", *args)
        assert code == 0
        assert said in out
        assert out.count("helper.py") == 1
        assert "--fresh" in out
        assert "a.py, " not in out


def test_comments_docstrings_and_layout_do_not_count_as_changes(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine").code == 0
    text = PROGRAM.replace("# one epoch", "# something else").replace('"""A program."""', '"""Another docstring."""')
    (lab / "a.py").write_text(text.replace('{"lr": 0.1, "epochs": 2}', '{\n        "lr": 0.1,\n        "epochs": 2\n    }'))
    found = run("run", "a.py:Mine")
    assert found.code == 0
    assert "changed" not in found.out


def test_a_batch_prints_the_changed_files_in_one_line(run: Any, lab: Path) -> None:
    assert run("sweep", "a.py:Mine", "lr=0.1,0.2,0.3").code == 0
    (lab / "helper.py").write_text("SCALE = 2.0\n")
    found = run("sweep", "a.py:Mine", "lr=0.1,0.2,0.3")
    assert found.code == 0
    assert found.out.count("helper.py") == 1
    assert "changed since 3 runs were trained: helper.py" in found.out


def test_strict_code_refuses_a_run_whose_code_has_changed(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine").code == 0
    assert run("run", "a.py:Mine", "--strict-code").code == 0
    (lab / "helper.py").write_text("SCALE = 2.0\n")
    code, _, err = run("run", "a.py:Mine", "--strict-code")
    assert code == 2
    assert "helper.py" in err
    assert "--fresh" in err
    assert run("run", "a.py:Mine", "--strict-code", "--fresh").code == 0


def test_a_module_that_is_imported_late_counts_as_code_of_the_run(run: Any, lab: Path) -> None:
    late = PROGRAM.replace("from helper import SCALE\n", "").replace("super().train()", "super().train(); from helper import SCALE")
    (lab / "a.py").write_text(
        late.replace(
            "def train(self):", "def setup(self, config):\n        import helper\n        super().setup(config)\n\n    def train(self):"
        )
    )
    assert run("run", "a.py:Mine").code == 0
    (lab / "helper.py").write_text("SCALE = 2.0\n")
    assert "helper.py" in run("run", "a.py:Mine").out


def test_code_that_was_edited_while_it_ran_is_recorded_as_it_was_imported(run: Any, lab: Path) -> None:
    (lab / "a.py").write_text(
        PROGRAM.replace("super().train()", "super().train(); __import__('pathlib').Path('helper.py').write_text('SCALE = 7.0')").replace(
            "class Mine", "import helper\nclass Mine"
        )
    )
    assert run("sweep", "a.py:Mine", "lr=0.1,0.2").code == 0  # the second run starts after the edit
    assert "changed since 2 runs were trained: helper.py" in run("sweep", "a.py:Mine", "lr=0.1,0.2").out


def test_the_program_is_part_of_an_exported_run(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("run", "a.py:Mine").code == 0
    assert run("export", "out.tar").code == 0
    assert run("import", "out.tar", "--store", "other").code == 0
    found = run("run", "c.py:Mine", "--store", "other")
    assert (found.code, "another program" in found.err) == (2, True)


def test_weights_that_no_longer_fit_suggest_fresh(run: Any, lab: Path) -> None:
    (lab / "loops.py").write_text("from tiny_training import Tiny\nclass Mine(Tiny):\n    width = 3\n")
    assert run("run", "loops.py:Mine", "-q").code == 0
    (lab / "loops.py").write_text(
        "from tiny_training import Tiny\nfrom torch import nn\nclass Mine(Tiny):\n    def make_loop(self, config):\n"
        "        loop = super().make_loop(config)\n        loop.model.add_module('more', nn.Linear(2, 2))\n        return loop\n"
    )
    code, _, err = run("run", "loops.py:Mine", "--epochs", 20)
    assert code != 0
    assert "--fresh" in err


# ---- a store from somebody else


def test_resume_imports_the_recorded_target_if_it_is_unchanged(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine").code == 0
    assert run("resume", only_key(lab / "runs"), "--epochs", 3).code == 0


@pytest.mark.parametrize("command", [("resume", "--epochs", "3"), ("rerun", "--compare")], ids=lambda each: each[0])
def test_a_changed_target_is_imported_only_if_trusted_or_named(run: Any, lab: Path, command: tuple[str, ...]) -> None:
    assert run("run", "a.py:Mine").code == 0
    key = only_key(lab / "runs")
    (lab / "a.py").write_text(PROGRAM + "\nopen('was-imported', 'w').close()\n")
    code, _, err = run(command[0], key, *command[1:])
    assert code == 2
    assert f"{lab / 'a.py'} has changed since" in err
    assert "--trust" in err
    assert not (lab / "was-imported").exists()
    assert run(command[0], key, *command[1:], "--target", "a.py:Mine").code == 0
    (lab / "was-imported").unlink()
    assert run(command[0], key, *command[1:], "--trust").code == 0
    assert (lab / "was-imported").exists()


@pytest.mark.parametrize("target", ["runs/evil.py:Mine", "evil:Mine"], ids=["a file", "a module"])
def test_a_target_inside_the_store_is_not_imported(run: Any, lab: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab / "runs").mkdir()
    (lab / "runs" / "evil.py").write_text(PROGRAM + f"\nopen({str(lab / 'was-imported')!r}, 'w').close()\n")
    Store(lab / "runs")
    monkeypatch.chdir(lab / "runs")
    shutil.copy(lab / "helper.py", lab / "runs" / "helper.py")
    assert run("run", target.rpartition("/")[2], "--store", lab / "runs").code == 0
    (lab / "was-imported").unlink()
    monkeypatch.chdir(lab)
    code, _, err = run("resume", only_key(lab / "runs"), "--epochs", 3)
    assert code == 2
    assert not (lab / "was-imported").exists()
    assert "--target" in err


def test_a_run_without_a_recorded_digest_requires_trust(run: Any, lab: Path) -> None:
    """Version 0.1 stored runs without a digest."""
    assert run("run", "a.py:Mine").code == 0
    key = only_key(lab / "runs")
    path = next((lab / "runs" / "stats").rglob("resume.json"))
    from trainmaster.store.checksummed_json import parse_record, record_bytes

    record = parse_record(path.read_bytes(), "resume.json")
    os.chmod(path, 0o644)
    path.write_bytes(record_bytes({name: value for name, value in record.items() if name not in ("program", "crc")}))
    found = run("resume", key, "--epochs", 3)
    assert (found.code, "was not recorded" in found.err) == (2, True)
    assert run("resume", key, "--epochs", 3, "--trust").code == 0


# ---- epochs


def test_training_beyond_the_planned_epochs_prints_a_message_if_there_is_a_schedule(run: Any, lab: Path) -> None:
    (lab / "loops.py").write_text(SCHEDULED)
    first = run("run", "loops.py:Mine")
    assert (first.code, "was planned" in first.out) == (0, False)
    more = run("run", "loops.py:Mine", "--epochs", 4)
    assert more.code == 0
    assert "was planned for 2 epochs" in more.out
    assert "schedule continues as it was built" in more.out
    assert "--fresh" in more.out
    key = only_key(lab / "runs")
    shown = run("show", key).out
    assert "4 of 4" in shown
    assert "2 epochs; after that, its learning-rate schedule continued as it was built" in shown
    again = run("rerun", key, "--compare")
    assert (again.code, "it was planned for 2 epochs" in again.out) == (0, True), again.out
    assert run("run", "loops.py:Mine", "epochs=4", "-q").code == 0
    assert len([*Store(lab / "runs").configs.keys()]) == 2, "epochs are part of the identity"


def test_a_config_with_only_more_epochs_prints_how_to_train_the_other_run_longer(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine").code == 0
    key = only_key(lab / "runs")
    found = run("run", "a.py:Mine", "epochs=5")
    assert found.code == 0
    assert f"resume {key} --epochs 5" in found.out
    assert "resume" not in run("run", "a.py:Mine", "epochs=1").out
    assert "resume" not in run("run", "a.py:Mine", "epochs=7", "lr=0.7").out


# ---- problems that users found


def test_changed_code_is_also_reported_with_quiet(run: Any, lab: Path) -> None:
    assert run("run", "a.py:Mine", "-q").code == 0
    (lab / "helper.py").write_text("SCALE = 2.0\n")
    found = run("run", "a.py:Mine", "-q")
    assert (found.code, found.out) == (0, "")
    assert "changed since this run was trained: helper.py" in found.err


def test_two_functions_of_one_file_are_two_programs(run: Any, lab: Path) -> None:
    (lab / "a.py").write_text(PROGRAM + "\ndef small(store_dir): return Mine(store_dir)\n\ndef large(store_dir): return Mine(store_dir)\n")
    assert run("run", "a.py:small").code == 0
    found = run("run", "a.py:large")
    assert (found.code, "a.py:small, not a.py:large" in found.err) == (2, True)
    assert run("run", "a.py:Mine").code == 0, "the function may have returned this class"


def test_a_subclass_of_the_class_that_trained_a_run_counts_as_changed_code(run: Any, lab: Path) -> None:
    (lab / "a.py").write_text(PROGRAM + "\nclass Variant(Mine):\n    data = 7\n")
    assert run("run", "a.py:Mine").code == 0
    found = run("run", "a.py:Variant")
    assert (found.code, "a.py:Variant (was a.py:Mine)" in found.out) == (0, True)
    assert run("run", "a.py:Variant", "--strict-code").code == 2


def test_a_module_that_training_imports_counts_after_the_run(run: Any, lab: Path) -> None:
    (lab / "a.py").write_text(
        PROGRAM.replace("from helper import SCALE\n", "").replace("super().train()", "super().train(); from helper import SCALE")
    )
    assert run("run", "a.py:Mine").code == 0
    (lab / "helper.py").write_text("SCALE = 2.0\n")
    assert "helper.py" in run("run", "a.py:Mine").out


def test_the_first_program_may_continue_after_another_one_was_accepted(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("run", "a.py:Mine").code == 0
    assert run("run", "c.py:Mine", "--epochs", 3, "--same-program").code == 0
    found = run("run", "a.py:Mine", "--epochs", 3)
    assert found.code == 0
    assert "c.py:Mine, another program, trained part of it" in found.out, "the message reports that two programs trained the run"
    assert run("run", "a.py:Mine", "--epochs", 4).code == 0


def test_a_refused_run_of_a_sweep_names_both_programs_and_the_options(run: Any, lab: Path) -> None:
    (lab / "c.py").write_text(PROGRAM.replace("* SCALE", "* 2"))
    assert run("sweep", "a.py:Mine", "lr=0.1,0.2").code == 0
    out = run("sweep", "c.py:Mine", "lr=0.1,0.2").out
    assert "a.py:Mine, not c.py:Mine\n    try: `--fresh`" in out
    assert "again: " not in out


def test_a_config_with_two_numbers_of_epochs_is_refused(run: Any, lab: Path) -> None:
    found = run("run", "a.py:Mine", "+num_epochs=3")
    assert (found.code, "both epochs=2 and num_epochs=3" in found.err) == (2, True)


def test_a_new_run_beyond_the_epochs_of_its_config_prints_what_to_write(run: Any, lab: Path) -> None:
    (lab / "loops.py").write_text(SCHEDULED)
    assert "`epochs=5` in the config" in run("run", "loops.py:Mine", "--epochs", 5).out
