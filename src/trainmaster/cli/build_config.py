"""Builds configs, choices for sweeps, and search spaces from `key=value` arguments and config files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from trainmaster.config import Config, ConfigBase, Grid
from trainmaster.config.config import with_origins
from trainmaster.config.overrides import alternatives_text, apply_overrides, part_of_list, suggest_full_keys
from trainmaster.config.paths import dotted
from trainmaster.config.search_space import is_search_space
from trainmaster.errors import ConfigError, Problem, SettingError

if TYPE_CHECKING:
    from trainmaster.manager import Manager


def build_config(manager: Manager, file: str | None, overrides: Sequence[str]) -> Any:
    """Apply a config file and `key=value` arguments to a manager's defaults."""
    values = Config.load(file) if file is not None else Config()
    try:
        config = manager.get_config(values)
    except ConfigError:
        if not isinstance(manager.defaults, type):
            raise
        # The arguments may set required fields of a typed config that the file does not set.
        return manager.complete_config(_overridden(values, overrides, manager.defaults.__name__))
    if isinstance(config, Config) and not config:  # without defaults, any key is accepted
        return manager.complete_config(_overridden(Config(), overrides, "the config"))
    return manager.complete_config(config.override(*overrides))


def _overridden(values: Config, overrides: Sequence[str], name: str) -> Config:
    """Return a free-form config with the overrides applied. Overrides may add keys. The config records the origin of each value."""
    tree, applied = apply_overrides(values.asdict(), overrides, name, takes_any=True)
    origins = {key: values.origin(key) for key in values.flatten()}
    return with_origins(tree, {**origins, **{dotted(each.path): each.origin for each in applied}})


def warn_about_any_key(manager: Manager, words: Sequence[str]) -> None:
    """Print a warning if there are no defaults, because misspelled keys cannot be detected without them."""
    if words and isinstance(manager.defaults, Config) and not manager.defaults:
        print("no defaults: any key is accepted, even a misspelled one")


def build_choices(manager: Manager, words: Sequence[str], file: str | None = None) -> Any:
    """Return the choices of a sweep from a file or from arguments such as `lr=0.1,0.01`.

    All other keys have the values in the config file or, if they are not in the file, their default values.
    """
    from trainmaster.manager.varied_keys import refuse_idle_choices, refuse_invalid_choices, values_to_replace

    seed = int.from_bytes(os.urandom(6))
    values = Config.load(file) if file is not None else Config()
    if len(words) == 1 and "=" not in words[0]:
        if not os.path.exists(words[0]):
            raise SettingError(f"there is no file `{words[0]}`", hint="write choices as `lr=0.1,0.01`, or name a YAML or JSON file")
        chosen = Config.load(words[0])
    else:
        known = values_to_replace(manager, values)
        lists = [f"{key}{equals}{alternatives_text(text)}" for key, equals, text in (word.partition("=") for word in words)]
        takes_any = not known or not (manager.defaults or values)
        _, overrides = apply_overrides(known, lists, "the choices", takes_any, replaced=known, has_choices=True)
        manager.completer.allow_keys(dotted(each.path) for each in overrides if each.is_new)
        origins = {dotted(each.path): f"override {word}" for each, word in zip(overrides, words, strict=True)}
        chosen = with_origins({dotted(each.path): each.value for each in overrides}, origins)
    # a list in the config file is one value, not a list of choices
    flat = values.flatten()
    fixed = with_origins({key: [value] for key, value in flat.items()}, {key: values.origin(key) for key in flat})
    fixed.update(chosen)
    choices = Grid(fixed, seed)
    # mistakes in the choices are reported before anything is trained
    refuse_idle_choices(manager, choices)
    try:
        refuse_invalid_choices(manager, choices)
    except ConfigError as error:
        raise _suggest_groups(error, manager, values) from None
    manager.get_config(choices[0])  # raise any other error from `get_config` now
    return choices


def _suggest_groups(error: ConfigError, manager: Manager, values: Config) -> ConfigError:
    """Suggest `optim.lr` for an unknown key `lr` of a typed config."""
    try:
        config = manager.get_config(values)
    except ConfigError:
        return error
    if not isinstance(config, ConfigBase):
        return error
    rows = {name: text for name, text in error.rows.items() if name != "wrong"}
    return ConfigError.of("the sweep", suggest_full_keys(error.problems, config.to_dict()), **rows)


def build_search(manager: Manager, words: Sequence[str], file: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the search space from a file or from arguments such as `lr=log(1e-5,1e-1)`, and the fixed values."""
    from trainmaster.manager.varied_keys import values_to_replace
    from trainmaster.sweep.space import Space, is_range, parse_space

    values = Config.load(file) if file is not None else Config()
    if len(words) == 1 and "=" not in words[0]:
        searched: dict[str, Any] = {}
        for key, each in _read_space(Config.load(words[0])):
            is_searched = is_search_space(each) or isinstance(each, list) or (isinstance(each, str) and is_range(each))
            (searched if is_searched else values)[key] = each
        return Space.of(searched), values.flatten()
    for before, word in pairwise(["", *words]):
        if "=" not in word:
            hint = part_of_list(before, word) or "write lr='log(1e-5,1e-1)', or name one file and nothing else"
            raise SettingError(f"`{word}` is not a key with a value", hint=hint)
    known = values_to_replace(manager, values)
    space, fixed = parse_space(words, known)
    if space is None:
        raise ConfigError.of("the search space", [Problem("", "has no keys: every key has one value")], hint="lr='log(1e-5,1e-1)'")
    manager.completer.allow_keys(word[1:].partition("=")[0] for word in fixed if word.startswith("+"))
    tree, _ = apply_overrides(values.asdict(), [word.removeprefix("+") for word in fixed], "the config", takes_any=True, replaced=known)
    return space, Config(tree).flatten()


def _read_space(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value in a space file with its dotted key. A mapping that describes a `SearchSpace` is one value."""
    for name, each in tree.items():
        if isinstance(each, dict) and each and not is_search_space(each):
            yield from _read_space(each, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", each
