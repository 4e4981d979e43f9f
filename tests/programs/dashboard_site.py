"""A client for the dashboard of a small store, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from starlette.testclient import TestClient

from trainmaster.dashboard.app import Dashboard, make_app
from trainmaster.dashboard.guard import Access
from trainmaster.store import Store

TOKEN = "secret-token"


class Site(NamedTuple):
    """A store with six runs, and a client for its dashboard."""

    store: Store
    keys: dict[str, str]
    client: TestClient

    def get(self, address: str, status: int = 200, **params: Any) -> Any:
        answer = self.client.get(f"/api/v1/{address}", params=params)
        assert answer.status_code == status, answer.text
        return answer.json()


def built_page(folder: Path) -> Path:
    """Write small stand-ins for the built page. The server does not read these files."""
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text('<!doctype html><script type="module" src="/static/assets/index-1.js"></script>')
    (folder / "assets" / "index-1.js").write_text("export {}")
    (folder / "icon.svg").write_text("<svg/>")
    return folder


def make_client(store: Store, folder: Path, token: str | None = None) -> TestClient:
    return TestClient(
        make_app(Dashboard(store), Access(token), built_page(folder)), base_url="http://127.0.0.1:7400", raise_server_exceptions=False
    )
