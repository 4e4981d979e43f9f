from __future__ import annotations

import math
from collections.abc import Iterator

import dashboard_store
import pytest
from dashboard_site import Site, make_client


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    store, keys = dashboard_store.make_store(tmp_path_factory.mktemp("site") / "runs")
    with make_client(store, tmp_path_factory.mktemp("page") / "static") as client:
        yield Site(store, keys, client)


@pytest.fixture
def always_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every request scan the store."""
    monkeypatch.setattr("trainmaster.dashboard.live_table.PERIOD", 0.0)
    monkeypatch.setattr("trainmaster.dashboard.live_table._MAX_SHARE", math.inf)
