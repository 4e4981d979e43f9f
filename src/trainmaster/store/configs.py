"""The archive of configs. Each config is stored once, under a key that consists of the first digits of its hash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from trainmaster.config import Config, ConfigBase, canonical, group_of
from trainmaster.config.config import from_store
from trainmaster.config.declared_secrets import declared_secrets, masked_config, refuse_undeclared, secret_texts
from trainmaster.config.identity import hash_of, to_strict_json
from trainmaster.config.masking import Mask, secret_values
from trainmaster.config.paths import MAX_BYTES, leaves
from trainmaster.config.scheduler_config import step_when_in_identity
from trainmaster.config.secret_patterns import is_like_credential
from trainmaster.config.seed import replicate_key
from trainmaster.config.to_plain import is_same
from trainmaster.errors import ConfigError, Problem, StoreDamagedError, UnknownRunError, did_you_mean
from trainmaster.store.checksummed_json import Members, Record, check_members, damaged, parse_record, record_bytes
from trainmaster.store.dict_filter import restore_floats
from trainmaster.store.files import Files
from trainmaster.store.keys import LENGTHS, check_key, config_path, is_key, stored_keys

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

    def __init__(self, files: Files, remove: Callable[[str], None]) -> None:
        self._files, self._remove = files, remove

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(vars(self).get('_files'), 'root', None)!r})"

    # ---- adding and finding

    def add(self, config: Any, public: Collection[str] = (), identity: str | None = None) -> str:
        """Store `config` if it is new, and return its key.

        The time this takes does not depend on how many configs are stored.

        Raise an error if a text value looks like a secret and is not declared as one, unless its key is in `public`. `identity` is the
        canonical form of the config, if the caller has already computed it.
        """
        identity = canonical(config) if identity is None else identity
        full = hash_of(identity)
        return self._find(full) or self._create(full, _record_of(config, identity, full, _credentials(), public))

    def add_record(self, record: Record, data: bytes) -> str:
        """Store a config record that was copied from another store and checked. Return its key."""
        return self._find(record["hash"]) or self._create(record["hash"], data)

    def _create(self, full: str, data: bytes) -> str:
        for key in (full[:length] for length in LENGTHS):
            try:
                self._files.create(config_path(key), data)
                return key
            except FileExistsError:  # another config has the same first digits, or another process has just stored this one
                if self._is_at(key, full):
                    return key
        raise StoreDamagedError(f"the config with the hash {full} is stored as another one")  # a SHA-256 collision

    def add_many(self, configs: Iterable[Any], public: Collection[str] = ()) -> list[str]:
        """Store many configs and return their keys.

        All configs are synced to disk together, which is much faster than calling `add` for each one.
        """
        keys: list[str] = []
        hashes: dict[str, str] = {}  # the hashes of the new configs, by key
        again: list[tuple[int, Any]] = []
        stored: dict[str, set[str]] = {}  # the names in each folder, listed once
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
                if is_known or hashes.get(key, full) != full:
                    again.append((number, config))
                elif key not in hashes:
                    hashes[key] = full
                    yield config_path(key), _record_of(config, identity, full, known, public)

        existing = self._files.create_many(records())
        for number, config in again:  # these are already stored, or their hashes start with the same digits as another config's hash
            keys[number] = self.add(config, public)
        for path in existing:  # another process stored a config under the same key in the meantime
            key = path.rpartition("/")[2].removesuffix(".json")
            if not self._is_at(key, hashes[key]):
                raise StoreDamagedError(f"another process has just stored another config under the key {key}", hint="add the configs again")
        return keys

    def get_key(self, config: Any) -> str | None:
        """Return the key of `config` if it is stored, otherwise None."""
        return self._find(_identity(config)[1])

    def key_for(self, config: Any) -> str:
        """Return the key of `config` if it is stored, otherwise the key it would get."""
        full = _identity(config)[1]
        free = (full[:length] for length in LENGTHS if full[:length] not in self)
        return self._find(full) or next(free, full)

    def is_extended_by(self, key: str, config: Any) -> bool:
        """Return whether `config` contains every value in the identity of a stored config. `config` may have additional values."""
        record = self.record(key)
        if "class" in record and not isinstance(config, ConfigBase):
            return False
        return _holds(restore_floats(json.loads(canonical(config))), record.get("identity", record["config"]))

    def _find(self, full: str) -> str | None:
        return next((full[:length] for length in LENGTHS if self._is_at(full[:length], full)), None)

    def _is_at(self, key: str, full: str) -> bool:
        try:
            return bool(self.record(key)["hash"] == full)
        except FileNotFoundError:
            return False

    # ---- like a dict

    def record(self, key: str) -> Record:
        """Read and check the record of a config. Its trees contain NaN and infinities as floats.

        Raise `FileNotFoundError` if there is no such record.
        """
        return _parse(self._files.read(config_path(check_key(key))), key)

    def records(self, keys: Iterable[str]) -> Iterator[tuple[str, Record]]:
        """Yield these keys with their records, in any order. Records that are missing or damaged, or cannot be read, are left out."""
        folders: dict[str, list[str]] = {}
        for key in keys:
            folders.setdefault(key[:2], []).append(f"{key}.json")
        for folder, names in folders.items():
            for name, data in self._files.read_many(f"configs/{folder}", names):
                key = name.removesuffix(".json")
                try:
                    record = _parse(data, key)
                except StoreDamagedError:
                    continue
                yield key, record

    def __getitem__(self, key: str) -> Config:
        try:
            record = self.record(key)
        except FileNotFoundError:
            raise self._unknown(key) from None
        return config_of(record["config"], key, record.get("secrets", ()))

    def require(self, key: str) -> None:
        """Raise `UnknownRunError` if no config has this key."""
        if check_key(key) not in self:
            raise self._unknown(key)

    def _unknown(self, key: str) -> UnknownRunError:
        similar = did_you_mean(key, (name.removesuffix(".json") for name in self._files.names(f"configs/{key[:2]}")))
        return UnknownRunError(f"no config has the key {key}", hint=similar or "`configs.keys()` has all keys; `configs.add` adds a config")

    def __setitem__(self, key: str, config: Any) -> None:
        _, full = _identity(config)
        if not full.startswith(check_key(key)):
            raise ConfigError(f"the key of this config is {full[:8]}, not {key}", hint="`configs.add(config)` computes the key")
        self.add(config)

    def __contains__(self, key: object) -> bool:
        return is_key(key) and self._files.has(config_path(str(key)))

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - this is `get`

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a config and all records of its run, and return the config. Raise an error if a process holds the run."""
        if default and key not in self:
            return default[0]
        config = self[key]
        self._remove(key)
        return config

    def __iter__(self) -> Iterator[str]:
        return self.keys()

    def keys(self) -> Iterator[str]:
        """Yield all keys, in random order."""
        return stored_keys(self._files, "configs")

    def marks(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield each key with the fingerprint of its file, a value that changes whenever the file changes."""
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


def _parse(data: bytes, key: str) -> Record:
    path = config_path(key)
    record = check_config(data, path, key)
    if b'".float"' in data:
        try:
            trees: Record = {name: restore_floats(record[name]) for name in ("config", "identity") if name in record}
        except (ValueError, TypeError) as error:
            raise damaged(path, f"it is not a config: {error}") from error
        record |= trees
        check_members(record, path, _MEMBERS)
    return record


def check_config(data: bytes, path: str, key: str) -> Record:
    """Parse and check the record of a config. Its hash must start with the key and match the config's canonical form."""
    record = parse_record(data, path, _MEMBERS)
    text = _sorted(record.get("identity", record["config"]))
    full = hash_of(text)
    if record["hash"] != full or not full.startswith(key):
        raise damaged(path, f"its config has the key {full[: len(key)]}, but its name is {key}: one of them was edited")
    secrets = record.get("secrets", [])
    if not isinstance(secrets, list) or not all(isinstance(each, str) for each in secrets):
        raise damaged(path, "its list of secrets is invalid")
    if "identity" in record and not _is_identity(record, key):
        raise damaged(path, "its config and its identity differ: one of them was edited")
    return record


def _is_identity(record: Record, key: str) -> bool:
    """Return whether the identity (the values from which the key was computed) matches the config in the same record.

    For a typed config, only keys that occur in both the identity and the config are compared.
    """
    if "class" in record:
        return _agree(record["identity"], record["config"])
    try:
        config = config_of(restore_floats(record["config"]), key, record.get("secrets", ()))
        return _sorted(record["identity"]) == canonical(config)
    except (ConfigError, ValueError, TypeError):
        return False


def _agree(identity: Any, config: Any) -> bool:
    if isinstance(identity, dict) and isinstance(config, dict):
        return all(_agree(value, config[key]) or _is_default(key, value, config) for key, value in identity.items() if key in config)
    if isinstance(identity, list) and isinstance(config, list):
        return len(identity) == len(config) and all(map(_agree, identity, config))
    return bool(identity == config)


def _is_default(key: str, value: Any, config: dict[str, Any]) -> bool:
    """Return whether the config contains None for a key, and `value` is the default that replaced it in the config's identity."""
    return key == "step_when" and config[key] is None and bool(value == step_when_in_identity(str(config.get("name")), None))


def _holds(tree: Any, part: Any) -> bool:
    """Return whether `tree` contains all values in `part`."""
    if isinstance(tree, dict) and isinstance(part, dict):
        return all(key in tree and _holds(tree[key], value) for key, value in part.items())
    return is_same(tree, part)


def config_of(tree: dict[str, Any], key: str, secrets: Iterable[str] = ()) -> Config:
    """Return the config that was stored as `tree`. `secrets` lists the keys whose values were stored as `***`."""
    try:
        return from_store(tree, secrets, key)
    except (ConfigError, ValueError) as error:
        raise damaged(config_path(key), f"it is not a config: {error}") from error


def _identity(config: Any) -> tuple[str, str]:
    """Return the canonical form of a config and its hash."""
    text = canonical(config)
    return text, hash_of(text)


def _credentials() -> list[str]:
    """Return those secrets in environment variables that are unlikely to occur in other text by accident."""
    return [value for value in secret_values(os.environ) if is_like_credential(value)]


def _record_of(config: Any, identity: str, full: str, known: list[str], public: Collection[str]) -> bytes:
    """Return the record of a config.

    The record contains all values except secrets. If the identity (the values from which the key is computed) differs
    from the config, the record contains the identity too.
    """
    tree = masked_config(config)
    refuse_undeclared(config, public, tree)
    text = _sorted(tree)
    if "NaN" in text or "Infinity" in text:
        tree = to_strict_json(tree)
        text = _sorted(tree)
    secrets = sorted(declared_secrets(config))
    _refuse_values(tree, f"{text}{identity}", [*known, *filter(is_like_credential, secret_texts(config) if secrets else ())], public)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"a config of {len(text):,} bytes cannot be stored: the limit is {MAX_BYTES:,}")
    members: dict[str, Any] = {"hash": full, "config": tree}
    if text != identity:
        members["identity"] = json.loads(identity)
    if secrets:
        members["secrets"] = secrets
    if isinstance(config, ConfigBase):  # only its class knows which fields are replicate fields
        members["group"], members["replicate"] = group_of(config, 64), replicate_key(config, 64)
        members["class"] = f"{type(config).__module__}.{type(config).__qualname__}"
    return record_bytes(members)


def _refuse_values(tree: Any, text: str, known: list[str], public: Collection[str]) -> None:
    """Raise an error if a value to be stored contains a secret from a different field or from an environment variable."""
    if not known or not (mask := Mask(known)).is_in(text):
        return
    where = [(key, value) for key, value in leaves(tree, into_lists=True) if isinstance(value, str) and mask.is_in(value)]
    found = [(key, value) for key, value in where or [("the config", text)] if not any(f"{key}.".startswith(f"{each}.") for each in public)]
    if found:
        problems = [Problem(key, f"contains the secret of {_owner(value)}") for key, value in found]
        raise ConfigError.of("the config", problems, hint="declare it as a secret too, or as `public` if it is not secret")


def _owner(text: str) -> str:
    """Return a description of where the secret in a string comes from."""
    names = [name for name, value in os.environ.items() if Mask(secret_values({name: value})).is_in(text)]
    return f"the environment variable {names[0]}" if names else "another field"


_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode
