"""No file of a run contains secrets from the environment, configs or the command line (fault S15)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
import secret_runs

from trainmaster.cli.app import run as run_cli
from trainmaster.store import Store

PROGRAM = Path(secret_runs.__file__)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all programs in one folder, and return it."""
    folder, printed = tmp_path_factory.mktemp("secrets"), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed), warnings.catch_warnings():
        for name, value in secret_runs.ENVIRON.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        patch.setattr(sys, "path", [str(PROGRAM.parent), *sys.path])
        patch.setattr(sys, "orig_argv", [sys.executable, "train.py", "--password", secret_runs.ARGV_CANARY])
        secret_runs.main(folder)
    assert "SEEN False" not in printed.getvalue()
    assert printed.getvalue().count("SEEN True") == 6
    return folder


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes()
            if path.suffixes[-2:] == [".tar", ".gz"]:
                with tarfile.open(path) as archive:
                    for member in archive:
                        if member.isfile():
                            yield f"{path.name}/{member.name}", archive.extractfile(member).read()  # type: ignore[union-attr]


def found_in(data: bytes) -> list[str]:
    """Return the canary secrets that `data` contains in any of the checked encodings."""
    found = []
    for canary in secret_runs.CANARIES:
        forms = {canary, quote(canary), quote(canary, safe=""), quote_plus(canary), repr(canary)[1:-1], json.dumps(canary)[1:-1]}
        found += [form for form in forms if form.encode() in data]
    return found


def test_no_file_of_any_run_contains_a_secret(folder: Path) -> None:
    leaks = {f"{name}: {each}" for name, data in files_below(folder) for each in found_in(data) + found_in(os.fsencode(name))}
    assert not leaks


def test_the_runs_wrote_the_expected_files(folder: Path) -> None:
    """The runs wrote logs, capsules, outcomes, texts, checkpoints and environments, with `***` for each secret."""
    store = Store(folder / "store")
    outcomes = [store.run(key).outcome_of(1) for key in store.configs]
    assert sorted(each["outcome"] for each in outcomes if each) == ["failed"] * 3 + ["finished"] * 5
    assert all("***" in each["error"] and "***" in each["traceback"] for each in outcomes if each and each["outcome"] == "failed")
    files = dict(files_below(folder))
    names = ("log", "events.jsonl", "tree.json", "environment.json", "preview.json", "manifest.json")
    masked = {name: [path for path, data in files.items() if path.endswith(f"/{name}") and b"***" in data] for name in names}
    assert {name: bool(paths) for name, paths in masked.items()} == dict.fromkeys(names, True)
    assert sum(path.endswith(".capsule/manifest.json") for path in files) == 4
    assert any(path.startswith("train_dir/checkpoints/") and path.endswith("tree.json") for path in files)
    assert len(Store(folder / "cli").configs) == 1


def test_a_secret_that_was_printed_in_two_pieces_is_masked_in_the_log(folder: Path) -> None:
    logs = [data for name, data in files_below(folder) if name.endswith("/log")]
    assert sum(data.count(b"a *** b\n") for data in logs) == 2 * 5  # 5 lines from each of the two runs in workers


def test_configs_are_stored_with_the_names_of_their_secrets(folder: Path) -> None:
    store = Store(folder / "store")
    found = [config for config in store.configs.values() if config.get("kind") == "plain"]
    assert [dict(each) for each in found] == [{"api_key": "***", "db": {"password": "***"}, "mirrors": [{"url": "***"}], "kind": "plain"}]


def test_every_file_is_valid(folder: Path) -> None:
    assert list(Store(folder / "store").verify()) == []


def test_the_command_line_prints_and_exports_no_secret(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = Store(folder / "store")
    one, other = sorted(store.configs)[:2]
    place = ["--store", str(folder / "store")]
    for words in (["ls"], ["show", one], ["diff", one, other], ["logs", one], ["export", str(folder / "all.tar.gz"), "--force"]):
        assert run_cli([*words, *place]) == 0
    printed = capfd.readouterr().out
    assert "***" in printed
    assert found_in(printed.encode()) == []
    assert [(name, found) for name, data in files_below(folder) if (found := found_in(data))] == []


def test_a_dry_run_and_a_check_print_no_secret(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    overrides = ["is_broken=false", "api_key=canary4config", "db.password=canary 5/config", "mirrors=pg://me:canary6config@host"]
    target = f"{PROGRAM}:Spilling"
    assert run_cli(["run", target, *overrides, "--dry-run"]) == 0
    assert run_cli(["sweep", target, *overrides, "seed=1,2", "--dry-run"]) == 0
    printed = capfd.readouterr().out
    assert re.search(r"api_key +'\*\*\*'", printed)
    assert re.search(r"mirrors +'\*\*\*'", printed)
    assert "seed=1" in printed
    assert found_in(printed.encode()) == []
