"""`Results.ui()` serves a dashboard from a notebook's process."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

import dashboard_store
import pytest
from dashboard_site import built_page

from trainmaster.analysis.results import Results
from trainmaster.dashboard import app, open_page
from trainmaster.dashboard.guard import LOOPBACK_FRAMES
from trainmaster.dashboard.serve import serving


def test_results_open_a_page_that_can_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STATIC", built_page(tmp_path / "static"))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    dashboard_store.make_store(tmp_path / "runs")
    page = Results(tmp_path / "runs").ui()
    try:
        with urllib.request.urlopen(f"{page.address}api/v1/store", timeout=60) as answer:
            assert json.load(answer)["num_runs"] == 6
        assert Results(tmp_path / "runs").ui() is page
        assert f'href="{page.address}"' in page._repr_html_()
    finally:
        page.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(str(page.address), timeout=10)
    assert not page.is_open
    open_page._pages.clear()


class Kernel:
    """A stand-in for IPython in a Jupyter kernel."""

    kernel = object()

    def get_ipython(self) -> Kernel:
        return self


def test_a_notebook_shows_the_page_below_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STATIC", built_page(tmp_path / "static"))
    monkeypatch.setitem(sys.modules, "IPython", Kernel())
    for name in ("SSH_CONNECTION", "SSH_TTY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(open_page.webbrowser, "open", lambda _: pytest.fail("a notebook needs no other tab"))
    dashboard_store.make_store(tmp_path / "runs")
    page = Results(tmp_path / "runs").ui()
    try:
        assert f'<iframe src="{page.address}"' in page._repr_html_()
        with urllib.request.urlopen(str(page.address), timeout=60) as answer:
            assert answer.headers["content-security-policy"].endswith(LOOPBACK_FRAMES)
            assert answer.headers["x-frame-options"] is None
        monkeypatch.setenv("SSH_TTY", "/dev/pts/0")
        assert "<iframe" not in page._repr_html_(), "the browser is on another machine"
    finally:
        page.close()
        open_page._pages.clear()


def test_another_program_reads_through_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    monkeypatch.setattr(app, "STATIC", built_page(tmp_path / "static"))
    with serving(store, 0) as (address, _):
        with urllib.request.urlopen(f"{address}api/v1/curves?keys={keys['0.1-0']}&metrics=valid/loss", timeout=60) as answer:
            assert len(json.load(answer)["curves"][0]["y"]) == 6
