"""Stored runs contain `***` in place of secrets, whether the manager declares them or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster import Config, ConfigBase, Manager, Secret, configclass, key_of
from trainmaster.config.masking import Mask
from trainmaster.errors import ConfigError, SettingError
from trainmaster.manager.console import RunLog
from trainmaster.manager.run_writer import RunWriter
from trainmaster.store import Store

CONFIG = {"lr": 0.1, "api_key": "canary-one", "hub": {"password": "canary-two"}, "db": "pg://me:canary3@host/runs"}
SECRETS = ("api_key", "hub.password", "db")
VARIABLES = {"API_KEY": "canary-one", "PASSWORD": "canary-two", "DB": "pg://me:canary3@host/runs"}


class Counting(Manager):
    """Trains epochs in which nothing happens, and remembers its configs."""

    seen: list[Any] = []
    secrets = SECRETS

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.seen.append(self.config)

    def train(self) -> None: ...

    def eval(self) -> dict[str, Any]:
        return {"loss_test": 1.0}


@configclass
class Login(ConfigBase):
    password: Secret[str] = ""


@configclass
class Typed(ConfigBase):
    api_token: Secret[str]
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


def trained(store: str, config: Any, defaults: Any = None, **settings: Any) -> str:
    manager = Counting(store, defaults, verbose=False, **settings)
    manager.process(config, num_epochs=1)
    return manager.key


def test_a_run_without_its_secrets_is_refused_before_it_starts(store: str) -> None:
    key = trained(store, CONFIG)
    manager = Counting(store, verbose=False)
    with pytest.raises(SettingError) as error:
        manager.process(manager.configs[key], num_epochs=2)
    assert str(error.value).splitlines() == [
        "the config lacks secrets: `api_key`, `db`, `hub.password`",
        "  why     the values of secrets are not stored, and this config came from the store",
        "  try     set API_KEY, DB, PASSWORD in the environment, or pass the complete config again",
    ]
    assert manager.store.run(key).attempts() == [1]


def test_secrets_are_read_from_the_environment(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = trained(store, CONFIG)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    manager = Counting(store, verbose=False)
    manager.process(manager.configs[key], num_epochs=2)
    assert manager.stats[key]["epoch"] == 2
    assert Counting.seen[-1] == CONFIG


def test_secrets_are_read_from_the_defaults_of_the_manager(store: str) -> None:
    key = trained(store, {"lr": 0.1}, CONFIG)
    manager = Counting(store, CONFIG, verbose=False)
    manager.process(manager.configs[key], num_epochs=2)
    assert Counting.seen[-1] == CONFIG


def test_a_typed_config_gets_its_secrets_before_validation(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Typed(api_token="canary-one", login=Login(password="canary-two"), logins=[Login(password="canary-two")])
    key = trained(store, config, Typed, secrets=())
    manager = Counting(store, Typed, verbose=False, secrets=())
    with pytest.raises(ConfigError, match="is no token"):
        manager.process(manager.configs[key], num_epochs=2)
    monkeypatch.setenv("API_TOKEN", "canary-one")
    monkeypatch.setenv("PASSWORD", "canary-two")
    manager.process(manager.configs[key], num_epochs=2)
    assert Counting.seen[-1] == config


def test_a_batch_of_stored_configs_without_secrets_is_refused(store: str) -> None:
    key = trained(store, CONFIG)
    manager = Counting(store, verbose=False)
    result = manager.batch([manager.configs[key]], num_epochs=2, max_errors=1)
    assert "the config lacks secrets" in str(result.failed)


def test_a_run_can_be_read_without_its_secrets(store: str) -> None:
    key = trained(store, CONFIG)
    assert Counting(store, verbose=False).fetch(key).config.api_key == "***"


def test_a_key_named_secret_is_an_ordinary_value_unless_it_is_declared(store: str) -> None:
    manager = Counting(store, verbose=False)
    manager.process({"secret": "cat"}, num_epochs=1)
    manager.process({"secret": "dog"}, num_epochs=1)
    assert [config["secret"] for config in Counting.seen] == ["cat", "dog"]
    assert sorted(config["secret"] for config in manager.configs.values()) == ["cat", "dog"]


def test_a_declared_secret_is_not_part_of_the_identity_and_is_not_stored(store: str) -> None:
    key = trained(store, CONFIG)
    assert key == key_of({"lr": 0.1})
    assert Counting.seen[-1] == CONFIG
    assert b"canary" not in b"".join(path.read_bytes() for path in Path(store).rglob("*") if path.is_file())


def test_a_manager_and_its_configs_have_the_same_keys(store: str) -> None:
    manager = Counting(store, verbose=False)
    key = trained(store, CONFIG)
    assert key_of(manager.get_config(CONFIG)) == manager.configs.get_key(manager.get_config(CONFIG)) == key


def test_an_override_of_get_config_may_add_a_secret(store: str) -> None:
    class Own(Counting):
        def get_config(self, config: Any = None) -> Any:
            return Config({**super().get_config(config), "api_key": "canary-one"})

    manager = Own(store, verbose=False)
    manager.process({"lr": 0.1}, num_epochs=1)
    assert manager.key == key_of({"lr": 0.1})
    assert manager.configs[manager.key].api_key == "***"


REFUSED = {"lr": 0.2, "password": "canary-one"}


@pytest.mark.parametrize(
    "work",
    [
        lambda manager: manager.process(REFUSED, num_epochs=1),
        lambda manager: manager.batch([{"lr": 0.1}, {"lr": 0.3}, REFUSED], num_epochs=1),
        lambda manager: manager.batch([{"lr": 0.1}, REFUSED], num_epochs=1, max_errors=9),
        lambda manager: manager.sweep({"lr": [0.1, 0.2], "password": ["none", "canary-one"]}, num_epochs=1),
        lambda manager: manager.sweep({"hub": ["main", f"hf_{'a1' * 20}"]}, num_epochs=1, max_errors=9),
    ],
)
def test_an_undeclared_secret_is_refused_before_anything_is_written(store: str, work: Any) -> None:
    with pytest.raises(ConfigError, match=r"looks like a secret(.|\n)*secrets=(.|\n)*public="):
        work(Counting(store, verbose=False))
    assert [str(path) for path in Path(store).rglob("*") if path.is_file() and path.name != "store.json"] == []
    assert Counting.seen == []


def test_an_undeclared_secret_from_a_generator_is_refused_when_it_is_reached(store: str) -> None:
    manager = Counting(store, verbose=False)
    result = manager.batch((each for each in [{"lr": 0.1}, REFUSED]), num_epochs=1, max_errors=9)
    assert (len(result.done), "looks like a secret" in str(result.failed)) == (1, True)
    assert list(manager.configs.values()) == [{"lr": 0.1}]


def test_public_values_are_stored_and_part_of_the_identity(store: str) -> None:
    keys = {trained(store, {"password": text}, public=("password",)) for text in ("swordfish", "open sesame")}
    assert keys == {key_of({"password": "swordfish"}), key_of({"password": "open sesame"})}


def test_a_typed_config_with_a_plain_password_is_refused(store: str) -> None:
    @configclass
    class Plain(ConfigBase):
        password: str = "none"

    with pytest.raises(ConfigError, match=r"annotate it `Secret\[str\]`"):
        trained(store, Plain(password="abc"))
    assert trained(store, Plain(password="abc"), public=("password",)) == key_of(Plain(password="abc"))
    trained(store, Plain())


def test_an_argument_of_the_constructor_overrides_the_class_attribute(store: str) -> None:
    manager = Counting(store, secrets=["hub.password"], verbose=False)
    assert (manager.secrets, manager.public) == (("hub.password",), ())
    assert Counting(store, verbose=False).secrets == SECRETS


@pytest.mark.parametrize("name", ["secrets", "public"])
@pytest.mark.parametrize("value", ["api_key", ("a..b",), (5,), 7])
def test_invalid_names_of_keys_are_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"{name}=.*expected dotted keys"):
        Counting(None, **{name: value})


def test_secrets_of_a_typed_config_are_declared_in_its_class() -> None:
    with pytest.raises(SettingError, match=r"(?s)the defaults are a typed config.*annotate fields `Secret\[str\]`"):
        Counting(None, Typed)


def test_passing_the_complete_config_again_resumes_the_run(store: str) -> None:
    key = trained(store, CONFIG)
    assert trained(store, {**CONFIG, "api_key": "a new one"}) == key


def test_secrets_are_masked_in_the_log_of_a_run_and_in_its_mirrors() -> None:
    rows: list[dict[str, Any]] = []
    mirrored: list[Any] = []
    writer = RunWriter()
    writer.hide(Mask(["canary"]))
    writer.append_to(rows.append, lambda: rows)
    writer.mirror(lambda *each: mirrored.append(each))
    writer.add_text("note", "a canary", 3)
    assert [row["text"] for row in rows] == ["a ***"]
    assert mirrored == [("note", "a ***", 3)]


def test_the_end_of_a_log_is_kept_even_if_it_looks_like_the_start_of_a_secret() -> None:
    store = Store(None)
    key = store.configs.add({"x": 1})
    with store.attempt(key, "test") as attempt:
        attempt.hide(["canary"])
        with RunLog(attempt) as log:
            for text in ("one can", "ary two", " can"):
                log.write(text)
        path = attempt.run.path(1, "log")
    assert store.files.read(path) == b"one *** two can"


def test_a_config_object_is_not_modified(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "canary-one")
    config = Config({"api_key": "***"})
    assert Counting(store, verbose=False).get_config(config).api_key == "canary-one"
    assert config.api_key == "***"


def test_a_misspelled_secret_is_refused_before_its_value_is_stored(tmp_path):
    manager = Manager(tmp_path, {"token": "", "lr": 0.1}, secrets=("tokn",), verbose=False)
    with pytest.raises(SettingError, match=r"the config has no `tokn`\n  try     did you mean `token`"):
        manager.process({"token": "abc-123"}, num_epochs=0)
    assert not [path for path in tmp_path.rglob("*.json") if "abc-123" in path.read_text()]
