"""The dashboard shows the verdicts and the parameter importance that the analysis computes."""

from __future__ import annotations

from pathlib import Path

import dashboard_store
import pytest
import toy_study
from dashboard_site import Site, make_client

from trainmaster.store import Store

pytest.importorskip("scipy")


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a store with a supported hypothesis and an ablation of three parts."""
    folder = tmp_path_factory.mktemp("studied")
    manager = toy_study.Toy(folder / "runs", verbose=False)
    toy_study.hypothesis("true").test(manager)
    toy_study.ablation().run(manager)
    return folder


def test_a_verdict_with_its_pairs_and_boundary(studied: Path, tmp_path: Path) -> None:
    (found,) = make_client(Store(studied / "runs"), tmp_path / "static").get("/api/v1/verdicts").json()["hypotheses"]
    assert (found["name"], found["state"], found["error"], found["margin"]) == ("true", "supported", "", 0.005)
    assert found["claim"] == "act=gelu has a higher accuracy than act=relu by more than 0.005"
    assert found["low"] > found["margin"]
    pair = found["pairs"][0]
    assert pair["difference"] == pytest.approx(pair["a"] - pair["b"])
    assert found["looks"][-1]["t"] >= found["looks"][-1]["critical"]


def test_the_contributions_of_an_ablation(studied: Path, tmp_path: Path) -> None:
    (found,) = make_client(Store(studied / "runs"), tmp_path / "static").get("/api/v1/verdicts").json()["ablations"]
    by_part = {each["part"]: each["verdict"] for each in found["contributions"]}
    assert (by_part["helps"], by_part["hurts"], found["missing"]) == ("helps", "hurts", [])


def test_a_damaged_plan_does_not_hide_the_others(studied: Path, tmp_path: Path) -> None:
    folder = studied / "runs" / "sweeps" / "broken"
    folder.mkdir()
    (folder / "hypothesis.json").write_text("{")
    found = make_client(Store(studied / "runs"), tmp_path / "static").get("/api/v1/verdicts").json()["hypotheses"]
    assert [(each["name"], bool(each["error"])) for each in found] == [("broken", True), ("true", False)]


def test_importance_has_a_bar_for_the_seed(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    store = Store(tmp_path / "runs")
    for number in range(24):
        dashboard_store.add_run(store, {"lr": 0.1 * (1 + number % 6), "idle": number % 2, "seed": number // 6})
    client = make_client(store, tmp_path / "static")
    found = client.get("/api/v1/importance", params={"metric": "valid/loss"}).json()
    assert max(found["shares"], key=found["shares"].get) == "lr"
    assert "seed" in found["shares"]


def test_importance_of_few_runs_is_refused(site: Site) -> None:
    assert "cannot be computed" in site.get("importance", 400, metric="valid/loss")["error"]
