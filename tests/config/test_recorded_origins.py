"""A run records where its config values came from, and the record never contains a secret."""

from __future__ import annotations

from pathlib import Path

from trainmaster.config import Config, ConfigBase, Grid, Secret, configclass
from trainmaster.config.config import from_store, with_origins
from trainmaster.config.recorded_origins import adopt_origins, origin_at, recorded_origins


@configclass
class Hub(ConfigBase):
    token: Secret[str] = ""
    name: str = "a"


@configclass
class Run(ConfigBase):
    lr: float = 0.1
    sizes: list[int] = [1]
    hub: Hub = {}


def test_values_that_were_filled_in_are_defaults() -> None:
    config = Config({"lr": 0.2})
    config.fill({"lr": 0.1, "model": {"width": 8}})
    assert recorded_origins(config, "0123abcd") == {"lr": "set in code"}
    assert config.origin("model.width") == "default"


def test_a_filled_in_value_of_a_file_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "defaults.yaml").write_text("model:\n  width: 8\n")
    config = Config()
    config.fill(tmp_path / "defaults.yaml")
    assert str(recorded_origins(config, "0123abcd")["model.width"]).endswith("defaults.yaml:2:3")  # type: ignore[index]


def test_a_typed_config_records_only_what_was_given() -> None:
    assert recorded_origins(Run().override("sizes=[64]"), "0123abcd") == {"sizes": "override sizes=[64]"}


def test_a_typed_config_takes_the_origins_of_the_values_it_was_built_from() -> None:
    values = with_origins({"lr": 0.3, "hub": {"name": "b"}}, {"lr": "sweep", "hub.name": "a.yaml:3:1"})
    assert recorded_origins(adopt_origins(Run(**values.asdict()), values), "0123abcd") == {"lr": "sweep", "hub.name": "a.yaml:3:1"}


def test_a_value_chosen_from_several_comes_from_the_sweep_and_a_single_one_does_not() -> None:
    assert recorded_origins(Grid({"lr": [0.1, 0.2], "depth": [3]})[0], "0123abcd") == {"lr": "sweep", "depth": "set in code"}


def test_a_run_that_is_resumed_from_its_stored_config_records_nothing() -> None:
    stored = from_store({"lr": 0.1}, (), "0123abcd")
    assert recorded_origins(stored, "0123abcd") is None
    assert recorded_origins(stored, "99999999") == {"lr": "run 0123abcd"}


def test_the_value_of_a_secret_is_not_recorded() -> None:
    typed = Run().override("hub.token=short", "hub.name=b")
    assert recorded_origins(typed, "0123abcd") == {"hub.token": "override hub.token=***", "hub.name": "override hub.name=b"}
    whole = Run().override("hub={token: short, name: b}")
    assert "short" not in str(recorded_origins(whole, "0123abcd"))


def test_a_value_inside_a_recorded_group_has_the_origin_of_the_group() -> None:
    origins = {"sizes": "override sizes=[1]", "model": "a.yaml:1:1"}
    found = [origin_at(origins, key) for key in ("sizes", "model.depth.first", "lr")]
    assert found == ["override sizes=[1]", "a.yaml:1:1", "default"]
