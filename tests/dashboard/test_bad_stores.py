"""If a store cannot be read or written, the terminal or the page shows a one-line error, and the store is not changed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dashboard_store
import pytest
from dashboard_site import TOKEN, built_page
from starlette.testclient import TestClient

from trainmaster.cli import main
from trainmaster.dashboard import app, guard
from trainmaster.store import Store

pytestmark = pytest.mark.usefixtures("always_scanned")
_GUEST = 65534


class Opened:
    """A store and a client for its dashboard.

    All modules are imported at the start, because a user without root privileges may not be able to read them later.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runs"
        self.store, keys = dashboard_store.make_store(self.root)
        self.keys = [*keys.values()]
        self._static = built_page(folder / "static")
        self.open()
        self.get_all()

    def open(self) -> None:
        """Open and serve the store, as a new process would."""
        application = app.make_app(app.Dashboard(Store(self.root)), guard.Access(TOKEN), self._static)
        self.client = TestClient(application, base_url="http://127.0.0.1:7400", raise_server_exceptions=False)

    def get_all(self) -> dict[str, Any]:
        """Request every address that reads the store, and return the responses by name."""
        one, other = self.keys[0], self.keys[2]
        names = [
            "store",
            "attention",
            "runs",
            "searches",
            "verdicts",
            *(f"runs/{one}{part}" for part in ("", "/code", "/environment", "/log")),
        ]
        names += [f"curves?keys={one}&metrics=valid/loss", f"compare?keys={one},{other}"]
        return {name: self.client.get(f"/api/v1/{name}") for name in names}

    def edit_all(self) -> dict[str, Any]:
        key = self.keys[0]
        changes = {"tags": {"add": ["x"]}, "notes": {"text": "x"}, "delete": {"confirm": key}}
        headers = {"origin": "http://127.0.0.1:7400", guard.TOKEN_HEADER: TOKEN}
        return {name: self.client.post(f"/api/v1/runs/{key}/{name}", json=body, headers=headers) for name, body in changes.items()}


