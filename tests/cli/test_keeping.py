"""The commands that change a store (`tag`, `rm`, `prune`, `export`, `import`) or examine it (`verify`, `doctor`)."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainmaster.store import Store

Call = Callable[..., Any]


def files_of(store: Store) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(str(store.root)).rglob("*") if path.is_file()}


# ---- tag


def test_labels_are_added_shown_and_removed(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 0.1})
    assert call("tag", key[:5], "best", "paper").out == f"{key}  best paper\n"
    assert call("tag", key).out == f"{key}  best paper\n"
    assert call("tag", key, "best", "--remove").out == f"{key}  paper\n"
    assert store.tags[key] == ("paper",)
    wrong = call("tag", key, "papr", "--remove")
    assert (wrong.code, store.tags[key]) == (2, ("paper",))
    assert "did you mean `paper`?" in wrong.err


@pytest.mark.parametrize("label", ["../x", "a b", "", ".", "..", ".hidden", "x.tmp", "é", "a" * 65, "a\n", "\x1b[2J"])
def test_an_invalid_label_is_refused_and_nothing_is_written(call: Call, make: Any, store: Store, label: str) -> None:
    key = make.run({"lr": 0.1})
    found = call("tag", key, "good", label)
    assert found.code == 2
    assert "is not a label" in found.err
    assert store.tags[key] == ()


# ---- rm


def test_removing_a_run_removes_its_labels_and_keeps_the_other_runs(call: Call, make: Any, store: Store) -> None:
    one, other = make.run({"lr": 1}), make.run({"lr": 2})
    store.tags.add(one, ["best"])
    found = call("rm", one, "--yes")
    assert found.code == 0
    assert "deleted 1 run" in found.out
    assert [*store.configs] == [other]
    assert store.tags.all() == {}
    assert make.run({"lr": 1}) == one
    assert store.tags[one] == ()


def test_without_yes_and_without_a_terminal_nothing_is_deleted(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 1})
    before = files_of(store)
    found = call("rm", key)
    assert found.code == 2
    assert "add `--yes`" in found.err
    assert call("rm", key, "--dry-run").out.endswith("would delete 1 run\n")
    assert files_of(store) == before


def test_answering_no_on_a_terminal_removes_nothing(call: Call, make: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    key = make.run({"lr": 1})
    monkeypatch.setattr("sys.stdin", Keyboard("n\n"))
    assert "nothing was deleted" in call("rm", key).out
    assert key in store.configs
    monkeypatch.setattr("sys.stdin", Keyboard("y\n"))
    assert "deleted 1 run" in call("rm", key).out
    assert key not in store.configs


def test_rm_deletes_the_runs_that_match_a_filter(call: Call, make: Any, store: Store) -> None:
    one, two, other = (make.run({"lr": lr}) for lr in (1, 2, 3))
    dry = call("rm", "--where", "lr<3", "--dry-run")
    assert dry.out.splitlines()[-1] == "would delete 2 runs"
    assert {line.split()[0] for line in dry.out.splitlines()[:-1]} == {one, two}
    unconfirmed = call("rm", "--where", "lr<3")
    assert (unconfirmed.code, "add `--yes`" in unconfirmed.err) == (2, True)
    assert len([*store.configs]) == 3
    assert call("rm", other, one, "--where", "lr<3", "--yes").out.splitlines()[-1] == "deleted 1 run"
    assert call("rm", "--where", "lr<3", "--yes").out.splitlines()[-1] == "deleted 1 run"
    assert [*store.configs] == [other]


def test_rm_deletes_nothing_without_a_key_or_a_match(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 1})
    assert call("rm", "--where", "lr>5", "--yes").out == "no run matches\n"
    nothing, empty, wrong = call("rm", "--yes"), call("rm", "--where", "", "--yes"), call("rm", "--where", "rl=1", "--yes")
    assert [each.code for each in (nothing, empty, wrong)] == [2, 2, 2]
    assert "which runs?" in nothing.err
    assert "no run has `rl`" in wrong.err
    assert [*store.configs] == [key]


def test_no_run_is_removed_if_one_of_them_is_held(call: Call, make: Any, store: Store, hold: Call) -> None:
    free, held = make.run({"lr": 1}), make.run({"lr": 2})
    hold(store, held)
    found = call("rm", free, held, "--yes")
    assert found.code == 2
    assert f"run {held} is held by process" in found.err
    assert {*store.configs} == {free, held}


# ---- prune


def test_prune_with_dry_run_lists_the_files_and_changes_nothing(call: Call, make: Any, store: Store) -> None:
    make.run({"lr": 1}, [{"loss": 1.0}] * 3)
    make.killed({"lr": 2})
    before = files_of(store)
    dry = call("prune", "--keep", 1, "--dry-run").out.splitlines()
    assert files_of(store) == before
    real = call("prune", "--keep", 1).out.splitlines()
    assert sorted(dry[:-1]) == sorted(real[:-1])
    assert (dry[-1], real[-1]) == ("would delete 3 paths", "deleted 3 paths")
    assert call("prune", "runs", "--keep", 1).out == "deleted 0 paths\n"


# ---- export, import


def test_runs_are_exported_to_a_file_and_imported_into_another_store(call: Call, make: Any, store: Store, tmp_path: Path) -> None:
    one, other, new = make.run({"lr": 1}), make.run({"lr": 2}), make.new(lr=3)
    left_out = f"left out 1 run without a checkpoint: {new}"
    assert call("export", "all.tar.gz", "--dry-run").out.splitlines()[-1] == f"would write 2 runs to all.tar.gz; {left_out}"
    assert not os.path.exists("all.tar.gz")
    assert call("export", "all.tar.gz").out == f"wrote 2 runs to all.tar.gz; {left_out}\n"
    again = call("export", "all.tar.gz", one)
    assert again.code == 2
    assert "`--force` replaces it" in again.err
    refused = call("export", "best.pt", one)
    assert refused.code == 2
    assert "`best.pt` does not end with .tar, .tar.gz or .tgz, but `export` writes a tar file with whole runs" in refused.err
    assert not Path("best.pt").exists()
    assert call("export", "some.tar", "--where", "lr=2").out == "wrote 1 run to some.tar\n"
    dry = call("import", "all.tar.gz", "--store", "second", "--dry-run")
    assert dry.out.splitlines()[-1].startswith("would import 2 runs")
    assert not (tmp_path / "second").exists()
    assert call("import", "some.tar", "--store", "second").out == f"{other}\nimported 1 run\n"
    dry = call("import", "all.tar.gz", "--store", "second", "--dry-run")
    assert f"{other}  epoch 1, already in the store" in dry.out
    assert call("import", "all.tar.gz", "--store", "second").out == f"{one}\nimported 1 run\n"
    assert {*Store("second").configs} == {one, other}
    assert new not in Store("second").configs


def test_an_imported_run_is_shown_as_imported(call: Call, make: Any) -> None:
    key = make.run({"lr": 1})
    call("export", "all.tar.gz")
    call("import", "all.tar.gz", "--store", "second")
    assert "stopped: imported from another store" in call("show", key, "--store", "second").out


def test_a_file_that_is_not_an_archive_is_refused(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"\x1b[2J" * 1000)
    for args in (["--dry-run"], []):
        found = call("import", "bad.tar", *args)
        assert found.code == 2
        assert "\x1b" not in found.err
    assert call("import", "missing.tar").code == 2


# ---- verify


def test_verify_lists_damage_and_exits_with_1(call: Call, make: Any, store: Store) -> None:
    key = make.run({"lr": 1})
    assert call("verify") == (0, "1 run, no damage\n", "")
    with open(f"{store.root}/{store.run(key).path(1, 'outcome.json')}", "r+b") as file:
        file.write(b"XX")
    found = call("verify", "runs")
    assert found.code == 1
    assert "outcome.json" in found.out
    listed = call("verify", "--json")
    assert listed.code == 1
    assert [each["is_fatal"] for each in json.loads(listed.out)] == [False]


# ---- doctor


def test_doctor_reports_versions_and_tests_writing(call: Call, tmp_path: Path) -> None:
    found = call("doctor", "--json")
    assert found.code == 0
    findings = {each["name"]: each for each in json.loads(found.out)}
    assert {"trainmaster", "python", "torch", "numpy", "cpu threads", "cuda", "git", "free space"} <= findings.keys()
    assert findings["write test"]["value"].startswith("create, link, fsync and rename in")
    assert "not created yet" in findings["store"]["value"]
    assert not list(tmp_path.iterdir())


def test_doctor_reports_a_bad_folder_and_a_broken_torch(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open \x1b[2J')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "file").touch()
    found = call("doctor", "--store", tmp_path / "file")
    assert found.code == 1
    assert "cannot be imported: ImportError: libcudart.so.12" in found.out
    assert "is a file, not a store" in found.out
    assert "\x1b" not in found.out


def test_doctor_names_the_operation_that_the_file_system_refuses(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    found = call("doctor", "--json")
    assert found.code == 1
    findings = {each["name"]: each["value"] for each in json.loads(found.out)}
    assert findings["write test"] == f"cannot link a file in {os.getcwd()}: Operation not permitted"
    assert findings["torch"].startswith("cannot be imported: ")
