"""A run records where its config values came from, and the numbers of updates and samples at the end of each epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dashboard_store
import pytest
import torch
from dashboard_site import make_client
from torch import nn

from trainmaster import ConfigBase, Manager, SampleLoss, Supervised, configclass
from trainmaster.cli import main
from trainmaster.config import Grid
from trainmaster.store import Store


@configclass
class Typed(ConfigBase):
    lr: float = 0.1
    width: int = 4


def make_loop(config: Any) -> Supervised:
    """Return a loop with five samples in batches of two, so that each epoch has three updates."""
    data = torch.arange(20.0).reshape(5, 4)
    return Supervised(
        nn.Linear(4, 1), nn.MSELoss(), epochs=2, train_data=[(part, part[:, :1]) for part in data.split(2)], eval_data=[(data, data[:, :1])]
    )


def origins(root: Path, key: str) -> dict[str, str]:
    with make_client(Store(root), root.parent / f"page-{key}") as client:
        return {each["name"]: each["origin"] for each in client.get(f"/api/v1/runs/{key}").json()["config"]}


def test_the_page_says_where_each_value_came_from(tmp_path: Path) -> None:
    root, file = tmp_path / "runs", tmp_path / "a.yaml"
    file.write_text("model:\n  width: 8\n")
    manager = Manager(root, {"lr": 0.1, "model": {"width": 4}, "seed": 0}, make_loop=make_loop, verbose=False)
    manager.process(manager.get_config(file).override("lr=0.2"))
    found = origins(root, manager.key)
    assert found["lr"] == "override lr=0.2"
    assert found["model.width"].endswith("a.yaml:2:3")
    assert found["seed"] == "default"
    (chosen,) = (config for config in Grid({"lr": [0.3, 0.4]}) if config["lr"] == 0.4)
    manager.process(chosen)
    assert origins(root, manager.key)["lr"] == "sweep"


def test_a_typed_config_keeps_the_origins_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("width: 8\n")
    manager = Manager(tmp_path / "runs", Typed, make_loop=make_loop, verbose=False)
    manager.process(str(tmp_path / "a.yaml"))
    found = origins(tmp_path / "runs", manager.key)
    assert (found["lr"], found["width"].endswith("a.yaml:1:1")) == ("default", True)


def test_a_value_of_a_search_names_its_trial(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    manager = Manager(root, {"lr": 0.1, "width": 4, "seed": 0}, make_loop=make_loop, verbose=False)
    manager.search({"lr": [0.2, 0.3]}, trials=1, monitor="valid/loss", base={"width": 8}, sampler="random", name="s")
    (key,) = manager.store.configs.keys()
    assert origins(root, key) == {"lr": "search s, trial 0", "width": "search s", "seed": "default"}


def test_resuming_from_the_store_keeps_what_the_first_attempt_recorded(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    manager = Manager(root, {"lr": 0.1}, make_loop=make_loop, verbose=False)
    manager.process(manager.get_config().override("lr=0.2"), num_epochs=1)
    again = Manager(root, {"lr": 0.1}, make_loop=make_loop, verbose=False)
    again.process(again.configs[manager.key], num_epochs=2)
    assert len(again.store.run(manager.key).attempts()) == 2
    assert origins(root, manager.key) == {"lr": "override lr=0.2"}


def test_show_prints_where_values_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manager = Manager(tmp_path, {"lr": 0.1, "seed": 0}, make_loop=make_loop, verbose=False)
    manager.process(manager.get_config().override("lr=0.2"))
    assert main(["show", manager.key, "--store", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lr", "0.2", "override", "lr=0.2"] in rows
    assert ["seed", "0", "default"] in rows


def test_a_run_of_an_older_version_has_no_origins(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    key = store.configs.add({"lr": 0.1})
    with store.attempt(key, "process") as attempt:
        attempt.start(None)
        attempt.release("stopped")
    assert origins(tmp_path / "runs", key) == {"lr": None}


def test_curves_of_a_training_are_drawn_by_epoch_update_and_sample(tmp_path: Path) -> None:
    """The second attempt resumes after the first epoch, and continues counting where the first attempt stopped."""
    root = tmp_path / "runs"
    for num_epochs in (1, 2):
        manager = Manager(root, {"lr": 0.1}, make_loop=make_loop, verbose=False)
        manager.process({}, num_epochs=num_epochs)
    with make_client(Store(root), tmp_path / "page") as client:
        for axis, expected in (("step", [0, 1, 2]), ("epoch", [0, 1, 2]), ("update", [0, 3, 6]), ("sample", [0, 5, 10])):
            params = {"keys": manager.key, "metrics": "valid/loss", "axis": axis}
            answer = client.get("/api/v1/curves", params=params).json()
            assert (answer["curves"][0]["x"], answer["missing"]) == (expected, [])


def test_the_hardest_samples_are_a_table(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    manager = Manager(root, {"lr": 0.1}, make_loop=make_loop, verbose=False)
    manager.add_extension("sample_loss", SampleLoss(num_hardest=2))
    manager.process({}, num_epochs=1)
    with make_client(Store(root), tmp_path / "page") as client:
        (table,) = client.get(f"/api/v1/runs/{manager.key}").json()["hardest"]
    assert (table["set"], table["epoch"], table["num_samples"], len(table["hardest"])) == ("valid", 1, 5, 2)
    first, second = table["hardest"]
    assert first["index"] in range(5)
    assert first["loss"] >= second["loss"]


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"set": 3, "hardest": []}', '{"set": "a", "hardest": "b"}', '{"set": "a", "hardest": [1, {}]}']
)
def test_a_file_that_is_not_a_table_of_samples_is_harmless(tmp_path: Path, text: str) -> None:
    store, keys = dashboard_store.make_store(tmp_path / "runs")
    key = keys["0.1-0"]
    folder = tmp_path / "runs" / "previews" / key[:2] / key / "attempt-0001" / "plots"
    folder.mkdir(parents=True)
    (folder / "sample_loss_x.json").write_text(text)
    with make_client(store, tmp_path / "page") as client:
        found = client.get(f"/api/v1/runs/{key}")
    assert found.status_code == 200
    assert all(row.keys() == {"index", "loss"} for table in found.json()["hardest"] for row in table["hardest"])