@pytest.fixture
def opened() -> Iterator[Opened]:
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))  # pytest's own folder is private to its owner
    folder.chmod(0o755)
    try:
        yield Opened(folder)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def without_rights(root: Path, path: str, mode: int) -> Iterator[None]:
    """Set the mode of a part of the store, and drop root privileges, because root can access everything."""
    modes = {each: each.stat().st_mode for each in [root / path, *(root / path).rglob("*")]}
    for each in reversed(modes):
        each.chmod(mode if each.is_dir() else mode & 0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(_GUEST)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for each, old in modes.items():
            each.chmod(old)


@pytest.fixture
def built(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STATIC", opened.root.parent / "static")


def contents(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}


def test_a_read_only_store_is_shown_in_full(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading writes nothing and causes no error. Edits are refused with a one-line error."""
    shutil.rmtree(opened.root / "index", ignore_errors=True)  # the dashboard would write it again if it could
    before = contents(opened.root)
    with without_rights(opened.root, "", 0o555):
        opened.open()
        found, edits = opened.get_all(), opened.edit_all()
    assert contents(opened.root) == before
    assert {answer.status_code for answer in found.values()} == {200}
    assert found["runs"].json()["num_runs"] == 6
    assert len(found[f"curves?keys={opened.keys[0]}&metrics=valid/loss"].json()["curves"][0]["y"]) == 6
    assert {(each.status_code, each.json()["error"].split("`")[-1]) for each in edits.values()} == {
        (503, " cannot be written: Permission denied")
    }
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("path", ["", "configs", "stats", "previews"])
def test_a_folder_that_cannot_be_read_is_named_on_the_page(opened: Opened, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder becomes unreadable while the store is served. Once it is readable again, all runs are back."""
    opened.open()
    with without_rights(opened.root, path, 0):
        answers = opened.get_all()
    assert {answer.status_code for answer in answers.values()} <= {200, 503}
    refused = answers["runs"].json()
    assert (answers["runs"].status_code, "cannot be" in refused["error"], "Permission denied" in refused["error"]) == (503, True, True)
    assert refused["hint"] == "check the owner and mode of the store's folders"
    assert str(opened.root / path) in refused["where"]
    assert {answer.status_code for answer in opened.get_all().values()} == {200}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("path", ["", "store.json"])
def test_a_store_that_cannot_be_read_is_not_served(opened: Opened, path: str, built: None, capsys: pytest.CaptureFixture[str]) -> None:
    main(["ui", str(opened.root / "nowhere")])  # imports the command
    capsys.readouterr()
    with without_rights(opened.root, path, 0):
        assert main(["ui", str(opened.root)]) == 1
    message = capsys.readouterr().err
    assert f"`{path or 'runs'}` cannot be" in message
    assert "Permission denied" in message
    assert "check the owner and mode" in message
    assert "Traceback" not in message


def test_a_store_of_a_newer_version_is_not_served(opened: Opened, built: None, capsys: pytest.CaptureFixture[str]) -> None:
    (opened.root / "store.json").write_text('{"format": 2}')
    assert main(["ui", str(opened.root)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("the store has format 2; this version of trainmaster supports format 1\n")
    assert "use a newer version of trainmaster" in message


def test_a_store_that_a_newer_version_converts_while_it_is_served(opened: Opened, capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows an error, because it could misread values in a newer store format."""
    (opened.root / "store.json").write_text('{"format": 2}')
    for name in ("store", "runs", f"runs/{opened.keys[0]}"):
        answer = opened.client.get(f"/api/v1/{name}")
        assert answer.status_code == 503
        assert answer.json()["error"] == "the store has format 2; this version of trainmaster supports format 1"
    page = opened.client.get("/api/v1/runs", headers={"x-trainmaster-page": "1"})
    assert (page.status_code, page.json()["status"], page.json()["hint"]) == (200, 503, "use a newer version of trainmaster")
    assert capsys.readouterr().err == ""


def test_a_locked_store_is_read_as_usual(opened: Opened) -> None:
    """Another process has locked every file and is training a run.

    No request waits, and the run cannot be deleted while it trains.
    """
    with contextlib.ExitStack() as stack:
        for path in opened.root.rglob("*"):
            if path.is_file():
                fcntl.flock(stack.enter_context(path.open("rb")), fcntl.LOCK_EX)
        key = opened.store.configs.add({"lr": 3.0})
        attempt = stack.enter_context(opened.store.attempt(key, "process"))
        attempt.start(None)
        opened.open()
        assert {answer.status_code for answer in opened.get_all().values()} == {200}
        opened.keys[0] = key
        refused = opened.edit_all()["delete"]
        assert (refused.status_code, key in refused.json()["error"]) == (409, True)
        attempt.release("stopped")


def _as_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a folder")


def _as_loop(path: Path) -> None:
    shutil.rmtree(path)
    path.symlink_to(path)


def _forbidden(path: Path) -> None:
    path.chmod(0)


@pytest.mark.parametrize("is_warm", [False, True], ids=["at the start", "while served"])
@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("stats/{0}/{1}", _as_file),
        ("stats/{0}/{1}", _as_loop),
        ("stats/{0}/{1}", _forbidden),
        ("stats/{0}/{1}/attempt-0001", _as_file),
        ("stats/{0}/{1}/attempt-0001", _forbidden),
        ("stats/{0}/{1}/attempt-0001/resume.json", _forbidden),
        ("configs/{0}/{1}.json", _forbidden),
        ("previews/{0}/{1}", _forbidden),
        ("tags/{0}/{1}", _forbidden),
    ],
)
def test_one_run_that_cannot_be_read_does_not_hide_the_others(
    opened: Opened, path: str, change: Callable[[Path], None], is_warm: bool, always_scanned: None
) -> None:
    """The run's page shows the problem, and so does its row, unless the server had already read the run."""
    key, others = opened.keys[0], {*opened.keys[1:]}
    Store(opened.root).tags.add(key, ["x"])
    shutil.rmtree(opened.root / "index", ignore_errors=True)
    for each in [opened.root.parent, *opened.root.parent.rglob("*")]:
        if os.geteuid() == 0:
            os.chown(each, _GUEST, -1)
    opened.open()
    if is_warm:
        assert opened.client.get("/api/v1/runs").status_code == 200
    with without_rights(opened.root, "store.json", 0o444):  # as the owner of the files, who is not root
        change(opened.root / path.format(key[:2], key))
        rows = {row["key"]: row for row in opened.client.get("/api/v1/runs").json()["rows"]}
        about = opened.client.get(f"/api/v1/runs/{key}").json()
    for each in opened.root.rglob("*"):
        if each.is_dir() and not each.is_symlink():
            each.chmod(0o755)
    assert {*rows} == others | {key}
    assert all(rows[each]["state"] != "damaged" for each in others)
    is_about_labels = path.startswith("tags")
    if not is_warm and not is_about_labels:
        assert rows[key]["state"] == "damaged"
        assert rows[key]["reason"]
    assert about["key"] == key
    assert about["state"] == "damaged" or is_about_labels
