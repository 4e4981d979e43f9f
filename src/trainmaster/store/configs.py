"""The archive of configs: each config once, under a key that is the start of its hash."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterable, Iterator
from typing import Any

from trainmaster.config import Config, ConfigBase, canonical
from trainmaster.config.identity import strict
from trainmaster.config.paths import MAX_BYTES, dotted, leaves
from trainmaster.config.plain import plain
from trainmaster.config.secret_fields import (
    config_secrets,
    credentials_in,
    has_credential,
    is_like_credential,
    masked_config,
    may_hide_secrets,
)
from trainmaster.config.secrets import Mask, secret_values
from trainmaster.errors import ConfigError, Problem, StoreDamagedError, UnknownRunError, did_you_mean
from trainmaster.store.conditions import as_given
from trainmaster.store.files import Files
from trainmaster.store.keys import LENGTHS, check_key, config_path, is_key
from trainmaster.store.record import Members, Record, damaged, parse_record, record_bytes

_MEMBERS: Members = {"hash": str, "config": dict}


class ConfigArchive:
    """Configs by key, like a dict: `configs[key]`, `key in configs`, `for key in configs`, `len(configs)`.

    >>> from trainmaster.store import Store
    >>> configs = Store(None).configs
    >>> key = configs.add({"arch": "ResNet18", "lr": 0.1})
    >>> configs.add({"lr": 0.1, "arch": "ResNet18"}) == key
    True
    >>> configs[key].arch
    'ResNet18'
    """

    def __init__(self, files: Files) -> None:
        self._files = files

    # ---- adding and finding

    def add(self, config: Any) -> str:
        """The key of `config`, which is stored if it is new. Costs the same with 10 and with 100,000 configs."""
        identity, full = _identity(config)
        return self._find(full) or self._create(full, _record_of(config, identity, full, _credentials()))

    def add_record(self, record: Record, data: bytes) -> str:
        """The key of a config that comes as a checked record of another store."""
        return self._find(record["hash"]) or self._create(record["hash"], data)

    def _create(self, full: str, data: bytes) -> str:
        for key in (full[:length] for length in LENGTHS):
            try:
                self._files.create(config_path(key), data)
                return key
            except FileExistsError:  # another config begins alike, or somebody else has just stored this one
                if self._is_at(key, full):
                    return key
        raise StoreDamagedError(f"the config with the hash {full} is stored as another one")  # all 64 digits alike: nobody has seen that

    def add_many(self, configs: Iterable[Any]) -> list[str]:
        """The keys of many configs, which are stored with one sync for all of them."""
        keys: list[str] = []
        taken: dict[str, str] = {}
        again: list[tuple[int, Any]] = []
        stored: dict[str, set[str]] = {}  # by folder, listed once each
        known = _credentials()

        def records() -> Iterator[tuple[str, bytes]]:
            for number, config in enumerate(configs):
                identity, full = _identity(config)
                folder = full[:2]
                if folder not in stored:
                    stored[folder] = set(self._files.names(f"configs/{folder}"))
                key = full[: LENGTHS[0]]
                keys.append(key)
                is_known = any(f"{full[:length]}.json" in stored[folder] for length in LENGTHS)
                if is_known or taken.get(key, full) != full:
                    again.append((number, config))
                elif key not in taken:
                    taken[key] = full
                    yield config_path(key), _record_of(config, identity, full, known)

        existing = self._files.create_many(records())
        for number, config in again:  # stored before, or two that begin alike
            keys[number] = self.add(config)
        for path in existing:  # stored meanwhile by somebody else, as the same config or as another one
            key = path.rpartition("/")[2].removesuffix(".json")
            if not self._is_at(key, taken[key]):
                raise StoreDamagedError(f"another config took the key {key} at this very moment", hint="add them again")
        return keys

    def get_key(self, config: Any) -> str | None:
        """The key of `config` if it is stored, else None."""
        return self._find(_identity(config)[1])

    def _find(self, full: str) -> str | None:
        return next((full[:length] for length in LENGTHS if self._is_at(full[:length], full)), None)

    def _is_at(self, key: str, full: str) -> bool:
        try:
            return bool(self.record(key)["hash"] == full)
        except FileNotFoundError:
            return False

    # ---- like a dict

    def record(self, key: str) -> Record:
        """What is stored for a key, as plain values, checked; `FileNotFoundError` where there is nothing."""
        path = config_path(check_key(key))
        return check_config(self._files.read(path), path, key)

    def __getitem__(self, key: str) -> Config:
        try:
            record = self.record(key)
        except FileNotFoundError:
            close = did_you_mean(key, (name.removesuffix(".json") for name in self._files.names(f"configs/{key[:2]}")))
            raise UnknownRunError(f"no config has the key {key}", hint=close or "`configs.keys()` has all keys") from None
        return config_of(record["config"], key)

    def __setitem__(self, key: str, config: Any) -> None:
        _, full = _identity(config)
        if not full.startswith(check_key(key)):
            raise ConfigError(f"the key of this config is {full[:8]}, not {key}", hint="`configs.add(config)` finds the key itself")
        self.add(config)

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self._files.has(config_path(str(key)))

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if check_key(key) in self else default

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """All keys, folder by folder, in random order: workers that go through them do not meet at every step."""
        folders = [name for name in self._files.names("configs") if len(name) == 2]
        random.SystemRandom().shuffle(folders)
        for folder in folders:
            names = [name.removesuffix(".json") for name in self._files.names(f"configs/{folder}") if name.endswith(".json")]
            yield from (name for name in names if is_key(name) and name.startswith(folder))

    def marks(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """All keys, each with something that changes when its file does."""
        for folder in self._files.names("configs"):
            for name, mark in self._files.marks(f"configs/{folder}").items() if len(folder) == 2 else ():
                key = name.removesuffix(".json")
                if is_key(key) and key.startswith(folder) and key != name:
                    yield key, mark

    def values(self) -> Iterator[Config]:
        return (self[key] for key in self)

    def items(self) -> Iterator[tuple[str, Config]]:
        return ((key, self[key]) for key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True


def check_config(data: bytes, path: str, key: str) -> Record:
    """The record of a config, whose key must be the start of its hash, and whose hash that of its identity."""
    record = parse_record(data, path, _MEMBERS)
    text = _sorted(record.get("identity", record["config"]))
    full = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if record["hash"] != full or not full.startswith(key):
        raise damaged(path, f"its config has the key {full[: len(key)]}, and its name says {key}: one of them was edited")
    if "identity" in record and not _is_identity(record, key):
        raise damaged(path, "its config and its identity differ: one of them was edited")
    return record


def _is_identity(record: Record, key: str) -> bool:
    """Whether the identity in a record is that of the config: exactly, or if its class is not here to ask, as far as both say something."""
    if "class" in record:
        return _agree(record["identity"], record["config"])
    try:
        return canonical(config_of(record["config"], key)) == _sorted(masked_config(record["identity"]))
    except ConfigError:
        return False


def _agree(identity: Any, config: Any) -> bool:
    if isinstance(identity, dict) and isinstance(config, dict):
        return all(_agree(value, config[key]) for key, value in identity.items() if key in config)
    if isinstance(identity, list) and isinstance(config, list):
        return len(identity) == len(config) and all(map(_agree, identity, config))
    return bool(identity == config)


def config_of(tree: dict[str, Any], key: str) -> Config:
    """The config of a stored tree, with every value that was stored."""
    try:
        return Config(as_given(tree))
    except (ConfigError, ValueError) as error:
        raise damaged(config_path(key), f"it is no config: {error}") from error


def _identity(config: Any) -> tuple[str, str]:
    """The canonical form of a config, and its hash."""
    text = canonical(config)
    return text, hashlib.sha256(text.encode()).hexdigest()


def _credentials() -> list[str]:
    """The secrets of the environment that stand nowhere by accident."""
    return [value for value in secret_values(os.environ) if is_like_credential(value)]


def _record_of(config: Any, identity: str, full: str, known: list[str]) -> bytes:
    """The record of a config: all its values but its secrets, and the identity where that is another thing."""
    is_typed = isinstance(config, ConfigBase)
    tree = values = strict(config.to_dict() if is_typed else plain(config))
    text = _sorted(tree)
    if may_hide_secrets(text):
        tree = masked_config(values)
        text = _sorted(tree)
    _refuse_secrets(values, tree, f"{text}{identity}", known)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"a config of {len(text):,} bytes cannot be stored: {MAX_BYTES:,} are the most")
    members: dict[str, Any] = {"hash": full, "config": tree}
    if text != identity:
        members["identity"] = json.loads(identity)
    if is_typed:
        members["class"] = f"{type(config).__module__}.{type(config).__qualname__}"
    return record_bytes(members)


def _refuse_secrets(values: Any, tree: Any, text: str, known: list[str]) -> None:
    """Raise if what would be stored still has a credential: under a name that does not tell, or that of another field or variable."""
    paths = credentials_in(tree) if has_credential(tree) else []
    found = [Problem(dotted(path), "looks like a credential, and its name does not say so") for path in paths]
    if tree is not values:
        known = [*known, *filter(is_like_credential, config_secrets(values))]
    if known and (mask := Mask(known)).is_in(text):
        where = [(key, value) for key, value in leaves(tree, into_lists=True) if isinstance(value, str) and mask.is_in(value)]
        found += [Problem(key, f"holds the secret of {_owner(value)}") for key, value in where or [("the config", text)]]
    if found:
        raise ConfigError.of("the config", found, hint="values are stored; give it a name such as `api_key`, and `***` is stored for it")


def _owner(text: str) -> str:
    """Whose secret a text has in it."""
    names = [name for name, value in os.environ.items() if Mask(secret_values({name: value})).is_in(text)]
    return f"the environment variable {names[0]}" if names else "another field"


_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
