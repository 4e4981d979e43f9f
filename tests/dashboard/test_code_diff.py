"""The dashboard compares the saved code of two runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import dashboard_store
import pytest
from dashboard_site import Site, make_client

from trainmaster.extensions.code.capture import Limits, capture
from trainmaster.extensions.code.snapshot import write_snapshot


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def save_code(site: Site, name: str, repository: Path) -> Path:
    """Save a snapshot of the repository, as a training run would, and return its path."""
    key = site.keys[name]
    folder = Path(site.store.root or "") / "previews" / key[:2] / key / "attempt-0001" / "code"
    return Path(write_snapshot(capture(str(repository), Limits()), str(folder)))


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Site, Path]:
    """Create two runs. Between them, one file was committed, one was changed, one was added, and one was deleted."""
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    site = Site(store, keys, make_client(store, tmp_path / "static"))
    repository = tmp_path / "code"
    repository.mkdir()
    git(repository, "init", "-q")
    for name in ("committed", "changed", "deleted", "same"):
        (repository / f"{name}.py").write_text(f"name = '{name}'\nwidth = 1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "one")
    save_code(site, "0.1-0", repository)
    (repository / "committed.py").write_text("name = 'committed'\nwidth = 2\n")
    git(repository, "commit", "-q", "-a", "-m", "two")
    (repository / "changed.py").write_text("name = 'changed'\nwidth = 3\n")
    (repository / "new.py").write_text("<script>alert(1)</script>\n")
    (repository / "deleted.py").unlink()
    (repository / ".gitattributes").write_text("*.py diff=own -text binary\n")
    return site, save_code(site, "0.5-0", repository)


def test_the_lines_in_which_the_code_of_two_runs_differs(trained: tuple[Site, Path]) -> None:
    """Changes are shown whether they were committed or not, and a snapshot's `.gitattributes` cannot hide them."""
    site, _ = trained
    found = site.get("diff", keys=f"{site.keys['0.1-0']},{site.keys['0.5-0']}")
    patch: str = found["patch"]
    files = [line.split(" b/")[1] for line in patch.splitlines() if line.startswith("diff --git")]
    assert files == [".gitattributes", "changed.py", "committed.py", "deleted.py", "new.py"]
    assert "-width = 1\n+width = 3\n" in patch
    assert "-width = 1\n+width = 2\n" in patch
    assert "+<script>alert(1)</script>\n" in patch
    assert found["is_cut"] is False
    turned = site.get("diff", keys=f"{site.keys['0.5-0']},{site.keys['0.1-0']}")["patch"]
    assert "-width = 2\n+width = 1\n" in turned


def test_files_that_are_not_those_of_the_snapshot_are_refused(trained: tuple[Site, Path]) -> None:
    site, folder = trained
    keys = f"{site.keys['0.1-0']},{site.keys['0.5-0']}"
    facts = json.loads((folder / "code.json").read_text())
    (folder / "code.json").write_text(json.dumps({**facts, "tree": "0" * 40}))
    assert "the files of a snapshot differ" in site.get("diff", 422, keys=keys)["why"]
    (folder / "code.bundle").unlink()
    (folder / "code.bundle").write_bytes(b"not a bundle")
    assert site.get("diff", 422, keys=keys)["error"] == "the code of these runs cannot be compared"
    (folder / "code.bundle").unlink()
    (folder / "code.bundle").symlink_to("/etc/passwd")
    assert site.get("diff", 422, keys=keys)["error"].endswith("code.bundle` is a symbolic link")


def test_runs_without_a_snapshot_have_no_difference(site: Site) -> None:
    one, other = site.keys["0.1-0"], site.keys["0.5-0"]
    assert site.get("diff", 400, keys=f"{one},{other}")["error"] == f"run {one} has no snapshot of its code"
    assert site.get("diff", 400, keys=one)["error"] == "the code of 1 runs cannot be compared"
