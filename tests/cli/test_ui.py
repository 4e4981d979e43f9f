"""`trainmaster ui`: its output, its port, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import dashboard_store
import pytest
from warm import Popen

from trainmaster.cli import main
from trainmaster.dashboard import app, serve
from trainmaster.errors import SettingError
from trainmaster.store import Store


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "static").mkdir()
    (tmp_path / "static" / "index.html").write_text("<!doctype html>")
    monkeypatch.setattr(app, "STATIC", tmp_path / "static")


def test_without_the_built_page_the_error_names_the_command_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "STATIC", tmp_path)
    assert main(["ui", str(tmp_path)]) == 2
    assert "make frontend" in capsys.readouterr().err


def test_a_store_that_does_not_exist_is_not_created(tmp_path: Path, built: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", str(tmp_path / "typo")]) == 2
    assert "there is no store at" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


def test_a_port_in_use_is_skipped(built: None) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with serve._bind(port) as bound:
            assert port < bound.getsockname()[1] <= port + 49


def test_no_free_port_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_NUM_PORTS", 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"no port from {port} to {port} is free"):
            serve._bind(port)


def test_the_server_listens_on_loopback_only(tmp_path: Path, built: None) -> None:
    with serve.serving(Store(tmp_path / "runs"), 0) as (address, _):
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"]
        assert [each for each in listening if each.endswith(f":{address.port:04X}")] == [f"0100007F:{address.port:04X}"]


def test_beyond_loopback_every_request_needs_the_printed_token(tmp_path: Path, built: None) -> None:
    with serve.serving(Store(tmp_path / "runs"), 0, host="127.0.0.1") as (address, _):
        assert address.view_token is not None
        assert str(address) == f"http://127.0.0.1:{address.port}/?token={address.view_token}"
        plain = f"http://127.0.0.1:{address.port}/"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(plain, timeout=30)
        refused.value.close()
        assert refused.value.code == 401
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(str(address), timeout=30) as answer:
            assert (answer.status, answer.url) == (200, plain)
    kept = [path for path in (tmp_path / "runs").rglob("*") if path.is_file() and address.view_token.encode() in path.read_bytes()]
    assert kept == [], "the token is in no file of the store"


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "x" * 300])
def test_an_address_of_another_machine_is_an_error(tmp_path: Path, built: None, host: str, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "runs")
    assert main(["ui", str(tmp_path / "runs"), "--no-open", "--host", host]) == 2
    assert "this machine has no such address" in capsys.readouterr().err


def test_the_token_is_in_the_fragment_of_the_address(tmp_path: Path, built: None) -> None:
    """Fault S08: browsers do not send the fragment of an address to the server."""
    with serve.serving(Store(tmp_path / "runs"), 0, can_edit=True) as (address, _):
        assert address.token is not None
        assert len(address.token) >= 32
        assert str(address) == f"http://127.0.0.1:{address.port}/#token={address.token}"
    with serve.serving(Store(tmp_path / "runs"), 0) as (address, _):
        assert str(address) == f"http://127.0.0.1:{address.port}/"


@pytest.mark.integration
@pytest.mark.skipif(not (app.STATIC / "index.html").is_file(), reason="the page is not built: make frontend")
def test_the_server_runs_until_it_is_interrupted(tmp_path: Path) -> None:
    dashboard_store.make_store(tmp_path / "runs")
    environment = {**os.environ, "SSH_CONNECTION": "1 2 3 4"}
    command = [sys.executable, "-m", "trainmaster", "ui", str(tmp_path / "runs"), "--port", "0", "--no-open"]
    process = Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"dashboard  (http://127\.0\.0\.1:(\d+)/)\n", line)
        assert found, line
        assert f"ssh -L {found[2]}:127.0.0.1:{found[2]}" in process.stdout.readline()
        with urllib.request.urlopen(f"{found[1]}api/v1/store", timeout=60) as answer:
            assert b'"num_runs":6' in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
