"""Runs that are taken up from the store, where `***` stands for their secrets; and what a manager's own texts show of secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster import Config, ConfigBase, Manager, configclass
from trainmaster.config.secrets import Mask
from trainmaster.errors import ConfigError, SettingError
from trainmaster.manager.run_log import RunLog
from trainmaster.manager.run_writer import RunWriter
from trainmaster.store import Store

CONFIG = {"lr": 0.1, "api_key": "canary-one", "hub": {"password": "canary-two"}, "db": "pg://me:canary3@host/runs"}
VARIABLES = {"API_KEY": "canary-one", "PASSWORD": "canary-two", "DB": "pg://me:canary3@host/runs"}


class Counting(Manager):
    """An epoch is nothing; what it was given is kept."""

    seen: list[Any] = []

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.seen.append(self.config)

    def train(self) -> None: ...

    def eval(self) -> dict[str, Any]:
        return {"loss_test": 1.0}


@configclass
class Login(ConfigBase):
    password: str = ""


@configclass
class Typed(ConfigBase):
    api_token: str
    login: Login
    logins: list[Login]

    def problems(self) -> Any:
        if self.api_token == "***":
            yield "api_token", "is no token"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Counting, "seen", [])
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return str(tmp_path)


def trained(store: str, config: Any, defaults: Any = None) -> str:
    manager = Counting(store, defaults, verbose=False)
    manager.process(config, num_epochs=1)
    return manager.key


def test_a_run_without_its_secrets_is_refused_before_it_begins(store: str) -> None:
    key = trained(store, CONFIG)
    manager = Counting(store, verbose=False)
    with pytest.raises(SettingError) as error:
        manager.process(manager.configs[key], num_epochs=2)
    assert str(error.value).splitlines() == [
        "the config lacks secrets: `api_key`, `hub.password`, `db`",
        "  why     the values of secrets are not stored, and this config came from the store",
        "  try     set API_KEY, PASSWORD, DB in the environment, or give the whole config again",
    ]
    assert manager.store.run(key).attempts() == [1]


def test_the_environment_gives_the_secrets_back(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = trained(store, CONFIG)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    manager = Counting(store, verbose=False)
    manager.process(manager.configs[key], num_epochs=2)
    assert manager.stats[key]["epoch"] == 2
    assert Counting.seen[-1] == CONFIG


def test_a_variable_that_would_make_another_run_is_not_taken(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = trained(store, {"db": CONFIG["db"]})
    monkeypatch.setenv("DB", "pg://me:canary3@other/runs")
    manager = Counting(store, verbose=False)
    with pytest.raises(SettingError) as error:
        manager.process(manager.configs[key], num_epochs=2)
    stored = str(manager.configs[key].db)
    assert str(error.value).splitlines() == [
        "the config lacks a secret: `db`",
        "  why     the values of secrets are not stored, and this config came from the store",
        f"          DB is set, but does not fit what is stored for `db`: {stored}",
        "  try     set DB in the environment, or give the whole config again",
    ]


def test_the_defaults_of_the_manager_give_the_secrets_back(store: str) -> None:
    key = trained(store, {"lr": 0.1}, CONFIG)
    manager = Counting(store, CONFIG, verbose=False)
    manager.process(manager.configs[key], num_epochs=2)
    assert Counting.seen[-1] == CONFIG


def test_a_typed_config_gets_its_secrets_before_it_is_checked(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Typed(api_token="canary-one", login=Login(password="canary-two"), logins=[Login(password="canary-two")])
    key = trained(store, config, Typed)
    manager = Counting(store, Typed, verbose=False)
    with pytest.raises(ConfigError, match="is no token"):
        manager.process(manager.configs[key], num_epochs=2)
    monkeypatch.setenv("API_TOKEN", "canary-one")
    monkeypatch.setenv("PASSWORD", "canary-two")
    manager.process(manager.configs[key], num_epochs=2)
    assert Counting.seen[-1] == config


def test_a_batch_of_stored_configs_is_refused_too(store: str) -> None:
    key = trained(store, CONFIG)
    manager = Counting(store, verbose=False)
    result = manager.batch([manager.configs[key]], num_epochs=2, max_errors=1)
    assert "the config lacks secrets" in str(result.failed)


def test_a_run_can_be_looked_at_without_its_secrets(store: str) -> None:
    key = trained(store, CONFIG)
    assert Counting(store, verbose=False).fetch(key).config.api_key == "***"


def test_the_whole_config_given_again_goes_on_with_the_run(store: str) -> None:
    key = trained(store, CONFIG)
    assert trained(store, {**CONFIG, "api_key": "a new one"}) == key


def test_texts_for_a_run_and_its_mirrors_have_no_secret() -> None:
    rows: list[dict[str, Any]] = []
    mirrored: list[Any] = []
    writer = RunWriter()
    writer.hide(Mask(["canary"]))
    writer.append_to(rows.append)
    writer.mirror(lambda *each: mirrored.append(each))
    writer.add_text("note", "a canary", 3)
    assert [row["text"] for row in rows] == ["a ***"]
    assert mirrored == [("note", "a ***", 3)]


def test_the_end_of_a_log_is_not_lost_though_it_began_like_a_secret() -> None:
    store = Store(None)
    key = store.configs.add({"x": 1})
    with store.attempt(key, "test") as attempt:
        attempt.hide({"api_key": "canary"})
        with RunLog(attempt) as log:
            for text in ("one can", "ary two", " can"):
                log.write(text)
        path = attempt.run.path(1, "log")
    assert store.files.read(path) == b"one *** two can"


def test_a_config_object_is_left_as_it_was_given(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "canary-one")
    config = Config({"api_key": "***"})
    assert Counting(store, verbose=False).get_config(config).api_key == "canary-one"
    assert config.api_key == "***"
