"""`ConfigBase`: the base class of typed configs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Self

from trainmaster.config.checks import check_derived, check_values
from trainmaster.config.config_file import write_file
from trainmaster.config.difference import Difference, diff, diff_str
from trainmaster.config.identity import key_of
from trainmaster.config.origins import origin_of
from trainmaster.config.paths import leaves
from trainmaster.config.typed_fields import TypedFields
from trainmaster.config.typed_loading import load_typed
from trainmaster.config.typed_overrides import override_typed
from trainmaster.config.value_table import Row, table, table_html
from trainmaster.config.values import GROUP, IDENTITY, STATEFUL, WHOLE, fields_in, tree_of, value_at
from trainmaster.config.writer import yaml_text
from trainmaster.errors import ConfigError, Problem


class ConfigBase(TypedFields):
    """The base class of typed configs: subclass it, annotate attributes, and decorate the class with `@configclass`.

    Values are checked when a config is built and on every assignment. All problems are reported at once.

    >>> from trainmaster.config import ConfigBase, Stateless, configclass
    >>> @configclass
    ... class Train(ConfigBase):
    ...     lr: float = 0.1
    ...     epochs: Stateless[int] = 10
    >>> Train(lr="1e-3")
    Train(lr=0.001, epochs=10)
    """

    __slots__ = ()

    @classmethod
    def load(cls, path: str | os.PathLike[str], debug: bool = False) -> Self:
        """Load a config from a YAML or JSON file. `origin(key)` then returns the position of the key's value in the file.

        With `debug=True`, missing and invalid values become None, and unknown keys are ignored. A warning is logged for each of them.
        """
        return load_typed(cls, path, is_lenient=debug)  # type: ignore[return-value]

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the config as YAML, or as JSON if the name ends in `.json`. An interrupted write leaves no partial file."""
        write_file(self.to_dict(), path)

    # ---- values by dotted key

    def get_val_with_dot_path(self, path: str) -> Any:
        return self[path]

    def get_type_with_dot_path(self, path: str) -> type:
        """Return the type of the value at `path`."""
        return type(self[path])

    def get_annot_type_with_dot_path(self, path: str) -> Any:
        """Return the annotation of the field at `path`, without a marker such as `Stateless[...]`."""
        config, name, rest = self._owner(path)
        if rest:
            raise ConfigError.of(type(self).__name__, [Problem(path, "is inside the value of a field, so it has no annotation")])
        return config._schema().fields[name].written

    # ---- plain forms

    def to_dict(self, ignore_stateless: bool = False) -> dict[str, Any]:
        """Return the config as nested dicts of plain values, such that `type(config)(**config.to_dict()) == config`."""
        return tree_of(self, STATEFUL if ignore_stateless else WHOLE)

    def flatten(self, ignore_stateless: bool = False) -> dict[str, Any]:
        """Return a dict from dotted keys to plain values. The elements of a list have the keys `name.0`, `name.1`, ..."""
        return dict(leaves(self.to_dict(ignore_stateless), into_lists=True))

    def to_yaml(self, ignore_stateless: bool = False) -> str:
        return yaml_text(self.to_dict(ignore_stateless))

    def to_dot_path(self, ignore_stateless: bool = False) -> str:
        """Return `flatten()` as YAML."""
        return yaml_text(self.flatten(ignore_stateless))

    # ---- identity and differences

    def identity(self, replicates: bool = True) -> dict[str, Any]:
        """Return the values from which the key is computed: all fields that are part of the identity, by their original names.

        A field declared with `added=True` is left out if its value is the default. `replicates=False` also leaves out the
        fields marked `Replicate[...]`.
        """
        return tree_of(self, IDENTITY if replicates else GROUP)

    @property
    def uid(self) -> str:
        """The full hash of the identity: 64 hex digits."""
        return key_of(self, 64)

    @property
    def key(self) -> str:
        """The first 8 digits of `uid`."""
        return key_of(self)

    def diff(self, other: ConfigBase, ignore_stateless: bool = False) -> list[Difference]:
        """Return each difference as `(path, (type, value), (type, other_value))`. If one config lacks a value, its type is `Missing`."""
        return diff(self.flatten(ignore_stateless), other.flatten(ignore_stateless))

    def diff_str(self, other: ConfigBase, ignore_stateless: bool = False) -> list[str]:
        """Return `diff` as lines of the form `path:(type)old->(type)new`."""
        return diff_str(self.diff(other, ignore_stateless))

    # ---- checks

    def problems(self) -> Iterator[tuple[str, str]]:
        """Override this to check fields against each other: yield `(key, message)` pairs, with dotted keys.

        This method runs when a config is built, frozen or checked. It does not run on assignment, so that you can change
        two related fields one after the other.
        """
        yield from ()

    def check(self) -> None:
        """Check everything that can be checked before training. Subclasses may override this with checks that import torch."""
        check_values(self, lambda nested: nested.check())

    def assert_unambigious(self) -> None:
        """Raise an error if a required `Derived` field has no value yet. (The name is spelled as in the library ablator.)"""
        check_derived(self)

    # ---- overrides and origins

    def override(self, *texts: str) -> Self:
        """Return a copy with overrides such as `train.lr=3e-4` applied and checked. All problems are reported at once.

        To add a key to a free-form group, write `+arguments.momentum=0.9`.
        """
        return override_typed(self, texts)

    def origin(self, key: str) -> str:
        """Return where a value came from: a class default, a position in a file, an override, or the program."""
        config, name, rest = self._owner(key)
        value_at(rest, vars(config)[name], key)  # raises for a key that does not exist
        return origin_of(config, name)

    def describe(self) -> str:
        """Return a table of all values and where they came from."""
        return table(self._rows())

    def _repr_html_(self) -> str:
        return table_html(f"{type(self).__name__} {self.key}", self._rows())

    def _rows(self) -> Iterator[Row]:
        origins = {key: origin_of(owner, field.name) for key, owner, field in fields_in(self)}
        for key, value in self.flatten().items():
            name = key
            while name not in origins:  # `key` is inside the value of a field, or it is the class of a nested config
                name = name.rpartition(".")[0]
            yield key, value, origins[name]
